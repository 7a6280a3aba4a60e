"""Attention over the in-neighbours of every node: each direction reads the edges once.

In the forward pass, a program owns a few receivers and a block of heads and loops over their slots.
It keeps an online softmax: the maximum score so far, and sums weighted by the exponentials of
scores minus this maximum. The sums are those of the values and of the slopes of the LeakyReLU. They
also give the derivative of the result by the receiver's score, so the backward pass loops over the
edges only once, by sender. All other quantities per receiver are computed once, in a kernel of
their own. Rows of more than SEGMENT slots are split into segments, which are merged in order. There
are no atomics, so results are reproducible bit for bit.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna.baselines.attention import AttentionResults, AttentionTerms
from pna.baselines.graph import Graph
from pna.ops.request import wide_type
from pna.ops.tracing import likely
from pna.ops.triton.launch import long_arguments, triton_type, wide_index
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.messages import offset_of, owned_rows
from pna.rows import SEGMENT, Rows


@triton.jit
def _cells(heads, features, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr):
    """Return the heads of this program, the offsets of their features in a row, and both masks."""
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    feature = tl.arange(0, BLOCK_F)
    live_head = head < heads
    cell = head[:, None] * features + feature[None, :]
    live_cell = live_head[:, None] & (feature < features)[None, :]
    return head[None, :], live_head[None, :], cell[None, :, :], live_cell[None, :, :]


@triton.jit
def _steepness(score, SLOPE: tl.constexpr):
    """Return the slope of the LeakyReLU, in the dtype of the scores."""
    down = tl.full([1, 1], SLOPE, score.dtype)
    return tl.where(score > 0, tl.full([1, 1], 1, score.dtype), down)


@triton.jit
def _leaky(score, SLOPE: tl.constexpr):
    """LeakyReLU.

    It is not written as a product with `_steepness`: the compiler could fuse that product with the
    subtraction of the maximum. It would then be rounded differently from the maximum itself, and
    equal scores would differ.
    """
    return tl.where(score > 0, score, score * tl.full([1, 1], SLOPE, score.dtype))


@triton.jit
def _store_result(
    row, mask, mask_cell, head, cell, heads, features,
    average, tilted, slope, peak, inverse, out, slopes, norms,
):  # fmt: skip
    """Store the results of nodes, their derivatives by the receiver's score, and the norms of the
    softmax."""
    offset = (row * heads * features)[:, None, None] + cell
    tl.store(out + offset, average, mask=mask_cell)
    tl.store(slopes + offset, tilted - slope[:, :, None] * average, mask=mask_cell)
    pointers = norms + (row * heads * 2)[:, None] + head * 2
    tl.store(pointers, peak, mask=mask)
    tl.store(pointers + 1, inverse, mask=mask)


@Kernel
def _attention_kernel(
    values, scores, edge, own, neighbours,
    order, indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    out, slopes, norms, sums, heads, features,
    SLOPE: tl.constexpr, EDGE: tl.constexpr, OWN: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute the attention of receivers, or of SEGMENTS.

    Segments also write sums (segments, heads, 3): maximum score, sum of exponentials, and mean
    slope of the LeakyReLU. Their `slopes` are the mean of slope × value, from which the merge
    computes the derivatives.
    """
    to = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = to < num_rows
    if not SEGMENTS:
        to = tl.load(order + to, mask=exists, other=0).to(tl.int64)
    row, live, first, begin, end = owned_rows(
        to, exists, indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
        SEGMENT, SEGMENTS,
    )  # fmt: skip
    head, live_head, cell, live_cell = _cells(heads, features, BLOCK_H, BLOCK_F)
    mask = live[:, None] & live_head
    mask_cell = live[:, None, None] & live_cell
    mine = tl.load(scores + (row * heads * 2)[:, None] + head * 2, mask=mask, other=0).to(WIDE)
    peak = tl.full([BLOCK_R, BLOCK_H], float("-inf"), WIDE)
    total = tl.zeros([BLOCK_R, BLOCK_H], WIDE)
    slope = tl.zeros([BLOCK_R, BLOCK_H], WIDE)
    average = tl.zeros([BLOCK_R, BLOCK_H, BLOCK_F], WIDE)
    tilted = tl.zeros([BLOCK_R, BLOCK_H, BLOCK_F], WIDE)
    if OWN:
        score = tl.load(own + (row * heads)[:, None] + head, mask=mask, other=0).to(WIDE)
        score = _leaky(score, SLOPE)
        peak = tl.where(first[:, None], score, peak)
        total += first.to(WIDE)[:, None]
        there = values + (row * heads * features)[:, None, None] + cell
        average += tl.load(there, mask=first[:, None, None] & live_cell, other=0).to(WIDE)
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            slot = begin + step + ahead
            # this load has its own mask: Triton 3.6 gives a shared mask the wrong layout
            sender = tl.load(neighbours + slot, mask=slot < end, other=-1)
            here = sender >= 0
            if OWN:
                here = here & (sender != row)
            near = here[:, None] & live_head
            offset = offset_of(sender, heads * 2, WIDE_INDEX)[:, None] + head * 2
            score = mine + tl.load(scores + offset + 1, mask=near, other=0)
            if EDGE:
                offset = offset_of(slot, heads, WIDE_INDEX)[:, None] + head
                score += tl.load(edge + offset, mask=near, other=0)
            offset = offset_of(sender, heads * features, WIDE_INDEX)[:, None, None] + cell
            value = tl.load(values + offset, mask=here[:, None, None] & live_cell, other=0).to(WIDE)
            steep = _steepness(score, SLOPE)
            score = _leaky(score, SLOPE)
            higher = score > peak
            apart = tl.exp(-tl.abs(score - peak))  # rescales either the sums or the new term
            fade = tl.where(near & higher, apart, 1)
            share = tl.where(near, tl.where(higher, 1, apart), 0)
            peak = tl.where(near & higher, score, peak)
            total = total * fade + share
            slope = slope * fade + share * steep
            average = average * fade[:, :, None] + share[:, :, None] * value
            tilted = tilted * fade[:, :, None] + (share * steep)[:, :, None] * value
    inverse = 1 / tl.where(total == 0, 1, total)  # total is 0 for nodes without neighbours
    slope *= inverse
    average *= inverse[:, :, None]
    tilted *= inverse[:, :, None]
    if SEGMENTS:
        offset = (to * heads * features)[:, None, None] + cell
        tl.store(out + offset, average, mask=mask_cell)
        tl.store(slopes + offset, tilted, mask=mask_cell)
        pointers = sums + (to * heads * 3)[:, None] + head * 3
        tl.store(pointers, peak, mask=mask)
        tl.store(pointers + 1, total, mask=mask)
        tl.store(pointers + 2, slope, mask=mask)
    else:
        _store_result(
            to, mask, mask_cell, head, cell, heads, features,
            average, tilted, slope, peak, inverse, out, slopes, norms,
        )  # fmt: skip


