"""Edge features in the order of slots, for layers that materialise every message."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.aggregators import take
from pna.population.linears import linear, takes_widths

#: The most rows of a table that edges are multiplied with.
_KINDS = 16


def to_slots(
    edge: Tensor | tuple[Tensor, Tensor],
    adjacency: Adjacency,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Features of edges, as they were given, in the order of slots: (edges, …).

    (edges, …), or a pair (table, index) with a row of the table for each edge. `through` is done
    to each row on its way: to those of the table, not of the edges, where there is one.
    """
    if isinstance(edge, Tensor):
        # the gradient of every row has one term, so that no order of summation matters
        values = edge.index_select(0, adjacency.edge_ids)
        return values if through is None else through(values)
    table, index = edge
    table = table if through is None else through(table)
    kinds = index.index_select(0, adjacency.edge_ids).long()
    if _is_small(table):
        # as a product: its gradient is a parallel sum if many edges share few rows
        every = torch.arange(len(table), device=table.device)
        is_kind = (kinds[:, None] == every).to(table.dtype)
        known = (kinds >= 0) & (kinds < len(table))
        return linear(torch.where(known[:, None], is_kind, torch.nan), table.t())
    return take(table, kinds)


def _is_small(table: Tensor) -> bool:
    """Whether a product of kinds with a table costs little, and rounds no more than float32."""
    whole = table.dim() == 2 and not torch.is_autocast_enabled(table.device.type)
    few = whole and 0 < len(table) <= _KINDS and takes_widths(table, *table.shape)
    return few and fast_paths.is_on("small_tables")
