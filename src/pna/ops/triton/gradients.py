"""Gradients: of x here, of the edge term in `edge_gradients`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import SEGMENT, Adjacency
from pna.ops.beside import Beside
from pna.ops.request import Request, Saved, wide_type
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.edge_gradients import edge_gradient, has_few_rows
from pna.ops.triton.launch import (
    MergeTiles,
    Tiles,
    edge_arguments,
    long_arguments,
    output_places,
    sender_weights,
    std_constants,
    triton_type,
    unit_stride,
    wide_index,
)
from pna.ops.triton.messages import (
    edge_term,
    feature_block,
    offset_of,
    segment_bounds,
    short_rows,
)
from pna.ops.triton.places import extremum_gradient, find_places
from pna.ops.triton.sums import add_up

#: The most features of a tile of the linear part.
_NARROW = 32

#: The most kinds of edges, or rows of a basis, that are summed on the way to the gradient of x, and
#: the most programs that have each a part of these sums.
_ON_THE_WAY, _PROGRAMS = 4, 1024


@triton.jit
def _centre_kernel(
    mean, mean_stride, indptr, centre, num_rows, every, features,
    WIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Mean over every so many receivers of their means; 0 where it is not finite."""
    feature = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    total = tl.zeros([BLOCK_F], WIDE)
    count = tl.zeros([BLOCK_R], tl.int32)
    for first in range(0, num_rows, BLOCK_R * every):
        row = first + tl.arange(0, BLOCK_R).to(tl.int64) * every
        live = row < num_rows
        begin = tl.load(indptr + row, mask=live, other=0)
        live = live & (tl.load(indptr + row + 1, mask=live, other=0) > begin)
        mask = live[:, None] & live_feature[None, :]
        place = mean + row[:, None] * mean_stride + feature[None, :]
        total += tl.sum(tl.load(place, mask=mask, other=0), 0)
        count += live.to(tl.int32)
    total = total / tl.maximum(tl.sum(count), 1).to(WIDE)
    total = tl.where(tl.abs(total) < float("inf"), total, 0)
    tl.store(centre + feature, total, mask=live_feature)


