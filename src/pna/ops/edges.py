"""Gather node features for every edge, and sum edge features at nodes.

These functions serve layers that materialise messages. Edge features are in slot order: sorted by
receiver, see `Adjacency`. Gathering and summing are each other's gradient. Every sum has one owner
and a fixed order, in both directions, so results are bitwise reproducible. Both can be
differentiated any number of times. A vmapped axis is folded into the features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops import reference
from pna.ops.aggregators import take
from pna.ops.backend import choose
from pna.ops.operators import operator
from pna.ops.request import Messages, Request, Saved
from pna.ops.statistics import kernels_of, statistics
from pna.ops.vmap_rules import Fold
from pna.rows import Rows, search_receivers

_SUM = Request(("sum",), 0.0, False)
_MAX = Request(("max",), 0.0, False)


@dataclass(frozen=True, eq=False)
class Slots:
    """Index tensors between nodes and slots; build them once if several functions need them."""

    adjacency: Adjacency
    receivers: Tensor  # (edges,) receiver of every slot
    by_receiver: Rows  # `neighbours` are slots, here and in by_sender
    by_sender: Rows

    @staticmethod
    def of(edges: Adjacency | Slots) -> Slots:
        if isinstance(edges, Slots):
            return edges
        slots = torch.arange(edges.num_edges, dtype=edges.senders.dtype, device=edges.device)
        return Slots(
            edges,
            edges.receivers,
            replace(edges.incoming, neighbours=slots),
            replace(edges.outgoing, neighbours=edges.out_slots),
        )


def from_senders(x: Tensor, edges: Adjacency | Slots) -> Tensor:
    """Gather the sender's row for every slot: x (senders, …) to (edges, …)."""
    slots = Slots.of(edges)
    adjacency = slots.adjacency
    _check("x", x, adjacency, adjacency.num_senders, "sender")
    return _take(x, adjacency.senders, slots.by_sender)


def from_receivers(x: Tensor, edges: Adjacency | Slots) -> Tensor:
    """Gather the receiver's row for every slot: x (receivers, …) to (edges, …)."""
    slots = Slots.of(edges)
    _check("x", x, slots.adjacency, slots.adjacency.num_receivers, "receiver")
    return _take(x, slots.receivers, slots.by_receiver)


def sum_to_receivers(messages: Tensor, edges: Adjacency | Slots) -> Tensor:
    """Sum over the slots of every receiver: (edges, …) to (receivers, …); 0 without slots."""
    slots = Slots.of(edges)
    adjacency = slots.adjacency
    _check("messages", messages, adjacency, adjacency.num_edges, "edge")
    backend = choose(messages.device)
    if backend == "reference" or not fast_paths.is_on("edges"):
        return reference.Neighbourhoods(messages, adjacency).sum(messages)
    out = sum_rows(_flat(messages), slots.receivers, slots.by_receiver, backend)
    return out.reshape((adjacency.num_receivers, *messages.shape[1:]))


def weighted_sum(x: Tensor, weights: Tensor, edges: Adjacency | Slots) -> Tensor:
    """Σ_{j→i} w_ij x_j in every head: x (senders, heads, …), and weights (edges, heads) in slot
    order, to (receivers, heads, …)."""
    slots = Slots.of(edges)
    weights = weights.reshape(weights.shape + (1,) * (x.dim() - 2))
    return sum_to_receivers(from_senders(x, slots) * weights, slots)


