"""Edges grouped by type, for the gradient of a table of edge types."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pna.adjacency import Adjacency, group_slots
from pna.ops.tracing import is_tracing
from pna.rows import Rows
from pna.visible import values_visible


class EdgesByType(NamedTuple):
    """The edges of every type, in the order of slots. An edge whose type is not in the table
    belongs to no row."""

    rows: Rows  # a row for each type: `neighbours` are the receivers of its edges
    ranks: Tensor  # (edges,) index in the receiver's row
    senders: Tensor  # (edges,)


def by_type(at: Tensor, types: int, adjacency: Adjacency) -> EdgesByType:
    """Group the edges by their types `at` (edges,), in the given order.

    The result is cached while `at` lives and torch knows of no write to it: a model calls every
    layer with the same types.
    """
    if is_tracing() or not values_visible() or at.is_inference():
        return _by_type(at, types, adjacency, wait=False)
    key = (at._version, types)
    known = _cache.get(at)
    if known is not None and known[0] == key and known[1] is adjacency.edge_ids:
        found: EdgesByType = known[2]
        return found
    made = _by_type(at, types, adjacency, wait=True)
    _cache[at] = (key, adjacency.edge_ids, made)
    return made


_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _by_type(at: Tensor, types: int, adjacency: Adjacency, wait: bool) -> EdgesByType:
    of_slot = at.index_select(0, adjacency.edge_ids).long().clamp(-1, types)
    rows, ranks, slots = group_slots(adjacency, of_slot, types, wait)
    return EdgesByType(rows, ranks, adjacency.senders.index_select(0, slots))
