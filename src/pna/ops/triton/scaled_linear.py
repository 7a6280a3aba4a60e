"""`degree_linear` of few nodes and few outputs: through the weights of all factors side by side.

The library multiplies every group of every tower of z where it lies, and the shift with the sum of
the weights it meets; a kernel adds them up, times the factors. That is more to multiply than nodes
of one degree take, and still sooner done where there are few: nothing waits for a tile in which
degrees meet. Gradients are found by degree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.products import unit_stride

#: The most nodes, and the most outputs of all factors.
MOST_ROWS, MOST_OUTPUTS = 2**15, 64

_TILE = 16


@triton.jit
def _combine_kernel(
    every, once, each, indptr, factors, base, base_row, base_tower, out,
    num_rows, towers, outputs, groups,
    R: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, BASE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Some nodes and a tower: what every group gives with every factor's weight, (groups × towers,
    rows, R × outputs), and the shift alike, times the factors, in out (rows, towers, outputs)."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    tower = tl.program_id(1).to(tl.int64)
    output = tl.arange(0, BLOCK_O)
    live = row < num_rows
    mask = live[:, None] & (output < outputs)[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
    if BASE:
        place = base + row[:, None] * base_row + tower * base_tower + output[None, :]
        total += tl.load(place, mask=mask, other=0)
    degree = tl.zeros([BLOCK_R], tl.float32)
    if EACH:
        end = tl.load(indptr + row + 1, mask=live, other=0)
        degree += (end - tl.load(indptr + row, mask=live, other=0)).to(tl.float32)
    for r in tl.static_range(R):
        place = (tower * num_rows + row)[:, None] * (R * outputs) + r * outputs + output[None, :]
        part = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
        if ONCE:
            part += tl.load(once + place, mask=mask, other=0)
        if EACH:
            part += degree[:, None] * tl.load(each + place, mask=mask, other=0)
        for group in range(groups):
            there = place + tl.cast(group * towers, tl.int64) * num_rows * (R * outputs)
            part += tl.load(every + there, mask=mask, other=0)
        total += tl.load(factors + row * R + r, mask=live, other=0)[:, None] * part
    tl.store(out + (row * towers + tower)[:, None] * outputs + output[None, :], total, mask=mask)


def is_quick(z: Tensor, weight: Tensor) -> bool:
    """Whether there are so few nodes and outputs that this way is the quicker one."""
    few = z.shape[0] <= MOST_ROWS and weight.shape[0] * weight.shape[3] <= MOST_OUTPUTS
    return few and z.dtype == torch.float32


def forward(
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    base: Tensor | None,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    out: Tensor,
) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs), float32."""
    rows, groups, towers, width = z.shape
    count, outputs = weight.shape[0], weight.shape[3]
    # (groups, towers, inputs, R × outputs)
    apart = weight.unflatten(2, (groups, width)).permute(2, 1, 3, 0, 4).flatten(3)
    every = torch.bmm(z.flatten(1, 2).transpose(0, 1), apart.flatten(0, 1))
    moved = [every, every]
    for often in (1, 2):
        met = [apart[a] for a, n in enumerate(times) if n == often]
        if shift is not None and met:
            total = met[0] if len(met) == 1 else met[0] + met[1]
            for part in met[2:]:
                total += part
            moved[often - 1] = torch.bmm(shift.transpose(0, 1), total)
    given = out if base is None else unit_stride(base)
    with torch.cuda.device_of(out):
        _combine_kernel[(triton.cdiv(rows, _TILE), towers)](
            every, *moved, indptr, factors, given, given.stride(0), given.stride(1), out,
            rows, towers, outputs, groups,
            R=count, ONCE=moved[0] is not every, EACH=moved[1] is not every,
            BASE=base is not None, BLOCK_R=_TILE, BLOCK_O=triton.next_power_of_2(outputs),
            num_warps=2,
        )  # fmt: skip
