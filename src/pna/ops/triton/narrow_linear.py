"""`degree_linear` of towers so narrow that the weights of all factors are multiplied at once.

Nodes stay in their order: a tile through the weights of all factors side by side, and only then
times the factors, costs less than finding nodes of one degree. A program owns a tower, keeps its
weights, and walks every so manyeth tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.products import parts, precision, product_of_parts, unit_stride

#: How many nodes a tile has.
_TILE = 64

#: The most columns that groups of inputs, and outputs of all factors, may take side by side.
_WIDEST = 128

#: About how many programs run side by side.
_PROGRAMS = 264


@triton.jit
def _inputs(
    z, z_row, z_group, shift, shift_row, indptr, begin, row, live, column, groups, width,
    ONCE: tl.constexpr, EACH: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of all groups side by side, shifted; each has BLOCK_K columns."""
    group, k = column // BLOCK_K, column % BLOCK_K
    mask = live[:, None] & ((group < groups) & (k < width))[None, :]
    place = z + begin * z_row + (row * z_row)[:, None] + (group * z_group + k)[None, :]
    tile = tl.load(place, mask=mask, other=0).to(tl.float32)
    if (ONCE | EACH) != 0:
        moved = ((ONCE | EACH) >> group) & 1 != 0
        place = shift + begin * shift_row + (row * shift_row)[:, None] + k[None, :]
        value = tl.load(place, mask=mask & moved[None, :], other=0).to(tl.float32)
        if EACH != 0:
            degree = tl.load(indptr + begin + row + 1, mask=live, other=0)
            degree -= tl.load(indptr + begin + row, mask=live, other=0)
            each = (EACH >> group) & 1 != 0
            value *= tl.where(each[None, :], degree.to(tl.float32)[:, None], 1.0)
        tile += value
    return tile


