"""The gradient of x, a sum over the outgoing edges of every sender; and that of an edge table, the
same sum over the edges of every type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.ops.edge_types import by_type
from pna.ops.request import Messages, wide_type
from pna.ops.streams import SideStream
from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned
from pna.ops.triton.argmax import extrema_gradient
from pna.ops.triton.edge_gradients import has_few_rows
from pna.ops.triton.launch import edge_arguments, long_arguments, tiles_of, unit_stride, wide_index
from pna.ops.triton.launcher import Kernel
from pna.ops.triton.messages import (
    centre_of,
    combined,
    edge_term,
    feature_block,
    offset_of,
    owned_rows,
)
from pna.ops.triton.sums import add_segments, add_up
from pna.rows import SEGMENT, Rows

#: The most features in a tile of the linear part.
_NARROW = 32

#: The most edge types, or rows of a basis, whose gradients are summed together with that of x, and
#: the most programs that write partial sums of them.
_ON_THE_WAY, _PROGRAMS = 4, 1024


@triton.jit
def _of_kind(
    result, at, given, more, NUMBER: tl.constexpr, KINDS: tl.constexpr, EDGE: tl.constexpr
):
    """What gradients of edge terms (BLOCK_R, BLOCK_F) contribute to that of one edge type, or of
    one row of a basis."""
    if EDGE == 2 or EDGE == -2:
        own = more & (tl.load(at + given).to(tl.int32) == NUMBER)
        return tl.where(own[:, None], result, 0)
    share = tl.load(at + given * KINDS + NUMBER, mask=more, other=0)
    return tl.where(more[:, None], share.to(result.dtype)[:, None] * result, 0)


@triton.jit
def _store_kind(
    by_kind, total, feature, live_feature, features, NUMBER: tl.constexpr, KINDS: tl.constexpr
):
    """Store the sum over this program's rows for one edge type."""
    to = by_kind + (tl.program_id(0) * KINDS + NUMBER) * features + feature
    tl.store(to, tl.sum(total, 0), mask=live_feature)


