"""The backward pass, and rows A, B and C of every receiver.

From these rows, `sender_gradients` computes the gradient of x, and `edge_gradients` those of the
edge term.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.request import LINEAR, TABLE, Messages, Request, Saved, wide_type
from pna.ops.streams import SideStream
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.argmax import Argmax, argmax
from pna.ops.triton.edge_gradients import edge_gradient, sums_few_kinds
from pna.ops.triton.launch import (
    MergeTiles,
    edge_arguments,
    long_arguments,
    message_arguments,
    output_indices,
    sender_weights,
    std_constants,
    tiles_of,
    triton_type,
    wide_index,
    with_unit_stride,
)
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.messages import (
    centre_of,
    clamped,
    feature_block,
    mark_far,
    message,
    segment_bounds,
)
from pna.ops.triton.sender_gradients import sender_gradient, sums_by_kind, type_gradient
from pna.ops.triton.sums import sum_segments
from pna.rows import SEGMENT, Rows

#: Ratios of mean to std. Above _FAR, deviations are taken from the mean instead of from 0. Above
#: _REMOTE, the rounding of the mean matters, and messages are read again to correct for it.
_FAR, _REMOTE = tl.constexpr(16), tl.constexpr(64)


@triton.jit
def _sum_deviations(
    begin, end, steps, centre, x, x_stride, senders, edge, at, edge_ids, feature, mask, features,
    types, num_edges,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
):  # fmt: skip
    """Sum of m − centre over the first `steps` of the slots begin..end: (BLOCK_R, BLOCK_F)."""
    total = tl.zeros(centre.shape, WIDE)
    first = tl.minimum(begin, num_edges - 1)
    for step in range(0, steps):
        slot = begin + step
        value = message(
            x, x_stride, senders, edge, at, edge_ids, clamped(slot, end, first, False), feature,
            mask, features, types, EDGE, DEPTH, WIDE, WIDE_INDEX,
        )  # fmt: skip
        total += tl.where((slot < end)[:, None], value - centre, 0)
    return total


@Kernel
def _receiver_rows_kernel(
    grad, stride_row, stride_kind, stride_feature, out, mean, mean_stride, indptr, rows,
    x, x_stride, senders, edge, at, edge_ids, num_rows, num_edges, features, types,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    NORM: tl.constexpr, KINDS: tl.constexpr, FLAT: tl.constexpr, SPREAD: tl.constexpr,
    WIDTH: tl.constexpr, SLOPE: tl.constexpr, LEAST: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The needed ones of rows A, B, C of every receiver: rows (receivers, WIDTH, features). B is
    SLOPE after A, and C the last. They may replace the gradients that they are computed from."""
    stride_row, stride_kind = aligned(stride_row, UNIT), aligned(stride_kind, UNIT)
    features, mean_stride = aligned(features, UNIT), aligned(mean_stride, UNIT)
    row = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = row < num_rows
    mask = live[:, None] & (feature < features)[None, :]
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    degree = end - begin
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
        kind = STD if STD >= 0 else VAR
        place = out + (row[:, None] * KINDS + kind) * features + feature[None, :]
        std = tl.load(place, mask=mask, other=1).to(WIDE)
        if VAR >= 0:
            slope += 2 * tl.load(source + VAR * stride_kind, mask=mask, other=0).to(WIDE) / count
        if STD >= 0:
            steep = tl.load(source + STD * stride_kind, mask=mask, other=0).to(WIDE)
            slope += tl.where(std == tl.full([1, 1], LEAST, WIDE), 0, steep / (count * std))
        else:
            std = tl.sqrt(std)
        here = tl.load(mean + row[:, None] * mean_stride + feature[None, :], mask=mask, other=0)
        here = here.to(WIDE)
        far = (slope != 0) & (tl.abs(here) > std * _FAR)
        slope = mark_far(slope, far, WIDE)
        flat -= tl.where(far | (slope == 0), 0, here * slope)
        remote = far & (tl.abs(here) > std * _REMOTE) & (degree <= SEGMENT)[:, None]
        steps = tl.max(tl.where(remote, degree[:, None], 0))
        if steps > 1:  # the mean of one message is exact
            rest = _sum_deviations(
                begin, end, steps, here, x, x_stride, senders, edge, at, edge_ids, feature, mask,
                features, types, num_edges, EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            flat -= tl.where(remote, slope * (rest / count), 0)
        tl.store(to + SLOPE * features, slope, mask=mask)
    if FLAT:
        tl.store(to, flat, mask=mask)
    if NORM >= 0:
        value = tl.load(source + NORM * stride_kind, mask=mask, other=0).to(WIDE)
        tl.store(to + (WIDTH - 1) * features, value / tl.sqrt(count), mask=mask)


@Kernel
def _segment_deviations_kernel(
    rows, mean, mean_stride, partial, long_rows, long_indptr, segment_owner, num_segments, num_long,
    x, x_stride, edge, at, indptr, senders, edge_ids, num_edges, features, types,
    WIDTH: tl.constexpr, SLOPE: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr, EVEN: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Sums of m − c over segments of long rows: partial (segments, features). They are 0 where
    c = 0, since no correction is needed there."""
    segment = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    row, live, _, begin, end = segment_bounds(
        indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long, SEGMENT
    )
    features, x_stride = aligned(features, UNIT), aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    place = rows + (row[:, None] * WIDTH + SLOPE) * features + feature[None, :]
    slope = tl.load(place, mask=mask, other=0)
    own = mean + row[:, None] * mean_stride + feature[None, :]
    centre = centre_of(slope, own, mask, WIDE)
    steps = tl.max(tl.where(centre != 0, (end - begin)[:, None], 0))
    rest = _sum_deviations(
        begin, end, steps, centre, x, x_stride, senders, edge, at, edge_ids, feature, mask,
        features, types, num_edges, EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    to = partial + segment[:, None] * features + feature[None, :]
    tl.store(to, tl.where(centre != 0, rest, 0), mask=mask)


@Kernel
def _long_rows_kernel(
    rows, partial, indptr, long_rows, long_indptr, num_rows, features,
    WIDTH: tl.constexpr, SLOPE: tl.constexpr, WIDE: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_F: tl.constexpr,
):  # fmt: skip
    """A −= B · mean(m − c) for every long row; the mean comes from the sums over segments."""
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + tl.program_id(0)).to(tl.int64)
    if row >= num_rows:
        return
    total = sum_segments(
        partial, long_indptr, True, feature, live_feature, features, WIDE, BLOCK_S, BLOCK_F
    )
    degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
    place = rows + row * WIDTH * features + feature
    flat = tl.load(place, mask=live_feature, other=0)
    slope = tl.load(place + SLOPE * features, mask=live_feature, other=0)
    flat -= tl.where(total != 0, slope * (total / degree.to(WIDE)), 0)
    tl.store(place, flat, mask=live_feature)


def _mean(request: Request, saved: Saved) -> Tensor:
    return saved.mean if saved.mean.shape[0] > 0 else saved.out[:, request.index("mean")]


def backward(
    grad: Tensor,
    messages: Messages,
    request: Request,
    saved: Saved,
    grads: tuple[Tensor, Tensor, Tensor],
    found: Argmax | None = None,
    side: SideStream | None = None,
    spare: bool = False,
) -> None:
    """Write the gradients of x, edge and at; a gradient without elements is not needed.

    The gradient of x may be a slice of the columns of a wider tensor. The gradients of the edge
    term may be computed on another stream, `side`. The argmax is recomputed unless `found` has it.
    With `spare`, nobody needs `grad` afterwards, and its memory is used.
    """
    messages = with_unit_stride(messages)
    adjacency = messages.adjacency
    if adjacency.num_edges == 0:
        for result in grads:
            result.zero_()
        return
    if side is None:
        side = SideStream(torch.device("cpu"))  # no side stream: work runs in order
    with on_device(messages.x):
        if found is None:
            found = argmax(messages, request, saved.out)
        linear = _receiver_rows(grad, messages, request, saved, spare)
        extrema = dict(
            grad=grad,
            stride_row=grad.stride(0),
            stride_kind=grad.stride(1),
            stride_feature=grad.stride(2),
            positions=found.rows,
            long_positions=found.long_rows,
            long_rank=adjacency.incoming.long_rank,
            LONG=found.long_rows.shape[0] > 0,
            MAX=request.index("max"),
            MIN=request.index("min"),
        )
        by_kind = False
        if grads[0].shape[0] > 0:
            by_kind = sums_by_kind(messages, linear["WIDTH"], *grads[1:])
            of_edge = grads[1] if by_kind else None
            sender_gradient(messages, linear, extrema, grads[0], of_edge, side)
        for_edge = grads[1].shape[0] > 0 or grads[2].shape[0] > 0
        if messages.edge is not None and for_edge and not by_kind:
            side.hold(linear, extrema)
            with side:
                if messages.form == TABLE and not sums_few_kinds(messages, grads[2]):
                    type_gradient(messages, linear, extrema, grads[1])
                else:
                    edge_gradient(messages, linear | extrema, grads[1], grads[2])


def _receiver_rows(
    grad: Tensor, messages: Messages, request: Request, saved: Saved, spare: bool
) -> dict[str, Any]:
    """Compute rows A, B, C of every receiver; returns arguments of the kernels that read them."""
    x, adjacency, features = messages.x, messages.adjacency, messages.features
    wide, num_rows = wide_type(x.dtype), adjacency.num_receivers
    spread, norm = request.needs_spread, request.index("normalised_mean")
    flat = spread or "mean" in request.kinds or "sum" in request.kinds
    width, slope = flat + spread + (norm >= 0), 1
    linear = [i for i, kind in enumerate(request.kinds) if kind in LINEAR]
    if spare and norm < 0 < width <= len(linear) and grad.dtype == wide and grad.is_contiguous():
        rows, width, slope = grad[:, linear[0] :], len(request.kinds), linear[-1] - linear[0]
    else:
        rows = x.new_empty((num_rows if width else 0, width, features), dtype=wide)
    mean = _mean(request, saved) if spread else saved.mean
    indices = output_indices(request)
    weights = sender_weights(adjacency, wide) if norm >= 0 else rows
    shared = dict(
        x=x, x_stride=x.stride(0), rows=rows, mean=mean, mean_stride=mean.stride(0),
        weights=weights, features=features, WIDTH=width, SLOPE=slope, FLAT=flat, SPREAD=spread,
        NORM=norm, WIDE=triton_type(wide), WIDE_INDEX=wide_index(rows, mean),
        **edge_arguments(messages),
    )  # fmt: skip
    if width == 0:
        return shared
    block = min(128, next_power_of_2(features))
    tall = 1024 // block
    requested = {kind: indices[kind] for kind in ("MEAN", "SUM", "VAR", "STD")}
    inputs = message_arguments(messages)
    _receiver_rows_kernel[(cdiv(num_rows, tall), cdiv(features, block))](
        grad, *grad.stride(), saved.out, mean, mean.stride(0), rows=rows, **inputs,
        num_rows=num_rows, **requested, NORM=norm, KINDS=len(request.kinds), FLAT=flat,
        SPREAD=spread, WIDTH=width, SLOPE=slope, LEAST=std_constants(request, x.dtype)["LEAST"],
        WIDE=shared["WIDE"], SEGMENT=SEGMENT,
        UNIT=unit_of(features, *grad.stride()[:2], mean.stride(0)),
        BLOCK_R=tall, BLOCK_F=block, num_warps=4,
    )  # fmt: skip
    if spread and adjacency.incoming.segment_owner.shape[0] > 0:
        form = {name: shared[name] for name in ("WIDTH", "SLOPE", "WIDE")}
        _correct_long_rows(rows, mean, inputs, adjacency.incoming, form)
    return shared


def _correct_long_rows(
    rows: Tensor, mean: Tensor, messages: dict[str, Any], incoming: Rows, form: dict[str, Any]
) -> None:
    """Correct A of long rows for the rounding of the mean, segment by segment."""
    features, segments = rows.shape[2], incoming.segment_owner.shape[0]
    long = long_arguments(incoming)
    tiles = tiles_of(features, widest=32, strides=[messages["x_stride"]])
    partial = rows.new_empty((segments, features))
    _segment_deviations_kernel[tiles.grid(segments)](
        rows, mean, mean.stride(0), partial, **long, **messages, num_segments=segments,
        num_long=incoming.long_rows.shape[0], **form, SEGMENT=SEGMENT, **tiles.tile,
    )  # fmt: skip
    merge = MergeTiles(features)
    _long_rows_kernel[(incoming.long_rows.shape[0], merge.blocks)](
        rows, partial, incoming.indptr, incoming.long_rows, incoming.long_indptr,
        incoming.num_rows, features, **form, **merge.tile,
    )  # fmt: skip
