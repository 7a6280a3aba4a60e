"""Gradients with respect to the edge term, computed from those of the messages."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.request import DENSE, EDGE_WORKSPACE, WEIGHTS, Messages, wide_type
from pna.ops.tracing import likely
from pna.ops.triton.argmax import extrema_gradient
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2
from pna.ops.triton.messages import centre_of, combined, edge_term
from pna.ops.triton.sums import add_up


@triton.jit
def _term_gradient(
    slot, receiver, live, feature, mask,
    x, x_stride, senders, edge_ids, weights, indptr, rows, edge, at,
    mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions, long_positions,
    long_rank, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, SLOPE: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Gradients with respect to the edge terms of these slots, (BLOCK_E, BLOCK_F): those of their
    messages, times x if messages are products."""
    sender = tl.load(senders + slot, mask=live, other=0).to(tl.int64)
    source = rows + receiver[:, None] * WIDTH * features + feature[None, :]
    result = tl.zeros([slot.shape[0], feature.shape[0]], WIDE)
    if FLAT:
        result += tl.load(source, mask=mask, other=0)
    if SPREAD or EDGE < 0:
        sent = tl.load(x + sender[:, None] * x_stride + feature[None, :], mask=mask, other=0)
        sent = sent.to(WIDE)
    if SPREAD:
        given = tl.load(edge_ids + tl.where(live, slot, 0)).to(tl.int64)
        term = edge_term(edge, at, given, feature, mask, features, types, EDGE, DEPTH, WIDE)
        slope = tl.load(source + SLOPE * features, mask=mask, other=0)
        own = mean + receiver[:, None] * mean_stride + feature[None, :]
        result += slope * (combined(sent, term, EDGE) - centre_of(slope, own, mask, WIDE))
    if NORM >= 0:
        weight = tl.load(weights + sender, mask=live, other=0)
        result += tl.load(source + (WIDTH - 1) * features, mask=mask, other=0) * weight[:, None]
    rank = (slot - tl.load(indptr + receiver, mask=live, other=0)).to(tl.int32)
    if MAX >= 0 or MIN >= 0:
        result += extrema_gradient(
            grad, stride_row, stride_kind, stride_feature, positions, long_positions, long_rank,
            receiver, rank, mask, feature, features, MAX, MIN, LONG, WIDE, True,
        )  # fmt: skip
    if EDGE < 0:
        result *= sent
    return result


@triton.jit
def _receivers(indptr, num_rows, slot):
    """The receivers of slots: the last rows that begin there or before."""
    row = tl.zeros_like(slot)
    count = num_rows  # of the rows from `row` on, one of which it is
    while count > 1:
        half = count // 2
        row += tl.where(tl.load(indptr + row + half) <= slot, half, 0)
        count -= half
    return row