@Kernel
def _linear_gradient_kernel(
    to, to_stride, x, x_stride, order, out_indptr, long_rows, long_indptr, segment_owner,
    num_rows, num_segments, num_long, receivers, out_ranks, weights, indptr, rows,
    edge, at, edge_ids, mean, mean_stride, features, types,
    grad, stride_row, stride_kind, stride_feature, positions, long_positions, long_rank, by_kind,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, SLOPE: tl.constexpr,
    NORM: tl.constexpr, MAX: tl.constexpr, MIN: tl.constexpr, LONG: tl.constexpr,
    KINDS: tl.constexpr, BY_TYPE: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum of A_i + B_i·(m − c_i) + C_i·w_j over the outgoing edges of every sender, plus the
    gradients of MAX and MIN for edges that are the argmax or argmin. If messages are products, each
    term is multiplied by e.

    With KINDS > 0, also sums the gradients of e by edge type, or weighted by each of KINDS
    coefficients: by_kind (programs, KINDS, features).

    With BY_TYPE, x and e change places: rows are edge types, x is their table, and the edge term is
    a row of the senders' features, whose number is in `at`, in the order of these rows.
    """
    work = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = work < num_rows
    if not SEGMENTS:
        work = tl.load(order + work, mask=exists, other=0).to(tl.int64)
    row, live, _, begin, end = owned_rows(
        work, exists, out_indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
        SEGMENT, SEGMENTS,
    )  # fmt: skip
    stride_row, stride_kind = aligned(stride_row, UNIT), aligned(stride_kind, UNIT)
    features, to_stride = aligned(features, UNIT), aligned(to_stride, UNIT)
    x_stride, mean_stride = aligned(x_stride, UNIT), aligned(mean_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    flat = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    scaled = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    value = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_0 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_1 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_2 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_3 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    weight = tl.zeros([BLOCK_R], WIDE)
    if NORM >= 0:
        weight = tl.load(weights + row, mask=live, other=0)
    if SPREAD or (EDGE < 0 and KINDS > 0):
        value += tl.load(x + row[:, None] * x_stride + feature[None, :], mask=mask, other=0)
    source = rows + feature[None, :]
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            place = begin + step + ahead
            more = place < end
            here = more[:, None] & live_feature[None, :]
            receiver = tl.load(receivers + place, mask=more, other=0)
            there = source + offset_of(receiver, WIDTH * features, WIDE_INDEX)[:, None]
            rank = tl.load(out_ranks + place, mask=more, other=0)
            if BY_TYPE:
                given = tl.where(more, place, 0)
            elif EDGE != 0:
                slot = rank + tl.load(indptr + receiver, mask=more, other=0)
                given = tl.load(edge_ids + slot).to(tl.int64)
            if EDGE < 0 or (EDGE > 0 and SPREAD):
                term = edge_term(
                    edge, at, given, feature, here, features, types, EDGE, DEPTH, WIDE, WIDE_INDEX
                )
            if FLAT:
                result = tl.load(there, mask=here, other=0)
            else:
                result = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
            if SPREAD:
                steep = tl.load(there + SLOPE * features, mask=here, other=0)
                own = mean + offset_of(receiver, mean_stride, WIDE_INDEX)[:, None]
                centre = centre_of(steep, own + feature[None, :], here, WIDE)
                if EDGE == 0:
                    result += steep * (value - centre)
                else:
                    sent = combined(value, term, EDGE)
                    result += tl.where(here, steep * (sent - centre), 0)
            if NORM >= 0:
                share = tl.load(there + (WIDTH - 1) * features, mask=here, other=0)
                if BY_TYPE:
                    weight = tl.load(weights + tl.load(at + given), mask=more, other=0)
                if KINDS > 0 or BY_TYPE:
                    result += share * weight[:, None]
                elif EDGE < 0:
                    scaled += tl.where(here, share * term, 0)
                else:
                    scaled += share
            if MAX >= 0 or MIN >= 0:
                result += extrema_gradient(
                    grad, stride_row, stride_kind, stride_feature, positions, long_positions,
                    long_rank, receiver, rank.to(tl.int32), here, feature, features, MAX, MIN, LONG,
                    WIDE, WIDE_INDEX,
                )  # fmt: skip
            if EDGE < 0:
                flat += tl.where(here, result * term, 0)
                result *= value
            else:
                flat += result
            if KINDS > 0:
                kind_0 += _of_kind(result, at, given, more, 0, KINDS, EDGE)
            if KINDS > 1:
                kind_1 += _of_kind(result, at, given, more, 1, KINDS, EDGE)
            if KINDS > 2:
                kind_2 += _of_kind(result, at, given, more, 2, KINDS, EDGE)
            if KINDS > 3:
                kind_3 += _of_kind(result, at, given, more, 3, KINDS, EDGE)
    if NORM >= 0 and not BY_TYPE:
        flat += scaled * weight[:, None]
    flat = tl.where((begin < end)[:, None], flat, 0)  # 0 without edges, even if x is not finite
    tl.store(to + work[:, None] * to_stride + feature[None, :], flat, mask=mask)
    if KINDS > 0:
        _store_kind(by_kind, kind_0, feature, live_feature, features, 0, KINDS)
    if KINDS > 1:
        _store_kind(by_kind, kind_1, feature, live_feature, features, 1, KINDS)
    if KINDS > 2:
        _store_kind(by_kind, kind_2, feature, live_feature, features, 2, KINDS)
    if KINDS > 3:
        _store_kind(by_kind, kind_3, feature, live_feature, features, 3, KINDS)


@Kernel
def _extremum_gradient_kernel(
    to, to_stride, order, out_indptr, long_rows, long_indptr, segment_owner, num_rows,
    num_segments, num_long, receivers, out_ranks, grad, stride_row, stride_kind, stride_feature,
    positions, long_positions, long_rank, features,
    MAX: tl.constexpr, MIN: tl.constexpr, ADD: tl.constexpr, LONG: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of max and min for every sender; with ADD, it is added to what `to` holds."""
    work = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = work < num_rows
    if not SEGMENTS:
        work = tl.load(order + work, mask=exists, other=0).to(tl.int64)
    _, live, _, begin, end = owned_rows(
        work, exists, out_indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
        SEGMENT, SEGMENTS,
    )  # fmt: skip
    stride_row, stride_kind = aligned(stride_row, UNIT), aligned(stride_kind, UNIT)
    features, to_stride = aligned(features, UNIT), aligned(to_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    to += work[:, None] * to_stride + feature[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            place = begin + step + ahead
            more = place < end
            here = more[:, None] & live_feature[None, :]
            receiver = tl.load(receivers + place, mask=more, other=0)
            rank = tl.load(out_ranks + place, mask=more, other=0).to(tl.int32)
            total += extrema_gradient(
                grad, stride_row, stride_kind, stride_feature, positions, long_positions,
                long_rank, receiver, rank, here, feature, features, MAX, MIN, LONG, WIDE,
                WIDE_INDEX,
            )  # fmt: skip
    if ADD:
        total += tl.load(to, mask=mask, other=0)
    tl.store(to, total, mask=mask)


def _takes_short(rows: Rows) -> bool:
    """Whether rows have so few edges that tiles take several short ones at once."""
    few = likely(rows.neighbours.shape[0]) <= 8 * likely(rows.num_rows)
    return few and fast_paths.is_on("short_rows")


def sums_by_kind(messages: Messages, width: int, grad_edge: Tensor, grad_at: Tensor) -> bool:
    """Whether the gradient of a table or basis of few rows is summed together with that of x, which
    walks the same edges. Not if `width`, the number of rows A, B and C per receiver, is 0: then
    only extrema are requested, which have their own kernel."""
    edge, adjacency = messages.edge, messages.adjacency
    if edge is None or messages.at is None or grad_edge.shape[0] == 0 or grad_at.shape[0] > 0:
        return False
    if not has_few_rows(messages) or width == 0:
        return False
    rows, tiles = adjacency.outgoing, tiles_of(messages.features, _NARROW, True)
    short = _takes_short(rows) and rows.segment_owner.shape[0] == 0
    few = edge.shape[0] <= _ON_THE_WAY and likely(tiles.grid(rows.num_rows)[0]) <= _PROGRAMS
    return short and few and fast_paths.is_on("sums_by_kind")


def sender_gradient(
    messages: Messages,
    linear: dict[str, Any],
    extrema: dict[str, Any],
    grad_x: Tensor,
    grad_edge: Tensor | None,
    side: SideStream,
) -> None:
    """Write the gradient of x: the linear part, then max and min, then long rows merged.

    With `grad_edge`, also write the gradient of the edge table or basis; its partial sums are
    reduced on the stream `side`.
    """
    adjacency = messages.adjacency
    linear = linear | dict(indptr=adjacency.indptr, BY_TYPE=False)
    _sum_by_row(adjacency.outgoing, adjacency.out_ranks, linear, extrema, grad_x, grad_edge, side)


def type_gradient(
    messages: Messages, linear: dict[str, Any], extrema: dict[str, Any], grad_edge: Tensor
) -> None:
    """Write the gradient of a table: a sum over the edges of every type."""
    x, table, at, adjacency = messages.x, messages.edge, messages.at, messages.adjacency
    assert table is not None and at is not None
    groups = by_type(at, table.shape[0], adjacency)
    swapped = replace(messages, x=unit_stride(table), edge=x, at=groups.senders)
    linear = linear | edge_arguments(swapped) | dict(
        x=swapped.x, x_stride=swapped.x.stride(0), indptr=adjacency.indptr, BY_TYPE=True,
        WIDE_INDEX=linear["WIDE_INDEX"] or wide_index(x),
    )  # fmt: skip
    _sum_by_row(groups.rows, groups.ranks, linear, extrema, grad_edge)


def _sum_by_row(
    rows: Rows,
    ranks: Tensor,
    linear: dict[str, Any],
    extrema: dict[str, Any],
    to_rows: Tensor,
    grad_edge: Tensor | None = None,
    side: SideStream | None = None,
) -> None:
    """Sum the gradient over the edges of every row, whose `neighbours` are the receivers of edges,
    to `to_rows` (rows, features). `ranks` (edges,) are positions in the rows of receivers. For
    `grad_edge` and `side`, see `sender_gradient`."""
    x, features = linear["x"], linear["features"]
    segments = rows.segment_owner.shape[0]
    wide = to_rows
    if to_rows.dtype != wide_type(x.dtype):
        wide = torch.empty_like(to_rows, dtype=wide_type(x.dtype))
    partial = wide.new_empty((segments, features))
    shared = dict(
        long_arguments(rows),
        order=rows.order,
        out_indptr=rows.indptr,
        receivers=rows.neighbours,
        out_ranks=ranks,
        num_rows=rows.num_rows,
        num_segments=segments,
        num_long=rows.long_rows.shape[0],
        features=features,
        WIDE=linear["WIDE"],
        SEGMENT=SEGMENT,
    )
    for to, work in ((wide, rows.num_rows), (partial, segments)):
        if work == 0:
            continue
        shared |= dict(to=to, to_stride=to.stride(0), SEGMENTS=to is partial)
        short = to is wide and _takes_short(rows)
        strides = [x.stride(0), to.stride(0), *extrema["grad"].stride()[:2]]
        strides.append(linear["mean_stride"])
        narrow = tiles_of(features, _NARROW, short, strides)
        broad = tiles_of(features, 128, short, strides)
        has_extrema = extrema["MAX"] >= 0 or extrema["MIN"] >= 0
        far = linear["WIDE_INDEX"] or wide_index(extrema["grad"], extrema["positions"])
        is_product = linear["EDGE"] < 0  # the other kernel does not know the edge term
        together = has_extrema and (is_product or (short and linear["WIDTH"] > 0))
        if linear["WIDTH"] > 0 or together:
            given = shared | linear | extrema | dict(WIDE_INDEX=far)
            if not together:
                given |= dict(MAX=-1, MIN=-1)
            by_kind, kinds = wide, 0
            if grad_edge is not None:
                given |= dict(maxnreg=96)  # fits five programs per multiprocessor, not four
                kinds = grad_edge.shape[0]
                by_kind = wide.new_empty((narrow.grid(work)[0], grad_edge.numel()))
            _linear_gradient_kernel[narrow.grid(work)](
                **given, by_kind=by_kind, KINDS=kinds, UNROLL=narrow.unroll, **narrow.tile
            )
            if grad_edge is not None and side is not None:
                side.hold(by_kind)
                with side:
                    add_up(by_kind, grad_edge)
        if has_extrema and not together:
            _extremum_gradient_kernel[broad.grid(work)](
                **shared,
                **extrema,
                ADD=linear["WIDTH"] > 0,
                WIDE_INDEX=far,
                UNROLL=broad.unroll,
                **broad.tile,
            )
    if segments > 0:
        add_segments(partial, rows, wide)
    if wide is not to_rows:
        to_rows.copy_(wide)