def exponentials_of_receivers(
    scores: Tensor, edges: Adjacency | Slots, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """exp(s − c_i) for scores s (edges, heads) in slot order, and c (receivers, heads).

    c_i is the largest score of receiver i, including its `own` (receivers, heads), or 0 if it has
    no scores. No gradient flows through c, so the final result must not depend on it.
    """
    slots = Slots.of(edges)
    _check("scores", scores, slots.adjacency, slots.adjacency.num_edges, "edge")
    highest = _highest(scores.detach(), slots)
    if own is not None:
        own = own.detach()
        reached = (slots.adjacency.incoming.lengths > 0)[:, None]
        highest = torch.where(reached, torch.maximum(highest, own), own)
    return (scores - from_receivers(highest, slots)).exp(), highest


def count_self_loops(edges: Adjacency | Slots) -> Tensor:
    """The number of self-loops of every node: (receivers,), integers."""
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    if isinstance(edges, Adjacency) and choose(adjacency.device) == "triton":
        # edges at the end may belong to no node, which `receivers` cannot express
        slots = torch.arange(adjacency.num_edges, device=adjacency.device)
        receivers = search_receivers(adjacency.indptr, slots)
    else:
        receivers = edges.receivers
    before = (adjacency.senders == receivers).cumsum(0, dtype=receivers.dtype)
    before = torch.cat([before.new_zeros(1), before])
    return before.index_select(0, adjacency.indptr).diff()


def _take(x: Tensor, row_of_slot: Tensor, rows: Rows) -> Tensor:
    backend = choose(x.device)
    if backend == "reference" or not fast_paths.is_on("edges"):
        return take(x, row_of_slot)
    out = take_rows(_flat(x), row_of_slot, rows, backend)
    return out.reshape((row_of_slot.shape[0], *x.shape[1:]))


def _highest(scores: Tensor, slots: Slots) -> Tensor:
    """The largest score (edges, heads) of every receiver; 0 for a receiver without scores."""
    adjacency = slots.adjacency
    if adjacency.num_edges == 0:
        return scores.new_zeros((adjacency.num_receivers, scores.shape[1]))
    backend = choose(scores.device)
    if backend == "reference" or not fast_paths.is_on("edges"):
        return reference.Neighbourhoods(scores, adjacency).largest(scores)
    half = _half_adjacency(slots.by_receiver)
    return statistics(Messages(scores, None, None, half), _MAX, backend)[:, 0]


def _half_adjacency(rows: Rows) -> Adjacency:
    """An adjacency of these rows for forward kernels, which never read the other fields."""
    return Adjacency(
        incoming=rows,
        outgoing=rows,
        edge_ids=rows.neighbours,
        out_ranks=rows.neighbours,
        by_degree=rows.order,
        degree=rows.order,
    )


def _flat(values: Tensor) -> Tensor:
    """Reshape (rows, …) to (rows, features)."""
    return values[:, None] if values.dim() == 1 else values.flatten(1)


def _check(name: str, values: Tensor, adjacency: Adjacency, rows: int, role: str) -> None:
    if not values.is_floating_point():
        raise TypeError(
            f"got {name} of dtype {values.dtype}, expected a floating type; convert it with "
            f"{name}.float()"
        )
    if values.dim() == 0 or values.shape[0] != rows:
        raise ValueError(
            f"got {name} of shape {tuple(values.shape)}, expected ({rows}, …): a row for each "
            f"{role} of the adjacency"
        )
    if values.device != adjacency.device:
        raise ValueError(
            f"got {name} on {values.device} and an adjacency on {adjacency.device}, expected one "
            f"device; move it with adjacency.to({name}.device)"
        )


def _take_rows(values: Tensor, row_of_slot: Tensor, rows: Rows, backend: str) -> Tensor:
    return values.index_select(0, row_of_slot)


def _take_rows_fake(values: Tensor, row_of_slot: Tensor) -> Tensor:
    return values.new_empty((row_of_slot.shape[0], values.shape[1]))


def _take_rows_backward(grad: Tensor, row_of_slot: Tensor, rows: Rows, backend: str) -> Tensor:
    return sum_rows(grad, row_of_slot, rows, backend)


def _sum_rows(values: Tensor, row_of_slot: Tensor, rows: Rows, backend: str) -> Tensor:
    """Sum over the slots of every row; `neighbours` of the rows are slots."""
    if values.shape[0] == 0:
        return values.new_zeros((rows.num_rows, values.shape[1]))
    out = values.new_empty((rows.num_rows, 1, values.shape[1]))
    if out.numel() > 0:
        none = values.new_empty((0, values.shape[1]))
        messages = Messages(values, None, None, _half_adjacency(rows))
        kernels_of(backend).forward(messages, _SUM, Saved(out, none, none, none))
    return out[:, 0]


def _sum_rows_fake(values: Tensor, indptr: Tensor) -> Tensor:
    return values.new_empty((indptr.shape[0] - 1, values.shape[1]))


def _sum_rows_backward(grad: Tensor, row_of_slot: Tensor, rows: Rows, backend: str) -> Tensor:
    return take_rows(grad, row_of_slot, rows, backend)


take_rows = operator(
    "take_rows",
    _take_rows,
    fake=_take_rows_fake,
    backward=_take_rows_backward,
    differentiable=("values",),
    vmap=Fold({"values": 1}, results=(1,)),
    linear=True,
)
sum_rows = operator(
    "sum_rows",
    _sum_rows,
    fake=_sum_rows_fake,
    backward=_sum_rows_backward,
    differentiable=("values",),
    vmap=Fold({"values": 1}, results=(1,)),
    linear=True,
)
