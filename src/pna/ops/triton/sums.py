"""Sums that many programs have each a part of."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _add_up_kernel(partial, out, splits, size, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr):
    """Some columns of partial (splits, size), in order."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = (first + tl.arange(0, BLOCK_S)).to(tl.int64)
        mask = (split < splits)[:, None] & (column < size)[None, :]
        total += tl.sum(tl.load(partial + split[:, None] * size + column, mask=mask, other=0), 0)
    tl.store(out + column, total, mask=column < size)


def add_up(partial: Tensor, out: Tensor) -> None:
    """Write the sum of partial (splits, size), float32, over splits to out, of as many numbers.

    `torch.sum` would first clear a table for programs to meet at.
    """
    splits, size = partial.shape
    with torch.cuda.device_of(out):
        _add_up_kernel[(triton.cdiv(size, _BLOCK),)](
            partial, out, splits, size, BLOCK_S=16, BLOCK=_BLOCK, num_warps=4
        )
