"""Products with a weight that depends on the degree: nodes of one degree share one weight.

Nodes are sorted by degree, so that most tiles hold a single degree and need one product. A tile of
mixed degrees needs one product per factor. Float32 is multiplied as six products of bfloat16 parts,
whose error is below that of a float32 product, unless TF32 is allowed. Half precision uses TF32,
which represents it exactly. Three cases have their own kernels: few nodes with few outputs
(`scaled_linear`), narrow towers (`narrow_linear`), and a single factor (`wide_linear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.ops.product import Product
from pna.ops.tracing import likely
from pna.ops.triton import narrow_linear, scaled_linear, wide_linear
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.products import (
    block_of,
    parts,
    precision,
    product,
    product_of_parts,
    unit_stride,
)
from pna.ops.triton.sums import add_up
from pna.ops.triton.wide_linear import (
    arguments_of,
    blocks_of,
    inputs_of,
    shifts_of,
    side_by_side,
    sizes_of,
    write,
)

#: Nodes in a tile.
_TILE = 64

#: For `_degree_spread_kernel`: the most inputs that a program keeps while it walks blocks of
#: outputs, and the approximate number of programs.
_FEW_INPUTS, _SPREAD_PROGRAMS = 32, 1056

#: Factors for which one launch of the weight-gradient kernel accumulates sums.
_AT_ONCE = 4


@triton.jit
def _tile(by_degree, factors, tile, num_rows, R: tl.constexpr, BLOCK_R: tl.constexpr):
    """The first node of a tile, and whether all of its nodes have the same factors: these are
    monotone in the order by_degree."""
    begin = tile * BLOCK_R
    first = tl.load(by_degree + begin).to(tl.int64)
    last = tl.load(by_degree + tl.minimum(begin + BLOCK_R, num_rows) - 1).to(tl.int64)
    uniform = tl.load(factors + first * R) == tl.load(factors + last * R)
    for r in tl.static_range(1, R):
        uniform &= tl.load(factors + first * R + r) == tl.load(factors + last * R + r)
    return first, uniform


@triton.jit
def _tile_and_rows(
    by_degree, factors, tile, num_rows, R: tl.constexpr, BLOCK_R: tl.constexpr
):  # fmt: skip
    """Nodes of a tile, their mask, and the results of `_tile`.

    Not for a kernel that writes to these nodes: the compiler would take by_degree for an output.
    """
    place = tile * BLOCK_R + tl.arange(0, BLOCK_R)
    live = place < num_rows
    row = tl.load(by_degree + place, mask=live, other=0).to(tl.int64)
    first, uniform = _tile(by_degree, factors, tile, num_rows, R, BLOCK_R)
    return row, live, first, uniform


@triton.jit
def _combined(place, w_factor, mask, factors, first, R: tl.constexpr):
    """Σ_r s_r W_r, with the factors s_r of node `first`, which all nodes of the tile share."""
    total = tl.load(place, mask=mask, other=0).to(tl.float32) * tl.load(factors + first * R)
    for r in tl.static_range(1, R):
        part = tl.load(place + r * w_factor, mask=mask, other=0).to(tl.float32)
        total += tl.load(factors + first * R + r) * part
    return total


@Kernel
def _degree_linear_kernel(
    z, z_row, z_group, z_tower, width, inputs, shift, shift_row, shift_tower,
    weight, w_factor, w_tower, w_in, w_out, factors, base, base_row, base_tower, indptr, by_degree,
    out, out_row, out_group, out_tower, out_width, outputs, num_rows,
    R: tl.constexpr, BASE: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One tile of nodes, one tower, and one block of outputs. If REST > 0, the program also takes
    the last outputs, in a block of REST columns: two blocks then need less padding than one. Inputs
    and outputs both come in groups of equal width, so that the same kernel computes the gradient of
    z. TRANSPOSED is as in `wide_linear`."""
    z_row, z_group, z_tower = aligned(z_row, UNIT), aligned(z_group, UNIT), aligned(z_tower, UNIT)
    shift_row, shift_tower = aligned(shift_row, UNIT), aligned(shift_tower, UNIT)
    out_row, out_group = aligned(out_row, UNIT), aligned(out_group, UNIT)
    out_tower, w_tower = aligned(out_tower, UNIT), aligned(w_tower, UNIT)
    base_row, base_tower = aligned(base_row, UNIT), aligned(base_tower, UNIT)
    width, inputs, w_factor = aligned(width, UNIT), aligned(inputs, UNIT), aligned(w_factor, UNIT)
    out_width, outputs = aligned(out_width, UNIT), aligned(outputs, UNIT)
    if TRANSPOSED:
        w_out = aligned(w_out, UNIT)
    else:
        w_in = aligned(w_in, UNIT)
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = number < num_rows
    row = tl.load(by_degree + number, mask=live, other=0).to(tl.int64)
    first, uniform = _tile(by_degree, factors, tl.program_id(0), num_rows, R, BLOCK_R)
    tower = tl.program_id(1).to(tl.int64)
    output = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    last = BLOCK_O + tl.arange(0, REST if REST > 0 else 16)
    z += tower * z_tower
    shift += tower * shift_tower
    weight += tower * w_tower
    total = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
    rest = tl.zeros([BLOCK_R, REST if REST > 0 else 16], tl.float32)
    for k in range(0, inputs, BLOCK_K):
        column = k + tl.arange(0, BLOCK_K)
        live_column = column < inputs
        tile = inputs_of(
            z, z_row, z_group, width, shift, shift_row, indptr, row, live, column, live_column,
            ONCE, EACH,
        )  # fmt: skip
        place = weight + (column[:, None] * w_in + output[None, :] * w_out)
        mask = live_column[:, None] & (output < outputs)[None, :]
        beyond = weight + (column[:, None] * w_in + last[None, :] * w_out)
        beyond_mask = live_column[:, None] & (last < outputs)[None, :]
        if uniform:  # one product with the combined weight
            t_1, t_2, t_3 = parts(tile, PRECISION)
            w_1, w_2, w_3 = parts(_combined(place, w_factor, mask, factors, first, R), PRECISION)
            total += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
            if REST > 0:
                combined = _combined(beyond, w_factor, beyond_mask, factors, first, R)
                w_1, w_2, w_3 = parts(combined, PRECISION)
                rest += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
        else:  # one product per factor, with the tile scaled by it
            for r in range(R):
                share = tl.load(factors + row * R + r, mask=live, other=0)
                t_1, t_2, t_3 = parts(tile * share[:, None], PRECISION)
                own = tl.load(place + r * w_factor, mask=mask, other=0).to(tl.float32)
                w_1, w_2, w_3 = parts(own, PRECISION)
                total += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
                if REST > 0:
                    own = tl.load(beyond + r * w_factor, mask=beyond_mask, other=0).to(tl.float32)
                    w_1, w_2, w_3 = parts(own, PRECISION)
                    rest += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
    base += tower * base_tower
    out += tower * out_tower
    write(
        total, row, live, output, outputs, base, base_row, out, out_row, out_group, out_width, BASE
    )
    if REST > 0:
        write(
            rest, row, live, last, outputs, base, base_row, out, out_row, out_group, out_width, BASE
        )