@triton.jit
def _receiver_rows_kernel(
    grad, stride_row, stride_kind, stride_feature, out, mean, mean_stride, centre, indptr, rows,
    num_rows, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    NORM: tl.constexpr, KINDS: tl.constexpr, FLAT: tl.constexpr, SPREAD: tl.constexpr,
    WIDTH: tl.constexpr, LEAST: tl.constexpr, WIDE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Rows A, B, C of every receiver, as needed, into rows (receivers, WIDTH, features)."""
    stride_row, stride_kind = aligned(stride_row, UNIT), aligned(stride_kind, UNIT)
    features, mean_stride = aligned(features, UNIT), aligned(mean_stride, UNIT)
    row = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = row < num_rows
    mask = live[:, None] & (feature < features)[None, :]
    degree = tl.load(indptr + row + 1, mask=live, other=0)
    degree = degree - tl.load(indptr + row, mask=live, other=0)
    count = tl.maximum(degree, 1).to(WIDE)[:, None]
    source = grad + row[:, None] * stride_row + feature[None, :].to(tl.int64) * stride_feature
    to = rows + row[:, None] * WIDTH * features + feature[None, :]
    flat = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    if MEAN >= 0:
        flat += tl.load(source + MEAN * stride_kind, mask=mask, other=0).to(WIDE) / count
    if SUM >= 0:
        flat += tl.load(source + SUM * stride_kind, mask=mask, other=0).to(WIDE)
    if SPREAD:
        slope = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        if VAR >= 0:
            slope += 2 * tl.load(source + VAR * stride_kind, mask=mask, other=0).to(WIDE) / count
        if STD >= 0:
            place = out + (row[:, None] * KINDS + STD) * features + feature[None, :]
            std = tl.load(place, mask=mask, other=1).to(WIDE)
            steep = tl.load(source + STD * stride_kind, mask=mask, other=0).to(WIDE)
            slope += tl.where(std == LEAST, 0, steep / (count * std))
        middle = tl.load(centre + feature, mask=feature < features, other=0)
        here = tl.load(mean + row[:, None] * mean_stride + feature[None, :], mask=mask, other=0)
        flat -= (here.to(WIDE) - middle[None, :]) * slope
        tl.store(to + features, slope, mask=mask)
    if FLAT:
        tl.store(to, flat, mask=mask)
    if NORM >= 0:
        value = tl.load(source + NORM * stride_kind, mask=mask, other=0).to(WIDE)
        tl.store(to + (WIDTH - 1) * features, value / tl.sqrt(count), mask=mask)


@triton.jit
def _outgoing_rows(
    order, out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """This program's work: senders of at most SEGMENT edges, or SEGMENTS of the others.

    Row of the result, sender, whether there is any, and its places in the outgoing edges.
    """
    if SEGMENTS:
        to = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        row, live, _, begin, end = segment_bounds(
            out_indptr, long_rows, long_indptr, segment_owner, to, num_segments, num_long, SEGMENT
        )
    else:
        row, live, begin, end = short_rows(order, out_indptr, num_rows, SEGMENT, BLOCK_R)
        to = row
    return to, row, live, begin, end


@triton.jit
def _of_kind(
    result, at, given, more, NUMBER: tl.constexpr, KINDS: tl.constexpr, EDGE: tl.constexpr
):
    """What the gradients of messages (BLOCK_R, BLOCK_F) add to that of one kind of edges, or to
    that of one row of a basis."""
    if EDGE == 2:
        own = more & (tl.load(at + given).to(tl.int32) == NUMBER)
        return tl.where(own[:, None], result, 0)
    share = tl.load(at + given * KINDS + NUMBER, mask=more, other=0)
    return tl.where(more[:, None], share.to(result.dtype)[:, None] * result, 0)


@triton.jit
def _store_kind(
    by_kind, total, feature, live_feature, features, NUMBER: tl.constexpr, KINDS: tl.constexpr
):
    """The sum over this program's rows of what one kind of edges was added."""
    to = by_kind + (tl.program_id(0) * KINDS + NUMBER) * features + feature
    tl.store(to, tl.sum(total, 0), mask=live_feature)


@triton.jit
def _linear_gradient_kernel(
    to, to_stride, x, x_stride, order, out_indptr, long_rows, long_indptr, segment_owner,
    num_rows, num_segments, num_long, receivers, out_ranks, weights, indptr, rows,
    edge, at, edge_ids, centre, features, types,
    grad, stride_row, stride_kind, stride_feature, places, long_places, long_rank, by_kind,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, LONG: tl.constexpr, KINDS: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum of A_i + B_i·(m − c) + C_i·w_j over the outgoing edges of every sender, and of the
    gradients of MAX and MIN where an edge was it.

    With KINDS of edges, or so many coefficients, also their sums by kind or with each of these:
    by_kind (programs, KINDS, features).
    """
    work, row, live, begin, end = _outgoing_rows(
        order, out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
        SEGMENT, SEGMENTS, BLOCK_R,
    )  # fmt: skip
    stride_row, stride_kind = aligned(stride_row, UNIT), aligned(stride_kind, UNIT)
    features, to_stride = aligned(features, UNIT), aligned(to_stride, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    flat = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    slope = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    scaled = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    value = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_0 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_1 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_2 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    kind_3 = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    weight = tl.zeros([BLOCK_R], WIDE)
    if NORM >= 0:
        weight = tl.load(weights + row, mask=live, other=0)
    if SPREAD:
        value += tl.load(x + row[:, None] * x_stride + feature[None, :], mask=mask, other=0)
        value -= tl.load(centre + feature, mask=live_feature, other=0)[None, :]
    source = rows + feature[None, :]
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            place = begin + step + ahead
            more = place < end
            here = more[:, None] & live_feature[None, :]
            receiver = tl.load(receivers + place, mask=more, other=0)
            there = source + offset_of(receiver, WIDTH * features, WIDE_INDEX)[:, None]
            rank = tl.load(out_ranks + place, mask=more, other=0)
            if EDGE != 0:
                slot = rank + tl.load(indptr + receiver, mask=more, other=0)
                given = tl.load(edge_ids + slot).to(tl.int64)
            if FLAT:
                result = tl.load(there, mask=here, other=0)
            else:
                result = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
            if SPREAD:
                steep = tl.load(there + features, mask=here, other=0)
                if EDGE == 0:
                    slope += steep
                else:
                    term = edge_term(
                        edge, at, given, feature, here, features, types, EDGE, DEPTH, WIDE
                    )
                    result += tl.where(here, steep * (value + term), 0)
            if NORM >= 0:
                share = tl.load(there + (WIDTH - 1) * features, mask=here, other=0)
                if KINDS > 0:
                    result += share * weight[:, None]
                else:
                    scaled += share
            if MAX >= 0:
                result += extremum_gradient(
                    grad + MAX * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank.to(tl.int32), here, feature, features, 0, LONG, WIDE,
                    WIDE_INDEX,
                )  # fmt: skip
            if MIN >= 0:
                result += extremum_gradient(
                    grad + MIN * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank.to(tl.int32), here, feature, features, 1, LONG, WIDE,
                    WIDE_INDEX,
                )  # fmt: skip
            flat += result
            if KINDS > 0:
                kind_0 += _of_kind(result, at, given, more, 0, KINDS, EDGE)
            if KINDS > 1:
                kind_1 += _of_kind(result, at, given, more, 1, KINDS, EDGE)
            if KINDS > 2:
                kind_2 += _of_kind(result, at, given, more, 2, KINDS, EDGE)
            if KINDS > 3:
                kind_3 += _of_kind(result, at, given, more, 3, KINDS, EDGE)
    if SPREAD and EDGE == 0:
        flat += slope * value
    if NORM >= 0:
        flat += scaled * weight[:, None]
    tl.store(to + work[:, None] * to_stride + feature[None, :], flat, mask=mask)
    if KINDS > 0:
        _store_kind(by_kind, kind_0, feature, live_feature, features, 0, KINDS)
    if KINDS > 1:
        _store_kind(by_kind, kind_1, feature, live_feature, features, 1, KINDS)
    if KINDS > 2:
        _store_kind(by_kind, kind_2, feature, live_feature, features, 2, KINDS)
    if KINDS > 3:
        _store_kind(by_kind, kind_3, feature, live_feature, features, 3, KINDS)


@triton.jit
def _extremum_gradient_kernel(
    to, to_stride, order, out_indptr, long_rows, long_indptr, segment_owner, num_rows,
    num_segments, num_long, receivers, out_ranks, grad, stride_row, stride_kind, stride_feature,
    places, long_places, long_rank, features,
    MAX: tl.constexpr, MIN: tl.constexpr, ADD: tl.constexpr, LONG: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of max and min for every sender, to ADD to what is there or to begin it."""
    work, _, live, begin, end = _outgoing_rows(
        order, out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
        SEGMENT, SEGMENTS, BLOCK_R,
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
            if MAX >= 0:
                total += extremum_gradient(
                    grad + MAX * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank, here, feature, features, 0, LONG, WIDE, WIDE_INDEX,
                )  # fmt: skip
            if MIN >= 0:
                total += extremum_gradient(
                    grad + MIN * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank, here, feature, features, 1, LONG, WIDE, WIDE_INDEX,
                )  # fmt: skip
    if ADD:
        total += tl.load(to, mask=mask, other=0)
    tl.store(to, total, mask=mask)


@triton.jit
def _gradient_merge_kernel(
    partial, grad_x, grad_stride, long_rows, long_indptr, num_rows, features,
    WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Gradient of the senders of many edges from their segments, in order."""
    owner = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    total = tl.zeros([BLOCK_F], WIDE)
    for first in range(begin, end, BLOCK_S):
        segment = first + tl.arange(0, BLOCK_S)
        mask = (segment < end)[:, None] & live_feature[None, :]
        place = partial + segment[:, None] * features + feature[None, :]
        total += tl.sum(tl.load(place, mask=mask, other=0), 0)
    tl.store(grad_x + row * grad_stride + feature, total, mask=live_feature)


class Found(NamedTuple):
    """What gradients need that can be found before they are asked for."""

    places: Tensor  # of extrema, as in `Places`
    long_places: Tensor
    centre: Tensor  # as `_centre` gives it; of no length where it is not needed


def find(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
) -> Found:
    """What `backward` finds out for itself where it is not given."""
    x = unit_stride(x)
    with torch.cuda.device_of(x):
        places = find_places(x, edge, at, adjacency, request, saved.out)
        centre = x.new_empty(0)
        if request.needs_spread:
            centre = _centre(_mean(request, saved), adjacency)
    return Found(places.rows, places.long_rows, centre)


def _mean(request: Request, saved: Saved) -> Tensor:
    return saved.mean if saved.mean.shape[0] > 0 else saved.out[:, request.place("mean")]


def backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
    grads: tuple[Tensor, Tensor, Tensor],
    found: Found | None = None,
    beside: Beside | None = None,
) -> None:
    """Write the gradients of x, edge and at; those of no length are not needed.

    That of x may be some columns of a wider tensor; those of the edge term may be found `beside`.
    """
    if adjacency.num_edges == 0:
        for result in grads:
            result.zero_()
        return
    x = unit_stride(x)
    if found is None:
        found = find(x, edge, at, adjacency, request, saved)
    if beside is None:
        beside = Beside(torch.device("cpu"))  # in its turn
    with torch.cuda.device_of(x):
        linear = _receiver_rows(grad, x, adjacency, request, saved, found.centre)
        linear |= edge_arguments(edge, at, adjacency)
        extrema = dict(
            grad=grad,
            stride_row=grad.stride(0),
            stride_kind=grad.stride(1),
            stride_feature=grad.stride(2),
            places=found.places,
            long_places=found.long_places,
            long_rank=adjacency.incoming.long_rank,
            LONG=found.long_places.shape[0] > 0,
            MAX=request.place("max"),
            MIN=request.place("min"),
        )
        by_kind = False
        if grads[0].shape[0] > 0:
            by_kind = _sums_by_kind(x, edge, at, adjacency, linear["WIDTH"], *grads[1:])
            of_edge = grads[1] if by_kind else None
            _sender_gradient(x, adjacency, linear, extrema, grads[0], of_edge, beside)
        for_edge = grads[1].shape[0] > 0 or grads[2].shape[0] > 0
        if edge is not None and for_edge and not by_kind:
            beside.hold(linear, extrema)
            with beside:
                edge_gradient(x, edge, at, adjacency, linear | extrema, grads[1], grads[2])


def _receiver_rows(
    grad: Tensor,
    x: Tensor,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
    centre: Tensor,
) -> dict[str, Any]:
    """Rows A, B, C of every receiver, as arguments of the kernels that read them."""
    wide, features, num_rows = wide_type(x.dtype), x.shape[1], adjacency.num_receivers
    spread, norm = request.needs_spread, request.place("normalised_mean")
    flat = spread or "mean" in request.kinds or "sum" in request.kinds
    width = flat + spread + (norm >= 0)
    rows = x.new_empty((num_rows if width else 0, width, features), dtype=wide)
    mean = _mean(request, saved) if spread else saved.mean
    places = output_places(request)
    weights = sender_weights(adjacency, wide) if norm >= 0 else rows
    shared = dict(
        x=x, x_stride=x.stride(0), rows=rows, centre=centre, weights=weights, features=features,
        WIDTH=width, FLAT=flat, SPREAD=spread, NORM=norm, WIDE=triton_type(wide),
        WIDE_INDEX=wide_index(rows),
    )  # fmt: skip
    if width == 0:
        return shared
    block = min(128, triton.next_power_of_2(features))
    tall = 1024 // block
    kernel_places = {kind: places[kind] for kind in ("MEAN", "SUM", "VAR", "STD")}
    _receiver_rows_kernel[(triton.cdiv(num_rows, tall), triton.cdiv(features, block))](
        grad, *grad.stride(), saved.out, mean, mean.stride(0), centre, adjacency.indptr, rows,
        num_rows, features, **kernel_places, NORM=norm, KINDS=len(request.kinds), FLAT=flat,
        SPREAD=spread, WIDTH=width, LEAST=std_constants(request, x.dtype)["LEAST"],
        WIDE=shared["WIDE"], UNIT=unit_of(features, *grad.stride()[:2], mean.stride(0)),
        BLOCK_R=tall, BLOCK_F=block, num_warps=4,
    )  # fmt: skip
    return shared


def _centre(mean: Tensor, adjacency: Adjacency) -> Tensor:
    """About where the messages lie, (features,): from some 256 of the receivers."""
    rows, features = mean.shape
    every = max(rows // 256, 1)
    centre = mean.new_empty(features)
    block = min(16, triton.next_power_of_2(features))
    _centre_kernel[(triton.cdiv(features, block),)](
        mean, mean.stride(0), adjacency.indptr, centre, rows, every, features,
        WIDE=triton_type(mean.dtype), BLOCK_R=256, BLOCK_F=block, num_warps=8,
    )  # fmt: skip
    return centre


def _takes_short(adjacency: Adjacency) -> bool:
    """Whether outgoing edges are so few that several short rows are walked side by side."""
    return adjacency.num_edges <= 8 * adjacency.outgoing.num_rows


def _sums_by_kind(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    width: int,
    grad_edge: Tensor,
    grad_at: Tensor,
) -> bool:
    """Whether the gradient of a table or basis is summed on the way to that of x, which walks the
    same edges: where its rows are few. Not where `width` is 0, the rows A, B and C that the
    gradient of x has of a receiver: then extrema alone are asked for, by a kernel of their own."""
    if edge is None or at is None or grad_edge.shape[0] == 0 or grad_at.shape[0] > 0:
        return False
    if not has_few_rows(x, edge, adjacency) or width == 0:
        return False
    rows, tiles = adjacency.outgoing, Tiles(x.shape[1], _NARROW, True)
    short = _takes_short(adjacency) and rows.segment_owner.shape[0] == 0
    return short and edge.shape[0] <= _ON_THE_WAY and tiles.grid(rows.num_rows)[0] <= _PROGRAMS


def _sender_gradient(
    x: Tensor,
    adjacency: Adjacency,
    linear: dict[str, Any],
    extrema: dict[str, Any],
    grad_x: Tensor,
    grad_edge: Tensor | None,
    beside: Beside,
) -> None:
    """Gradient of x: the linear part, then max and min added to it, then long rows merged; that of
    a table of kinds with it, where asked for, whose parts are added up `beside`."""
    rows, features = adjacency.outgoing, x.shape[1]
    segments = rows.segment_owner.shape[0]
    wide = grad_x
    if grad_x.dtype != wide_type(x.dtype):
        wide = torch.empty_like(grad_x, dtype=wide_type(x.dtype))
    partial = wide.new_empty((segments, features))
    shared = dict(
        long_arguments(rows),
        order=rows.order,
        out_indptr=rows.indptr,
        receivers=rows.neighbours,
        out_ranks=adjacency.out_ranks,
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
        short = to is wide and _takes_short(adjacency)
        strides = [x.stride(0), to.stride(0), *extrema["grad"].stride()[:2]]
        narrow = Tiles(features, _NARROW, short, strides)
        broad = Tiles(features, 128, short, strides)
        has_extrema = extrema["MAX"] >= 0 or extrema["MIN"] >= 0
        far = linear["WIDE_INDEX"] or wide_index(extrema["grad"], extrema["places"])
        together = short and has_extrema and linear["WIDTH"] > 0
        if linear["WIDTH"] > 0:
            given = shared | linear | extrema | dict(WIDE_INDEX=far)
            if not together:
                given |= dict(MAX=-1, MIN=-1)
            by_kind, kinds = wide, 0
            if grad_edge is not None:
                given |= dict(maxnreg=96)  # for five programs beside one another instead of four
                kinds = grad_edge.shape[0]
                by_kind = wide.new_empty((narrow.grid(work)[0], grad_edge.numel()))
            _linear_gradient_kernel[narrow.grid(work)](
                **given, indptr=adjacency.indptr, by_kind=by_kind, KINDS=kinds,
                UNROLL=narrow.unroll, **narrow.tile,
            )  # fmt: skip
            if grad_edge is not None:
                beside.hold(by_kind)
                with beside:
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
        merge = MergeTiles(features)
        _gradient_merge_kernel[(rows.long_rows.shape[0], merge.blocks)](
            partial, wide, wide.stride(0), rows.long_rows, rows.long_indptr, rows.num_rows,
            features, WIDE=linear["WIDE"], **merge.tile,
        )  # fmt: skip
    if wide is not grad_x:
        grad_x.copy_(wide)
