"""Batch normalisation over the real rows, with optional row factors and ReLU: two kernels per pass.

Members and features form one axis of columns. A program owns a block of columns and visits tiles of
rows in a grid-stride loop. It accumulates one sum for each element of the tile and writes partial
sums per column. Every program of the second kernel merges the partial sums of its block: they are
few, and a third launch would cost more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.products import unit_stride
from pna.population.batch_norm import Norm, Normalised, NormInputs

#: Elements per tile, and its largest number of columns.
_TILE, _COLUMNS = 2048, 32

#: Approximate number of programs per launch, and the most partial sums per column.
_PROGRAMS, _SPLITS = 528, 64


@triton.jit
def _columns_of(x, x_member, width, column, CONTIGUOUS: tl.constexpr):
    """Return pointers to the columns in row 0 of a tensor (rows, members, width).

    CONTIGUOUS says that each row is contiguous over members and features.
    """
    if CONTIGUOUS:
        return x + column
    return x + (column // width).to(tl.int64) * x_member + column % width


@triton.jit
def _values(x, x_row, row, live, mask, factors, SCALED: tl.constexpr):
    """Load a tile (rows, columns). If SCALED, multiply each row by its factor."""
    value = tl.load(x[None, :] + row[:, None] * x_row, mask=mask, other=0).to(tl.float32)
    if SCALED:
        value *= tl.load(factors + row, mask=live, other=0).to(tl.float32)[:, None]
    return value


@triton.jit
def _normalised(value, mean, scale, shift):
    """Normalise a tile (rows, columns), without the ReLU."""
    return (value - mean[None, :]) * scale[None, :] + shift[None, :]


@triton.jit
def _gradient_above(grad, grad_row, row, mask, value, mean, scale, shift, RELU: tl.constexpr):
    """Load the gradient of a tile (rows, columns) with respect to the input of the ReLU, if any.

    The input of the ReLU is recomputed exactly as in the forward pass. NaN passes the gradient.
    """
    above = tl.load(grad[None, :] + row[:, None] * grad_row, mask=mask, other=0).to(tl.float32)
    if RELU:
        above = tl.where(_normalised(value, mean, scale, shift) <= 0, 0.0, above)
    return above


@triton.jit
def _merged(count, mean, squares):
    """Merge counts, means and squared deviations of groups, (groups, columns) each, into one group.

    The mean is computed in two steps: the second averages the deviations from the first. For values
    far from zero, the only error is then the rounding of the mean itself.
    """
    total = tl.sum(count, 0)
    share = count / tl.maximum(total, 1.0)[None, :]
    about = tl.sum(share * mean, 0)
    away = mean - about[None, :]
    rest = tl.sum(share * away, 0)
    away -= rest[None, :]
    return total, about + rest, tl.sum(squares, 0) + total * tl.sum(share * away * away, 0)


@Kernel
def _batch_norm_moments_kernel(
    x, x_row, x_member, width, factors, real, partial, num_rows, columns, tiles,
    SCALED: tl.constexpr, CONTIGUOUS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the moments of some tiles of rows to partial (splits, 3·columns): the number of real
    rows, their means, and their squared deviations.

    Each element of the tile accumulates its own moments by Welford's algorithm.
    """
    columns, x_row = aligned(columns, UNIT), aligned(x_row, UNIT)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live_column = column < columns
    x = _columns_of(x, x_member, width, column, CONTIGUOUS)
    count = tl.zeros([BLOCK_R], tl.float32)
    mean = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for i in range(tl.program_id(1), tiles, tl.num_programs(1)):
        row = tl.cast(i, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        own = tl.load(real + row, mask=row < num_rows, other=0) != 0
        mask = own[:, None] & live_column[None, :]
        value = _values(x, x_row, row, own, mask, factors, SCALED)
        count += own.to(tl.float32)
        away = tl.where(mask, value - mean, 0.0)
        mean += away * (1 / tl.maximum(count, 1.0))[:, None]
        squares += away * (value - mean)
    total, mean, squares = _merged(count[:, None] + tl.zeros_like(mean), mean, squares)
    to = partial + tl.program_id(1) * (3 * columns) + column
    tl.store(to, total, mask=live_column)
    tl.store(to + columns, mean, mask=live_column)
    tl.store(to + 2 * columns, squares, mask=live_column)


@Kernel
def _batch_norm_kernel(
    x, x_row, x_member, width, factors, weight, bias, running_mean, running_var, partial, splits,
    y, moments, num_rows, columns, tiles,
    MOMENTUM: tl.constexpr, EPSILON: tl.constexpr, RELU: tl.constexpr, SCALED: tl.constexpr,
    CONTIGUOUS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalise some tiles of rows.

    The first program of each block of columns also writes moments (3, columns) and updates the
    running statistics. It updates only columns with several real rows; the statistics that programs
    read for normalisation are those of the other columns, so there is no race.
    """
    columns, x_row = aligned(columns, UNIT), aligned(x_row, UNIT)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live_column = column < columns
    split = tl.arange(0, BLOCK_S)
    pointers = partial + split[:, None] * (3 * columns) + column[None, :]
    written = (split < splits)[:, None] & live_column[None, :]
    counts = tl.load(pointers, mask=written, other=0)
    means = tl.load(pointers + columns, mask=written, other=0)
    deviations = tl.load(pointers + 2 * columns, mask=written, other=0)
    count, mean, squares = _merged(counts, means, deviations)
    several = count > 1
    alone = live_column & (count <= 1)
    var = squares / tl.maximum(count, 1.0)
    kept_mean = tl.load(running_mean + column, mask=alone, other=0).to(tl.float32)
    kept_var = tl.load(running_var + column, mask=alone, other=0).to(tl.float32)
    used = tl.where(several, mean, kept_mean)
    rstd = tl.rsqrt(tl.where(several, var, kept_var) + EPSILON)
    if tl.program_id(1) == 0:
        tl.store(moments + column, used, mask=live_column)
        tl.store(moments + columns + column, rstd, mask=live_column)
        inverse = tl.where(several, 1 / tl.maximum(count, 1.0), 0.0)
        tl.store(moments + 2 * columns + column, inverse, mask=live_column)
        moved = live_column & several
        before = tl.load(running_mean + column, mask=moved, other=0).to(tl.float32)
        tl.store(running_mean + column, before + MOMENTUM * (mean - before), mask=moved)
        before = tl.load(running_var + column, mask=moved, other=0).to(tl.float32)
        unbiased = squares / tl.maximum(count - 1, 1.0)
        tl.store(running_var + column, before + MOMENTUM * (unbiased - before), mask=moved)
    scale = rstd * tl.load(weight + column, mask=live_column, other=0).to(tl.float32)
    shift = tl.load(bias + column, mask=live_column, other=0).to(tl.float32)
    x = _columns_of(x, x_member, width, column, CONTIGUOUS)
    for i in range(tl.program_id(1), tiles, tl.num_programs(1)):
        row = tl.cast(i, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        live = row < num_rows
        mask = live[:, None] & live_column[None, :]
        value = _values(x, x_row, row, live, mask, factors, SCALED)
        value = _normalised(value, used, scale, shift)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # keeps NaN
        tl.store(y + row[:, None] * columns + column[None, :], value, mask=mask)


@Kernel
def _batch_norm_sums_kernel(
    grad, grad_row, grad_member, x, x_row, x_member, width, factors, weight, bias, moments,
    partial, num_rows, columns, tiles,
    RELU: tl.constexpr, SCALED: tl.constexpr, CONTIGUOUS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the sums Σ ∂y and Σ ∂y · x̂ over some tiles of rows to partial (splits, 2·columns)."""
    columns, x_row = aligned(columns, UNIT), aligned(x_row, UNIT)
    grad_row = aligned(grad_row, UNIT)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live_column = column < columns
    mean = tl.load(moments + column, mask=live_column, other=0)
    rstd = tl.load(moments + columns + column, mask=live_column, other=0)
    scale = rstd * tl.load(weight + column, mask=live_column, other=0).to(tl.float32)
    shift = tl.load(bias + column, mask=live_column, other=0).to(tl.float32)
    x = _columns_of(x, x_member, width, column, CONTIGUOUS)
    grad = _columns_of(grad, grad_member, width, column, CONTIGUOUS)
    plain = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    scaled = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for i in range(tl.program_id(1), tiles, tl.num_programs(1)):
        row = tl.cast(i, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        live = row < num_rows
        mask = live[:, None] & live_column[None, :]
        value = _values(x, x_row, row, live, mask, factors, SCALED)
        above = _gradient_above(grad, grad_row, row, mask, value, mean, scale, shift, RELU)
        plain += above
        scaled += above * (value - mean[None, :])
    to = partial + tl.program_id(1) * (2 * columns)
    tl.store(to + column, tl.sum(plain, 0), mask=live_column)
    tl.store(to + columns + column, tl.sum(scaled, 0) * rstd, mask=live_column)


@Kernel
def _batch_norm_gradient_kernel(
    grad, grad_row, grad_member, x, x_row, x_member, width, factors, weight, bias, moments,
    partial, real, splits, grad_x, grad_weight, grad_bias, num_rows, columns, tiles,
    RELU: tl.constexpr, TO_X: tl.constexpr, TO_WEIGHT: tl.constexpr, TO_BIAS: tl.constexpr,
    SCALED: tl.constexpr, CONTIGUOUS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x for some tiles of rows.

    The first program of each block of columns also writes the gradients of weight and bias.
    """
    columns, x_row = aligned(columns, UNIT), aligned(x_row, UNIT)
    grad_row = aligned(grad_row, UNIT)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live_column = column < columns
    split = tl.arange(0, BLOCK_S)
    pointers = partial + split[:, None] * (2 * columns) + column[None, :]
    written = (split < splits)[:, None] & live_column[None, :]
    plain = tl.sum(tl.load(pointers, mask=written, other=0), 0)
    scaled = tl.sum(tl.load(pointers + columns, mask=written, other=0), 0)
    if tl.program_id(1) == 0:
        if TO_BIAS:
            tl.store(grad_bias + column, plain, mask=live_column)
        if TO_WEIGHT:
            tl.store(grad_weight + column, scaled, mask=live_column)
    if TO_X:
        mean = tl.load(moments + column, mask=live_column, other=0)
        rstd = tl.load(moments + columns + column, mask=live_column, other=0)
        inverse = tl.load(moments + 2 * columns + column, mask=live_column, other=0)
        scale = rstd * tl.load(weight + column, mask=live_column, other=0).to(tl.float32)
        shift = tl.load(bias + column, mask=live_column, other=0).to(tl.float32)
        by_mean, by_value = plain * inverse, scaled * inverse * rstd
        x = _columns_of(x, x_member, width, column, CONTIGUOUS)
        grad = _columns_of(grad, grad_member, width, column, CONTIGUOUS)
        for i in range(tl.program_id(1), tiles, tl.num_programs(1)):
            row = tl.cast(i, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
            live = row < num_rows
            own = tl.load(real + row, mask=live, other=0) != 0
            mask = live[:, None] & live_column[None, :]
            value = _values(x, x_row, row, live, mask, factors, SCALED)
            above = _gradient_above(grad, grad_row, row, mask, value, mean, scale, shift, RELU)
            away = by_mean[None, :] + by_value[None, :] * (value - mean[None, :])
            total = scale[None, :] * (above - tl.where(own[:, None], away, 0.0))
            if SCALED:
                total *= tl.load(factors + row, mask=live, other=0).to(tl.float32)[:, None]
            tl.store(grad_x + row[:, None] * columns + column[None, :], total, mask=mask)


def forward(
    x: Tensor,
    real: Tensor,
    norm: Norm,
    relu: bool,
    factors: Tensor | None,
    results: Normalised,
) -> None:
    """Write the results and update the running statistics, which must be contiguous."""
    y, moments = results
    if y.numel() == 0:
        return
    x = unit_stride(x)
    columns, blocks, tile = _tiles(y, x)
    splits = _side_by_side(tile["tiles"], blocks, _SPLITS)
    partial = moments.new_empty(splits, 3 * columns)
    inputs = _strided("x", x) | _scaled(x, factors)
    width = y.shape[2]
    with on_device(x):
        _batch_norm_moments_kernel[(blocks, splits)](
            **inputs, width=width, real=_bytes(real), partial=partial, **tile
        )
        _batch_norm_kernel[(blocks, _side_by_side(tile["tiles"], blocks, _PROGRAMS))](
            **inputs, width=width, weight=norm.weight.contiguous(), bias=norm.bias.contiguous(),
            running_mean=norm.running_mean, running_var=norm.running_var, partial=partial,
            splits=splits, y=y, moments=moments, MOMENTUM=norm.momentum, EPSILON=norm.eps,
            RELU=relu, BLOCK_S=_SPLITS, **tile,
        )  # fmt: skip


def backward(grad: Tensor, inputs: NormInputs, grads: tuple[Tensor, Tensor, Tensor]) -> None:
    """Write the gradients of x, weight and bias; tensors without elements are skipped."""
    x, real, weight, bias, moments, relu, factors = inputs
    grad_x, grad_weight, grad_bias = grads
    grad, x = unit_stride(grad), unit_stride(x)
    columns, blocks, tile = _tiles(grad, x)
    splits = _side_by_side(tile["tiles"], blocks, _SPLITS)
    partial = moments.new_empty(splits, 2 * columns)
    given = _strided("grad", grad) | _strided("x", x) | _scaled(x, factors)
    given |= dict(
        width=grad.shape[2], weight=weight.contiguous(), bias=bias.contiguous(), moments=moments,
        partial=partial, RELU=relu,
    )  # fmt: skip
    programs = _side_by_side(tile["tiles"], blocks, _PROGRAMS) if grad_x.numel() > 0 else 1
    with on_device(x):
        _batch_norm_sums_kernel[(blocks, splits)](**given, **tile)
        _batch_norm_gradient_kernel[(blocks, programs)](
            **given, real=_bytes(real), splits=splits, grad_x=grad_x, grad_weight=grad_weight,
            grad_bias=grad_bias, TO_X=grad_x.numel() > 0, TO_WEIGHT=grad_weight.numel() > 0,
            TO_BIAS=grad_bias.numel() > 0, BLOCK_S=_SPLITS, **tile,
        )  # fmt: skip


def _tiles(*given: Tensor) -> tuple[int, int, dict[str, Any]]:
    """Return the number of columns of tensors (rows, members, width), the number of blocks of
    columns, and the kernel arguments that describe the tiles."""
    rows, members, width = given[0].shape
    columns = members * width
    contiguous = all(tensor.stride(1) == width or members == 1 for tensor in given)
    unit = unit_of(columns, *(tensor.stride(0) for tensor in given))
    block = min(_COLUMNS, next_power_of_2(columns))
    tall = _TILE // max(block, 16)
    tile = dict(
        num_rows=rows, columns=columns, tiles=cdiv(rows, tall), CONTIGUOUS=contiguous,
        UNIT=unit, BLOCK_R=tall, BLOCK_C=block, num_warps=4,
    )  # fmt: skip
    return columns, cdiv(columns, block), tile


def _side_by_side(tiles: int, blocks: int, limit: int) -> int:
    """Return the number of programs among which the tiles of a block of columns are split."""
    return max(1, min(likely(tiles), limit, _PROGRAMS // blocks))


def _strided(name: str, tensor: Tensor) -> dict[str, Any]:
    row, member, _ = tensor.stride()
    return {name: tensor, f"{name}_row": row, f"{name}_member": member}


def _scaled(x: Tensor, factors: Tensor | None) -> dict[str, Any]:
    return dict(factors=x if factors is None else factors.contiguous(), SCALED=factors is not None)


def _bytes(real: Tensor) -> Tensor:
    return real.contiguous().view(torch.uint8)
