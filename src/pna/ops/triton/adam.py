"""A step of Adam in two kernels: whether every weight stays finite, then the step itself.

The second computes anew what the first has looked at, which costs less than keeping it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

#: How many weights a program has, and how many findings are read at a time.
_BLOCK, _FINDINGS = 1024, 1024


@triton.jit
def _moved(
    weights, grad, mean, square, steps, lr, decay, member, place, mask,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Weights, mean and square after a step. What steps divide by is found in float64: 1 less a
    number near 1."""
    weight = tl.load(weights + place, mask=mask, other=0)
    slope = tl.load(grad + place, mask=mask, other=0)
    rate = tl.load(lr + member)
    shrink = tl.load(decay + member)
    if not DECOUPLED:
        slope += weight * shrink
    count = tl.load(steps + member).to(tl.float64) + 1
    of_mean = (1 - tl.exp(count * LOG_FIRST)).to(tl.float32)
    of_square = (1 - tl.exp(count * LOG_SECOND)).to(tl.float32)
    before = tl.load(mean + place, mask=mask, other=0)
    new_mean = before + (1 - FIRST) * (slope - before)
    before = tl.load(square + place, mask=mask, other=0)
    new_square = before + (1 - SECOND) * (slope * slope - before)
    root = tl.sqrt_rn(new_square / of_square)
    moved = weight - rate / of_mean * new_mean / (root + EPSILON)
    if DECOUPLED:
        moved -= rate * shrink * weight
    return moved, new_mean, new_square


@triton.jit
def _adam_finite_kernel(
    weights, grad, mean, square, steps, lr, decay, broken, size,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Whether any of a block of a member's weights would not be finite, (members, blocks)."""
    member = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moved, _, _ = _moved(
        weights, grad, mean, square, steps, lr, decay, member, member * size + column,
        column < size, FIRST, SECOND, LOG_FIRST, LOG_SECOND, EPSILON, DECOUPLED,
    )  # fmt: skip
    odd = (column < size) & ((moved != moved) | (tl.abs(moved) == float("inf")))
    place = broken + member * tl.num_programs(0) + tl.program_id(0)
    tl.store(place, tl.max(odd.to(tl.int32), 0))


@triton.jit
def _adam_kernel(
    weights, grad, mean, square, steps, lr, decay, broken, allowed, new_steps, moves, size, blocks,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """A block of a member's weights, in place; its steps and whether it moves by the first."""
    member = tl.program_id(1).to(tl.int64)
    found = tl.zeros([BLOCK_S], tl.int32)
    for first in range(0, blocks, BLOCK_S):
        block = first + tl.arange(0, BLOCK_S)
        found |= tl.load(broken + member * blocks + block, mask=block < blocks, other=0)
    goes = (tl.load(allowed + member) != 0) & (tl.max(found, 0) == 0)
    if tl.program_id(0) == 0:
        count = tl.load(steps + member)
        tl.store(new_steps + member, tl.where(goes, count + 1, count))
        tl.store(moves + member, goes.to(tl.uint8))
    if goes:
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place, mask = member * size + column, column < size
        moved, new_mean, new_square = _moved(
            weights, grad, mean, square, steps, lr, decay, member, place, mask,
            FIRST, SECOND, LOG_FIRST, LOG_SECOND, EPSILON, DECOUPLED,
        )  # fmt: skip
        tl.store(weights + place, moved, mask=mask)
        tl.store(mean + place, new_mean, mask=mask)
        tl.store(square + place, new_square, mask=mask)


def step(
    weights: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    lr: Tensor,
    decay: Tensor,
    allowed: Tensor,
    betas: tuple[float, float],
    eps: float,
    decoupled: bool,
) -> Tensor:
    """One step of rows of weights (members, parameters), with their means and squares, in place.

    All but `allowed` are float32. Says which of the members moved, (members,) bool.
    """
    members, size = weights.shape
    blocks = triton.cdiv(size, _BLOCK)
    broken = weights.new_empty((members, blocks), dtype=torch.int32)
    new_steps, moves = torch.empty_like(steps), torch.empty_like(allowed)
    inputs = dict(
        weights=weights, grad=grad.contiguous(), mean=mean, square=square, steps=steps,
        lr=lr.contiguous(), decay=decay.contiguous(), broken=broken, size=size, FIRST=betas[0],
        SECOND=betas[1], LOG_FIRST=math.log(betas[0]), LOG_SECOND=math.log(betas[1]), EPSILON=eps,
        DECOUPLED=decoupled, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    with torch.cuda.device_of(weights):
        _adam_finite_kernel[(blocks, members)](**inputs)
        _adam_kernel[(blocks, members)](
            **inputs, allowed=allowed.contiguous().view(torch.uint8), new_steps=new_steps,
            moves=moves.view(torch.uint8), blocks=blocks, BLOCK_S=_FINDINGS,
        )  # fmt: skip
    steps.copy_(new_steps)
    return moves