@triton.jit
def _weights(
    weight, w_factor, w_in, w_out, column, groups, width, output, factors, outputs,
    BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Weights of all groups (rows) and all factors (columns) of a tower."""
    group, k = column // BLOCK_K, column % BLOCK_K
    factor, o = output // BLOCK_O, output % BLOCK_O
    live = ((group < groups) & (k < width))[:, None] & ((factor < factors) & (o < outputs))[None, :]
    place = ((group * width + k) * w_in)[:, None] + (factor * w_factor + o * w_out)[None, :]
    return tl.load(weight + place, mask=live, other=0).to(tl.float32)


@triton.jit
def _shares(factors, begin, row, live, output, R: tl.constexpr, BLOCK_O: tl.constexpr):
    """The factor of every node for every column of the outputs."""
    factor = output // BLOCK_O
    place = factors + begin * R + (row * R)[:, None] + factor[None, :]
    return tl.load(place, mask=live[:, None] & (factor < R)[None, :], other=0).to(tl.float32)


@triton.jit
def _narrow_linear_kernel(
    z, z_row, z_group, z_tower, width, groups, shift, shift_row, shift_tower,
    weight, w_factor, w_tower, w_in, w_out, factors, base, base_row, base_tower, indptr,
    out, outputs, num_rows, towers, tiles,
    R: tl.constexpr, BASE: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCKS_K: tl.constexpr, BLOCKS_O: tl.constexpr,
):  # fmt: skip
    """Some tiles of a tower's nodes."""
    tower = tl.program_id(1).to(tl.int64)
    column, output = tl.arange(0, BLOCKS_K), tl.arange(0, BLOCKS_O)
    own = _weights(
        weight + tower * w_tower, w_factor, w_in, w_out, column, groups, width, output, R, outputs,
        BLOCK_K, BLOCK_O,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(own, PRECISION)
    z += tower * z_tower
    shift += tower * shift_tower
    row, o = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_O)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        tile = _inputs(
            z, z_row, z_group, shift, shift_row, indptr, begin, row, live, column, groups, width,
            ONCE, EACH, BLOCK_K,
        )  # fmt: skip
        t_1, t_2, t_3 = parts(tile, PRECISION)
        product = product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
        product *= _shares(factors, begin, row, live, output, R, BLOCK_O)
        total = tl.sum(tl.reshape(product, [BLOCK_R, BLOCKS_O // BLOCK_O, BLOCK_O]), 1)
        mask = live[:, None] & (o < outputs)[None, :]
        if BASE:
            place = base + begin * base_row + tower * base_tower
            place += (row * base_row)[:, None] + o[None, :]
            total += tl.load(place, mask=mask, other=0).to(tl.float32)
        to = out + (begin * towers + tower) * outputs
        to += (row * towers * outputs)[:, None] + o[None, :]
        tl.store(to, total, mask=mask)


@triton.jit
def _narrow_linear_backward_kernel(
    z, z_row, z_group, z_tower, width, groups, shift, shift_row, shift_tower,
    weight, w_factor, w_tower, w_in, w_out, factors, indptr,
    grad, grad_row, grad_tower, grad_z, grad_shift, partial, outputs, num_rows, towers, tiles,
    R: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, TO_Z: tl.constexpr,
    TO_SHIFT: tl.constexpr, TO_WEIGHT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCKS_K: tl.constexpr, BLOCKS_O: tl.constexpr,
):  # fmt: skip
    """Some tiles of a tower's nodes: gradients of z and shift there, and the sums of the weight's
    over these tiles in partial (splits, R, towers, groups × width, outputs)."""
    tower = tl.program_id(1).to(tl.int64)
    column, output = tl.arange(0, BLOCKS_K), tl.arange(0, BLOCKS_O)
    group, k = column // BLOCK_K, column % BLOCK_K
    factor, o = output // BLOCK_O, output % BLOCK_O
    own = _weights(
        weight + tower * w_tower, w_factor, w_in, w_out, column, groups, width, output, R, outputs,
        BLOCK_K, BLOCK_O,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(tl.trans(own), PRECISION)
    total = tl.zeros([BLOCKS_K, BLOCKS_O], tl.float32)
    z += tower * z_tower
    shift += tower * shift_tower
    grad += tower * grad_tower
    row, unit = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        place = grad + begin * grad_row + (row * grad_row)[:, None] + o[None, :]
        mask = live[:, None] & (o < outputs)[None, :]
        upstream = tl.load(place, mask=mask, other=0).to(tl.float32)
        upstream *= _shares(factors, begin, row, live, output, R, BLOCK_O)
        u_1, u_2, u_3 = parts(upstream, PRECISION)
        if TO_WEIGHT:
            tile = _inputs(
                z, z_row, z_group, shift, shift_row, indptr, begin, row, live, column, groups,
                width, ONCE, EACH, BLOCK_K,
            )  # fmt: skip
            t_1, t_2, t_3 = parts(tile, PRECISION)
            total += product_of_parts(
                tl.trans(t_1), tl.trans(t_2), tl.trans(t_3), u_1, u_2, u_3, PRECISION
            )
        if TO_Z:
            to_z = product_of_parts(u_1, u_2, u_3, w_1, w_2, w_3, PRECISION)
            to = grad_z + begin * groups * towers * width + tower * width
            to += (row * groups * towers * width)[:, None] + (group * towers * width + k)[None, :]
            mask = live[:, None] & ((group < groups) & (k < width))[None, :]
            tl.store(to, to_z, mask=mask)
            if TO_SHIFT:
                moved = tl.where((((ONCE | EACH) >> group) & 1 != 0)[None, :], to_z, 0.0)
                if EACH != 0:
                    degree = tl.load(indptr + begin + row + 1, mask=live, other=0)
                    degree -= tl.load(indptr + begin + row, mask=live, other=0)
                    each = (EACH >> group) & 1 != 0
                    moved *= tl.where(each[None, :], degree.to(tl.float32)[:, None], 1.0)
                moved = tl.sum(tl.reshape(moved, [BLOCK_R, BLOCKS_K // BLOCK_K, BLOCK_K]), 1)
                to = grad_shift + (begin * towers + tower) * width
                to += (row * towers * width)[:, None] + unit[None, :]
                tl.store(to, moved, mask=live[:, None] & (unit < width)[None, :])
    if TO_WEIGHT:
        size = groups * width * outputs
        to = partial + (tl.program_id(0).to(tl.int64) * R * towers + tower) * size
        place = ((group * width + k) * outputs)[:, None] + (factor * towers * size + o)[None, :]
        live_in, live_out = (group < groups) & (k < width), (factor < R) & (o < outputs)
        tl.store(to + place, total, mask=live_in[:, None] & live_out[None, :])


def is_narrow(z: Tensor, weight: Tensor) -> bool:
    """Whether a tower's weights of all factors fit in a program."""
    blocks_k, blocks_o = _blocks(z, weight)[2:]
    return blocks_k <= _WIDEST and blocks_o <= _WIDEST and blocks_k * blocks_o <= 8192


def _blocks(z: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    groups, width = z.shape[1], z.shape[3]
    factors, outputs = weight.shape[0], weight.shape[3]
    block_k = triton.next_power_of_2(max(width, 1))
    block_o = triton.next_power_of_2(max(outputs, 1))
    return (
        block_k,
        block_o,
        max(16, block_k * triton.next_power_of_2(groups)),
        max(16, block_o * triton.next_power_of_2(factors)),
    )


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
    """Write the result of `degree_linear` to out (receivers, towers, outputs)."""
    shared, grid = _arguments(z, weight, factors, shift, times, indptr, 2 * _PROGRAMS)
    own = out if base is None else unit_stride(base)
    with torch.cuda.device_of(z):
        _narrow_linear_kernel[grid](
            **shared, base=own, base_row=own.stride(0), base_tower=own.stride(1),
            BASE=base is not None, out=out, num_stages=2,
        )  # fmt: skip


def backward(
    grad: Tensor,
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    grad_z: Tensor,
    grad_weight: Tensor,
    grad_shift: Tensor,
) -> None:
    """Write the gradients of z, weight and shift; those of no length are not needed."""
    shared, grid = _arguments(z, weight, factors, shift, times, indptr, _PROGRAMS)
    grad = unit_stride(grad)
    to_weight = grad_weight.shape[0] > 0
    sums = (grid[0], *weight.shape) if to_weight else (0,)
    partial = z.new_empty(sums, dtype=torch.float32)
    with torch.cuda.device_of(z):
        _narrow_linear_backward_kernel[grid](
            **shared, grad=grad, grad_row=grad.stride(0), grad_tower=grad.stride(1),
            grad_z=grad_z, grad_shift=grad_shift, partial=partial, TO_Z=grad_z.shape[0] > 0,
            TO_SHIFT=grad_shift.shape[0] > 0, TO_WEIGHT=to_weight, num_stages=2,
        )  # fmt: skip
    if to_weight and grad_weight.dtype == partial.dtype:
        torch.sum(partial, 0, out=grad_weight)
    elif to_weight:
        grad_weight.copy_(partial.sum(0))


def _arguments(
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    programs: int,
) -> tuple[dict[str, Any], tuple[int, int]]:
    """What both kernels are given, and how many programs there are."""
    z = unit_stride(z)
    shift = z[:, 0] if shift is None else unit_stride(shift)
    block_k, block_o, blocks_k, blocks_o = _blocks(z, weight)
    towers, tiles = z.shape[2], triton.cdiv(z.shape[0], _TILE)
    shared = dict(
        z=z, z_row=z.stride(0), z_group=z.stride(1), z_tower=z.stride(2), width=z.shape[3],
        groups=z.shape[1], shift=shift, shift_row=shift.stride(0), shift_tower=shift.stride(1),
        weight=weight, w_factor=weight.stride(0), w_tower=weight.stride(1),
        w_in=weight.stride(2), w_out=weight.stride(3), factors=factors.contiguous(),
        indptr=indptr, outputs=weight.shape[3], num_rows=z.shape[0], towers=towers, tiles=tiles,
        R=weight.shape[0], ONCE=sum(1 << a for a, often in enumerate(times) if often == 1),
        EACH=sum(1 << a for a, often in enumerate(times) if often == 2), PRECISION=precision(z),
        BLOCK_R=_TILE, BLOCK_K=block_k, BLOCK_O=block_o, BLOCKS_K=blocks_k, BLOCKS_O=blocks_o,
        num_warps=8 if blocks_k * blocks_o > 4096 else 4,
    )  # fmt: skip
    return shared, (max(1, min(tiles, programs // towers)), towers)
