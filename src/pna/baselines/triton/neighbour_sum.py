"""Weighted sums over neighbours and the node itself: a program owns some rows and features."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from pna.ops.request import wide_type
from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned
from pna.ops.triton.launch import (
    long_arguments,
    tiles_of,
    triton_type,
    unit_stride,
    wide_index,
)
from pna.ops.triton.launcher import Kernel, on_device
from pna.ops.triton.messages import feature_block, offset_of, owned_rows
from pna.ops.triton.sums import add_segments
from pna.rows import SEGMENT, Rows


@Kernel
def _neighbour_sum_kernel(
    x, x_stride, factor, own, neighbours,
    order, indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    out, features,
    FACTOR: tl.constexpr, OWN: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute f_i Σ f_j x_j + c_i x_i for rows, or for SEGMENTS of long rows.

    Only the first segment of a row includes c_i x_i.
    """
    to = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = to < num_rows
    if not SEGMENTS:
        to = tl.load(order + to, mask=exists, other=0).to(tl.int64)
    row, live, first, begin, end = owned_rows(
        to, exists, indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
        SEGMENT, SEGMENTS,
    )  # fmt: skip
    features = aligned(features, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            slot = begin + step + ahead
            more = slot < end
            neighbour = tl.load(neighbours + slot, mask=more, other=0)
            offset = offset_of(neighbour, x_stride, WIDE_INDEX)[:, None] + feature[None, :]
            here = more[:, None] & live_feature[None, :]
            value = tl.load(x + offset, mask=here, other=0).to(WIDE)
            if FACTOR:
                # loaded for every feature: Triton 3.6 fails to lay out a column for some tiles
                place = tl.broadcast_to(factor + neighbour[:, None], value.shape)
                value *= tl.load(place, mask=here, other=0)
            total += value
    if FACTOR:
        total *= tl.load(factor + row, mask=live, other=0)[:, None]
    here = first[:, None] & live_feature[None, :]
    mine = tl.load(x + row[:, None] * x_stride + feature[None, :], mask=here, other=0).to(WIDE)
    if OWN:
        mine *= tl.load(own + row, mask=first, other=0)[:, None]
    total += mine
    mask = live[:, None] & live_feature[None, :]
    tl.store(out + to[:, None] * features + feature[None, :], total, mask=mask)


def neighbour_sum(
    x: Tensor, factor: Tensor | None, own: Tensor | None, rows: Rows, out: Tensor
) -> None:
    """Write f_i Σ f_j x_j + c_i x_i for every row; f and c have the dtype of the accumulators."""
    x, features, segments = unit_stride(x), x.shape[1], rows.segment_owner.shape[0]
    short = likely(rows.neighbours.shape[0]) <= 8 * likely(rows.num_rows)
    wide = triton_type(wide_type(x.dtype))
    partial = x.new_empty((segments, features), dtype=wide_type(x.dtype))
    with on_device(x):
        for to, work in ((out, rows.num_rows), (partial, segments)):
            if work == 0:
                continue
            tiles = tiles_of(features, 32, short and to is out, [x.stride(0)])
            _neighbour_sum_kernel[tiles.grid(work)](
                **long_arguments(rows),
                x=x,
                x_stride=x.stride(0),
                factor=x if factor is None else factor,
                own=x if own is None else own,
                neighbours=rows.neighbours,
                order=rows.order,
                indptr=rows.indptr,
                num_rows=rows.num_rows,
                num_segments=segments,
                num_long=rows.long_rows.shape[0],
                out=to,
                features=features,
                FACTOR=factor is not None,
                OWN=own is not None,
                WIDE=wide,
                WIDE_INDEX=wide_index(x),
                SEGMENT=SEGMENT,
                SEGMENTS=to is partial,
                UNROLL=tiles.unroll,
                **tiles.tile,
            )
        if segments > 0:
            add_segments(partial, rows, out)
