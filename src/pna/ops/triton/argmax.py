"""The argmax and argmin over the messages of every receiver, recomputed for the backward pass.

Storing them in the forward pass would cost as much as the rest of its arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.request import Messages, Request, wide_type
from pna.ops.triton.alignment import aligned
from pna.ops.triton.launch import (
    MergeTiles,
    long_arguments,
    message_arguments,
    tiles_of,
    triton_type,
)
from pna.ops.triton.launcher import Kernel
from pna.ops.triton.messages import (
    clamped,
    feature_block,
    message,
    offset_of,
    segment_bounds,
    short_rows,
)
from pna.rows import SEGMENT


class Argmax(NamedTuple):
    """The positions of the maximum and of the minimum in each receiver's row of slots.

    A row of at most 255 slots stores one byte; 255 means none. A longer row stores the low byte
    there, and the full position, or -1, in `long_rows`.
    """

    rows: Tensor  # (receivers, 2, features) uint8
    long_rows: Tensor  # (long rows, 2, features) int32


@triton.jit
def _raise(value, largest, largest_at, rank):
    above = value > largest
    return tl.where(above, value, largest), tl.where(above, rank, largest_at)


@triton.jit
def _lower(value, smallest, smallest_at, rank):
    below = value < smallest
    return tl.where(below, value, smallest), tl.where(below, rank, smallest_at)


@triton.jit
def _find(
    begin, end, x, x_stride, senders, edge, at, edge_ids,
    feature, live_feature, features, types, num_edges,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, MAX: tl.constexpr, MIN: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Extrema of the slots begin..end of each row, and their positions counted from begin."""
    first = tl.minimum(begin, num_edges - 1)
    mask = live_feature[None, :]
    largest = message(
        x, x_stride, senders, edge, at, edge_ids, first, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    smallest = largest
    largest_at = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
    smallest_at = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
    for step in range(1, tl.max(end - begin).to(tl.int32), 4):
        for ahead in tl.static_range(4):
            slot = clamped(begin + step + ahead, end, first, False)
            value = message(
                x, x_stride, senders, edge, at, edge_ids, slot, feature, mask, features, types,
                EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            if MAX >= 0:
                largest, largest_at = _raise(value, largest, largest_at, step + ahead)
            if MIN >= 0:
                smallest, smallest_at = _lower(value, smallest, smallest_at, step + ahead)
    return largest, smallest, largest_at, smallest_at


@triton.jit
def _find_equal(
    begin, end, largest, smallest, x, x_stride, senders, edge, at, edge_ids,
    feature, live_feature, features, types, num_edges,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, MAX: tl.constexpr, MIN: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Positions of known extrema. Walks backwards, so that the first one is found last."""
    first = tl.minimum(begin, num_edges - 1)
    mask = live_feature[None, :]
    largest_at = tl.full([BLOCK_R, BLOCK_F], -1, tl.int32)
    smallest_at = tl.full([BLOCK_R, BLOCK_F], -1, tl.int32)
    steps = tl.cdiv(tl.max(end - begin).to(tl.int32), 4)
    for done in range(0, steps):
        for ahead in tl.static_range(4):
            place = (steps - done) * 4 - 1 - ahead
            slot = clamped(begin + place, end, first, False)
            value = message(
                x, x_stride, senders, edge, at, edge_ids, slot, feature, mask, features, types,
                EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            if MAX >= 0:
                largest_at = tl.where(value == largest, place, largest_at)
            if MIN >= 0:
                smallest_at = tl.where(value == smallest, place, smallest_at)
    return largest_at, smallest_at


@triton.jit
def _without_nan(place, result, mask):
    """Positions, with -1 where the result is NaN, which has no gradient."""
    value = tl.load(result, mask=mask, other=0)
    return tl.where(value == value, place, -1)


@Kernel
def _argmax_rows_kernel(
    x, x_stride, edge, at, order, indptr, senders, edge_ids, out, positions,
    num_rows, num_edges, features, types,
    MAX: tl.constexpr, MIN: tl.constexpr, KINDS: tl.constexpr, EDGE: tl.constexpr,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Argmax and argmin of receivers with at most SEGMENT slots."""
    place = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    row = tl.load(order + place, mask=place < num_rows, other=0).to(tl.int64)
    live, begin, end = short_rows(row, place < num_rows, indptr, SEGMENT)
    features = aligned(features, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    result = out + row[:, None] * KINDS * features + feature[None, :]
    if EDGE == 0:
        largest = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        smallest = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        if MAX >= 0:
            largest = tl.load(result + MAX * features, mask=mask, other=0).to(WIDE)
        if MIN >= 0:
            smallest = tl.load(result + MIN * features, mask=mask, other=0).to(WIDE)
        largest_at, smallest_at = _find_equal(
            begin, end, largest, smallest, x, x_stride, senders, edge, at, edge_ids,
            feature, live_feature, features, types, num_edges,
            EDGE, DEPTH, MAX, MIN, WIDE, WIDE_INDEX, BLOCK_R, BLOCK_F,
        )  # fmt: skip
    else:
        _, _, largest_at, smallest_at = _find(
            begin, end, x, x_stride, senders, edge, at, edge_ids,
            feature, live_feature, features, types, num_edges,
            EDGE, DEPTH, MAX, MIN, WIDE, WIDE_INDEX, BLOCK_R, BLOCK_F,
        )  # fmt: skip
    to = positions + row[:, None] * 2 * features + feature[None, :]
    if MAX >= 0:
        largest_at = _without_nan(largest_at, result + MAX * features, mask)
        tl.store(to, (largest_at & 255).to(tl.uint8), mask=mask)
    if MIN >= 0:
        smallest_at = _without_nan(smallest_at, result + MIN * features, mask)
        tl.store(to + features, (smallest_at & 255).to(tl.uint8), mask=mask)


@Kernel
def _argmax_segments_kernel(
    x, x_stride, edge, at, indptr, senders, edge_ids,
    long_rows, long_indptr, segment_owner, num_segments, num_long, partial, partial_at,
    num_edges, features, types,
    MAX: tl.constexpr, MIN: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr, EVEN: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Extrema and their positions in segments of long rows: (segments, 2, features) each."""
    segment = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    features = aligned(features, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    _, live, row_begin, begin, end = segment_bounds(
        indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long, SEGMENT
    )
    largest, smallest, largest_at, smallest_at = _find(
        begin, end, x, x_stride, senders, edge, at, edge_ids,
        feature, live_feature, features, types, num_edges,
        EDGE, DEPTH, MAX, MIN, WIDE, WIDE_INDEX, BLOCK_R, BLOCK_F,
    )  # fmt: skip
    mask = live[:, None] & live_feature[None, :]
    before = (begin - row_begin).to(tl.int32)[:, None]
    to = segment[:, None] * 2 * features + feature[None, :]
    tl.store(partial + to, largest, mask=mask)
    tl.store(partial + to + features, smallest, mask=mask)
    tl.store(partial_at + to, before + largest_at, mask=mask)
    tl.store(partial_at + to + features, before + smallest_at, mask=mask)


@Kernel
def _argmax_merge_kernel(
    long_rows, long_indptr, num_rows, partial, partial_at, out, positions, long_positions, features,
    KIND: tl.constexpr, WHICH: tl.constexpr, KINDS: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Merge the segments of long rows: the first argmax (WHICH = 0) or argmin (WHICH = 1)."""
    owner = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    sign: tl.constexpr = 1 - 2 * WHICH
    largest = tl.full([BLOCK_F], float("-inf"), WIDE)
    place = tl.full([BLOCK_F], 2147483647, tl.int32)
    for first in range(begin, end, BLOCK_S):
        segment = first + tl.arange(0, BLOCK_S)
        mask = (segment < end)[:, None] & live_feature[None, :]
        source = (segment[:, None] * 2 + WHICH) * features + feature[None, :]
        value = tl.load(partial + source, mask=mask, other=0) * sign
        value = tl.where(mask, value, float("-inf"))
        rank = tl.load(partial_at + source, mask=mask, other=2147483647)
        tile = tl.max(value, 0)
        tile_at = tl.min(tl.where(value == tile[None, :], rank, 2147483647), 0)
        above = (tile > largest) | (first == begin)
        place = tl.where(above, tile_at, place)
        largest = tl.where(above, tile, largest)
    result = out + (row * KINDS + KIND) * features + feature
    place = _without_nan(place, result, live_feature)
    tl.store(long_positions + (owner * 2 + WHICH) * features + feature, place, mask=live_feature)
    to = positions + (row * 2 + WHICH) * features + feature
    tl.store(to, (place & 255).to(tl.uint8), mask=live_feature)


@triton.jit
def extrema_gradient(
    grad, stride_row, stride_kind, stride_feature, positions, long_positions, long_rank, receiver,
    rank, mask, feature, features, MAX: tl.constexpr, MIN: tl.constexpr, LONG: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
):  # fmt: skip
    """Gradients of max and min if this edge is the argmax or argmin, else 0: (BLOCK_R, BLOCK_F)."""
    byte = positions + feature[None, :] + offset_of(receiver * 2, features, WIDE_INDEX)[:, None]
    low = (rank & 255)[:, None]
    is_max = mask
    is_min = mask
    if MAX >= 0:
        is_max = mask & (tl.load(byte, mask=mask, other=0) == low)
    if MIN >= 0:
        is_min = mask & (tl.load(byte + features, mask=mask, other=0) == low)
    if LONG:  # the byte of a long row is only the low part of the position
        owner = tl.load(long_rank + receiver)
        if tl.max(owner) >= 0:  # saves instructions: most receivers are not long
            whole = long_positions + feature[None, :]
            whole += offset_of(tl.maximum(owner, 0) * 2, features, WIDE_INDEX)[:, None]
            wanted = tl.broadcast_to(rank[:, None], mask.shape)
            far = (owner >= 0)[:, None]
            if MAX >= 0:
                is_max &= tl.load(whole, mask=is_max & far, other=wanted) == wanted
            if MIN >= 0:
                is_min &= tl.load(whole + features, mask=is_min & far, other=wanted) == wanted
    place = grad + feature[None, :] * stride_feature
    place += offset_of(receiver, stride_row, WIDE_INDEX)[:, None]
    result = tl.zeros(mask.shape, WIDE)
    if MAX >= 0:
        result += tl.load(place + MAX * stride_kind, mask=is_max, other=0).to(WIDE)
    if MIN >= 0:
        result += tl.load(place + MIN * stride_kind, mask=is_min, other=0).to(WIDE)
    return result


def argmax(messages: Messages, request: Request, out: Tensor) -> Argmax:
    """The argmax and argmin; without elements if neither max nor min is requested."""
    x, rows, features = messages.x, messages.adjacency.incoming, messages.features
    wide = wide_type(x.dtype)
    num_rows = rows.num_rows if request.needs_extrema else 0
    num_long = rows.long_rows.shape[0] if request.needs_extrema else 0
    found = Argmax(
        rows=x.new_empty((num_rows, 2, features), dtype=torch.uint8),
        long_rows=x.new_empty((num_long, 2, features), dtype=torch.int32),
    )
    if num_rows == 0:
        return found
    tiles = tiles_of(features, widest=64, strides=[x.stride(0)])
    extrema = dict(MAX=request.index("max"), MIN=request.index("min"), WIDE=triton_type(wide))
    inputs = message_arguments(messages)
    _argmax_rows_kernel[tiles.grid(num_rows)](
        **inputs,
        **extrema,
        out=out,
        positions=found.rows,
        order=rows.order,
        num_rows=num_rows,
        KINDS=len(request.kinds),
        SEGMENT=SEGMENT,
        **tiles.tile,
    )
    if num_long == 0:
        return found
    segments = rows.segment_owner.shape[0]
    partial = x.new_empty((segments, 2, features), dtype=wide)
    partial_at = x.new_empty((segments, 2, features), dtype=torch.int32)
    _argmax_segments_kernel[tiles.grid(segments)](
        **inputs,
        **extrema,
        **long_arguments(rows),
        num_segments=segments,
        num_long=num_long,
        partial=partial,
        partial_at=partial_at,
        SEGMENT=SEGMENT,
        **tiles.tile,
    )
    merge = MergeTiles(features)
    for which, kind in enumerate(("max", "min")):
        if kind in request.kinds:
            _argmax_merge_kernel[(num_long, merge.blocks)](
                rows.long_rows, rows.long_indptr, num_rows, partial, partial_at, out, found.rows,
                found.long_rows, features, KIND=request.index(kind), WHICH=which,
                KINDS=len(request.kinds), WIDE=extrema["WIDE"], **merge.tile,
            )  # fmt: skip
    return found
