"""Gated sums over neighbours: one kernel forward, two backward, by receiver and by sender.

A program owns a few rows and a block of features and loops over their slots. The kernel of the
receivers writes the gradient of every score s once; that of the senders reads it. There are no
atomics, so results are reproducible bit for bit.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna.baselines.gates import GateResults, GateTerms
from pna.baselines.graph import Graph
from pna.ops.request import wide_type
from pna.ops.triton.alignment import aligned
from pna.ops.triton.launch import tiles_of, triton_type, wide_index
from pna.ops.triton.launcher import Kernel, on_device
from pna.ops.triton.messages import feature_block, offset_of
from pna.rows import Rows

#: Most features per program.
_WIDEST = 64


@triton.jit
def _slot(neighbours, slot, end, feature, live_feature, features, WIDE_INDEX: tl.constexpr):
    """Return a mask, and the offsets of the neighbours' features."""
    more = slot < end
    neighbour = tl.load(neighbours + slot, mask=more, other=0)
    there = offset_of(neighbour, features, WIDE_INDEX)[:, None] + feature[None, :]
    return more[:, None] & live_feature[None, :], there


@triton.jit
def _sigmoid(score):
    return 1 / (1 + tl.exp(-score))


@triton.jit
def _clear_spare(
    to, indptr, num_rows, num_edges, feature, live_feature, features,
    BLOCK_R: tl.constexpr, WIDE_INDEX: tl.constexpr,
):  # fmt: skip
    """Write 0 for edges that belong to no node; padded batches may have some after all others."""
    if tl.program_id(0) == 0:
        for first in range(tl.load(indptr + num_rows), num_edges, BLOCK_R):
            slot = first + tl.arange(0, BLOCK_R)
            pointers = to + offset_of(slot, features, WIDE_INDEX)[:, None] + feature[None, :]
            mask = (slot < num_edges)[:, None] & live_feature[None, :]
            tl.store(pointers, 0, mask=mask)


@Kernel
def _gates_kernel(
    at_receiver, at_sender, values, edge, order, indptr, neighbours, num_rows,
    num_edges, out, state, gates, features,
    EDGE: tl.constexpr, NORMALISE: tl.constexpr, LEAST: tl.constexpr, WIDE: tl.constexpr,
    WIDE_INDEX: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Write the results of receivers, the scores of their slots, and the sums of their gates."""
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = number < num_rows
    row = tl.load(order + number, mask=live, other=0).to(tl.int64)
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    features = aligned(features, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    _clear_spare(
        state, indptr, num_rows, num_edges, feature, live_feature, features, BLOCK_R, WIDE_INDEX
    )
    own = row[:, None] * features + feature[None, :]
    mine = tl.load(at_receiver + own, mask=mask, other=0).to(WIDE)
    total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    weight = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin)):
        slot = begin + step
        here, there = _slot(neighbours, slot, end, feature, live_feature, features, WIDE_INDEX)
        by_slot = offset_of(slot, features, WIDE_INDEX)[:, None] + feature[None, :]
        score = mine + tl.load(at_sender + there, mask=here, other=0)
        if EDGE:
            score += tl.load(edge + by_slot, mask=here, other=0)
        kept = score.to(state.dtype.element_ty)
        tl.store(state + by_slot, kept, mask=here)
        gate = tl.where(here, _sigmoid(kept.to(WIDE)), 0)
        total += gate * tl.load(values + there, mask=here, other=0)
        weight += gate
    if NORMALISE:
        tl.store(gates + own, weight, mask=mask)
        total /= weight + LEAST
    tl.store(out + own, total, mask=mask)


@Kernel
def _gates_receivers_kernel(
    grad, grad_state, out, state, gates, values, order, indptr, neighbours, num_rows,
    num_edges, to_receiver, to_state, to_sum, features,
    STATE: tl.constexpr, NORMALISE: tl.constexpr, LEAST: tl.constexpr, WIDE: tl.constexpr,
    WIDE_INDEX: tl.constexpr, EVEN: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the scores, of `at_receiver`, and of the sums of gated values."""
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = number < num_rows
    row = tl.load(order + number, mask=live, other=0).to(tl.int64)
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    features = aligned(features, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    _clear_spare(
        to_state, indptr, num_rows, num_edges, feature, live_feature, features, BLOCK_R, WIDE_INDEX
    )
    own = row[:, None] * features + feature[None, :]
    upstream = tl.load(grad + own, mask=mask, other=0).to(WIDE)
    back = tl.zeros([BLOCK_R, BLOCK_F], WIDE)  # gradient of a gate through the sum of gates
    if NORMALISE:
        upstream /= tl.load(gates + own, mask=mask, other=0) + LEAST
        back -= upstream * tl.load(out + own, mask=mask, other=0)
    tl.store(to_sum + own, upstream, mask=mask)
    total = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin)):
        slot = begin + step
        here, there = _slot(neighbours, slot, end, feature, live_feature, features, WIDE_INDEX)
        by_slot = offset_of(slot, features, WIDE_INDEX)[:, None] + feature[None, :]
        gate = _sigmoid(tl.load(state + by_slot, mask=here, other=0).to(WIDE))
        value = tl.load(values + there, mask=here, other=0)
        part = gate * (1 - gate) * (upstream * value + back)
        if STATE:
            part += tl.load(grad_state + by_slot, mask=here, other=0)
        tl.store(to_state + by_slot, part, mask=here)
        total += tl.where(here, part, 0)
    tl.store(to_receiver + own, total, mask=mask)


