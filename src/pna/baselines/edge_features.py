"""Edge features in the order of slots, for layers that materialise every message."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.aggregators import take
from pna.population.linears import linear, takes_widths

#: Most rows of a table that is looked up by a product with one-hot rows.
_KINDS = 16


def to_slots(
    edge: Tensor | tuple[Tensor, Tensor],
    adjacency: Adjacency,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return edge features in the order of slots: (edges, …).

    `edge` is (edges, …) in the given order of edges, or a pair (table, index): the index gives the
    row of the table for each edge. `through` is applied to the rows: to those of the table if there
    is one, otherwise to those of the edges.
    """
    if isinstance(edge, Tensor):
        # edge_ids is a permutation, so the gradient of every row has one term: deterministic
        values = edge.index_select(0, adjacency.edge_ids)
        return values if through is None else through(values)
    table, index = edge
    table = table if through is None else through(table)
    kinds = index.index_select(0, adjacency.edge_ids).long()
    if _is_small(table):
        # a product, because its gradient sums in parallel over the many edges that share a row
        every = torch.arange(len(table), device=table.device)
        is_kind = (kinds[:, None] == every).to(table.dtype)
        known = (kinds >= 0) & (kinds < len(table))
        return linear(torch.where(known[:, None], is_kind, torch.nan), table.t())
    return take(table, kinds)


def _is_small(table: Tensor) -> bool:
    """Return whether a one-hot product with the table is cheap, and as exact as float32."""
    is_plain = table.dim() == 2 and not torch.is_autocast_enabled(table.device.type)
    few = is_plain and 0 < len(table) <= _KINDS and takes_widths(table, *table.shape)
    return few and fast_paths.is_on("small_tables")
