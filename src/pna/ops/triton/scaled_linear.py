"""`degree_linear` for few nodes and few outputs, with the concatenated weights of all factors.

A kernel concatenates these weights. `torch.bmm` multiplies every group of every tower of z without
a copy, and the shift by the sum of the weights of its groups. A second kernel sums the products,
times the factors. This is more arithmetic than one product per degree. It is still faster for few
nodes, since nothing waits for a tile of mixed degrees. Gradients use products by degree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.ops.product import Product
from pna.ops.tracing import likely
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.products import unit_stride

#: The most nodes, and the most outputs of all factors together.
MOST_ROWS, MOST_OUTPUTS = 2**15, 64

_TILE, _NUMBERS = 16, 256


@Kernel
def _apart_kernel(
    weight, w_factor, w_tower, w_input, w_output, apart, once, each, size, width, outputs,
    R: tl.constexpr, GROUPS: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Reorder some of the weights from (R, towers, groups × width, outputs) to (groups, towers,
    width, R × outputs), and sum them over the groups in the bit masks ONCE and EACH."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = place < size
    output, factor = place % outputs, place // outputs % R
    unit, tower = place // (outputs * R) % width, place // (outputs * R) // width
    start = weight + factor.to(tl.int64) * w_factor + tower.to(tl.int64) * w_tower
    start += unit.to(tl.int64) * w_input + output * w_output
    sum_once = tl.zeros([BLOCK], tl.float32)
    sum_each = tl.zeros([BLOCK], tl.float32)
    for group in tl.static_range(GROUPS):
        value = tl.load(start + tl.cast(group * width, tl.int64) * w_input, mask=live, other=0)
        tl.store(apart + tl.cast(group, tl.int64) * size + place, value, mask=live)
        if (ONCE >> group) & 1:
            sum_once += value
        if (EACH >> group) & 1:
            sum_each += value
    if ONCE:
        tl.store(once + place, sum_once, mask=live)
    if EACH:
        tl.store(each + place, sum_each, mask=live)


@Kernel
def _combine_kernel(
    every, once, each, indptr, factors, base, base_row, base_tower, out,
    num_rows, towers, outputs, groups,
    R: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, BASE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Some nodes of one tower: sum the products of all groups, `every` (groups × towers, rows, R ×
    outputs), and those of the shift, times the factors, into out (rows, towers, outputs)."""
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


class Apart(NamedTuple):
    """The concatenated weights of all factors, and the weights that multiply the shift."""

    weight: Tensor  # (groups, towers, inputs, factors × outputs)
    once: Tensor | None  # its sum over the groups that get the shift once, if any
    each: Tensor | None  # its sum over those that get it once per neighbour


def is_quick(rows: int, dtype: torch.dtype, weight: Tensor) -> bool:
    """Whether nodes and outputs are so few that this path is faster."""
    few = likely(rows) <= MOST_ROWS and weight.shape[0] * weight.shape[3] <= MOST_OUTPUTS
    return few and dtype == torch.float32 and fast_paths.is_on("scaled_linear")


def forward(product: Product, base: Tensor | None, out: Tensor) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs), float32."""
    z, shift = product.z, product.shift
    apart = take_apart(product.weight, z.shape[1], () if shift is None else product.times)
    moved = shift_products(shift, apart)
    add_up(products(z, apart), moved, product.factors, base, product.indptr, out)


def take_apart(weight: Tensor, groups: int, times: Sequence[int]) -> Apart:
    """Concatenate the weights of all factors; needs the weight only, so it can run early."""
    factors, towers, inputs, outputs = weight.shape
    shape = (towers, inputs // groups, factors * outputs)
    apart = weight.new_empty((groups, *shape))
    bits = [sum(1 << a for a, n in enumerate(times) if n == often) for often in (1, 2)]
    once, each = (weight.new_empty(shape) if groups_of else apart for groups_of in bits)
    size = math.prod(shape)
    with on_device(weight):
        _apart_kernel[(cdiv(size, _NUMBERS),)](
            weight, *weight.stride(), apart, once, each, size, shape[1], outputs,
            R=factors, GROUPS=groups, ONCE=bits[0], EACH=bits[1], BLOCK=_NUMBERS, num_warps=4,
        )  # fmt: skip
    return Apart(apart, once if bits[0] else None, each if bits[1] else None)


def shift_products(shift: Tensor | None, apart: Apart) -> list[Tensor | None]:
    """Products of shift (receivers, towers, K) with `apart.once` and `apart.each`."""
    if shift is None:
        return [None, None]
    transposed = shift.transpose(0, 1)
    return [None if w is None else torch.bmm(transposed, w) for w in (apart.once, apart.each)]


def products(z: Tensor, apart: Apart) -> Tensor:
    """Products of every group and tower: (groups × towers, receivers, factors × outputs)."""
    return torch.bmm(z.flatten(1, 2).transpose(0, 1), apart.weight.flatten(0, 1))


def add_up(
    every: Tensor,
    moved: Sequence[Tensor | None],
    factors: Tensor,
    base: Tensor | None,
    indptr: Tensor,
    out: Tensor,
) -> None:
    """Write base plus the sum of the products of all groups and of the shift, times the factors."""
    rows, towers, outputs = out.shape
    given = out if base is None else unit_stride(base)
    once, each = (every if part is None else part for part in moved)
    with on_device(out):
        _combine_kernel[(cdiv(rows, _TILE), towers)](
            every, once, each, indptr, factors, given, given.stride(0), given.stride(1), out,
            rows, towers, outputs, every.shape[0] // towers,
            R=factors.shape[1], ONCE=once is not every, EACH=each is not every,
            BASE=base is not None, BLOCK_R=_TILE, BLOCK_O=next_power_of_2(outputs),
            num_warps=2,
        )  # fmt: skip