@Kernel
def _message_gradient_kernel(
    x, x_stride, senders, num_rows, edge_ids, weights, indptr, rows, edge, at,
    mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions, long_positions,
    long_rank, to, first_slot, num_slots, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, SLOPE: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    IN_GIVEN_ORDER: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients with respect to the edge terms of num_slots slots, one row of `to` each."""
    place = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    slot = place + first_slot
    # in a padded batch, slots at the end belong to no receiver: their gradient is 0
    live = (place < num_slots) & (slot < tl.load(indptr + num_rows))
    mask = live[:, None] & live_feature[None, :]
    receiver = _receivers(indptr, num_rows, slot)
    result = _term_gradient(
        slot, receiver, live, feature, mask,
        x, x_stride, senders, edge_ids, weights, indptr, rows, edge, at,
        mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions, long_positions,
        long_rank, features, types,
        FLAT, SPREAD, WIDTH, SLOPE, MAX, MIN, NORM, EDGE, DEPTH, LONG, WIDE,
    )  # fmt: skip
    target, there = place, place < num_slots
    if IN_GIVEN_ORDER:
        target = tl.load(edge_ids + slot, mask=there, other=0).to(tl.int64)
    place = to + target[:, None] * features + feature[None, :]
    tl.store(place, result, mask=there[:, None] & live_feature[None, :])


@Kernel
def _weight_gradient_kernel(
    x, x_stride, senders, num_rows, edge_ids, weights, indptr, rows, edge, at,
    mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions, long_positions,
    long_rank, to, num_slots, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, SLOPE: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of the weights of one head, for BLOCK_E slots: to (edges, DEPTH), in the given
    order. Features are walked in blocks, so that no row for every edge is written."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK_E + tl.arange(0, BLOCK_E)
    head, each = tl.program_id(1), features // DEPTH
    there = slot < num_slots
    live = there & (slot < tl.load(indptr + num_rows))
    receiver = _receivers(indptr, num_rows, slot)
    total = tl.zeros([BLOCK_E], WIDE)
    for first in range(0, each, BLOCK_F):
        column = first + tl.arange(0, BLOCK_F)
        mask = live[:, None] & (column < each)[None, :]
        result = _term_gradient(
            slot, receiver, live, head * each + column, mask,
            x, x_stride, senders, edge_ids, weights, indptr, rows, edge, at,
            mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions,
            long_positions, long_rank, features, types,
            FLAT, SPREAD, WIDTH, SLOPE, MAX, MIN, NORM, EDGE, DEPTH, LONG, WIDE,
        )  # fmt: skip
        total += tl.sum(tl.where(mask, result, 0), 1)
    given = tl.load(edge_ids + slot, mask=there, other=0).to(tl.int64)
    tl.store(to + given * DEPTH + head, total, mask=there)


@triton.jit
def _extremum_of(
    grad, stride_row, stride_feature, positions, row, mask, feature, features, WIDE: tl.constexpr
):
    """Position of the extremum in short rows, and its gradient: (BLOCK_R, BLOCK_F) each."""
    place = tl.load(positions + row[:, None] * 2 * features + feature[None, :], mask=mask, other=0)
    above = grad + row[:, None] * stride_row + feature[None, :] * stride_feature
    return place, tl.load(above, mask=mask, other=0).to(WIDE)


@Kernel
def _kind_gradient_kernel(
    x, x_stride, senders, order, edge_ids, weights, indptr, rows, edge, at,
    mean, mean_stride, grad, stride_row, stride_kind, stride_feature, positions,
    partial, num_rows, tiles, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, SLOPE: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradients of the edge terms of some receivers, none of them long, summed by edge type, or
    weighted by each coefficient: partial (programs, types, features)."""
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    every = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_K, BLOCK_R, BLOCK_F], WIDE)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        number = tile * BLOCK_R + tl.arange(0, BLOCK_R)
        row = tl.load(order + number, mask=number < num_rows, other=0).to(tl.int64)
        begin = tl.load(indptr + row, mask=number < num_rows, other=0)
        end = tl.load(indptr + row + 1, mask=number < num_rows, other=0)
        mask = (begin < end)[:, None] & live_feature[None, :]
        source = rows + row[:, None] * WIDTH * features + feature[None, :]
        flat = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        slope = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        scaled = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        if FLAT:
            flat += tl.load(source, mask=mask, other=0)
        if SPREAD:
            slope += tl.load(source + SLOPE * features, mask=mask, other=0)
            means = mean + row[:, None] * mean_stride + feature[None, :]
            centre = centre_of(slope, means, mask, WIDE)
        if NORM >= 0:
            scaled += tl.load(source + (WIDTH - 1) * features, mask=mask, other=0)
        if MAX >= 0:
            highest, to_highest = _extremum_of(
                grad + MAX * stride_kind, stride_row, stride_feature, positions,
                row, mask, feature, features, WIDE,
            )  # fmt: skip
        if MIN >= 0:
            lowest, to_lowest = _extremum_of(
                grad + MIN * stride_kind, stride_row, stride_feature, positions + features,
                row, mask, feature, features, WIDE,
            )  # fmt: skip
        for step in range(0, tl.max(end - begin)):
            more = begin + step < end
            here = more[:, None] & live_feature[None, :]
            slot = tl.where(more, begin + step, 0)
            sender = tl.load(senders + slot).to(tl.int64)
            given = tl.load(edge_ids + slot).to(tl.int64)
            result = flat
            if SPREAD or EDGE < 0:
                place = x + sender[:, None] * x_stride + feature[None, :]
                sent = tl.load(place, mask=here, other=0).to(WIDE)
            if SPREAD:
                term = edge_term(edge, at, given, feature, here, features, types, EDGE, DEPTH, WIDE)
                result += slope * (combined(sent, term, EDGE) - centre)
            if NORM >= 0:
                result += scaled * tl.load(weights + sender)[:, None]
            if MAX >= 0:
                result += tl.where(here & (highest == step), to_highest, 0)
            if MIN >= 0:
                result += tl.where(here & (lowest == step), to_lowest, 0)
            if EDGE < 0:
                result *= sent
            if EDGE == 2 or EDGE == -2:
                kind = tl.load(at + given).to(tl.int32)
                own = more[None, :] & (kind[None, :] == every[:, None])
                total += tl.where(own[:, :, None], result[None, :, :], 0)
            else:
                column = at + given[None, :] * types + every[:, None]
                share = tl.load(column, mask=(every < types)[:, None], other=0).to(WIDE)
                part = share[:, :, None] * result[None, :, :]
                total += tl.where(more[None, :, None], part, 0)
    to = partial + (tl.program_id(0) * types + every)[:, None] * features + feature[None, :]
    tl.store(to, tl.sum(total, 1), mask=(every < types)[:, None] & live_feature[None, :])


#: The most edge types, for each of which a program keeps a sum, and the most receivers: many
#: programs would write more partial sums than there are terms to sum.
_KINDS, _FEW_RECEIVERS = 16, 2**15

#: Arguments that only kernels for long rows take.
_OF_LONG_ROWS = ("long_positions", "long_rank", "LONG", "WIDE_INDEX")

#: Edge types × receivers in a tile, and the most programs that share the receivers.
SUMS, SPLITS = 64, 264


