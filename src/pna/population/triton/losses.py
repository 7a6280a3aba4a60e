"""Errors summed over rows, and their slopes, in one kernel: a program owns a task of a member."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The most rows that are read at a time.
_BLOCK = 1024


@triton.jit
def _errors_kernel(
    outputs, o_row, o_member, o_task, values, v_row, v_task, known, k_row, k_task,
    sums, slopes, rows, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of one task's errors, and the slope of each, 0 where there is no target; NaN is
    passed on."""
    member, task = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = member * tl.num_programs(1) + task
    columns = tl.num_programs(0) * tl.num_programs(1)
    outputs += member * o_member + task * o_task
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, rows, BLOCK):
        row = (first + tl.arange(0, BLOCK)).to(tl.int64)
        live = row < rows
        there = tl.load(known + row * k_row + task * k_task, mask=live, other=0) != 0
        output = tl.load(outputs + row * o_row, mask=there, other=0)
        value = tl.load(values + row * v_row + task * v_task, mask=there, other=0)
        away = output - value
        sign = tl.where(away > 0, 1.0, tl.where(away < 0, -1.0, away))
        if KIND == 0:
            error, slope = away * away, 2 * away
        elif KIND == 1:
            error, slope = tl.abs(away), sign
        elif KIND == 2:
            near = tl.abs(away) < 1
            error = tl.where(near, 0.5 * away * away, tl.abs(away) - 0.5)
            slope = tl.where(near, away, sign)
        else:
            small = tl.exp(-tl.abs(output))
            error = tl.where(output > 0, output, 0.0) + tl.log(1 + small) - output * value
            slope = tl.where(output > 0, 1.0, small) / (1 + small) - value
        total += tl.where(there, error, 0.0)
        tl.store(slopes + row * columns + column, tl.where(there, slope, 0.0), mask=live)
    tl.store(sums + column, tl.sum(total, 0))


def forward(
    outputs: Tensor, values: Tensor, known: Tensor, kind: int, sums: Tensor, slopes: Tensor
) -> None:
    """Write the sums (members, tasks) of outputs (rows, members, tasks), and their slopes."""
    rows, members, tasks = outputs.shape
    with torch.cuda.device_of(outputs):
        _errors_kernel[(members, tasks)](
            outputs, *outputs.stride(), values, *values.stride(), known.view(torch.uint8),
            *known.stride(), sums, slopes, rows,
            KIND=kind, BLOCK=min(_BLOCK, triton.next_power_of_2(rows)), num_warps=4,
        )  # fmt: skip