@Kernel
def _gates_senders_kernel(
    state, to_state, to_sum, order, indptr, neighbours, in_indptr, out_ranks, num_rows,
    to_sender, to_values, features,
    WIDE: tl.constexpr, WIDE_INDEX: tl.constexpr,
    EVEN: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Write the gradients of `at_sender` and of the values."""
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = number < num_rows
    row = tl.load(order + number, mask=live, other=0).to(tl.int64)
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    features = aligned(features, UNIT)
    feature, live_feature = feature_block(features, EVEN, BLOCK_F)
    mask = live[:, None] & live_feature[None, :]
    of_scores = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    of_values = tl.zeros([BLOCK_R, BLOCK_F], WIDE)
    for step in range(0, tl.max(end - begin)):
        position = begin + step
        more = position < end
        here = more[:, None] & live_feature[None, :]
        receiver = tl.load(neighbours + position, mask=more, other=0)
        slot = tl.load(in_indptr + receiver, mask=more, other=0)
        slot += tl.load(out_ranks + position, mask=more, other=0)
        there = offset_of(receiver, features, WIDE_INDEX)[:, None] + feature[None, :]
        by_slot = offset_of(slot, features, WIDE_INDEX)[:, None] + feature[None, :]
        gate = _sigmoid(tl.load(state + by_slot, mask=here, other=0).to(WIDE))
        of_scores += tl.load(to_state + by_slot, mask=here, other=0)
        of_values += gate * tl.load(to_sum + there, mask=here, other=0)
    own = row[:, None] * features + feature[None, :]
    tl.store(to_sender + own, of_scores, mask=mask)
    tl.store(to_values + own, of_values, mask=mask)


def forward(terms: GateTerms, rows: Rows, least: float, saved: GateResults) -> None:
    """Write results and scores, and the sums of gates if `saved.gates` has rows."""
    at_receiver, at_sender, values = (t.contiguous() for t in terms[:3])
    edge, (out, state, gates) = terms.edge, saved
    tiles = tiles_of(values.shape[1], _WIDEST)
    with on_device(values):
        _gates_kernel[tiles.grid(rows.num_rows)](
            at_receiver, at_sender, values, at_sender if edge is None else edge.contiguous(),
            rows.order, rows.indptr, rows.neighbours, rows.num_rows, state.shape[0], out, state,
            gates, values.shape[1], EDGE=edge is not None, NORMALISE=gates.shape[0] > 0,
            LEAST=least, **_shared(state, values), **tiles.tile,
        )  # fmt: skip


def backward(
    above: tuple[Tensor, Tensor | None],
    saved: GateResults,
    values: Tensor,
    graph: Graph,
    least: float,
    grads: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of `at_receiver`, `at_sender`, the values and the scores.

    `above` contains the gradients of the result and of the scores.
    """
    grad, grad_state = above
    (out, state, gates), (incoming, outgoing, out_ranks) = saved, graph
    to_receiver, to_sender, to_values, to_state = grads
    grad, values = grad.contiguous(), values.contiguous()
    features = values.shape[1]
    tiles, shared = tiles_of(features, _WIDEST), _shared(state, values)
    to_sum = values.new_empty(values.shape, dtype=wide_type(values.dtype))
    of_state = state if grad_state is None else grad_state.contiguous()
    with on_device(values):
        _gates_receivers_kernel[tiles.grid(incoming.num_rows)](
            grad, of_state, out, state, gates, values, incoming.order, incoming.indptr,
            incoming.neighbours, incoming.num_rows, state.shape[0], to_receiver, to_state, to_sum,
            features,
            STATE=grad_state is not None, NORMALISE=gates.shape[0] > 0, LEAST=least, **shared,
            **tiles.tile,
        )  # fmt: skip
        _gates_senders_kernel[tiles.grid(outgoing.num_rows)](
            state, to_state, to_sum, outgoing.order, outgoing.indptr, outgoing.neighbours,
            incoming.indptr, out_ranks, outgoing.num_rows, to_sender, to_values, features,
            **shared, **tiles.tile,
        )  # fmt: skip


def _shared(state: Tensor, values: Tensor) -> dict[str, Any]:
    wide = triton_type(wide_type(values.dtype))
    return dict(WIDE=wide, WIDE_INDEX=wide_index(state, values))
