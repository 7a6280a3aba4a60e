"""The first nodes of a batch, where its graphs stand largest first.

Small graphs take fewer steps than large ones: what is left to do then is at the front.
"""

from __future__ import annotations

from typing import NamedTuple

from pna.adjacency import Adjacency, Rows


class Front(NamedTuple):
    """Graphs of more than `size` nodes stand among the first `nodes`, all of each; no edge leads
    out of these, and they have no more than `edges`."""

    size: int
    nodes: int
    edges: int


def first_nodes(adjacency: Adjacency, nodes: int, edges: int) -> Adjacency:
    """A view of those nodes and of room for so many edges: what lies beyond the last node's
    belongs to none.

    Rows must be short, and their order must hold the first nodes first. `by_degree` then is that
    order: sorted between one front and the next, not over all of them.
    """

    def cut(rows: Rows) -> Rows:
        return Rows(
            rows.indptr[: nodes + 1],
            rows.neighbours[:edges],
            rows.long_rows,
            rows.long_rank[:nodes],
            rows.long_indptr,
            rows.segment_owner,
            rows.order[:nodes],
        )

    incoming = cut(adjacency.incoming)
    return Adjacency(
        incoming=incoming,
        outgoing=cut(adjacency.outgoing),
        edge_ids=adjacency.edge_ids[:edges],
        out_ranks=adjacency.out_ranks[:edges],
        by_degree=incoming.order,
    )