@Kernel
def _degree_spread_kernel(
    grad, grad_row, grad_tower, inputs, weight, w_factor, w_tower, w_in, w_out, factors,
    by_degree, out, out_row, out_group, out_tower, out_width, num_rows, blocks, per_group,
    R: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One tile of nodes and one tower, for few inputs: a program loads the inputs once and loops
    over blocks of outputs, with stride tl.num_programs(2)."""
    number = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = number < num_rows
    row = tl.load(by_degree + number, mask=live, other=0).to(tl.int64)
    first, uniform = _tile(by_degree, factors, tl.program_id(0), num_rows, R, BLOCK_R)
    tower = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK_K)
    live_column = column < inputs
    mask = live[:, None] & live_column[None, :]
    grad += row[:, None] * grad_row + tower * grad_tower + column[None, :]
    tile = tl.load(grad, mask=mask, other=0).to(tl.float32)
    t_1, t_2, t_3 = parts(tile, PRECISION)
    source = weight + tower * w_tower + column[:, None] * w_in
    to = out + row[:, None] * out_row + tower * out_tower
    for block in range(tl.program_id(2), blocks, tl.num_programs(2)):
        group, output = block // per_group, block % per_group * BLOCK_O + tl.arange(0, BLOCK_O)
        live_output = output < out_width
        place = source + (group * out_width + output)[None, :] * w_out
        w_mask = live_column[:, None] & live_output[None, :]
        if uniform:
            combined = _combined(place, w_factor, w_mask, factors, first, R)
            w_1, w_2, w_3 = parts(combined, PRECISION)
            total = product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
        else:
            total = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
            for r in range(R):
                share = tl.load(factors + row * R + r, mask=live, other=0)
                part = tl.load(place + r * w_factor, mask=w_mask, other=0).to(tl.float32)
                total += product(tile * share[:, None], part, PRECISION)
        there = to + group * out_group + output[None, :]
        tl.store(there, total, mask=live[:, None] & live_output[None, :])


@triton.jit
def _across(t_1, t_2, t_3, b, PRECISION: tl.constexpr):
    """The transpose of a tile, given as parts, times b. The parts are transposed and not the tile:
    this is free when they are written to shared memory for the tensor cores."""
    b_1, b_2, b_3 = parts(b, PRECISION)
    return product_of_parts(tl.trans(t_1), tl.trans(t_2), tl.trans(t_3), b_1, b_2, b_3, PRECISION)


@triton.jit
def _add_scaled(total, t_1, t_2, t_3, upstream, share, live, PRECISION: tl.constexpr):
    scaled = upstream * tl.load(share, mask=live, other=0)[:, None]
    return total + _across(t_1, t_2, t_3, scaled, PRECISION)


@Kernel
def _degree_weight_kernel(
    z, z_row, z_group, z_tower, width, inputs, shift, shift_row, shift_tower,
    grad, grad_row, grad_tower, outputs, factors, indptr, by_degree, partial, num_rows, tiles,
    towers, blocks, first_factor,
    R: tl.constexpr, SUMS: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Partial sums of the weight gradient over some tiles of nodes, for SUMS factors from
    first_factor on: partial (splits, R, towers, inputs, outputs)."""
    z_row, z_group, z_tower = aligned(z_row, UNIT), aligned(z_group, UNIT), aligned(z_tower, UNIT)
    shift_row, shift_tower = aligned(shift_row, UNIT), aligned(shift_tower, UNIT)
    grad_row, grad_tower = aligned(grad_row, UNIT), aligned(grad_tower, UNIT)
    width, inputs, outputs = aligned(width, UNIT), aligned(inputs, UNIT), aligned(outputs, UNIT)
    column = tl.program_id(0) % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    output = tl.program_id(0) // blocks * BLOCK_O + tl.arange(0, BLOCK_O)
    tower = tl.program_id(1).to(tl.int64)
    live_column, live_output = column < inputs, output < outputs
    total_0 = tl.zeros([BLOCK_K, BLOCK_O], tl.float32)
    total_1 = tl.zeros([BLOCK_K, BLOCK_O], tl.float32)
    total_2 = tl.zeros([BLOCK_K, BLOCK_O], tl.float32)
    total_3 = tl.zeros([BLOCK_K, BLOCK_O], tl.float32)
    z += tower * z_tower
    shift += tower * shift_tower
    grad += tower * grad_tower
    splits = tl.num_programs(2)
    for i in range(tl.program_id(2), tiles, splits):
        row, live, first, uniform = _tile_and_rows(by_degree, factors, i, num_rows, R, BLOCK_R)
        tile = inputs_of(
            z, z_row, z_group, width, shift, shift_row, indptr, row, live, column, live_column,
            ONCE, EACH,
        )  # fmt: skip
        t_1, t_2, t_3 = parts(tile, PRECISION)
        place = grad + row[:, None] * grad_row + output[None, :]
        mask = live[:, None] & live_output[None, :]
        upstream = tl.load(place, mask=mask, other=0).to(tl.float32)
        if R == 1:
            total_0 = _add_scaled(total_0, t_1, t_2, t_3, upstream, factors + row, live, PRECISION)
        elif uniform:
            here = _across(t_1, t_2, t_3, upstream, PRECISION)
            share = factors + first * R + first_factor
            total_0 += tl.load(share) * here
            if SUMS > 1:
                total_1 += tl.load(share + 1) * here
            if SUMS > 2:
                total_2 += tl.load(share + 2) * here
            if SUMS > 3:
                total_3 += tl.load(share + 3) * here
        else:
            shares = factors + row * R + first_factor
            total_0 = _add_scaled(total_0, t_1, t_2, t_3, upstream, shares, live, PRECISION)
            if SUMS > 1:
                total_1 = _add_scaled(total_1, t_1, t_2, t_3, upstream, shares + 1, live, PRECISION)
            if SUMS > 2:
                total_2 = _add_scaled(total_2, t_1, t_2, t_3, upstream, shares + 2, live, PRECISION)
            if SUMS > 3:
                total_3 = _add_scaled(total_3, t_1, t_2, t_3, upstream, shares + 3, live, PRECISION)
    mask = live_column[:, None] & live_output[None, :]
    size = towers * inputs * outputs
    to = partial + (tl.program_id(2).to(tl.int64) * R + first_factor) * size
    to += (tower * inputs + column)[:, None] * outputs + output[None, :]
    tl.store(to, total_0, mask=mask)
    if SUMS > 1:
        tl.store(to + size, total_1, mask=mask)
    if SUMS > 2:
        tl.store(to + 2 * size, total_2, mask=mask)
    if SUMS > 3:
        tl.store(to + 3 * size, total_3, mask=mask)


@Kernel
def _shift_gradient_kernel(
    grad_z, z_row, z_group, indptr, out, out_row, num_rows, columns,
    ONCE: tl.constexpr, EACH: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradient of shift for some nodes and columns of out (rows, columns): the sum of grad_z
    over the groups to which `inputs_of` adds the shift, times the degree for those in EACH."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = row < num_rows
    mask = live[:, None] & (column < columns)[None, :]
    source = grad_z + row[:, None] * z_row + column[None, :]
    once = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    each = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for group in tl.static_range(GROUPS):
        if ((ONCE >> group) & 1) != 0:
            once += tl.load(source + group * z_group, mask=mask, other=0).to(tl.float32)
        if ((EACH >> group) & 1) != 0:
            each += tl.load(source + group * z_group, mask=mask, other=0).to(tl.float32)
    if EACH != 0:
        degree = tl.load(indptr + row + 1, mask=live, other=0)
        degree -= tl.load(indptr + row, mask=live, other=0)
        once += degree.to(tl.float32)[:, None] * each
    tl.store(out + row[:, None] * out_row + column[None, :], once, mask=mask)


def forward(product: Product, base: Tensor | None, out: Tensor) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs)."""
    z, weight = product.z, product.weight
    if narrow_linear.is_narrow(z, weight):
        narrow_linear.forward(product, base, out)
        return
    if not product.factors.is_contiguous():
        product = replace(product, factors=product.factors.contiguous())
    if scaled_linear.is_quick(z.shape[0], z.dtype, weight):
        scaled_linear.forward(product, base, out)
        return
    with on_device(z):
        _multiply(product, base, out.unsqueeze(1))


def backward(grad: Tensor, product: Product, grads: tuple[Tensor, Tensor, Tensor]) -> None:
    """Write the gradients of z, weight and shift; a gradient without elements is not needed.

    The gradient of shift may be a slice of the columns of a wider tensor.
    """
    grad_z, grad_weight, grad_shift = grads
    if narrow_linear.is_narrow(product.z, product.weight):
        is_dense = grad_shift.is_contiguous()
        of_shift = grad_shift if is_dense else grad_shift.new_empty(grad_shift.shape)
        narrow_linear.backward(grad, product, (grad_z, grad_weight, of_shift))
        if not is_dense:
            grad_shift.copy_(of_shift)
        return
    if not product.factors.is_contiguous():
        product = replace(product, factors=product.factors.contiguous())
    transposed = replace(
        product, z=grad.unsqueeze(1), weight=product.weight.transpose(2, 3), shift=None, times=()
    )
    with on_device(grad):
        if grad_weight.shape[0] > 0:
            _weight_gradient(grad, product, grad_weight)
        few = grad_z.shape[0] > 0 and grad.shape[2] <= _FEW_INPUTS
        if few and fast_paths.is_on("degree_spread"):
            _spread(grad, transposed, grad_z)
        elif grad_z.shape[0] > 0:
            _multiply(transposed, None, grad_z)
        if grad_shift.shape[0] > 0:
            shift_gradient(grad_z, product.times, product.indptr, grad_shift)


def shift_gradient(
    grad_z: Tensor, times: Sequence[int], indptr: Tensor, grad_shift: Tensor
) -> None:
    """Write the gradient of shift (rows, towers, K), whose rows may have any stride."""
    rows, columns = grad_shift.shape[0], grad_shift.shape[1] * grad_shift.shape[2]
    block = min(128, next_power_of_2(columns))
    tall = 1024 // block
    _shift_gradient_kernel[(cdiv(rows, tall), cdiv(columns, block))](
        grad_z, grad_z.stride(0), grad_z.stride(1), indptr, grad_shift, grad_shift.stride(0),
        rows, columns, **shifts_of(times), GROUPS=len(times), BLOCK_R=tall, BLOCK_C=block,
        num_warps=4,
    )  # fmt: skip


def _multiply(product: Product, base: Tensor | None, out: Tensor) -> None:
    """z (rows, A, towers, K) through weight (R, towers, A·K, B·L) to out (rows, B, towers, L). The
    weight is copied unless it is contiguous along its inputs or its outputs."""
    weight, factors = product.weight, product.factors
    if weight.shape[0] == 1 and fast_paths.is_on("wide_linear"):
        shifted = (product.shift, product.times, product.indptr)
        wide_linear.multiply(product.z, weight[0], out, base, factors[:, 0], *shifted)
        return
    num_rows, groups, towers, width = out.shape
    outputs = groups * width
    inputs = arguments_of(product.z, product.shift, product.times)
    weight, transposed = side_by_side(weight)
    block, rest = blocks_of(outputs)
    blocks = 1 if rest > 0 else cdiv(outputs, block)
    own = out[:, 0] if base is None else unit_stride(base)
    deep = 64 if product.z.dtype == torch.bfloat16 else 32
    _degree_linear_kernel[(cdiv(num_rows, _TILE), towers, blocks)](
        **inputs, weight=weight, w_factor=weight.stride(0), w_tower=weight.stride(1),
        w_in=weight.stride(2), w_out=weight.stride(3), factors=factors,
        base=own, base_row=own.stride(0), base_tower=own.stride(1),
        indptr=product.indptr, by_degree=product.by_degree, out=out, out_row=out.stride(0),
        out_group=out.stride(1), out_tower=out.stride(2), out_width=width, outputs=outputs,
        num_rows=num_rows, R=weight.shape[0], BASE=base is not None, TRANSPOSED=transposed,
        PRECISION=precision(product.z),
        UNIT=unit_of(
            *sizes_of(inputs), *weight.stride()[:2], weight.stride(3 if transposed else 2),
            *own.stride()[:2], *out.stride()[:3], width,
        ),
        BLOCK_R=_TILE, BLOCK_K=min(deep, block_of(inputs["inputs"])), BLOCK_O=block, REST=rest,
        num_warps=4, num_stages=2 if weight.shape[0] <= 3 else 1,
    )  # fmt: skip


def _spread(grad: Tensor, product: Product, out: Tensor) -> None:
    """grad (rows, towers, K), small K, through (R, towers, K, B·L) to out (rows, B, towers, L)."""
    num_rows, groups, towers, width = out.shape
    grad, weight = unit_stride(grad), product.weight
    block_o = min((64, 32), key=lambda block: cdiv(width, block) * block)
    block_o = min(block_o, max(16, next_power_of_2(width)))
    per_group = cdiv(width, block_o)
    tiles, blocks = cdiv(num_rows, _TILE), groups * per_group
    splits = max(1, min(blocks, _SPREAD_PROGRAMS // (likely(tiles) * towers)))
    _degree_spread_kernel[(tiles, towers, splits)](
        grad, grad.stride(0), grad.stride(1), grad.shape[2], weight, *weight.stride(),
        product.factors, product.by_degree, out, *out.stride()[:3], width, num_rows,
        blocks, per_group,
        R=weight.shape[0], PRECISION=precision(grad), BLOCK_R=_TILE,
        BLOCK_K=max(16, next_power_of_2(grad.shape[2])), BLOCK_O=block_o,
        num_warps=4, num_stages=2,
    )  # fmt: skip


def _weight_gradient(grad: Tensor, product: Product, grad_weight: Tensor) -> None:
    inputs = arguments_of(product.z, product.shift, product.times)
    num_rows = grad.shape[0]
    count, towers, width, outputs = grad_weight.shape
    block_k, block_o = min(64, block_of(width)), min(64, block_of(outputs))
    tiles, blocks_k = cdiv(num_rows, _TILE), cdiv(width, block_k)
    blocks = blocks_k * cdiv(outputs, block_o)
    splits = _splits(blocks * towers, likely(tiles), grad_weight.numel())
    partial = grad.new_empty((splits, *grad_weight.shape), dtype=torch.float32)
    grad = unit_stride(grad)
    for first in range(0, count, _AT_ONCE):
        _degree_weight_kernel[(blocks, towers, splits)](
            **inputs, grad=grad, grad_row=grad.stride(0), grad_tower=grad.stride(1),
            outputs=outputs, factors=product.factors, indptr=product.indptr,
            by_degree=product.by_degree, partial=partial, num_rows=num_rows, tiles=tiles,
            towers=towers, blocks=blocks_k,
            first_factor=first, R=count, SUMS=min(_AT_ONCE, count - first),
            PRECISION=precision(inputs["z"]),
            UNIT=unit_of(*sizes_of(inputs), *grad.stride()[:2], outputs),
            BLOCK_R=_TILE, BLOCK_K=block_k, BLOCK_O=block_o, num_warps=4, num_stages=3,
        )  # fmt: skip
    add_up(partial.flatten(1), grad_weight)


@cache
def _splits(programs: int, tiles: int, size: int) -> int:
    """How many programs share the tiles for each block of the weight (`programs` blocks in all).

    The choice minimises the number of tiles processed one after another. Ties go to the fewest
    splits, since each split adds partial sums of `size` elements to reduce.
    """
    most = min(tiles, max(1, _PROGRAMS // programs, min(4, _MOST_SUMS // max(size, 1))))
    return min(
        range(1, most + 1), key=lambda n: (-(-programs * n // _PROGRAMS) * -(-tiles // n), n)
    )


#: The approximate number of weight-gradient programs that run concurrently, and the most elements
#: of partial sums if more than that are launched.
_PROGRAMS, _MOST_SUMS = 264, 2**22
