"""`degree_linear` for towers so narrow that the weights of all factors are multiplied at once.

Nodes keep their order: multiplying a tile by the concatenated weights of all factors, and the
result by the factors, costs less than finding nodes of one degree. A program owns one tower, keeps
its weights, and loops over tiles of nodes with a stride of the number of programs.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna import fast_paths
from pna.ops.product import Product
from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, cdiv, next_power_of_2, on_device
from pna.ops.triton.products import parts, precision, product_of_parts, uncut_precision, unit_stride
from pna.ops.triton.sums import Sums
from pna.ops.triton.wide_linear import shifts_of

#: Nodes in a tile, and in a tile of the weight gradient for several groups or factors.
_TILE, _SHORT_TILE = 64, 16

#: The most columns of all groups of inputs together, and of the outputs of all factors together.
_WIDEST = 128

#: The most elements in the weights of a tower.
_LARGEST = 8192

#: The approximate number of programs that run concurrently.
_PROGRAMS = 264


@triton.jit
def _inputs(
    z, z_row, z_group, shift, shift_row, indptr, begin, row, live, groups, width,
    ONCE: tl.constexpr, EACH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of shifted z, with all groups concatenated: (BLOCK_R, BLOCK_G × BLOCK_K)."""
    group, k = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_K)
    mask = (live[:, None] & (group < groups)[None, :])[:, :, None] & (k < width)[None, None, :]
    place = (row * z_row)[:, None, None] + (group * z_group)[None, :, None] + k[None, None, :]
    tile = tl.load(z + begin * z_row + place, mask=mask, other=0).to(tl.float32)
    if (ONCE | EACH) != 0:
        place = shift + begin * shift_row + (row * shift_row)[:, None] + k[None, :]
        own = tl.load(place, mask=live[:, None] & (k < width)[None, :], other=0).to(tl.float32)
        tile += own[:, None, :] * _times(indptr, begin, row, live, group, ONCE, EACH)[:, :, None]
    return tl.reshape(tile, [BLOCK_R, BLOCK_G * BLOCK_K])


@triton.jit
def _times(indptr, begin, row, live, group, ONCE: tl.constexpr, EACH: tl.constexpr):
    """How many times the shift is added to each group of each node: (nodes, groups)."""
    once = ((ONCE >> group) & 1).to(tl.float32)[None, :] + tl.zeros_like(row)[:, None]
    if EACH == 0:
        return once
    degree = tl.load(indptr + begin + row + 1, mask=live, other=0)
    degree -= tl.load(indptr + begin + row, mask=live, other=0)
    return once + ((EACH >> group) & 1).to(tl.float32)[None, :] * degree.to(tl.float32)[:, None]


