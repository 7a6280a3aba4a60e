"""Sums over stretches of rows, a program for each and a block of its columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _segment_sum_kernel(
    x, x_row, indptr, out, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    """One stretch, whose rows are added in order, so many side by side."""
    segment = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live_column = column < columns
    begin, end = tl.load(indptr + segment), tl.load(indptr + segment + 1)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for first in range(begin, end, BLOCK_R):
        row = (first + tl.arange(0, BLOCK_R)).to(tl.int64)
        mask = (row < end)[:, None] & live_column[None, :]
        place = x + row[:, None] * x_row + column[None, :]
        total += tl.load(place, mask=mask, other=0).to(tl.float32)
    tl.store(out + segment * columns + column, tl.sum(total, 0), mask=live_column)


def segment_sum(x: Tensor, indptr: Tensor, out: Tensor) -> None:
    """Write the sums of x (rows, columns) to out (segments, columns), in float32 on the way."""
    segments, columns = out.shape
    block = min(32, triton.next_power_of_2(columns))
    with torch.cuda.device_of(x):
        _segment_sum_kernel[(segments, triton.cdiv(columns, block))](
            x, x.stride(0), indptr, out, columns, BLOCK_R=32, BLOCK_C=block, num_warps=4
        )
