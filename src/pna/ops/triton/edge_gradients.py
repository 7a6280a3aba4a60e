"""Gradients of the edge term, from those of the messages."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.request import EDGE_WORKSPACE, wide_type
from pna.ops.triton.launch import DENSE
from pna.ops.triton.messages import edge_term
from pna.ops.triton.places import extremum_gradient


@triton.jit
def _message_gradient_kernel(
    x, x_stride, senders, slot_receivers, edge_ids, weights, indptr, rows, edge, at, centre,
    grad, stride_row, stride_kind, stride_feature, places, long_places, long_rank,
    to, first_slot, num_slots, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, MAX: tl.constexpr,
    MIN: tl.constexpr, NORM: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr,
    LONG: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, IN_GIVEN_ORDER: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradient of the messages of num_slots slots, each a row of `to`."""
    place = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    live = place < num_slots
    mask = live[:, None] & live_feature[None, :]
    slot = place + first_slot
    receiver = tl.load(slot_receivers + place, mask=live, other=0).to(tl.int64)
    sender = tl.load(senders + slot, mask=live, other=0).to(tl.int64)
    source = rows + receiver[:, None] * WIDTH * features + feature[None, :]
    result = tl.zeros([BLOCK_E, BLOCK_F], WIDE)
    if FLAT:
        result += tl.load(source, mask=mask, other=0)
    if SPREAD:
        value = tl.load(x + sender[:, None] * x_stride + feature[None, :], mask=mask, other=0)
        value = value.to(WIDE) + edge_term(
            edge, at, edge_ids, tl.where(live, slot, 0), feature, mask, features, types,
            EDGE, DEPTH, WIDE,
        )  # fmt: skip
        value -= tl.load(centre + feature, mask=live_feature, other=0)[None, :]
        result += tl.load(source + features, mask=mask, other=0) * value
    if NORM >= 0:
        weight = tl.load(weights + sender, mask=live, other=0)
        result += tl.load(source + (WIDTH - 1) * features, mask=mask, other=0) * weight[:, None]
    rank = (slot - tl.load(indptr + receiver, mask=live, other=0)).to(tl.int32)
    if MAX >= 0:
        result += extremum_gradient(
            grad + MAX * stride_kind, stride_row, stride_feature, places, long_places,
            long_rank, receiver, rank, mask, feature, features, 0, LONG, WIDE, True,
        )  # fmt: skip
    if MIN >= 0:
        result += extremum_gradient(
            grad + MIN * stride_kind, stride_row, stride_feature, places, long_places,
            long_rank, receiver, rank, mask, feature, features, 1, LONG, WIDE, True,
        )  # fmt: skip
    target = place
    if IN_GIVEN_ORDER:
        target = tl.load(edge_ids + slot, mask=live, other=0).to(tl.int64)
    tl.store(to + target[:, None] * features + feature[None, :], result, mask=mask)


def edge_gradient(
    x: Tensor,
    edge: Tensor,
    at: Tensor | None,
    adjacency: Adjacency,
    shared: dict[str, Any],
    grad_edge: Tensor,
    grad_at: Tensor,
) -> None:
    """Gradients of the edge term: of every edge at once, or in chunks where only their sum by
    type or their products with basis and coefficients are kept."""
    if at is None:
        _message_gradient(x, adjacency, shared, 0, adjacency.num_edges, grad_edge)
        return
    wide, features = wide_type(x.dtype), x.shape[1]
    total = torch.zeros_like(edge, dtype=wide)
    chunk = max(1, EDGE_WORKSPACE // (features * total.element_size()))
    for first in range(0, adjacency.num_edges, chunk):
        count = min(chunk, adjacency.num_edges - first)
        message = x.new_empty((count, features), dtype=wide)
        _message_gradient(x, adjacency, shared, first, count, message)
        given = adjacency.edge_ids[first : first + count].long()
        if not at.is_floating_point():
            kinds = torch.arange(edge.shape[0], device=x.device)
            total += (at[given] == kinds[:, None]).to(wide) @ message
        elif grad_edge.shape[0] > 0:
            total += at[given].to(wide).t() @ message
        if grad_at.shape[0] > 0:
            grad_at[given] = (message @ edge.to(wide).t()).to(grad_at.dtype)
        del message  # before the next one is made
    if grad_edge.shape[0] > 0:
        grad_edge.copy_(total)


def _message_gradient(
    x: Tensor, adjacency: Adjacency, shared: dict[str, Any], first: int, count: int, to: Tensor
) -> None:
    """Gradient of the messages of `count` slots into the rows of `to`, which holds either those
    or, in the order they were given, all edges."""
    if count == 0:
        return
    features = x.shape[1]
    slots = torch.arange(first, first + count, dtype=adjacency.indptr.dtype, device=x.device)
    receivers = torch.searchsorted(adjacency.indptr, slots, right=True, out_int32=True) - 1
    block_f = min(128, triton.next_power_of_2(features))
    block_e = 2048 // block_f
    _message_gradient_kernel[(triton.cdiv(count, block_e), triton.cdiv(features, block_f))](
        **shared,
        indptr=adjacency.indptr,
        senders=adjacency.senders,
        slot_receivers=receivers,
        to=to,
        first_slot=first,
        num_slots=count,
        IN_GIVEN_ORDER=shared["EDGE"] == DENSE,
        BLOCK_E=block_e,
        BLOCK_F=block_f,
    )
