"""The tangent of the statistics: their derivative in a direction, from which second derivatives
are taken.

It is computed in plain torch, from the messages and their tangents: (edges, features) each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna.ops.aggregators import take
from pna.ops.edges import Slots, sum_rows, take_rows
from pna.ops.operators import operator
from pna.ops.request import WEIGHTS, Messages, Request, Saved, wide_type
from pna.ops.vmap_rules import one_by_one


def statistics_tangent(
    messages: Messages,
    tangents: Sequence[Tensor | None],
    saved: Saved,
    request: Request,
    backend: str,
) -> Tensor:
    """The tangent of the statistics, (receivers, kinds, features), given those of x, edge and at.

    A tangent may be None, which is 0.
    """
    slots = Slots.of(messages.adjacency)

    def to_slots(values: Tensor) -> Tensor:
        return take_rows(values, slots.receivers, slots.by_receiver, backend)

    def total(values: Tensor) -> Tensor:
        return sum_rows(values, slots.receivers, slots.by_receiver, backend)

    moved = _tangent_of_messages(messages, tangents, slots, backend)
    count = messages.adjacency.incoming.lengths.clamp(min=1).to(moved.dtype)[:, None]
    found: dict[str, Tensor] = {}
    if "mean" in request.kinds or "sum" in request.kinds:
        found["sum"] = total(moved)
        found["mean"] = found["sum"] / count
    if request.needs_spread:
        message = _messages(messages, slots, backend)
        deviation = message - to_slots(total(message) / count)
        slope = total(deviation * moved) / count
        found["var"] = 2 * slope
        if "std" in request.kinds:
            var, least = total(deviation.square()) / count, request.epsilon
            std = (var.where(var > least, torch.inf) if request.clamp else var + least).sqrt()
            found["std"] = slope / std
    if "normalised_mean" in request.kinds:
        sender = messages.adjacency.out_degree.clamp(min=1).to(moved.dtype).rsqrt()[:, None]
        weighted = moved * take(sender, messages.adjacency.senders)
        found["normalised_mean"] = total(weighted) * count.rsqrt()
    if request.needs_extrema:
        found |= _extrema(moved, messages, saved, request, backend)
    return torch.stack([found[kind] for kind in request.kinds], 1).to(messages.x.dtype)


def _messages(messages: Messages, slots: Slots, backend: str) -> Tensor:
    """All messages (edges, features), in the order of slots, in float32 or better."""
    sent = _sent(messages.x, slots, backend)
    if messages.edge is None:
        return sent
    term = _edge_term(messages, messages.edge, messages.at)
    return sent * term if messages.is_product else sent + term


def _tangent_of_messages(
    messages: Messages, tangents: Sequence[Tensor | None], slots: Slots, backend: str
) -> Tensor:
    """The tangent of every message, (edges, features)."""
    edge, at, (of_x, of_edge, of_at) = messages.edge, messages.at, tangents
    parts = []
    if of_x is not None:
        sent = _sent(of_x, slots, backend)
        if messages.is_product and edge is not None:
            sent = sent * _edge_term(messages, edge, at)
        parts.append(sent)
    for values, place, known in ((of_edge, at, of_edge), (edge, of_at, of_at)):
        if values is None or known is None:
            continue
        term = _edge_term(messages, values, place)
        parts.append(_sent(messages.x, slots, backend) * term if messages.is_product else term)
    if not parts:
        return _sent(torch.zeros_like(messages.x), slots, backend)
    return sum(parts[1:], parts[0])


def _sent(x: Tensor, slots: Slots, backend: str) -> Tensor:
    """The row of its sender for every slot, (edges, features)."""
    x = x.to(wide_type(x.dtype))
    return take_rows(x, slots.adjacency.senders, slots.by_sender, backend)


def _edge_term(messages: Messages, edge: Tensor, at: Tensor | None) -> Tensor:
    """The edge term of every slot, (edges, features), with `edge` and `at` in place of its own."""
    edge, ids = edge.to(wide_type(edge.dtype)), messages.adjacency.edge_ids
    if at is not None:
        at = take(at, ids)
        return at.to(edge.dtype) @ edge if at.is_floating_point() else take(edge, at.long())
    term = edge.index_select(0, ids)
    if messages.form != WEIGHTS:
        return term
    share = messages.features // term.shape[1]
    return term[:, :, None].expand(*term.shape, share).flatten(1)


def _extrema(
    moved: Tensor, messages: Messages, saved: Saved, request: Request, backend: str
) -> dict[str, Tensor]:
    """The tangents of max and min: those of the messages that are the argmax and the argmin."""
    kinds = [kind for kind in ("max", "min") if kind in request.kinds]
    if moved.shape[0] == 0:
        return dict.fromkeys(kinds, torch.zeros_like(saved.out[:, 0]))
    slots = _extremal_slots(messages, saved, request, backend)
    slots = slots[:, [("max", "min").index(kind) for kind in kinds]]  # others are uninitialised
    picked = moved.gather(0, slots.clamp(min=0).flatten(0, 1)).view(slots.shape)
    return dict(zip(kinds, torch.where(slots < 0, 0, picked).unbind(1), strict=True))


def _extremal_slots(messages: Messages, saved: Saved, request: Request, backend: str) -> Tensor:
    """The slots of max and min (receivers, 2, features), if requested; -1 if there is none."""
    rows, argmax, long_argmax = messages.adjacency.incoming, saved.argmax, saved.long_argmax
    if backend == "triton":
        argmax, long_argmax = extrema(messages, request, saved.out)
    ranks = argmax.long()
    none = ranks == 255
    if long_argmax.shape[0] > 0:
        is_long = (rows.long_rank >= 0)[:, None, None]
        long = long_argmax.index_select(0, rows.long_rank.clamp(min=0)).long()
        ranks, none = torch.where(is_long, long, ranks), torch.where(is_long, long < 0, none)
    none = none | (rows.lengths == 0)[:, None, None]
    return torch.where(none, -1, rows.indptr[:-1, None, None] + ranks)


class Extrema(NamedTuple):
    """The argmax and argmin, as in `Saved`."""

    argmax: Tensor
    long_argmax: Tensor


def _find(messages: Messages, request: Request, out: Tensor) -> Extrema:
    from pna.ops.triton.argmax import argmax
    from pna.ops.triton.launch import with_unit_stride
    from pna.ops.triton.launcher import on_device

    with on_device(messages.x):
        return Extrema(*argmax(with_unit_stride(messages), request, out))


def _allocate(messages: Messages, out: Tensor) -> Extrema:
    (receivers, _, features), long = out.shape, messages.adjacency.incoming.long_rows.shape[0]
    return Extrema(
        out.new_empty((receivers, 2, features), dtype=torch.uint8),
        out.new_empty((long, 2, features), dtype=torch.int32),
    )


def _no_gradients(grad: Tensor, needs: Sequence[bool]) -> Any:
    return ()


def _vmap(*given: Any) -> Any:
    return one_by_one(torch.ops.pna.extrema.default)(*given)


extrema = operator(
    "extrema",
    _find,
    fake=_allocate,
    backward=_no_gradients,
    differentiable=(),
    vmap=_vmap,
)