def _kind_gradient(
    messages: Messages, shared: dict[str, Any], types: int, grad_edge: Tensor
) -> None:
    """Write the gradient of a table or basis of few rows."""
    rows, features = messages.adjacency.incoming, messages.features
    kinds = next_power_of_2(types)
    tall = SUMS // kinds
    tiles = cdiv(rows.num_rows, tall)
    splits, block = min(likely(tiles), SPLITS), min(32, next_power_of_2(features))
    partial = messages.x.new_empty((splits, types * features), dtype=torch.float32)
    given = {name: value for name, value in shared.items() if name not in _OF_LONG_ROWS}
    _kind_gradient_kernel[(splits, cdiv(features, block))](
        **given | dict(types=types), senders=rows.neighbours, order=rows.order,
        indptr=rows.indptr, partial=partial, num_rows=rows.num_rows, tiles=tiles, BLOCK_K=kinds,
        BLOCK_R=tall, BLOCK_F=block, num_warps=4,
    )  # fmt: skip
    add_up(partial, grad_edge)


def has_few_rows(messages: Messages) -> bool:
    """Whether the table or basis has few rows, receivers are few, and none has a long row."""
    adjacency, edge = messages.adjacency, messages.edge
    assert edge is not None
    short = adjacency.incoming.segment_owner.shape[0] == 0
    few = likely(adjacency.num_receivers) <= _FEW_RECEIVERS and 0 < edge.shape[0] <= _KINDS
    return short and few and wide_type(messages.x.dtype) == torch.float32


def sums_few_kinds(messages: Messages, grad_at: Tensor) -> bool:
    """Whether `edge_gradient` keeps a sum for every row of a table or basis."""
    few = grad_at.shape[0] == 0 and has_few_rows(messages)
    return few and fast_paths.is_on("kind_gradient")


def edge_gradient(
    messages: Messages, shared: dict[str, Any], grad_edge: Tensor, grad_at: Tensor
) -> None:
    """Write the gradients of the edge term, but for a table of many types: see `type_gradient`.

    A dense edge term and weights are done in one launch over all edges. A table or basis of few
    rows has its own kernel if coefficients need no gradient. Otherwise message gradients are
    computed in chunks, of which only the products with basis and coefficients are kept.
    """
    edge, at, adjacency = messages.edge, messages.at, messages.adjacency
    assert edge is not None
    if messages.form == WEIGHTS:
        _weight_gradient(adjacency, shared, grad_edge)
        return
    if at is None:
        _message_gradient(adjacency, shared, 0, adjacency.num_edges, grad_edge)
        return
    if sums_few_kinds(messages, grad_at):
        _kind_gradient(messages, shared, edge.shape[0], grad_edge)
        return
    wide, features = wide_type(messages.x.dtype), messages.features
    total = torch.zeros_like(edge, dtype=wide)
    chunk = max(1, EDGE_WORKSPACE // (features * total.element_size()))
    chunks = int(cdiv(adjacency.num_edges, chunk))  # a guard while this is traced
    for number in range(chunks):
        first = number * chunk
        count = chunk if number < chunks - 1 else adjacency.num_edges - first
        message = total.new_empty((count, features))
        _message_gradient(adjacency, shared, first, count, message)
        given = adjacency.edge_ids[first : first + count].long()
        if grad_at.shape[0] > 0:
            grad_at[given] = (message @ edge.to(wide).t()).to(grad_at.dtype)
        if grad_edge.shape[0] > 0:
            total += at[given].to(wide).t() @ message
        del message  # free it before the next chunk is allocated
    if grad_edge.shape[0] > 0:
        grad_edge.copy_(total)


def _weight_gradient(adjacency: Adjacency, shared: dict[str, Any], to: Tensor) -> None:
    """Write the gradients of weights (edges, heads)."""
    heads, count = to.shape[1], adjacency.num_edges
    block_f = min(64, next_power_of_2(max(shared["features"] // heads, 1)))
    block_e = min(1024 // block_f, 64)
    _weight_gradient_kernel[(cdiv(count, block_e), heads)](
        **shared,
        indptr=adjacency.indptr,
        senders=adjacency.senders,
        num_rows=adjacency.num_receivers,
        to=to,
        num_slots=count,
        BLOCK_E=block_e,
        BLOCK_F=block_f,
    )


def _message_gradient(
    adjacency: Adjacency, shared: dict[str, Any], first: int, count: int, to: Tensor
) -> None:
    """Write the gradients of the messages of `count` slots. The rows of `to` are these slots or,
    for a dense edge term, all edges in their given order."""
    if count == 0:
        return
    features = to.shape[1]
    block_f = min(128, next_power_of_2(features))
    block_e = 2048 // block_f
    _message_gradient_kernel[(cdiv(count, block_e), cdiv(features, block_f))](
        **shared,
        indptr=adjacency.indptr,
        senders=adjacency.senders,
        num_rows=adjacency.num_receivers,
        to=to,
        first_slot=first,
        num_slots=count,
        IN_GIVEN_ORDER=abs(shared["EDGE"]) == DENSE,
        BLOCK_E=block_e,
        BLOCK_F=block_f,
    )