@triton.jit
def _weights(
    weight, w_factor, w_in, w_out, groups, width, outputs,
    R: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_F: tl.constexpr,
    BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Weights of a tower, with groups along rows and factors along columns."""
    column, output = tl.arange(0, BLOCK_G * BLOCK_K), tl.arange(0, BLOCK_F * BLOCK_O)
    group, k = column // BLOCK_K, column % BLOCK_K
    factor, o = output // BLOCK_O, output % BLOCK_O
    live = ((group < groups) & (k < width))[:, None] & ((factor < R) & (o < outputs))[None, :]
    place = ((group * width + k) * w_in)[:, None] + (factor * w_factor + o * w_out)[None, :]
    return tl.load(weight + place, mask=live, other=0).to(tl.float32)


@triton.jit
def _shares(factors, begin, row, live, R: tl.constexpr, BLOCK_F: tl.constexpr):
    """All factors of the nodes of a tile: (nodes, BLOCK_F)."""
    factor = tl.arange(0, BLOCK_F)
    place = factors + begin * R + (row * R)[:, None] + factor[None, :]
    return tl.load(place, mask=live[:, None] & (factor < R)[None, :], other=0).to(tl.float32)


@Kernel
def _narrow_linear_kernel(
    z, z_row, z_group, z_tower, width, groups, shift, shift_row, shift_tower,
    weight, w_factor, w_tower, w_in, w_out, factors, base, base_row, base_tower, indptr,
    out, outputs, num_rows, towers, tiles,
    R: tl.constexpr, BASE: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    PRECISION: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """The product for some tiles of nodes in one tower."""
    z_row, z_group, z_tower = aligned(z_row, UNIT), aligned(z_group, UNIT), aligned(z_tower, UNIT)
    shift_row, shift_tower = aligned(shift_row, UNIT), aligned(shift_tower, UNIT)
    base_row, base_tower = aligned(base_row, UNIT), aligned(base_tower, UNIT)
    width, outputs = aligned(width, UNIT), aligned(outputs, UNIT)
    tower = tl.program_id(1).to(tl.int64)
    own = _weights(
        weight + tower * w_tower, w_factor, w_in, w_out, groups, width, outputs,
        R, BLOCK_G, BLOCK_K, BLOCK_F, BLOCK_O,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(own, PRECISION)
    z += tower * z_tower
    shift += tower * shift_tower
    row, o = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_O)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        tile = _inputs(
            z, z_row, z_group, shift, shift_row, indptr, begin, row, live, groups, width,
            ONCE, EACH, BLOCK_R, BLOCK_G, BLOCK_K,
        )  # fmt: skip
        share = _shares(factors, begin, row, live, R, BLOCK_F)
        mask = live[:, None] & (o < outputs)[None, :]
        start = tl.zeros([BLOCK_R, BLOCK_O], tl.float32)
        if BASE:  # loaded early, to overlap with the product
            place = base + begin * base_row + tower * base_tower
            place += (row * base_row)[:, None] + o[None, :]
            start += tl.load(place, mask=mask, other=0)
        t_1, t_2, t_3 = parts(tile, PRECISION)
        every = product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
        every = tl.reshape(every, [BLOCK_R, BLOCK_F, BLOCK_O])
        total = start + tl.sum(every * share[:, :, None], 1)
        to = out + (begin * towers + tower) * outputs
        to += (row * towers * outputs)[:, None] + o[None, :]
        tl.store(to, total, mask=mask)


@triton.jit
def _upstream(
    grad, grad_row, factors, begin, row, live, outputs,
    R: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """The upstream gradient of a tile times each factor: (BLOCK_R, BLOCK_F × BLOCK_O)."""
    o = tl.arange(0, BLOCK_O)
    place = grad + begin * grad_row + (row * grad_row)[:, None] + o[None, :]
    above = tl.load(place, mask=live[:, None] & (o < outputs)[None, :], other=0).to(tl.float32)
    share = _shares(factors, begin, row, live, R, BLOCK_F)
    return tl.reshape(above[:, None, :] * share[:, :, None], [BLOCK_R, BLOCK_F * BLOCK_O])


@Kernel
def _narrow_input_kernel(
    weight, w_factor, w_tower, w_in, w_out, width, groups, factors, indptr,
    grad, grad_row, grad_tower, grad_z, grad_shift, outputs, num_rows, towers, tiles,
    R: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, TO_SHIFT: tl.constexpr,
    PRECISION: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Gradients of z and shift for some tiles of nodes in one tower."""
    grad_row, grad_tower = aligned(grad_row, UNIT), aligned(grad_tower, UNIT)
    width, outputs = aligned(width, UNIT), aligned(outputs, UNIT)
    tower = tl.program_id(1).to(tl.int64)
    own = _weights(
        weight + tower * w_tower, w_factor, w_in, w_out, groups, width, outputs,
        R, BLOCK_G, BLOCK_K, BLOCK_F, BLOCK_O,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(tl.trans(own), PRECISION)
    grad += tower * grad_tower
    row, group, k = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_K)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        above = _upstream(
            grad, grad_row, factors, begin, row, live, outputs, R, BLOCK_R, BLOCK_F, BLOCK_O
        )
        u_1, u_2, u_3 = parts(above, PRECISION)
        to_z = product_of_parts(u_1, u_2, u_3, w_1, w_2, w_3, PRECISION)
        to_z = tl.reshape(to_z, [BLOCK_R, BLOCK_G, BLOCK_K])
        line = towers * width
        to = grad_z + begin * groups * line + tower * width
        to += (row * groups * line)[:, None, None] + (group * line)[None, :, None]
        mask = (live[:, None] & (group < groups)[None, :])[:, :, None] & (k < width)[None, None, :]
        tl.store(to + k[None, None, :], to_z, mask=mask)
        if TO_SHIFT:
            often = _times(indptr, begin, row, live, group, ONCE, EACH)
            moved = tl.sum(to_z * often[:, :, None], 1)
            to = grad_shift + (begin * towers + tower) * width
            to += (row * line)[:, None] + k[None, :]
            tl.store(to, moved, mask=live[:, None] & (k < width)[None, :])


@Kernel
def _narrow_weight_kernel(
    z, z_row, z_group, z_tower, width, groups, shift, shift_row, shift_tower, factors, indptr,
    grad, grad_row, grad_tower, partial, outputs, num_rows, towers, tiles,
    R: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr, MORE: tl.constexpr,
    PRECISION: tl.constexpr, UNIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Partial sums of the weight gradient over some tiles of nodes in one tower: partial (splits,
    R, towers, groups × width, outputs). With MORE, they are added to the sums already there.
    Operands are not split into bfloat16 parts: transposing and splitting tiles would cost more than
    tensor cores gain, as in `pna.population.triton.linears`."""
    z_row, z_group, z_tower = aligned(z_row, UNIT), aligned(z_group, UNIT), aligned(z_tower, UNIT)
    shift_row, shift_tower = aligned(shift_row, UNIT), aligned(shift_tower, UNIT)
    grad_row, grad_tower = aligned(grad_row, UNIT), aligned(grad_tower, UNIT)
    width, outputs = aligned(width, UNIT), aligned(outputs, UNIT)
    tower = tl.program_id(1).to(tl.int64)
    total = tl.zeros([BLOCK_G * BLOCK_K, BLOCK_F * BLOCK_O], tl.float32)
    size = groups * width * outputs
    column, output = tl.arange(0, BLOCK_G * BLOCK_K), tl.arange(0, BLOCK_F * BLOCK_O)
    group, k = column // BLOCK_K, column % BLOCK_K
    factor, o = output // BLOCK_O, output % BLOCK_O
    place = ((group * width + k) * outputs)[:, None] + (factor * towers * size + o)[None, :]
    live_in, live_out = (group < groups) & (k < width), (factor < R) & (o < outputs)
    own = live_in[:, None] & live_out[None, :]
    place += (tl.program_id(0).to(tl.int64) * R * towers + tower) * size
    if MORE:
        total += tl.load(partial + place, mask=own, other=0)
    z += tower * z_tower
    shift += tower * shift_tower
    grad += tower * grad_tower
    row = tl.arange(0, BLOCK_R)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        above = _upstream(
            grad, grad_row, factors, begin, row, live, outputs, R, BLOCK_R, BLOCK_F, BLOCK_O
        )
        tile = _inputs(
            z, z_row, z_group, shift, shift_row, indptr, begin, row, live, groups, width,
            ONCE, EACH, BLOCK_R, BLOCK_G, BLOCK_K,
        )  # fmt: skip
        total = tl.dot(tl.trans(tile), above, total, input_precision=PRECISION)
    tl.store(partial + place, total, mask=own)


def is_narrow(z: Tensor, weight: Tensor) -> bool:
    """Whether the weights of a tower, for all factors, fit in one program."""
    return fits(*_sizes(z, weight))


def _sizes(z: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    return z.shape[1], z.shape[3], weight.shape[0], weight.shape[3]


def fits(groups: int, width: int, factors: int, outputs: int) -> bool:
    """`is_narrow` for these sizes: groups of inputs, columns in each, factors, and outputs."""
    blocks = _blocks(groups, width, factors, outputs)
    inputs = blocks["BLOCK_G"] * blocks["BLOCK_K"]
    columns = blocks["BLOCK_F"] * blocks["BLOCK_O"]
    narrow = max(inputs, columns) <= _WIDEST and inputs * columns <= _LARGEST
    return narrow and fast_paths.is_on("narrow_linear")


def _blocks(groups: int, width: int, factors: int, outputs: int) -> dict[str, int]:
    """Block sizes: each size padded to a power of two."""
    groups, factors = next_power_of_2(groups), next_power_of_2(factors)
    return dict(
        BLOCK_G=groups,
        BLOCK_K=max(next_power_of_2(width), 16 // groups, 1),
        BLOCK_F=factors,
        BLOCK_O=max(next_power_of_2(outputs), 16 // factors, 1),
    )


def forward(product: Product, base: Tensor | None, out: Tensor) -> None:
    """Write the result of `degree_linear` to out (receivers, towers, outputs)."""
    z, weight = product.z, product.weight
    own = out if base is None else unit_stride(base)
    shared, tiles = _shared(product)
    inputs = _of_inputs(z, product.shift)
    with on_device(z):
        _narrow_linear_kernel[_grid(z, tiles, 2 * _PROGRAMS)](
            **shared, **inputs, **_of_weight(weight), base=own, base_row=own.stride(0),
            base_tower=own.stride(1), BASE=base is not None, out=out,
            UNIT=_unit_of(z, weight, inputs, own), num_stages=1,
        )  # fmt: skip


def backward(grad: Tensor, product: Product, grads: tuple[Tensor, Tensor, Tensor]) -> None:
    """Write the gradients of z, weight and shift; a gradient without elements is not needed."""
    grad_z, grad_weight, grad_shift = grads
    sums = sums_of(product.z, grad_weight)
    add_backward(grad, product, grad_z, grad_shift, sums)
    sums.finish()


def sums_of(z: Tensor, grad_weight: Tensor) -> Sums:
    """The partial sums of the weight gradient, to which `add_backward` adds."""
    return Sums(grad_weight, _grid(z, cdiv(z.shape[0], _TILE), _PROGRAMS)[0])


def add_backward(
    grad: Tensor, product: Product, grad_z: Tensor, grad_shift: Tensor, sums: Sums
) -> None:
    """Write the gradients of z and shift, and add that of the weight to the partial sums."""
    z, weight, grad = product.z, product.weight, unit_stride(grad)
    shared, tiles = _shared(product)
    shared |= dict(grad=grad, grad_row=grad.stride(0), grad_tower=grad.stride(1))
    with on_device(z):
        if grad_z.shape[0] > 0:
            # vector loads of four need so few registers that twice as many programs fit
            fours = z.shape[3] % 4 == weight.shape[3] % 4 == 0
            room: dict[str, Any] = dict(num_stages=3, maxnreg=128) if fours else dict(num_stages=1)
            _narrow_input_kernel[_grid(z, tiles, (2 if fours else 1) * _PROGRAMS)](
                **shared, **_of_weight(weight), grad_z=grad_z, grad_shift=grad_shift,
                TO_SHIFT=grad_shift.shape[0] > 0, UNIT=_unit_of(z, weight, {}, grad), **room,
            )  # fmt: skip
        if sums.needed:
            tall = 2 * _SHORT_TILE if z.shape[1] == weight.shape[0] == 1 else _SHORT_TILE
            given = shared | dict(PRECISION=uncut_precision(), BLOCK_R=tall, num_warps=8)
            given["tiles"] = cdiv(z.shape[0], tall)
            inputs = _of_inputs(z, product.shift)
            _narrow_weight_kernel[(sums.splits, z.shape[2])](
                **given, **inputs, partial=sums.partial, MORE=sums.go_on(),
                UNIT=_unit_of(z, weight, inputs, grad), num_stages=1,
            )  # fmt: skip


def _shared(product: Product) -> tuple[dict[str, Any], int]:
    """Arguments of all kernels, and the number of tiles."""
    z, weight = product.z, product.weight
    tiles = cdiv(z.shape[0], _TILE)
    blocks = _blocks(*_sizes(z, weight))
    given = dict(
        width=z.shape[3], groups=z.shape[1], factors=product.factors.contiguous(),
        indptr=product.indptr, outputs=weight.shape[3], num_rows=z.shape[0], towers=z.shape[2],
        tiles=tiles, R=weight.shape[0], **shifts_of(product.times), PRECISION=precision(z),
        BLOCK_R=_TILE, **blocks, num_warps=4,
    )  # fmt: skip
    return given, tiles


def _of_inputs(z: Tensor, shift: Tensor | None) -> dict[str, Any]:
    z = unit_stride(z)
    shift = z[:, 0] if shift is None else unit_stride(shift)
    return dict(
        z=z, z_row=z.stride(0), z_group=z.stride(1), z_tower=z.stride(2),
        shift=shift, shift_row=shift.stride(0), shift_tower=shift.stride(1),
    )  # fmt: skip


def _unit_of(z: Tensor, weight: Tensor, inputs: dict[str, Any], outputs: Tensor) -> int:
    """`unit_of` the widths, the strides of inputs, and those of outputs (nodes, towers, …)."""
    strides = (inputs[name] for name in inputs if name not in ("z", "shift"))
    return unit_of(z.shape[3], weight.shape[3], *strides, *outputs.stride()[:2])


def _of_weight(weight: Tensor) -> dict[str, Any]:
    factor, tower, into, out = weight.stride()
    return dict(weight=weight, w_factor=factor, w_tower=tower, w_in=into, w_out=out)


def _grid(z: Tensor, tiles: int, programs: int) -> tuple[int, int]:
    """The grid: programs per tower, and towers."""
    return max(1, min(likely(tiles), programs // z.shape[2])), z.shape[2]
