"""Sums over stretches of rows, a program for each and a block of its columns, and the way back."""

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


@triton.jit
def _spread_kernel(
    values, indptr, out, segments, rows, columns, steps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Some rows, whose segments are looked for by halving, and a block of columns."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = row < rows
    low = tl.zeros([BLOCK_R], tl.int64)
    high = low + segments
    for _ in range(steps):
        middle = (low + high) // 2
        before = tl.load(indptr + middle, mask=live, other=0) <= row
        low, high = tl.where(before, middle, low), tl.where(before, high, middle)
    mask = live[:, None] & (column < columns)[None, :]
    value = tl.load(values + low[:, None] * columns + column[None, :], mask=mask, other=0)
    tl.store(out + row[:, None] * columns + column[None, :], value, mask=mask)


def spread(values: Tensor, indptr: Tensor, out: Tensor) -> None:
    """Write to each row of out (rows, columns) what its segment has in values (segments, …)."""
    rows, columns = out.shape
    segments, block = values.shape[0], min(128, triton.next_power_of_2(columns))
    tall = 2048 // block
    with torch.cuda.device_of(out):
        _spread_kernel[(triton.cdiv(rows, tall), triton.cdiv(columns, block))](
            values, indptr, out, segments, rows, columns, segments.bit_length(),
            BLOCK_R=tall, BLOCK_C=block, num_warps=4,
        )  # fmt: skip