@Kernel
def _attention_merge_kernel(
    averages, tilts, sums, long_rows, long_indptr, num_rows, out, slopes, norms, heads, features,
    WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Merge the segments of long receivers, in order."""
    owner = tl.program_id(0).to(tl.int64)
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    head, live_head, cell, live_cell = _cells(heads, features, BLOCK_H, BLOCK_F)
    peak = tl.full([1, BLOCK_H], float("-inf"), WIDE)
    total = tl.zeros([1, BLOCK_H], WIDE)
    slope = tl.zeros([1, BLOCK_H], WIDE)
    average = tl.zeros([1, BLOCK_H, BLOCK_F], WIDE)
    tilted = tl.zeros([1, BLOCK_H, BLOCK_F], WIDE)
    for at in range(begin, end, BLOCK_S):
        segment = at + tl.arange(0, BLOCK_S)
        live = segment < end
        mask = live[:, None] & live_head
        mask_cell = live[:, None, None] & live_cell
        pointers = sums + (segment * heads * 3)[:, None] + head * 3
        peaks = tl.load(pointers, mask=mask, other=float("-inf"))
        higher = tl.maximum(peak, tl.max(peaks, 0)[None, :])
        # `higher` is -inf if all slots so far are ignored self-loops
        below = tl.where(higher == float("-inf"), 0, higher)
        fade = tl.exp(peak - below)
        share = tl.load(pointers + 1, mask=mask, other=0) * tl.exp(peaks - below)
        total = total * fade + tl.sum(share, 0)[None, :]
        part = share * tl.load(pointers + 2, mask=mask, other=0)
        slope = slope * fade + tl.sum(part, 0)[None, :]
        offset = (segment * heads * features)[:, None, None] + cell
        parts = share[:, :, None] * tl.load(averages + offset, mask=mask_cell, other=0)
        average = average * fade[:, :, None] + tl.sum(parts, 0)[None, :, :]
        parts = share[:, :, None] * tl.load(tilts + offset, mask=mask_cell, other=0)
        tilted = tilted * fade[:, :, None] + tl.sum(parts, 0)[None, :, :]
        peak = higher
    inverse = 1 / tl.where(total == 0, 1, total)
    one = tl.zeros([1], tl.int64)
    _store_result(
        one + row, live_head, live_cell, head, cell, heads, features,
        average * inverse[:, :, None], tilted * inverse[:, :, None], slope * inverse, peak,
        inverse, out, slopes, norms,
    )  # fmt: skip


@Kernel
def _attention_receivers_kernel(
    grad, out, slopes, scores, norms, facts, grad_scores, num_rows, heads, features,
    WIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Write the gradient of every receiver's score, and facts (nodes, heads, 4), which the senders'
    kernel reads: the score, both norms of the softmax, and the dot product of gradient and
    result."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    head, live_head, cell, live_cell = _cells(heads, features, BLOCK_H, BLOCK_F)
    live = row < num_rows
    mask = live[:, None] & live_head
    mask_cell = live[:, None, None] & live_cell
    offset = (row * heads * features)[:, None, None] + cell
    upstream = tl.load(grad + offset, mask=mask_cell, other=0).to(WIDE)
    result = tl.load(out + offset, mask=mask_cell, other=0).to(WIDE)
    steep = tl.load(slopes + offset, mask=mask_cell, other=0)
    pair = (row * heads * 2)[:, None] + head * 2
    tl.store(grad_scores + pair, tl.sum(upstream * steep, 2), mask=mask)
    to = facts + (row * heads * 4)[:, None] + head * 4
    tl.store(to, tl.load(scores + pair, mask=mask, other=0), mask=mask)
    tl.store(to + 1, tl.load(norms + pair, mask=mask, other=0), mask=mask)
    tl.store(to + 2, tl.load(norms + pair + 1, mask=mask, other=0), mask=mask)
    tl.store(to + 3, tl.sum(upstream * result, 2), mask=mask)


@Kernel
def _attention_senders_kernel(
    grad, values, scores, edge, own, facts, in_indptr, out_ranks, neighbours,
    order, indptr, long_rows, long_indptr, segment_owner, num_rows, num_segments, num_long,
    to_values, to_scores, to_edge, to_own, heads, features,
    SLOPE: tl.constexpr, EDGE: tl.constexpr, OWN: tl.constexpr,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the senders' values and scores, or the partial sums of SEGMENTS.

    The kernel also writes the gradients of `edge`, in the order of slots, and of `own`.
    """
    to = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = to < num_rows
    if not SEGMENTS:
        to = tl.load(order + to, mask=exists, other=0).to(tl.int64)
    row, live, first, begin, end = owned_rows(
        to, exists, indptr, long_rows, long_indptr, segment_owner, num_segments, num_long,
        SEGMENT, SEGMENTS,
    )  # fmt: skip
    head, live_head, cell, live_cell = _cells(heads, features, BLOCK_H, BLOCK_F)
    mask = live[:, None] & live_head
    mask_cell = live[:, None, None] & live_cell
    there = (row * heads * features)[:, None, None] + cell
    value = tl.load(values + there, mask=mask_cell, other=0).to(WIDE)
    mine = tl.load(scores + (row * heads * 2)[:, None] + head * 2 + 1, mask=mask, other=0).to(WIDE)
    total = tl.zeros([BLOCK_R, BLOCK_H, BLOCK_F], WIDE)
    turn = tl.zeros([BLOCK_R, BLOCK_H], WIDE)
    if OWN:
        near = first[:, None] & live_head
        score = tl.load(own + (row * heads)[:, None] + head, mask=near, other=0).to(WIDE)
        upstream = tl.load(grad + there, mask=first[:, None, None] & live_cell, other=0).to(WIDE)
        fact = facts + (row * heads * 4)[:, None] + head * 4
        weight, part = _gradients(score, upstream, value, fact, near, SLOPE)
        total += weight[:, :, None] * upstream
        node = to
        if SEGMENTS:
            owner = tl.load(segment_owner + to, mask=first, other=0)
            node = tl.load(long_rows + owner, mask=first, other=0).to(tl.int64)
        tl.store(to_own + (node * heads)[:, None] + head, part, mask=near)
    for step in range(0, tl.max(end - begin), UNROLL):
        for ahead in tl.static_range(UNROLL):
            edge_place = begin + step + ahead
            more = edge_place < end
            receiver = tl.load(neighbours + edge_place, mask=more, other=0)
            here = more
            if OWN:
                here = more & (receiver != row)
            near = here[:, None] & live_head
            fact = facts + offset_of(receiver, heads * 4, WIDE_INDEX)[:, None] + head * 4
            score = mine + tl.load(fact, mask=near, other=0)
            if EDGE:
                slot = tl.load(in_indptr + receiver, mask=more, other=0)
                slot += tl.load(out_ranks + edge_place, mask=more, other=0)
                by_edge = offset_of(slot, heads, WIDE_INDEX)[:, None] + head
                score += tl.load(edge + by_edge, mask=near, other=0)
            offset = offset_of(receiver, heads * features, WIDE_INDEX)[:, None, None] + cell
            upstream = tl.load(grad + offset, mask=here[:, None, None] & live_cell, other=0).to(
                WIDE
            )
            weight, part = _gradients(score, upstream, value, fact, near, SLOPE)
            total += weight[:, :, None] * upstream
            turn += part
            if EDGE:
                tl.store(to_edge + by_edge, part, mask=more[:, None] & live_head)
    tl.store(to_values + (to * heads * features)[:, None, None] + cell, total, mask=mask_cell)
    tl.store(to_scores + (to * heads * 2)[:, None] + head * 2 + 1, turn, mask=mask)


@triton.jit
def _gradients(score, upstream, value, fact, near, SLOPE: tl.constexpr):
    """Return the weight α of each edge and the gradient of its score; 0 where masked."""
    steep = _steepness(score, SLOPE)
    peak = tl.load(fact + 1, mask=near, other=0)
    inverse = tl.load(fact + 2, mask=near, other=0)
    along = tl.load(fact + 3, mask=near, other=0)
    weight = tl.where(near, tl.exp(_leaky(score, SLOPE) - peak) * inverse, 0)
    part = weight * (tl.sum(upstream * value, 2) - along) * steep
    return weight, part


@Kernel
def _attention_senders_merge_kernel(
    partial, partial_scores, long_rows, long_indptr, num_rows, to_values, to_scores,
    heads, features,
    WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Add the partial gradients of the segments of long senders, in order."""
    owner = tl.program_id(0).to(tl.int64)
    row = tl.load(long_rows + owner).to(tl.int64)
    if row >= num_rows:
        return
    begin = tl.load(long_indptr + owner).to(tl.int64)
    end = tl.load(long_indptr + owner + 1).to(tl.int64)
    head, live_head, cell, live_cell = _cells(heads, features, BLOCK_H, BLOCK_F)
    total = tl.zeros([1, BLOCK_H, BLOCK_F], WIDE)
    turn = tl.zeros([1, BLOCK_H], WIDE)
    for at in range(begin, end, BLOCK_S):
        segment = at + tl.arange(0, BLOCK_S)
        live = segment < end
        pointers = partial + (segment * heads * features)[:, None, None] + cell
        parts = tl.load(pointers, mask=live[:, None, None] & live_cell, other=0)
        total += tl.sum(parts, 0)[None, :, :]
        pointers = partial_scores + (segment * heads * 2)[:, None] + head * 2 + 1
        turn += tl.sum(tl.load(pointers, mask=live[:, None] & live_head, other=0), 0)[None, :]
    tl.store(to_values + row * heads * features + cell, total, mask=live_cell)
    tl.store(to_scores + row * heads * 2 + head * 2 + 1, turn, mask=live_head)


class _Tiles:
    """The tile of a program: a block of rows and heads, with all features of a head.

    Narrow tiles of many rows keep the rows that are read in cache.
    """

    def __init__(self, heads: int, features: int) -> None:
        heads, features = int(heads), int(features)  # constants, also while kernels are traced
        block_f = next_power_of_2(features)
        block_h = min(next_power_of_2(heads), max(32 // block_f, 1))
        self.tall = max(128 // (block_h * block_f), 1)
        self.heads = cdiv(heads, block_h)
        warps = max(min(block_f // 128, 8), 1)
        self.block = dict(BLOCK_H=block_h, BLOCK_F=block_f, num_warps=warps)
        self.tile = dict(self.block, BLOCK_R=self.tall)

    def grid(self, rows: int) -> tuple[int, int]:
        return cdiv(rows, self.tall), self.heads


def forward(terms: AttentionTerms, slope: float, rows: Rows, saved: AttentionResults) -> None:
    """Write the attention of every node, its derivatives by the receiver's score, and the norms of
    its softmax: the maximum score, and 1 / (sum of exponentials of scores minus the maximum)."""
    values, (out, slopes, norms) = terms.values.contiguous(), saved
    heads, features = values.shape[1:]
    tiles = _Tiles(heads, features)
    shared = dict(
        _walk(values, rows),
        **_terms(terms),
        **tiles.tile,
        SLOPE=slope,
        values=values,
        norms=norms,
    )
    segments = rows.segment_owner.shape[0]
    with on_device(values):
        _attention_kernel[tiles.grid(rows.num_rows)](
            **shared, out=out, slopes=slopes, sums=norms, SEGMENTS=False
        )
        if segments == 0:
            return
        averages, tilts = norms.new_empty((2, segments, heads, features))
        sums = norms.new_empty((segments, heads, 3))
        _attention_kernel[tiles.grid(segments)](
            **shared, out=averages, slopes=tilts, sums=sums, SEGMENTS=True
        )
        _attention_merge_kernel[(rows.long_rows.shape[0], tiles.heads)](
            averages, tilts, sums, rows.long_rows, rows.long_indptr, rows.num_rows,
            out, slopes, norms, heads, features,
            WIDE=shared["WIDE"], BLOCK_S=16, **tiles.block,
        )  # fmt: skip


def backward(
    grad: Tensor,
    terms: AttentionTerms,
    slope: float,
    graph: Graph,
    saved: AttentionResults,
    grads: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of values, scores, edge and own."""
    grad, values = grad.contiguous(), terms.values.contiguous()
    heads, features = values.shape[1:]
    to_values, to_scores, to_edge, to_own = grads
    (incoming, outgoing, out_ranks), (out, slopes, norms) = graph, saved
    given = _terms(terms)
    facts = norms.new_empty((values.shape[0], heads, 4))
    tiles = _Tiles(heads, features)
    shared = dict(
        _walk(values, outgoing),
        **given,
        **tiles.tile,
        SLOPE=slope,
        grad=grad,
        values=values,
        facts=facts,
        in_indptr=incoming.indptr,
        out_ranks=out_ranks,
        to_edge=to_edge,
        to_own=to_own,
    )
    segments, wide = outgoing.segment_owner.shape[0], shared["WIDE"]
    with on_device(values):
        _attention_receivers_kernel[tiles.grid(values.shape[0])](
            grad, out, slopes, given["scores"], norms, facts, to_scores, values.shape[0],
            heads, features, WIDE=wide, **tiles.tile,
        )  # fmt: skip
        _attention_senders_kernel[tiles.grid(outgoing.num_rows)](
            **shared, to_values=to_values, to_scores=to_scores, SEGMENTS=False
        )
        if segments == 0:
            return
        partial = norms.new_empty((segments, heads, features))
        partial_scores = norms.new_empty((segments, heads, 2))
        _attention_senders_kernel[tiles.grid(segments)](
            **shared, to_values=partial, to_scores=partial_scores, SEGMENTS=True
        )
        _attention_senders_merge_kernel[(outgoing.long_rows.shape[0], tiles.heads)](
            partial, partial_scores, outgoing.long_rows, outgoing.long_indptr, outgoing.num_rows,
            to_values, to_scores, heads, features, WIDE=wide, BLOCK_S=16, **tiles.block,
        )  # fmt: skip


def _walk(values: Tensor, rows: Rows) -> dict[str, Any]:
    """Return the kernel arguments for a loop over the slots of rows, with shapes and dtypes."""
    nodes, heads, _ = values.shape
    edges = rows.neighbours.shape[0]
    return dict(
        long_arguments(rows),
        order=rows.order,
        indptr=rows.indptr,
        neighbours=rows.neighbours,
        num_rows=rows.num_rows,
        num_segments=rows.segment_owner.shape[0],
        num_long=rows.long_rows.shape[0],
        heads=values.shape[1],
        features=values.shape[2],
        WIDE=triton_type(wide_type(values.dtype)),
        # facts have four values per head, edges one
        WIDE_INDEX=wide_index(values) or 4 * nodes * heads >= 2**31 or edges * heads >= 2**31,
        SEGMENT=SEGMENT,
        UNROLL=1
        if likely(edges) <= 8 * likely(rows.num_rows)
        else 4,  # unrolling does not help short rows
    )


def _terms(terms: AttentionTerms) -> dict[str, Any]:
    """Return the scores as kernel arguments; absent tensors are replaced by `scores`, unread."""
    scores, edge, own = terms.scores.contiguous(), terms.edge, terms.own
    return dict(
        scores=scores,
        edge=scores if edge is None else edge.contiguous(),
        own=scores if own is None else own.contiguous(),
        EDGE=edge is not None,
        OWN=own is not None,
    )
