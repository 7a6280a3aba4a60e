"""Device functions that find and load what a program works on: features, rows, messages.

A kernel loads the rows to which it writes itself. The compiler looks for the tensors that a kernel
writes to, and takes every tensor passed to a function for one, if an address depends on its result.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def feature_block(features, EVEN: tl.constexpr, BLOCK_F: tl.constexpr):
    """The features of this program, and their mask. With EVEN, no block is partial."""
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    if EVEN:
        return feature, tl.full([BLOCK_F], True, tl.int1)
    return feature, feature < features


@triton.jit
def offset_of(index, stride, WIDE_INDEX: tl.constexpr):
    """Offsets of rows, in 64 bits only if 32 would overflow."""
    if WIDE_INDEX:
        index = index.to(tl.int64)
    return index * stride


@triton.jit
def _basis_term(
    edge, at, given, feature, mask, features, depth, like, DEPTH: tl.constexpr, WIDE: tl.constexpr
):
    """A row of the basis times the coefficients of the edges, in the shape of `like`."""
    coefficient = tl.load(at + given * DEPTH + depth).to(WIDE)
    # loaded for every row, so that threads need not exchange it
    place = tl.broadcast_to(edge + depth * features + feature[None, :], like.shape)
    basis = tl.load(place, mask=tl.broadcast_to(mask, like.shape), other=0)
    return coefficient[:, None] * basis.to(WIDE)


@triton.jit
def edge_term(
    edge, at, given, feature, mask, features, types,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_TABLE: tl.constexpr = False,
):  # fmt: skip
    """The edge term e of the edges `given`, indices in the given order: (BLOCK_R, BLOCK_F). NaN for
    an index outside the table. EDGE is its form, negative if the term multiplies x. DEPTH is the
    number of rows of a basis, or of heads that have a weight each."""
    if EDGE == 1 or EDGE == -1:
        term = tl.load(edge + given[:, None] * features + feature[None, :], mask=mask, other=0)
        return term.to(WIDE)
    if EDGE == 2 or EDGE == -2:
        kind = tl.load(at + given)
        known = (kind >= 0) & (kind < types)
        place = offset_of(kind.to(tl.int32), features, WIDE_TABLE)[:, None] + feature[None, :]
        term = tl.load(edge + place, mask=mask & known[:, None], other=float("nan"))
        return term.to(WIDE)
    term = tl.zeros([given.shape[0], feature.shape[0]], WIDE)
    if EDGE == 4 or EDGE == -4:
        if DEPTH == 1:
            return term + tl.load(edge + given).to(WIDE)[:, None]
        head = feature // (features // DEPTH)
        place = tl.broadcast_to(edge + given[:, None] * DEPTH + head[None, :], term.shape)
        return tl.load(place, mask=tl.broadcast_to(mask, term.shape), other=0).to(WIDE)
    if DEPTH <= 4:
        for depth in tl.static_range(DEPTH):
            term += _basis_term(edge, at, given, feature, mask, features, depth, term, DEPTH, WIDE)
    else:  # unrolled, this would take minutes to compile
        for depth in range(DEPTH):
            term += _basis_term(edge, at, given, feature, mask, features, depth, term, DEPTH, WIDE)
    return term


@triton.jit
def combined(value, term, EDGE: tl.constexpr):
    """value + term, or value · term if EDGE is negative. The product is rounded before anything is
    added to it, so that it is the same to the bit in every kernel."""
    if EDGE < 0:
        return tl.fma(value, term, tl.zeros(term.shape, term.dtype))
    else:
        return value + term


@triton.jit
def message(
    x, x_stride, senders, edge, at, edge_ids, slot, feature, mask, features, types,
    EDGE: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    STEP: tl.constexpr = 1,
):  # fmt: skip
    """Messages in these slots: (BLOCK_R, BLOCK_F). Features of x are STEP elements apart."""
    place = offset_of(tl.load(senders + slot), x_stride, WIDE_INDEX)
    value = tl.load(x + feature[None, :] * STEP + place[:, None], mask=mask, other=0).to(WIDE)
    if EDGE != 0:
        given = tl.load(edge_ids + slot).to(tl.int64)
        term = edge_term(edge, at, given, feature, mask, features, types, EDGE, DEPTH, WIDE)
        value = combined(value, term, EDGE)
    return value


@triton.jit
def short_rows(row, live, indptr, SEGMENT: tl.constexpr):
    """The mask of those live rows that are short, and their slots."""
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    live = live & (end - begin <= SEGMENT)
    return live, begin, tl.where(live, end, begin)


@triton.jit
def segment_bounds(
    indptr, long_rows, long_indptr, segment_owner, segment, num_segments, num_long,
    SEGMENT: tl.constexpr,
):  # fmt: skip
    """The row of each segment, its mask, the first slot of the row, and the slots of the segment.

    A spare segment has no slots.
    """
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
def clamped(slot, end, first, FULL: tl.constexpr):
    """Slots, replaced by `first`, the first slot of the row, at and after `end`."""
    if FULL:
        return slot
    else:
        return tl.where(slot < end, slot, first)


@triton.jit
def owned_rows(
    to, live, indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """What this program owns: rows of at most SEGMENT slots or, if SEGMENTS, segments of long rows.

    `to` has the number of each. Returns the node, the mask, whether a row begins here, and the
    slots.
    """
    if SEGMENTS:
        row, live, row_begin, begin, end = segment_bounds(
            indptr, long_rows, long_indptr, segment_owner, to, num_segments, num_long, SEGMENT
        )
        first = live & (begin == row_begin)
    else:
        live, begin, end = short_rows(to, live, indptr, SEGMENT)
        row, first = to, live
    return row, live, first, begin, end


@triton.jit
def mark_far(slope, far, WIDE: tl.constexpr):
    """The slope, with its last bit set if the gradient takes deviations from the mean."""
    if WIDE == tl.float64:
        bits = slope.to(tl.int64, bitcast=True)
    else:
        bits = slope.to(tl.int32, bitcast=True)
    bits = tl.where(far, bits | 1, bits & ~1)
    return bits.to(WIDE, bitcast=True)


@triton.jit
def centre_of(slope, mean, mask, WIDE: tl.constexpr):
    """The centre of deviations in the gradient: the mean, loaded from the pointer `mean`, if
    `mark_far` marked the slope, else 0. A mean that is not needed is not loaded."""
    if WIDE == tl.float64:
        far = slope.to(tl.int64, bitcast=True) & 1
    else:
        far = slope.to(tl.int32, bitcast=True) & 1
    return tl.load(mean, mask=mask & (far != 0), other=0).to(WIDE)
