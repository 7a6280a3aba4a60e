"""A step of Adam in two kernels: a check that losses and new weights are finite, then the step.

The second kernel recomputes the new weights, which costs less than storing them. Its first program
per member updates `steps` and `alive`, so its other programs must not read these. They read the
number of the step, and whether it is allowed, from tensors that the first kernel has written.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.launcher import Kernel, cdiv, on_device

#: Weights per program, and losses and flags of blocks that are read per iteration.
_BLOCK, _LOSSES, _FINDINGS = 1024, 16, 1024


@triton.jit
def _is_odd(value):
    return (value != value) | (tl.abs(value) == float("inf"))


@triton.jit
def _moved(
    weights, grad, mean, square, count, lr, decay, member, offset, mask,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Return weights, mean and square after step `count`.

    `count` is float64, so that the bias corrections 1 − β^count are computed in float64: they are
    differences of numbers near 1.
    """
    weight = tl.load(weights + offset, mask=mask, other=0)
    slope = tl.load(grad + offset, mask=mask, other=0)
    rate = tl.load(lr + member)
    shrink = tl.load(decay + member)
    if not DECOUPLED:
        slope += weight * shrink
    of_mean = (1 - tl.exp(count * LOG_FIRST)).to(tl.float32)
    of_square = (1 - tl.exp(count * LOG_SECOND)).to(tl.float32)
    before = tl.load(mean + offset, mask=mask, other=0)
    new_mean = before + (1 - FIRST) * (slope - before)
    before = tl.load(square + offset, mask=mask, other=0)
    new_square = before + (1 - SECOND) * (slope * slope - before)
    root = tl.sqrt_rn(new_square / of_square)
    moved = weight - rate / of_mean * new_mean / (root + EPSILON)
    if DECOUPLED:
        moved -= rate * shrink * weight
    return moved, new_mean, new_square


@Kernel
def _adam_finite_kernel(
    weights, grad, mean, square, lr, decay, found, size, counts, allowed, steps, alive,
    loss, losses,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Write to found (members, blocks) whether any weight of a block would not be finite.

    The first program of each member also writes the number of the step, and whether the step is
    allowed: the member is alive and its losses are finite.
    """
    member = tl.program_id(1).to(tl.int64)
    count = tl.load(steps + member) + 1
    if tl.program_id(0) == 0:
        odd_loss = tl.zeros([BLOCK_L], tl.int32)
        for first in range(0, losses, BLOCK_L):
            offset = first + tl.arange(0, BLOCK_L)
            value = tl.load(loss + member * losses + offset, mask=offset < losses, other=0)
            odd_loss |= _is_odd(value).to(tl.int32)
        goes = (tl.load(alive + member) != 0) & (tl.max(odd_loss, 0) == 0)
        tl.store(counts + member, count)
        tl.store(allowed + member, goes.to(tl.uint8))
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    moved, _, _ = _moved(
        weights, grad, mean, square, count.to(tl.float64), lr, decay, member,
        member * size + column, column < size,
        FIRST, SECOND, LOG_FIRST, LOG_SECOND, EPSILON, DECOUPLED,
    )  # fmt: skip
    odd = (column < size) & _is_odd(moved)
    to = found + member * tl.num_programs(0) + tl.program_id(0)
    tl.store(to, tl.max(odd.to(tl.int32), 0))


@Kernel
def _adam_kernel(
    weights, grad, mean, square, lr, decay, found, size, counts, allowed, steps, alive,
    broken, blocks,
    FIRST: tl.constexpr, SECOND: tl.constexpr, LOG_FIRST: tl.constexpr, LOG_SECOND: tl.constexpr,
    EPSILON: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Update a block of a member's weights in place.

    The first program of each member also updates `steps`, `alive` and `broken`.
    """
    member = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + member)
    odd = tl.zeros([BLOCK_S], tl.int32)
    for first in range(0, blocks, BLOCK_S):
        block = first + tl.arange(0, BLOCK_S)
        odd |= tl.load(found + member * blocks + block, mask=block < blocks, other=0)
    goes = (tl.load(allowed + member) != 0) & (tl.max(odd, 0) == 0)
    if tl.program_id(0) == 0:
        fails = (tl.load(alive + member) != 0) & (goes == 0)
        tl.store(broken + member, 1, mask=fails)
        tl.store(alive + member, 0, mask=fails)
        tl.store(steps + member, count, mask=goes)
    if goes:
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        offset, mask = member * size + column, column < size
        moved, new_mean, new_square = _moved(
            weights, grad, mean, square, count.to(tl.float64), lr, decay, member, offset, mask,
            FIRST, SECOND, LOG_FIRST, LOG_SECOND, EPSILON, DECOUPLED,
        )  # fmt: skip
        tl.store(weights + offset, moved, mask=mask)
        tl.store(mean + offset, new_mean, mask=mask)
        tl.store(square + offset, new_square, mask=mask)


class AdamSettings(NamedTuple):
    lr: Tensor  # (members,)
    decay: Tensor  # (members,)
    betas: tuple[float, float]
    eps: float
    decoupled: bool


class Moments(NamedTuple):
    """The state of Adam: moving averages of the gradients and their squares, and step counts."""

    mean: Tensor  # (members, parameters)
    square: Tensor  # (members, parameters)
    steps: Tensor  # (members,)


def step(
    weights: Tensor,
    grad: Tensor,
    moments: Moments,
    settings: AdamSettings,
    loss: Tensor,
    alive: Tensor,
    broken: Tensor,
) -> None:
    """Take one step: update weights (members, parameters) and moments in place.

    All tensors are float32 except `alive` and `broken` (members,), which are bool and are updated
    too. A member that is alive breaks if one of its losses (members, losses) or new weights is not
    finite.
    """
    (mean, square, steps), (lr, decay, betas, eps, decoupled) = moments, settings
    members, size = weights.shape
    blocks = cdiv(size, _BLOCK)
    inputs = dict(
        weights=weights, grad=grad.contiguous(), mean=mean, square=square, lr=lr.contiguous(),
        decay=decay.contiguous(), found=weights.new_empty((members, blocks), dtype=torch.int32),
        size=size, counts=torch.empty_like(steps),
        allowed=torch.empty_like(alive, dtype=torch.uint8), steps=steps,
        alive=alive.view(torch.uint8), FIRST=betas[0], SECOND=betas[1],
        LOG_FIRST=math.log(betas[0]), LOG_SECOND=math.log(betas[1]), EPSILON=eps,
        DECOUPLED=decoupled, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    with on_device(weights):
        _adam_finite_kernel[(blocks, members)](
            **inputs, loss=loss.contiguous(), losses=loss.shape[1], BLOCK_L=_LOSSES
        )
        _adam_kernel[(blocks, members)](
            **inputs, broken=broken.view(torch.uint8), blocks=blocks, BLOCK_S=_FINDINGS
        )
