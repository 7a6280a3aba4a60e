"""GPU kernels of the fused statistics.

Forward, one program owns a receiver and a block of features, walks the receiver's slots in tiles
and keeps running statistics, the variance merged tile by tile (Chan's formula). Backward, one
program owns a sender and walks its outgoing edges: the gradient of a message is

    A_i + B_i·(m − c) + C_i·w_j + (gradient of max or min, where this edge was it)

with rows A, B, C computed once for every receiver and c a centre that keeps A and B·c from
cancelling. Rows of more than SEGMENT slots are cut: each segment is a program of its own, and a
last kernel merges the segments of a row in order. No atomics, so results repeat to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import SEGMENT, Adjacency, Rows
from pna.ops.statistics import Request, Saved, wide_type

_NONE, _DENSE, _TABLE, _COEFFICIENTS = 0, 1, 2, 3
#: Bytes of message gradients that are held at once when edge tables or bases need theirs.
_WORKSPACE = 2**27


@triton.jit
def _nan_maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _nan_minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _feature_block(features, EVEN: tl.constexpr, BLOCK_F: tl.constexpr):
    """The features of this program, and which of them there are: all of them where EVEN."""
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    if EVEN:
        return feature, tl.full([BLOCK_F], True, tl.int1)
    return feature, feature < features


@triton.jit
def _places_in(index, stride, WIDE_INDEX: tl.constexpr):
    """Where rows begin, in 64 bits only where 32 would overflow."""
    if WIDE_INDEX:
        index = index.to(tl.int64)
    return index * stride


@triton.jit
def _edge_term(
    edge, at, edge_ids, slot, feature, mask, features, types,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """e of the edges in these slots, (BLOCK_R, BLOCK_F); NaN where an index is not in the table."""
    given = tl.load(edge_ids + slot).to(tl.int64)
    if EDGE == 1:
        term = tl.load(edge + given[:, None] * features + feature[None, :], mask=mask, other=0)
        return term.to(WIDE)
    if EDGE == 2:
        kind = tl.load(at + given).to(tl.int32)
        known = (kind >= 0) & (kind < types)
        place = kind[:, None] * features + feature[None, :]
        term = tl.load(edge + place, mask=mask & known[:, None], other=float("nan"))
        return term.to(WIDE)
    term = tl.zeros([slot.shape[0], feature.shape[0]], WIDE)
    for depth in tl.static_range(DEPTH):
        coefficient = tl.load(at + given * DEPTH + depth).to(WIDE)
        basis = tl.load(edge + depth * features + feature[None, :], mask=mask, other=0).to(WIDE)
        term += coefficient[:, None] * basis
    return term


@triton.jit
def _message(
    x, x_stride, senders, edge, at, edge_ids, slot, feature, mask, features, types,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
):  # fmt: skip
    """Messages in these slots, (BLOCK_R, BLOCK_F)."""
    place = _places_in(tl.load(senders + slot), x_stride, WIDE_INDEX)
    value = tl.load(x + feature[None, :] + place[:, None], mask=mask, other=0).to(WIDE)
    if EDGE != 0:
        value += _edge_term(
            edge, at, edge_ids, slot, feature, mask, features, types, EDGE, DEPTH, WIDE
        )
    return value


@triton.jit
def _summarise(
    begin, end, first_rank, x, x_stride, senders, edge, at, edge_ids, weights,
    feature, live_feature, features, types, num_edges,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, SPREAD: tl.constexpr, MAX: tl.constexpr,
    MIN: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Mean, sum of squared deviations, extrema with their places in the row, and the sum weighted
    by sender, over the slots begin..end of each of BLOCK_R rows; anything where there are none.

    Sums are taken of differences from the first message. It is one of the set, so the variance
    is at least its own share of it and no more than a factor of the row's length is lost.
    A row that has run out reads its first message again: a difference of 0 and no new extremum.
    """
    count = end - begin
    longest = tl.max(count)
    first = tl.minimum(begin, num_edges - 1)
    mask = live_feature[None, :]
    pivot = _message(
        x, x_stride, senders, edge, at, edge_ids, first, feature, mask, features, types,
        EDGE, DEPTH, WIDE, WIDE_INDEX,
    )  # fmt: skip
    shifted = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    squared = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    weighted = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    largest, smallest = pivot, pivot
    largest_at = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
    smallest_at = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
    if NORM:
        weighted += tl.load(weights + tl.load(senders + first))[:, None] * pivot
    for step in tl.range(1, longest, UNROLL, num_stages=3):
        for ahead in tl.static_range(UNROLL):
            slot = begin + step + ahead
            more = slot < end
            slot = tl.where(more, slot, first)
            value = _message(
                x, x_stride, senders, edge, at, edge_ids, slot, feature, mask, features, types,
                EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            difference = value - pivot
            shifted += difference
            if SPREAD:
                squared += difference * difference
            if MAX:
                above = value > largest
                largest = tl.where(above, value, largest)
                largest_at = tl.where(above, step + ahead, largest_at)
            if MIN:
                below = value < smallest
                smallest = tl.where(below, value, smallest)
                smallest_at = tl.where(below, step + ahead, smallest_at)
            if NORM:
                weight = tl.load(weights + tl.load(senders + slot), mask=more, other=0)
                weighted += weight[:, None] * value
    inverse = (1 / tl.maximum(count, 1).to(WIDE))[:, None]
    share = shifted * inverse
    mean = pivot + share
    spread = squared - shifted * share
    spread = tl.where(spread < 0, 0, spread)
    largest_at += first_rank[:, None].to(tl.int32)
    smallest_at += first_rank[:, None].to(tl.int32)
    if tl.max((shifted != shifted).to(tl.int32)) > 0:
        total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
        broken = tl.zeros([BLOCK_R, BLOCK_F], tl.int32)
        for step in range(0, longest):
            more = (begin + step < end)[:, None]
            value = _message(
                x, x_stride, senders, edge, at, edge_ids, tl.minimum(begin + step, num_edges - 1),
                feature, mask, features, types, EDGE, DEPTH, WIDE, WIDE_INDEX,
            )  # fmt: skip
            total += tl.where(more, value, 0)
            broken |= ((value != value) & more).to(tl.int32)
        mean = tl.where(shifted != shifted, total * inverse, mean)
        largest = tl.where(broken > 0, float("nan"), largest)
        smallest = tl.where(broken > 0, float("nan"), smallest)
        largest_at = tl.where(broken > 0, -1, largest_at)
        smallest_at = tl.where(broken > 0, -1, smallest_at)
    return mean, spread, largest, smallest, largest_at, smallest_at, weighted


@triton.jit
def _finish(
    row, live, degree, mean, spread, largest, smallest, largest_at, smallest_at, weighted,
    out, mean_out, places, feature, live_feature, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, CLAMP: tl.constexpr, OWN_MEAN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the results of receivers; all are 0 where nothing reaches one."""
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
        if CLAMP:
            std = tl.where(var <= EPSILON, 0, tl.sqrt(var))
        else:
            # kept apart from the value at var = 0, which tells the backward pass that there is
            # no gradient: it would come out as the difference of two large numbers
            ULP: tl.constexpr = 4.5e-16 if WIDE == tl.float64 else 2.4e-7
            least = tl.sqrt(tl.full([1, 1], EPSILON, WIDE))
            std = tl.sqrt(var + EPSILON)
            std = tl.where(var > 0, tl.maximum(std, least * (1 + ULP)), std)
        tl.store(to + STD * features, tl.where(reached, std, 0), mask=mask)
    to_places = places + row[:, None] * 2 * features + feature[None, :]
    if MAX >= 0:
        tl.store(to + MAX * features, tl.where(reached, largest, 0), mask=mask)
        tl.store(to_places, (largest_at & 255).to(tl.uint8), mask=mask)
    if MIN >= 0:
        tl.store(to + MIN * features, tl.where(reached, smallest, 0), mask=mask)
        tl.store(to_places + features, (smallest_at & 255).to(tl.uint8), mask=mask)
    if NORM >= 0:
        weighted = tl.where(reached, weighted / tl.sqrt(count), 0)
        tl.store(to + NORM * features, weighted, mask=mask)
    if OWN_MEAN:
        tl.store(mean_out + row[:, None] * features + feature[None, :], mean, mask=mask)


@triton.jit
def _statistics_rows_kernel(
    x, x_stride, edge, at, indptr, senders, edge_ids, weights, out, mean_out, places,
    num_rows, num_edges, features, types,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, CLAMP: tl.constexpr, OWN_MEAN: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Receivers of at most SEGMENT slots."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    feature, live_feature = _feature_block(features, EVEN, BLOCK_F)
    live = row < num_rows
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    short = end - begin <= SEGMENT
    live = live & short
    end = tl.where(short, end, begin)
    mean, spread, largest, smallest, largest_at, smallest_at, weighted = _summarise(
        begin, end, begin * 0, x, x_stride, senders, edge, at, edge_ids, weights,
        feature, live_feature, features, types, num_edges,
        EDGE, DEPTH, VAR + STD > -2, MAX >= 0, MIN >= 0, NORM >= 0, WIDE, WIDE_INDEX,
        BLOCK_R, BLOCK_F, UNROLL,
    )  # fmt: skip
    _finish(
        row, live, end - begin, mean, spread, largest, smallest, largest_at, smallest_at, weighted,
        out, mean_out, places, feature, live_feature, features,
        MEAN, SUM, VAR, STD, MAX, MIN, NORM, KINDS, EPSILON, CLAMP, OWN_MEAN, WIDE,
    )  # fmt: skip


@triton.jit
def _segment_bounds(
    indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long,
    SEGMENT: tl.constexpr,
):  # fmt: skip
    """Which row each segment belongs to and which of its slots it holds; none if it is spare."""
    owner = tl.load(segment_owner + segment, mask=segment < num_segments, other=num_long)
    live = owner < num_long
    row = tl.load(long_rows + owner, mask=live, other=0).to(tl.int64)
    row_begin = tl.load(indptr + row, mask=live, other=0)
    row_end = tl.load(indptr + row + 1, mask=live, other=0)
    place = segment - tl.load(long_indptr + owner, mask=live, other=0)
    begin = tl.where(live, row_begin + place * SEGMENT, 0).to(row_begin.dtype)
    end = tl.minimum(begin + SEGMENT, row_end)
    return row, live, row_begin, begin, tl.where(live, end, begin)


@triton.jit
def _statistics_segments_kernel(
    x, x_stride, edge, at, indptr, senders, edge_ids, weights,
    long_rows, long_indptr, segment_owner, num_segments, num_long, partial, partial_at,
    num_edges, features, types,
    SPREAD: tl.constexpr, MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Segments of long receivers, into partial (segments, 5, features) and places beside it."""
    segment = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    feature, live_feature = _feature_block(features, EVEN, BLOCK_F)
    _, live, row_begin, begin, end = _segment_bounds(
        indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long, SEGMENT
    )
    mean, spread, largest, smallest, largest_at, smallest_at, weighted = _summarise(
        begin, end, begin - row_begin, x, x_stride, senders, edge, at, edge_ids, weights,
        feature, live_feature, features, types, num_edges,
        EDGE, DEPTH, SPREAD, MAX, MIN, NORM, WIDE, WIDE_INDEX, BLOCK_R, BLOCK_F, UNROLL,
    )  # fmt: skip
    mask = live[:, None] & live_feature[None, :]
    to = partial + segment[:, None] * 5 * features + feature[None, :]
    tl.store(to, mean, mask=mask)
    tl.store(to + features, spread, mask=mask)
    tl.store(to + 2 * features, largest, mask=mask)
    tl.store(to + 3 * features, smallest, mask=mask)
    tl.store(to + 4 * features, weighted, mask=mask)
    to_at = partial_at + segment[:, None] * 2 * features + feature[None, :]
    tl.store(to_at, largest_at, mask=mask)
    tl.store(to_at + features, smallest_at, mask=mask)


@triton.jit
def _statistics_merge_kernel(
    indptr, long_rows, long_indptr, num_rows, partial, partial_at,
    out, mean_out, places, long_places, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    MAX: tl.constexpr, MIN: tl.constexpr, NORM: tl.constexpr, KINDS: tl.constexpr,
    EPSILON: tl.constexpr, CLAMP: tl.constexpr, OWN_MEAN: tl.constexpr, WIDE: tl.constexpr,
    SEGMENT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Long receivers from their segments, in order; spreads are merged by Chan's formula."""
    owner = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    degree = tl.load(indptr + row + 1) - tl.load(indptr + row)
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    mean = tl.zeros([BLOCK_F], WIDE)
    spread = tl.zeros([BLOCK_F], WIDE)
    largest = tl.full([BLOCK_F], float("-inf"), WIDE)
    smallest = tl.full([BLOCK_F], float("inf"), WIDE)
    largest_at = tl.full([BLOCK_F], -1, tl.int32)
    smallest_at = tl.full([BLOCK_F], -1, tl.int32)
    weighted = tl.zeros([BLOCK_F], WIDE)
    for first in range(begin, end, BLOCK_S):
        segment = first + tl.arange(0, BLOCK_S)
        live = segment < end
        mask = live[:, None] & live_feature[None, :]
        place = partial + segment[:, None] * 5 * features + feature[None, :]
        place_at = partial_at + segment[:, None] * 2 * features + feature[None, :]
        size = tl.minimum(degree - (segment - begin) * SEGMENT, SEGMENT)
        size = tl.where(live, size, 0).to(WIDE)
        count = tl.sum(size, 0)
        before = ((first - begin) * SEGMENT).to(WIDE)
        means = tl.load(place, mask=mask, other=0)
        tile_mean = tl.sum(means * size[:, None], 0) / count
        shift = tile_mean - mean
        if VAR + STD > -2:
            centred = tl.where(mask, means - tile_mean[None, :], 0)
            spread += tl.sum(tl.load(place + features, mask=mask, other=0), 0)
            spread += tl.sum(size[:, None] * centred * centred, 0)
            spread += shift * shift * (before * count / (before + count))
        # an infinite mean stays: its distance from another would be NaN
        finite = tl.abs(mean) < float("inf")
        mean = tl.where(finite, mean + shift * (count / (before + count)), mean + tile_mean)
        if MAX >= 0:
            value = tl.load(place + 2 * features, mask=mask, other=float("-inf"))
            rank = tl.load(place_at, mask=mask, other=2147483647)
            tile = tl.reduce(value, 0, _nan_maximum)
            tile_at = tl.min(tl.where((value == tile[None, :]) & mask, rank, 2147483647), 0)
            better = (tile > largest) | (tile != tile) | (first == begin)
            better = better & (largest == largest)
            largest_at = tl.where(better, tile_at, largest_at)
            largest = tl.where(better, tile, largest)
        if MIN >= 0:
            value = tl.load(place + 3 * features, mask=mask, other=float("inf"))
            rank = tl.load(place_at + features, mask=mask, other=2147483647)
            tile = tl.reduce(value, 0, _nan_minimum)
            tile_at = tl.min(tl.where((value == tile[None, :]) & mask, rank, 2147483647), 0)
            better = (tile < smallest) | (tile != tile) | (first == begin)
            better = better & (smallest == smallest)
            smallest_at = tl.where(better, tile_at, smallest_at)
            smallest = tl.where(better, tile, smallest)
        if NORM >= 0:
            weighted += tl.sum(tl.load(place + 4 * features, mask=mask, other=0), 0)
    largest_at = tl.where(largest == largest, largest_at, -1)
    smallest_at = tl.where(smallest == smallest, smallest_at, -1)
    one = tl.zeros([1], tl.int64)
    _finish(
        one + row, one == 0, one + degree, mean[None, :], spread[None, :], largest[None, :],
        smallest[None, :], largest_at[None, :], smallest_at[None, :], weighted[None, :],
        out, mean_out, places, feature, live_feature, features,
        MEAN, SUM, VAR, STD, MAX, MIN, NORM, KINDS, EPSILON, CLAMP, OWN_MEAN, WIDE,
    )  # fmt: skip
    to = long_places + owner * 2 * features + feature
    if MAX >= 0:
        tl.store(to, largest_at, mask=live_feature)
    if MIN >= 0:
        tl.store(to + features, smallest_at, mask=live_feature)


@triton.jit
def _receiver_rows_kernel(
    grad, stride_row, stride_kind, stride_feature, out, mean, mean_stride, centre, indptr, rows,
    num_rows, features,
    MEAN: tl.constexpr, SUM: tl.constexpr, VAR: tl.constexpr, STD: tl.constexpr,
    NORM: tl.constexpr, KINDS: tl.constexpr, FLAT: tl.constexpr, SPREAD: tl.constexpr,
    WIDTH: tl.constexpr, EPSILON: tl.constexpr, CLAMP: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Rows A, B, C of every receiver, those that are needed, into rows (receivers, WIDTH, features)."""
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
            root = tl.load(source + STD * stride_kind, mask=mask, other=0).to(WIDE)
            least = 0.0 if CLAMP else tl.sqrt(tl.full([1, 1], EPSILON, WIDE))
            slope += tl.where(std > least, root / (count * std), 0)
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
def _extremum_gradient(
    grad, stride_row, stride_feature, places, long_places, long_rank, receiver, rank, mask,
    feature, features, WHICH: tl.constexpr, LONG: tl.constexpr, WIDE: tl.constexpr,
    WIDE_INDEX: tl.constexpr,
):  # fmt: skip
    """Gradient of the extremum where this edge was it, else 0: (BLOCK_R, BLOCK_F)."""
    place = places + feature[None, :]
    place += _places_in(receiver * 2 + WHICH, features, WIDE_INDEX)[:, None]
    hit = mask & (tl.load(place, mask=mask, other=0) == (rank & 255)[:, None])
    if LONG:
        owner = tl.load(long_rank + receiver).to(tl.int64)
        far = hit & (owner >= 0)[:, None]
        place = long_places + (owner[:, None] * 2 + WHICH) * features + feature[None, :]
        whole = tl.load(place, mask=far, other=-1)
        hit = hit & ((owner < 0)[:, None] | (whole == rank[:, None]))
    place = grad + feature[None, :] * stride_feature
    place += _places_in(receiver, stride_row, WIDE_INDEX)[:, None]
    return tl.load(place, mask=hit, other=0).to(WIDE)


@triton.jit
def _outgoing_rows(
    out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """This program's work: senders of at most SEGMENT edges, or SEGMENTS of the others.

    Number of the work, sender, whether there is any, and its places in the outgoing edges.
    """
    work = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    if SEGMENTS:
        row, live, _, begin, end = _segment_bounds(
            out_indptr, long_rows, long_indptr, segment_owner, work, num_segments, num_long, SEGMENT
        )
    else:
        row, live = work, work < num_rows
        begin = tl.load(out_indptr + row, mask=live, other=0)
        end = tl.load(out_indptr + row + 1, mask=live, other=0)
        live = live & (end - begin <= SEGMENT)
        end = tl.where(live, end, begin)
    return work, row, live, begin, end


@triton.jit
def _linear_gradient_kernel(
    to, x, x_stride, out_indptr, long_rows, long_indptr, segment_owner,
    num_rows, num_segments, num_long, receivers, out_ranks, weights, indptr, rows,
    edge, at, edge_ids, centre, features, types,
    FLAT: tl.constexpr, SPREAD: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum of A_i + B_i·(m − c) + C_i·w_j over the outgoing edges of every sender."""
    work, row, live, begin, end = _outgoing_rows(
        out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
        SEGMENT, SEGMENTS, BLOCK_R,
    )  # fmt: skip
    feature, live_feature = _feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    flat = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    slope = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    scaled = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    value = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
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
            there = source + _places_in(receiver, WIDTH * features, WIDE_INDEX)[:, None]
            if FLAT:
                flat += tl.load(there, mask=here, other=0)
            if SPREAD:
                steep = tl.load(there + features, mask=here, other=0)
                if EDGE == 0:
                    slope += steep
                else:
                    slot = tl.load(out_ranks + place, mask=more, other=0)
                    slot += tl.load(indptr + receiver, mask=more, other=0)
                    term = _edge_term(
                        edge, at, edge_ids, slot, feature, here, features, types,
                        EDGE, DEPTH, WIDE,
                    )  # fmt: skip
                    flat += tl.where(here, steep * (value + term), 0)
            if NORM >= 0:
                scaled += tl.load(there + (WIDTH - 1) * features, mask=here, other=0)
    if SPREAD and EDGE == 0:
        flat += slope * value
    if NORM >= 0:
        flat += scaled * tl.load(weights + row, mask=live, other=0)[:, None]
    tl.store(to + work[:, None] * features + feature[None, :], flat, mask=mask)


@triton.jit
def _extremum_gradient_kernel(
    to, out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    receivers, out_ranks, grad, stride_row, stride_kind, stride_feature,
    places, long_places, long_rank, features,
    MAX: tl.constexpr, MIN: tl.constexpr, ADD: tl.constexpr, LONG: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of max and min for every sender, to ADD to what is there or to begin it."""
    work, _, live, begin, end = _outgoing_rows(
        out_indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
        SEGMENT, SEGMENTS, BLOCK_R,
    )  # fmt: skip
    feature, live_feature = _feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    to += work[:, None] * features + feature[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            place = begin + step + ahead
            more = place < end
            here = more[:, None] & live_feature[None, :]
            receiver = tl.load(receivers + place, mask=more, other=0)
            rank = tl.load(out_ranks + place, mask=more, other=0).to(tl.int32)
            if MAX >= 0:
                total += _extremum_gradient(
                    grad + MAX * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank, here, feature, features, 0, LONG, WIDE, WIDE_INDEX,
                )  # fmt: skip
            if MIN >= 0:
                total += _extremum_gradient(
                    grad + MIN * stride_kind, stride_row, stride_feature, places, long_places,
                    long_rank, receiver, rank, here, feature, features, 1, LONG, WIDE, WIDE_INDEX,
                )  # fmt: skip
    if ADD:
        total += tl.load(to, mask=mask, other=0)
    tl.store(to, total, mask=mask)


@triton.jit
def _gradient_merge_kernel(
    partial, grad_x, long_rows, long_indptr, num_rows, features,
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
    tl.store(grad_x + row * features + feature, total, mask=live_feature)


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
        value = value.to(WIDE) + _edge_term(
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
        result += _extremum_gradient(
            grad + MAX * stride_kind, stride_row, stride_feature, places, long_places,
            long_rank, receiver, rank, mask, feature, features, 0, LONG, WIDE, True,
        )  # fmt: skip
    if MIN >= 0:
        result += _extremum_gradient(
            grad + MIN * stride_kind, stride_row, stride_feature, places, long_places,
            long_rank, receiver, rank, mask, feature, features, 1, LONG, WIDE, True,
        )  # fmt: skip
    target = place
    if IN_GIVEN_ORDER:
        target = tl.load(edge_ids + slot, mask=live, other=0).to(tl.int64)
    tl.store(to + target[:, None] * features + feature[None, :], result, mask=mask)


def forward(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
) -> None:
    """Write the statistics and what the backward pass needs into `saved`."""
    if adjacency.num_edges == 0:
        for result in (saved.out, saved.mean, saved.places):
            result.zero_()
        return
    x, rows, features = _unit_stride(x), adjacency.incoming, x.shape[1]
    shape = _Tiles(features)
    places = _places(request)
    inputs = _inputs(x, edge, at, adjacency, request)
    results = dict(out=saved.out, mean_out=saved.mean, places=saved.places, features=features)
    finish = dict(
        places,
        KINDS=len(request.kinds),
        CLAMP=request.clamp,
        OWN_MEAN=saved.mean.shape[0] > 0,
        WIDE=_triton_type(wide_type(x.dtype)),
        EPSILON=request.epsilon,
    )
    with torch.cuda.device_of(x):
        _statistics_rows_kernel[shape.grid(rows.num_rows)](
            **inputs, **results, **finish, num_rows=rows.num_rows, SEGMENT=SEGMENT, **shape.tile
        )
        if rows.segment_owner.shape[0] == 0:
            return
        segments = rows.segment_owner.shape[0]
        partial = x.new_empty((segments, 5, features), dtype=wide_type(x.dtype))
        partial_at = x.new_empty((segments, 2, features), dtype=torch.int32)
        _statistics_segments_kernel[shape.grid(segments)](
            **inputs,
            **_long(rows),
            num_segments=segments,
            num_long=rows.long_rows.shape[0],
            partial=partial,
            partial_at=partial_at,
            features=features,
            SPREAD=request.needs_spread,
            **{kind: places[kind] >= 0 for kind in ("MAX", "MIN", "NORM")},
            WIDE=finish["WIDE"],
            SEGMENT=SEGMENT,
            **shape.tile,
        )
        _statistics_merge_kernel[(rows.long_rows.shape[0], shape.merge_blocks)](
            indptr=rows.indptr,
            long_rows=rows.long_rows,
            long_indptr=rows.long_indptr,
            num_rows=rows.num_rows,
            partial=partial,
            partial_at=partial_at,
            long_places=saved.long_places,
            **results,
            **finish,
            SEGMENT=SEGMENT,
            **shape.merge_tile,
        )


def backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of x, edge and at; those of no length are not needed."""
    if adjacency.num_edges == 0:
        for result in grads:
            result.zero_()
        return
    x = _unit_stride(x)
    with torch.cuda.device_of(x):
        linear = _receiver_rows(grad, x, adjacency, request, saved)
        linear |= _edge_arguments(edge, at, adjacency)
        extrema = dict(
            grad=grad,
            stride_row=grad.stride(0),
            stride_kind=grad.stride(1),
            stride_feature=grad.stride(2),
            places=saved.places,
            long_places=saved.long_places,
            long_rank=adjacency.incoming.long_rank,
            LONG=saved.long_places.shape[0] > 0,
            MAX=request.place("max"),
            MIN=request.place("min"),
        )
        if grads[0].shape[0] > 0:
            _sender_gradient(x, adjacency, linear, extrema, grads[0])
        if edge is not None and (grads[1].shape[0] > 0 or grads[2].shape[0] > 0):
            _edge_gradient(x, edge, at, adjacency, linear | extrema, grads[1], grads[2])


def _receiver_rows(
    grad: Tensor, x: Tensor, adjacency: Adjacency, request: Request, saved: Saved
) -> dict[str, Any]:
    """Rows A, B, C of every receiver, as arguments of the kernels that read them."""
    wide, features, num_rows = wide_type(x.dtype), x.shape[1], adjacency.num_receivers
    spread, norm = request.needs_spread, request.place("normalised_mean")
    flat = spread or "mean" in request.kinds or "sum" in request.kinds
    width = flat + spread + (norm >= 0)
    rows = x.new_empty((num_rows if width else 0, width, features), dtype=wide)
    centre, mean = rows, saved.mean
    if spread:
        if mean.shape[0] == 0:
            mean = saved.out[:, request.place("mean")]
        centre = mean.sum(0) / (adjacency.degree > 0).sum().clamp(min=1)
        centre = torch.where(centre.isfinite(), centre, 0)
    places = _places(request)
    weights = _sender_weights(adjacency, wide) if norm >= 0 else rows
    shared = dict(
        x=x, x_stride=x.stride(0), rows=rows, centre=centre, weights=weights, features=features,
        WIDTH=width, FLAT=flat, SPREAD=spread, NORM=norm, WIDE=_triton_type(wide),
        WIDE_INDEX=_wide_index(rows),
    )  # fmt: skip
    if width == 0:
        return shared
    block = min(128, triton.next_power_of_2(features))
    tall = 2048 // block
    kernel_places = {kind: places[kind] for kind in ("MEAN", "SUM", "VAR", "STD")}
    _receiver_rows_kernel[(triton.cdiv(num_rows, tall), triton.cdiv(features, block))](
        grad, *grad.stride(), saved.out, mean, mean.stride(0), centre, adjacency.indptr, rows,
        num_rows, features, **kernel_places, NORM=norm, KINDS=len(request.kinds), FLAT=flat,
        SPREAD=spread, WIDTH=width, EPSILON=request.epsilon, CLAMP=request.clamp, WIDE=shared["WIDE"],
        BLOCK_R=tall, BLOCK_F=block,
    )  # fmt: skip
    return shared


def _sender_gradient(
    x: Tensor,
    adjacency: Adjacency,
    linear: dict[str, Any],
    extrema: dict[str, Any],
    grad_x: Tensor,
) -> None:
    """Gradient of x: the linear part, then max and min added to it, then long rows merged."""
    rows, features = adjacency.outgoing, x.shape[1]
    segments = rows.segment_owner.shape[0]
    wide = x.new_empty((rows.num_rows, features), dtype=wide_type(x.dtype))
    wide = grad_x if grad_x.dtype == wide.dtype else wide
    partial = wide.new_empty((segments, features))
    shared = dict(
        _long(rows),
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
    tiles = _Tiles(features)
    for to, work in ((wide, rows.num_rows), (partial, segments)):
        if work == 0:
            continue
        shared |= dict(to=to, SEGMENTS=to is partial)
        if linear["WIDTH"] > 0:
            _linear_gradient_kernel[tiles.grid(work)](
                **(shared | linear), indptr=adjacency.indptr, **tiles.tile
            )
        if extrema["MAX"] >= 0 or extrema["MIN"] >= 0:
            _extremum_gradient_kernel[tiles.grid(work)](
                **shared,
                **extrema,
                ADD=linear["WIDTH"] > 0,
                WIDE_INDEX=_wide_index(extrema["grad"]),
                **tiles.tile,
            )
    if segments > 0:
        _gradient_merge_kernel[(rows.long_rows.shape[0], tiles.merge_blocks)](
            partial, wide, rows.long_rows, rows.long_indptr, rows.num_rows, features,
            WIDE=linear["WIDE"], **tiles.merge_tile,
        )  # fmt: skip
    if wide is not grad_x:
        grad_x.copy_(wide)


def _edge_gradient(
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
    chunk = max(1, _WORKSPACE // (features * total.element_size()))
    for first in range(0, adjacency.num_edges, chunk):
        count = min(chunk, adjacency.num_edges - first)
        message = x.new_empty((count, features), dtype=wide)
        _message_gradient(x, adjacency, shared, first, count, message)
        given = adjacency.edge_ids[first : first + count].long()
        if not at.is_floating_point():
            kinds = torch.arange(edge.shape[0], device=x.device)
            total += (at[given] == kinds[:, None]).to(wide) @ message
            continue
        if grad_edge.shape[0] > 0:
            total += at[given].to(wide).t() @ message
        if grad_at.shape[0] > 0:
            grad_at[given] = (message @ edge.to(wide).t()).to(grad_at.dtype)
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
        IN_GIVEN_ORDER=shared["EDGE"] == _DENSE,
        BLOCK_E=block_e,
        BLOCK_F=block_f,
    )


class _Tiles:
    """How work is cut: rows and features into blocks that a program owns."""

    def __init__(self, features: int) -> None:
        block = min(32, max(triton.next_power_of_2(features), 4))
        self.features, self.block, self.tall = features, block, 128 // block
        self.tile = dict(BLOCK_R=self.tall, BLOCK_F=block, UNROLL=4, num_warps=1)
        self.tile |= dict(EVEN=features % block == 0)
        merge = min(32, block)
        self.merge_blocks = triton.cdiv(features, merge)
        self.merge_tile = dict(BLOCK_S=64, BLOCK_F=merge, num_warps=4)

    def grid(self, rows: int) -> tuple[int, int]:
        """Programs that own this many rows, all rows of one block of features after another."""
        return triton.cdiv(rows, self.tall), triton.cdiv(self.features, self.block)


def _inputs(
    x: Tensor, edge: Tensor | None, at: Tensor | None, adjacency: Adjacency, request: Request
) -> dict[str, Any]:
    """The arguments by which the forward kernels find a message."""
    normalised = "normalised_mean" in request.kinds
    return dict(
        x=x,
        x_stride=x.stride(0),
        indptr=adjacency.indptr,
        senders=adjacency.senders,
        num_edges=adjacency.num_edges,
        WIDE_INDEX=_wide_index(x),
        weights=_sender_weights(adjacency, wide_type(x.dtype)) if normalised else x,
        **_edge_arguments(edge, at, adjacency),
    )


def _edge_arguments(
    edge: Tensor | None, at: Tensor | None, adjacency: Adjacency
) -> dict[str, Any]:
    """The edge term as kernel arguments; unused ones point somewhere harmless."""
    ids = adjacency.edge_ids
    if edge is None:
        return dict(edge=ids, at=ids, edge_ids=ids, types=0, EDGE=_NONE, DEPTH=0)
    edge = edge.contiguous()
    if at is None:
        return dict(edge=edge, at=ids, edge_ids=ids, types=0, EDGE=_DENSE, DEPTH=0)
    at = at.contiguous()
    if at.is_floating_point():
        depth = edge.shape[0]
        return dict(edge=edge, at=at, edge_ids=ids, types=0, EDGE=_COEFFICIENTS, DEPTH=depth)
    return dict(edge=edge, at=at, edge_ids=ids, types=edge.shape[0], EDGE=_TABLE, DEPTH=0)


def _places(request: Request) -> dict[str, int]:
    """Where each statistic stands in the output, or -1, by the names the kernels use."""
    names = ("mean", "sum", "var", "std", "max", "min")
    places = {name.upper(): request.place(name) for name in names}
    return places | {"NORM": request.place("normalised_mean")}


def _long(rows: Rows) -> dict[str, Tensor]:
    return dict(
        long_rows=rows.long_rows, long_indptr=rows.long_indptr, segment_owner=rows.segment_owner
    )


def _sender_weights(adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
    return adjacency.out_degree.clamp(min=1).to(dtype).rsqrt()


def _wide_index(*tensors: Tensor) -> bool:
    """Whether places in these tensors need 64 bits."""
    return any(
        sum(abs(t.stride(d)) * (t.shape[d] - 1) for d in range(t.dim())) >= 2**31 for t in tensors
    )


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _triton_type(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
