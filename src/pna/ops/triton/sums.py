"""Sums over rows, and the reduction of partial sums that several programs have written."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launch import MergeTiles, triton_type, unit_stride
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.rows import Rows

#: Elements in a tile of a program, and the most splits in it.
_NUMBERS, _PARTS = 4096, 64

#: Rows and columns that a program of `column_sums` adds up.
_ROWS, _COLUMNS = 512, 32


@partial(Kernel, unspecialised=("size",))
def add_up_kernel(
    partial, out, splits, size, UNIT: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum some columns of partial (splits, size) over splits, in order."""
    size = aligned(size, UNIT)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = (first + tl.arange(0, BLOCK_S)).to(tl.int64)
        mask = (split < splits)[:, None] & (column < size)[None, :]
        total += tl.sum(tl.load(partial + split[:, None] * size + column, mask=mask, other=0), 0)
    tl.store(out + column, total, mask=column < size)


@Kernel
def _column_sums_kernel(
    first, first_stride, first_columns, second, second_stride, second_columns, partial, num_rows,
    ROWS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sum some columns of one of two matrices over ROWS rows: a part of partial (splits, columns
    of both)."""
    block, blocks = tl.program_id(0), tl.cdiv(first_columns, BLOCK_C)
    matrix, stride, columns = first, first_stride, first_columns
    to = partial + tl.program_id(1).to(tl.int64) * (first_columns + second_columns)
    if block >= blocks:
        matrix, stride, columns = second, second_stride, second_columns
        to += first_columns
        block -= blocks
    column = block * BLOCK_C + tl.arange(0, BLOCK_C)
    begin = tl.program_id(1).to(tl.int64) * ROWS
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for step in tl.static_range(0, ROWS, BLOCK_R):
        row = begin + step + tl.arange(0, BLOCK_R)
        mask = (row < num_rows)[:, None] & (column < columns)[None, :]
        place = matrix + row[:, None] * stride + column[None, :]
        total += tl.load(place, mask=mask, other=0).to(tl.float32)
    tl.store(to + column, tl.sum(total, 0), mask=column < columns)


@triton.jit
def sum_segments(
    partial, long_indptr, live, feature, live_feature, features,
    WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """The sum of the segments of the long row of this program, in order; 0 unless it is `live`."""
    owner = tl.program_id(0).to(tl.int64)
    begin = tl.load(long_indptr + owner, mask=live, other=0).to(tl.int64)
    end = tl.load(long_indptr + owner + 1, mask=live, other=0).to(tl.int64)
    total = tl.zeros([BLOCK_F], WIDE)
    for first in range(begin, end, BLOCK_S):
        segment = first + tl.arange(0, BLOCK_S)
        mask = (segment < end)[:, None] & live_feature[None, :]
        place = partial + segment[:, None] * features + feature[None, :]
        total += tl.sum(tl.load(place, mask=mask, other=0), 0)
    return total


@Kernel
def _add_segments_kernel(
    partial, out, out_stride, long_rows, long_indptr, num_rows, features,
    WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Sum the segments of one long row, in order."""
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live_feature = feature < features
    row = tl.load(long_rows + tl.program_id(0)).to(tl.int64)
    live = row < num_rows
    total = sum_segments(
        partial, long_indptr, live, feature, live_feature, features, WIDE, BLOCK_S, BLOCK_F
    )
    tl.store(out + row * out_stride + feature, total, mask=live_feature & live)


class Sums:
    """A sum over rows, accumulated as partial sums by several programs, in one or more launches.

    Args:
        out: receives the sum; without elements if it is not needed.
        splits: the number of partial sums of each element.
    """

    def __init__(self, out: Tensor, splits: int) -> None:
        straight = splits == 1 and out.dtype == torch.float32
        shape = (splits, out.numel())
        self.out, self.splits = out, splits
        self.partial = out if straight else out.new_empty(shape, dtype=torch.float32)
        self.needed, self._begun = out.numel() > 0, False

    def go_on(self) -> bool:
        """Whether the next launch adds to the partial sums instead of overwriting them."""
        begun, self._begun = self._begun, True
        return begun

    def finish(self) -> None:
        """Write the sum to `out`."""
        if self.needed and self.partial is not self.out:
            add_up(self.partial, self.out)


def add_up(partial: Tensor, out: Tensor) -> None:
    """Write the sum of partial (splits, size), float32, over splits to out (size elements).

    `torch.sum` would first clear a buffer through which its thread blocks synchronise.
    """
    if not fast_paths.is_on("add_up"):
        out.view(-1).copy_(partial.sum(0))
        return
    splits, size = partial.shape
    tall = min(_PARTS, max(16, next_power_of_2(likely(splits))))
    block = _NUMBERS // tall
    with on_device(out):
        add_up_kernel[(cdiv(size, block),)](
            partial, out, splits, size, UNIT=unit_of(size), BLOCK_S=tall, BLOCK=block,
            num_warps=4,
        )  # fmt: skip


def column_sums(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over the rows of two matrices with as many rows, accumulated in float32. `torch.sum`
    is slow at this."""
    rows, columns = first.shape[0], (first.shape[1], second.shape[1])
    first, second = unit_stride(first), unit_stride(second)
    out, splits = first.new_empty(sum(columns)), cdiv(max(rows, 1), _ROWS)
    partial = first.new_empty((splits, sum(columns)), dtype=torch.float32)
    blocks = cdiv(columns[0], _COLUMNS) + cdiv(columns[1], _COLUMNS)
    with on_device(first):
        _column_sums_kernel[(blocks, splits)](
            first, first.stride(0), columns[0], second, second.stride(0), columns[1], partial, rows,
            ROWS=_ROWS, BLOCK_R=64, BLOCK_C=_COLUMNS, num_warps=4,
        )  # fmt: skip
    add_up(partial, out)
    of_first, of_second = out.split(columns)
    return of_first, of_second


def add_segments(partial: Tensor, rows: Rows, out: Tensor) -> None:
    """Write the sums of long rows to out, from those of their segments (segments, features)."""
    features = out.shape[1]
    merge = MergeTiles(features)
    with on_device(out):
        _add_segments_kernel[(rows.long_rows.shape[0], merge.blocks)](
            partial, out, out.stride(0), rows.long_rows, rows.long_indptr, rows.num_rows,
            features, WIDE=triton_type(partial.dtype), **merge.tile,
        )  # fmt: skip
