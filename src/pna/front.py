"""The first nodes of a batch whose graphs are sorted by size, largest first.

Small graphs need fewer steps than large ones. The nodes that need further steps then come first.
"""

from __future__ import annotations

from typing import NamedTuple

from pna.adjacency import Adjacency
from pna.rows import Rows


class Front(NamedTuple):
    """The first `nodes` nodes of a batch. They contain all graphs of more than `size` nodes, no
    edge leads out of them, and they have at most `edges` edges."""

    size: int
    nodes: int
    edges: int


def first_nodes(adjacency: Adjacency, nodes: int, edges: int) -> Adjacency:
    """A view of the first nodes, with `edges` slots. Slots after those of the last node belong to
    no node.

    There must be no long rows, and `order` must have the first nodes first. `by_degree` is that
    order: nodes are sorted by degree between one front and the next, not over all fronts. Degrees
    must be the numbers of edges, by which `order` is sorted.
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
        degree=adjacency.degree[:nodes],
    )
