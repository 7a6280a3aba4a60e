"""Statistics of every receiver in one pass over its messages."""

from __future__ import annotations

import triton
import triton.language as tl

from pna.ops.request import Messages, Request, Saved, wide_type
from pna.ops.triton.alignment import aligned
from pna.ops.triton.launch import (
    MergeTiles,
    long_arguments,
    message_arguments,
    output_indices,
    sender_weights,
    std_constants,
    tiles_of,
    triton_type,
    with_unit_stride,
)
from pna.ops.triton.launcher import Kernel, on_device
from pna.ops.triton.messages import (
    clamped,
    feature_block,
    message,
    segment_bounds,
    short_rows,
)
from pna.rows import SEGMENT


@triton.jit
def _nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _take_four(
    step, begin, end, first, mean, rest, spread, largest, smallest, weighted,
    x, x_stride, senders, edge, at, edge_ids, weights, feature, mask, features, types,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, SPREAD: tl.constexpr, MAX: tl.constexpr,
    MIN: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    FULL: tl.constexpr,
):  # fmt: skip
    """Add messages step..step+3 of each row, or those that are left, to its statistics.

    Deviations are taken from the running mean, stored as mean + rest: the rounding error of the
    mean would matter to the spread of messages far from 0. A row that has run out reads its first
    message again, with weight 0 in the sums; this message cannot be a new extremum.
    """
    s0 = clamped(begin + step, end, first, FULL)
    s1 = clamped(begin + step + 1, end, first, FULL)
    s2 = clamped(begin + step + 2, end, first, FULL)
    s3 = clamped(begin + step + 3, end, first, FULL)
    v0 = message(
        x, x_stride, senders, edge, at, edge_ids, s0, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    v1 = message(
        x, x_stride, senders, edge, at, edge_ids, s1, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    v2 = message(
        x, x_stride, senders, edge, at, edge_ids, s2, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    v3 = message(
        x, x_stride, senders, edge, at, edge_ids, s3, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    d0, d1, d2, d3 = v0 - mean, v1 - mean, v2 - mean, v3 - mean
    if SPREAD:
        d0, d1, d2, d3 = d0 - rest, d1 - rest, d2 - rest, d3 - rest
    if FULL:
        inverse = 1 / tl.cast(step + 4, WIDE)
    else:
        d0 *= (begin + step < end).to(WIDE)[:, None]
        d1 *= (begin + step + 1 < end).to(WIDE)[:, None]
        d2 *= (begin + step + 2 < end).to(WIDE)[:, None]
        d3 *= (begin + step + 3 < end).to(WIDE)[:, None]
        inverse = 1 / tl.maximum(tl.minimum(end - begin, step + 4), 1).to(WIDE)[:, None]
    total = (d0 + d1) + (d2 + d3)
    step_by = total * inverse
    if SPREAD:
        spread += (d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3) - total * step_by
        step_by += rest
        before = mean
        mean += step_by
        rest = step_by - (mean - before)
    else:
        mean += step_by
    if MAX:
        largest = tl.maximum(largest, tl.maximum(tl.maximum(v0, v1), tl.maximum(v2, v3)))
    if MIN:
        smallest = tl.minimum(smallest, tl.minimum(tl.minimum(v0, v1), tl.minimum(v2, v3)))
    if NORM:
        w0 = tl.load(weights + tl.load(senders + s0), mask=begin + step < end, other=0)
        w1 = tl.load(weights + tl.load(senders + s1), mask=begin + step + 1 < end, other=0)
        w2 = tl.load(weights + tl.load(senders + s2), mask=begin + step + 2 < end, other=0)
        w3 = tl.load(weights + tl.load(senders + s3), mask=begin + step + 3 < end, other=0)
        if not FULL:  # the repeated first message may be infinite, and 0 · ∞ is NaN
            v0 = tl.where(w0[:, None] > 0, v0, 0)
            v1 = tl.where(w1[:, None] > 0, v1, 0)
            v2 = tl.where(w2[:, None] > 0, v2, 0)
            v3 = tl.where(w3[:, None] > 0, v3, 0)
        weighted += w0[:, None] * v0 + w1[:, None] * v1
        weighted += w2[:, None] * v2 + w3[:, None] * v3
    return mean, rest, spread, largest, smallest, weighted


@triton.jit
def _summarise(
    begin, end, x, x_stride, senders, edge, at, edge_ids, weights,
    feature, live_feature, features, types, num_edges,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, SPREAD: tl.constexpr, MAX: tl.constexpr,
    MIN: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Mean, its rounding error, sum of squared deviations, extrema, and mean weighted by sender, of
    the slots begin..end of each of BLOCK_R rows; undefined for a row without slots."""
    count = end - begin
    longest = tl.max(count)
    shortest = tl.min(count) // 4 * 4
    first = tl.minimum(begin, num_edges - 1)
    mask = live_feature[None, :]
    mean = message(
        x, x_stride, senders, edge, at, edge_ids, first, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    largest, smallest = mean, mean
    rest = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    spread = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    weighted = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, shortest, 4):
        mean, rest, spread, largest, smallest, weighted = _take_four(
            step, begin, end, first,
            mean, rest, spread, largest, smallest, weighted,
            x, x_stride, senders, edge, at, edge_ids, weights, feature, mask, features, types,
            EDGE, DEPTH, SPREAD, MAX, MIN, NORM, WIDE, WIDE_INDEX, True,
        )  # fmt: skip
    for step in range(shortest, longest, 4):
        mean, rest, spread, largest, smallest, weighted = _take_four(
            step, begin, end, first,
            mean, rest, spread, largest, smallest, weighted,
            x, x_stride, senders, edge, at, edge_ids, weights, feature, mask, features, types,
            EDGE, DEPTH, SPREAD, MAX, MIN, NORM, WIDE, WIDE_INDEX, False,
        )  # fmt: skip
    spread = tl.where(spread < 0, 0, spread)
    number = tl.maximum(count, 1).to(WIDE)[:, None]
    weighted /= number
    odd = (mean - mean != 0) | (spread != spread) | (weighted - weighted != 0)
    if tl.max(odd.to(tl.int32)) > 0:  # a value is not finite: rare, so not in the main loop
        total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        broken = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
        infinite = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
        shared = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        for step in range(0, longest):
            slot = begin + step
            more = (slot < end)[:, None]
            value = message(
                x, x_stride, senders, edge, at, edge_ids, tl.minimum(slot, num_edges - 1),
                feature, mask, features, types, EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            total += tl.where(more, value / number, 0)  # so that the sum does not overflow
            if NORM:
                weight = tl.load(weights + tl.load(senders + tl.minimum(slot, num_edges - 1)))
                shared += tl.where(more, weight[:, None] * (value / number), 0)
            broken |= ((value != value) & more).to(tl.int32)
            infinite |= ((tl.abs(value) == float("inf")) & more).to(tl.int32)
        mean = tl.where(mean - mean != 0, total, mean)
        rest = tl.where(rest - rest != 0, 0, rest)
        weighted = tl.where(weighted - weighted != 0, shared, weighted)
        squares = (spread != spread) & (broken + infinite == 0)  # squares overflow; messages do not
        spread = tl.where(squares, float("inf"), spread)
        largest = tl.where(broken > 0, float("nan"), largest)
        smallest = tl.where(broken > 0, float("nan"), smallest)
    return mean, rest, spread, largest, smallest, weighted


@triton.jit
def _root(value, WIDE: tl.constexpr):
    """The square root, correctly rounded, which `tl.sqrt` is not in float32."""
    if WIDE == tl.float32:
        return tl.sqrt_rn(value)
    else:
        return tl.sqrt(value)


@triton.jit
def std_of(
    var, EPSILON: tl.constexpr, LEAST: tl.constexpr, NEXT: tl.constexpr, CLAMP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The standard deviation, see `std_constants`."""
    if CLAMP:
        return tl.where(var <= EPSILON, 0, _root(var, WIDE))
    else:
        std = _root(var + EPSILON, WIDE)
        # tensors, since scalar constants would be rounded to float32
        least, next = tl.full([1, 1], LEAST, WIDE), tl.full([1, 1], NEXT, WIDE)
        return tl.where(var == 0, least, tl.where(std < next, next, std))


@triton.jit
def _finish(
    row, live, degree, mean, spread, largest, smallest, weighted,
    out, mean_out, feature, live_feature, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, LEAST: tl.constexpr, NEXT: tl.constexpr, CLAMP: tl.constexpr,
    OWN_MEAN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the results of receivers; all are 0 for a receiver without messages."""
    mask = live[:, None] & live_feature[None, :]
    reached = (degree > 0)[:, None]
    count = tl.maximum(degree, 1).to(WIDE)[:, None]
    to = out + row[:, None] * KINDS * features + feature[None, :]
    mean = tl.where(reached, mean, 0)
    var = tl.where(reached, spread / count, 0)
    if MEAN >= 0:
        tl.store(to + MEAN * features, mean, mask=mask)
    if SUM >= 0:
        tl.store(to + SUM * features, mean * count, mask=mask)
    if VAR >= 0:
        tl.store(to + VAR * features, var, mask=mask)
    if STD >= 0:
        std = std_of(var, EPSILON, LEAST, NEXT, CLAMP, WIDE)
        tl.store(to + STD * features, tl.where(reached, std, 0), mask=mask)
    if MAX >= 0:
        tl.store(to + MAX * features, tl.where(reached, largest, 0), mask=mask)
    if MIN >= 0:
        tl.store(to + MIN * features, tl.where(reached, smallest, 0), mask=mask)
    if NORM >= 0:
        weighted = tl.where(reached, weighted * tl.sqrt(count), 0)
        tl.store(to + NORM * features, weighted, mask=mask)
    if OWN_MEAN:
        tl.store(mean_out + row[:, None] * features + feature[None, :], mean, mask=mask)


@Kernel
def _statistics_rows_kernel(
    x, x_stride, edge, at, order, indptr, senders, edge_ids, weights, out, mean_out,
    num_rows, num_edges, features, types,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, LEAST: tl.constexpr, NEXT: tl.constexpr, CLAMP: tl.constexpr,
    OWN_MEAN: tl.constexpr, EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
    WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Statistics of receivers with at most SEGMENT slots."""
    place = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    row = tl.load(order + place, mask=place < num_rows, other=0).to(tl.int64)
    live, begin, end = short_rows(row, place < num_rows, indptr, SEGMENT)
    features = aligned(features, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mean, _, spread, largest, smallest, weighted = _summarise(
        begin, end, x, x_stride, senders, edge, at, edge_ids, weights,
        feature, live_feature, features, types, num_edges,
        EDGE, DEPTH, VAR + STD > -2, MAX >= 0, MIN >= 0, NORM >= 0, WIDE, WIDE_INDEX,
        BLOCK_R, BLOCK_F,
    )  # fmt: skip
    _finish(
        row, live, end - begin, mean, spread, largest, smallest, weighted,
        out, mean_out, feature, live_feature, features,
        MEAN, SUM, VAR, STD, MAX, MIN, NORM, KINDS, EPSILON, LEAST, NEXT, CLAMP, OWN_MEAN, WIDE,
    )  # fmt: skip


@Kernel
def _statistics_segments_kernel(
    x, x_stride, edge, at, indptr, senders, edge_ids, weights,
    long_rows, long_indptr, segment_owner, num_segments, num_long, partial,
    num_edges, features, types,
    SPREAD: tl.constexpr, MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Statistics of segments of long rows: partial (segments, 6, features)."""
    segment = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    features = aligned(features, UNIT)
    x_stride = aligned(x_stride, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    _, live, _, begin, end = segment_bounds(
        indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long, SEGMENT
    )
    mean, rest, spread, largest, smallest, weighted = _summarise(
        begin, end, x, x_stride, senders, edge, at, edge_ids, weights,
        feature, live_feature, features, types, num_edges,
        EDGE, DEPTH, SPREAD, MAX, MIN, NORM, WIDE, WIDE_INDEX, BLOCK_R, BLOCK_F,
    )  # fmt: skip
    mask = live[:, None] & live_feature[None, :]
    to = partial + segment[:, None] * 6 * features + feature[None, :]
    tl.store(to, mean, mask=mask)
    tl.store(to + features, spread, mask=mask)
    tl.store(to + 2 * features, largest, mask=mask)
    tl.store(to + 3 * features, smallest, mask=mask)
    tl.store(to + 4 * features, weighted, mask=mask)
    tl.store(to + 5 * features, rest, mask=mask)


@Kernel
def _statistics_merge_kernel(
    indptr, long_rows, long_indptr, num_rows, partial, out, mean_out, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, LEAST: tl.constexpr, NEXT: tl.constexpr, CLAMP: tl.constexpr,
    OWN_MEAN: tl.constexpr, WIDE: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Merge the segments of long rows in order; spreads are merged by Chan's formula."""
    owner = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    base = tl.load(partial + begin * 6 * features + feature, mask=live_feature, other=0)
    mean = tl.zeros([BLOCK_F], WIDE)  # minus `base`
    total = tl.zeros([BLOCK_F], WIDE)
    broken = tl.zeros([BLOCK_F], WIDE)  # NaN where a segment has a value that is not finite
    spread = tl.zeros([BLOCK_F], WIDE)
    largest = tl.full([BLOCK_F], float("-inf"), WIDE)
    smallest = tl.full([BLOCK_F], float("inf"), WIDE)
    weighted = tl.zeros([BLOCK_F], WIDE)
    for first in range(begin, end, BLOCK_S):
        segment = first + tl.arange(0, BLOCK_S)
        live = segment < end
        mask = live[:, None] & live_feature[None, :]
        place = partial + segment[:, None] * 6 * features + feature[None, :]
        size = tl.minimum(degree - (segment - begin) * SEGMENT, SEGMENT)
        size = tl.where(live, size, 0).to(WIDE)
        count = tl.sum(size, 0)
        before = ((first - begin) * SEGMENT).to(WIDE)
        means = tl.load(place, mask=mask, other=0)
        total += tl.sum(means * (size / degree.to(WIDE))[:, None], 0)
        broken += tl.sum(means - means, 0)
        rest = tl.load(place + 5 * features, mask=mask, other=0)
        apart = tl.where(mask, (means - base[None, :]) + rest - mean[None, :], 0)
        shift = tl.sum(apart * size[:, None], 0) / count
        if VAR + STD > -2:
            centred = tl.where(mask, apart - shift[None, :], 0)
            parts = tl.load(place + features, mask=mask, other=0)
            spread += tl.sum(parts, 0)
            broken += tl.sum(tl.where(parts != parts, parts, 0), 0)
            spread += tl.sum(size[:, None] * centred * centred, 0)
            spread += shift * shift * (before * count / (before + count))
        mean += shift * (count / (before + count))
        if MAX >= 0:
            value = tl.load(place + 2 * features, mask=mask, other=float("-inf"))
            largest = _nan_maximum(largest, tl.reduce(value, 0, _nan_maximum))
        if MIN >= 0:
            value = tl.load(place + 3 * features, mask=mask, other=float("inf"))
            smallest = _nan_minimum(smallest, tl.reduce(value, 0, _nan_minimum))
        if NORM >= 0:
            parts = tl.load(place + 4 * features, mask=mask, other=0)
            weighted += tl.sum(parts * (size / degree.to(WIDE))[:, None], 0)
    mean += base
    mean = tl.where(mean - mean == 0, mean, total)  # differences of infinite means are NaN
    spread = tl.where((spread != spread) & (broken == 0), float("inf"), spread)
    one = tl.zeros([1], tl.int64)
    _finish(
        one + row, one == 0, one + degree, mean[None, :], spread[None, :], largest[None, :],
        smallest[None, :], weighted[None, :],
        out, mean_out, feature, live_feature, features,
        MEAN, SUM, VAR, STD, MAX, MIN, NORM, KINDS, EPSILON, LEAST, NEXT, CLAMP, OWN_MEAN, WIDE,
    )  # fmt: skip


def forward(messages: Messages, request: Request, saved: Saved) -> None:
    """Write the statistics, and what the backward pass needs, to `saved`."""
    messages = with_unit_stride(messages)
    x, adjacency = messages.x, messages.adjacency
    if adjacency.num_edges == 0:
        saved.out.zero_()
        saved.mean.zero_()
        return
    rows, features = adjacency.incoming, messages.features
    tiles = tiles_of(features, widest=32, strides=[x.stride(0)])
    indices = output_indices(request)
    wide = wide_type(x.dtype)
    inputs = message_arguments(messages)
    inputs["weights"] = sender_weights(adjacency, wide) if indices["NORM"] >= 0 else x
    results = dict(out=saved.out, mean_out=saved.mean)
    finish = dict(
        indices,
        KINDS=len(request.kinds),
        CLAMP=request.clamp,
        OWN_MEAN=saved.mean.shape[0] > 0,
        WIDE=triton_type(wide),
        **std_constants(request, x.dtype),
    )
    with on_device(x):
        _statistics_rows_kernel[tiles.grid(rows.num_rows)](
            **inputs,
            **results,
            **finish,
            order=rows.order,
            num_rows=rows.num_rows,
            SEGMENT=SEGMENT,
            **tiles.tile,
        )
        if rows.segment_owner.shape[0] == 0:
            return
        segments = rows.segment_owner.shape[0]
        partial = x.new_empty((segments, 6, features), dtype=wide)
        _statistics_segments_kernel[tiles.grid(segments)](
            **inputs,
            **long_arguments(rows),
            num_segments=segments,
            num_long=rows.long_rows.shape[0],
            partial=partial,
            SPREAD=request.needs_spread,
            **{kind: indices[kind] >= 0 for kind in ("MAX", "MIN", "NORM")},
            WIDE=finish["WIDE"],
            SEGMENT=SEGMENT,
            **tiles.tile,
        )
        merge = MergeTiles(features)
        _statistics_merge_kernel[(rows.long_rows.shape[0], merge.blocks)](
            indptr=rows.indptr,
            long_rows=rows.long_rows,
            long_indptr=rows.long_indptr,
            num_rows=rows.num_rows,
            partial=partial,
            features=features,
            **results,
            **finish,
            SEGMENT=SEGMENT,
            **merge.tile,
        )
