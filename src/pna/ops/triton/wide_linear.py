"""Products of rows with one weight per tower, of any width. Rows keep their order.

Inputs and outputs may come in groups of equal width that are not adjacent in memory, so that one
kernel multiplies the results of several aggregators, and computes their gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna.ops.tracing import likely
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, cdiv, on_device
from pna.ops.triton.products import block_of, cut, parts, precision, product_of_parts, unit_stride

#: Rows in a tile; rows in a tall tile; and about how many tall tiles there must be to use these.
#: Eight warps do not share a tile of 64 rows: in chained products, each half of the warps would
#: compute the whole tile.
_TILE, _TALL_TILE, _ENOUGH = 64, 128, 200

#: The most outputs of which one program computes all.
_WIDEST = 160


@triton.jit
def inputs_of(
    z, z_row, z_group, width, shift, shift_row, indptr, row, live, column, live_column,
    ONCE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Some columns of a tile of z, with all groups concatenated, shifted in float32. Group a is
    shifted once if bit a of ONCE is set, and once per neighbour if bit a of EACH is set."""
    group = column // width
    within = column - group * width
    place = z + (row[:, None] * z_row + (group * z_group + within)[None, :])
    tile = tl.load(place, mask=live[:, None] & live_column[None, :], other=0).to(tl.float32)
    if (ONCE | EACH) != 0:
        moved = live_column & ((((ONCE | EACH) >> group) & 1) != 0)
        place = shift + (row[:, None] * shift_row + within[None, :])
        own = tl.load(place, mask=live[:, None] & moved[None, :], other=0).to(tl.float32)
        if EACH != 0:
            degree = tl.load(indptr + row + 1, mask=live, other=0)
            degree -= tl.load(indptr + row, mask=live, other=0)
            each = ((EACH >> group) & 1) != 0
            own *= tl.where(each[None, :], degree.to(tl.float32)[:, None], 1.0)
        tile += own
    return tile


@triton.jit
def write(
    total, row, live, output, outputs, base, base_row, out, out_row, out_group, out_width,
    BASE: tl.constexpr,
):  # fmt: skip
    """Store some columns of a tile of results, with all groups concatenated, plus base if BASE."""
    mask = live[:, None] & (output < outputs)[None, :]
    group = output // out_width
    within = output - group * out_width
    if BASE:
        own = base + (row[:, None] * base_row + output[None, :])
        total += tl.load(own, mask=mask, other=0).to(tl.float32)
    to = out + (row[:, None] * out_row + (group * out_group + within)[None, :])
    tl.store(to, total, mask=mask)


@Kernel
def _wide_linear_kernel(
    z, z_row, z_group, z_tower, width, inputs, shift, shift_row, shift_tower, indptr, factors,
    weight, w_tower, w_in, w_out, base, base_row, base_tower,
    out, out_row, out_group, out_tower, out_width, outputs, num_rows,
    BASE: tl.constexpr, SCALED: tl.constexpr, ONCE: tl.constexpr, EACH: tl.constexpr,
    TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_O: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """One tile of rows, one tower, and one block of outputs. If REST > 0, the program also takes
    the last outputs, in a block of REST columns: two blocks then need less padding than one. If
    SCALED, each row is multiplied by its factor. The weight is contiguous along its outputs or, if
    TRANSPOSED, along its inputs."""
    z_row, z_group, z_tower = aligned(z_row, UNIT), aligned(z_group, UNIT), aligned(z_tower, UNIT)
    shift_row, shift_tower = aligned(shift_row, UNIT), aligned(shift_tower, UNIT)
    base_row, base_tower = aligned(base_row, UNIT), aligned(base_tower, UNIT)
    out_row, out_group = aligned(out_row, UNIT), aligned(out_group, UNIT)
    out_tower, w_tower = aligned(out_tower, UNIT), aligned(w_tower, UNIT)
    width, inputs = aligned(width, UNIT), aligned(inputs, UNIT)
    out_width, outputs = aligned(out_width, UNIT), aligned(outputs, UNIT)
    if TRANSPOSED:
        w_out = aligned(w_out, UNIT)
    else:
        w_in = aligned(w_in, UNIT)
    begin, tower = tl.program_id(0).to(tl.int64) * BLOCK_R, tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BLOCK_R)
    live = begin + row < num_rows
    output = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    last = BLOCK_O + tl.arange(0, REST if REST > 0 else 16)
    z += begin * z_row + tower * z_tower
    shift += begin * shift_row + tower * shift_tower
    indptr += begin
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
        t_1, t_2, t_3 = parts(tile, PRECISION)
        place = weight + (column[:, None] * w_in + output[None, :] * w_out)
        mask = live_column[:, None] & (output < outputs)[None, :]
        own = tl.load(place, mask=mask, other=0).to(tl.float32)
        w_1, w_2, w_3 = parts(own, PRECISION)
        total += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
        if REST > 0:
            place = weight + (column[:, None] * w_in + last[None, :] * w_out)
            mask = live_column[:, None] & (last < outputs)[None, :]
            own = tl.load(place, mask=mask, other=0).to(tl.float32)
            w_1, w_2, w_3 = parts(own, PRECISION)
            rest += product_of_parts(t_1, t_2, t_3, w_1, w_2, w_3, PRECISION)
    if SCALED:
        share = tl.load(factors + begin + row, mask=live, other=0).to(tl.float32)[:, None]
        total *= share
        rest *= share
    base += begin * base_row + tower * base_tower
    out += begin * out_row + tower * out_tower
    write(
        total, row, live, output, outputs, base, base_row, out, out_row, out_group, out_width, BASE
    )
    if REST > 0:
        write(
            rest, row, live, last, outputs, base, base_row, out, out_row, out_group, out_width, BASE
        )


def multiply(
    z: Tensor,
    weight: Tensor,
    out: Tensor,
    base: Tensor | None = None,
    factors: Tensor | None = None,
    shift: Tensor | None = None,
    times: Sequence[int] = (),
    indptr: Tensor | None = None,
) -> None:
    """z (rows, A, towers, K) through weight (towers, A·K, B·L) to out (rows, B, towers, L).

    First z is shifted, as in `degree_linear`. Each row of the product is multiplied by its factor,
    if factors (rows,) are given. Then base (rows, towers, B·L) is added, which may be out itself if
    B is 1.
    """
    num_rows, groups, towers, width = out.shape
    outputs, inputs = groups * width, arguments_of(z, shift, times)
    weight, transposed = side_by_side(weight)
    block, rest = blocks_of(outputs)
    blocks = 1 if rest > 0 else cdiv(outputs, block)
    enough = cdiv(likely(num_rows), _TALL_TILE) * towers * blocks >= _ENOUGH
    tall = _TALL_TILE if enough else _TILE
    own = out[:, 0] if base is None else unit_stride(base)
    sizes = (*own.stride()[:2], *out.stride()[:3], width, weight.stride(0))
    with on_device(z):
        _wide_linear_kernel[(cdiv(num_rows, tall), towers, blocks)](
            **inputs, indptr=z if indptr is None else indptr,
            factors=z if factors is None else factors, weight=weight, w_tower=weight.stride(0),
            w_in=weight.stride(1), w_out=weight.stride(2), base=own, base_row=own.stride(0),
            base_tower=own.stride(1), out=out, out_row=out.stride(0), out_group=out.stride(1),
            out_tower=out.stride(2), out_width=width, outputs=outputs, num_rows=num_rows,
            BASE=base is not None, SCALED=factors is not None, TRANSPOSED=transposed,
            PRECISION=precision(z),
            UNIT=unit_of(*sizes_of(inputs), *sizes, weight.stride(2 if transposed else 1)),
            BLOCK_R=tall, BLOCK_K=min(32, block_of(inputs["inputs"])), BLOCK_O=block, REST=rest,
            num_warps=8 if tall > _TILE and block + rest > 64 else 4, num_stages=2,
        )  # fmt: skip


def side_by_side(weight: Tensor) -> tuple[Tensor, bool]:
    """The weight (…, inputs, outputs), copied unless it is contiguous along outputs or inputs; and
    whether it is contiguous along inputs."""
    if weight.stride(-1) == 1:
        return weight, False
    if weight.stride(-2) == 1:
        return weight, True
    return weight.contiguous(), False


def blocks_of(outputs: int) -> tuple[int, int]:
    """Columns in a block of outputs and in the rest, which is 0 if there are several blocks. Narrow
    blocks need less padding, but inputs are loaded and split into parts again for every block."""
    if outputs <= _WIDEST:
        return cut(outputs)
    return min((128, 64), key=lambda block: cdiv(outputs, block) * (block + 24)), 0


def arguments_of(z: Tensor, shift: Tensor | None, times: Sequence[int]) -> dict[str, Any]:
    """z (rows, A, towers, K) and its shift as kernel arguments."""
    z = unit_stride(z)
    if max(_TALL_TILE * z.stride(0), z.shape[1] * z.stride(1)) >= 2**31:
        z = z.contiguous()  # offsets within a tile have 32 bits
    shift = z[:, 0] if shift is None else unit_stride(shift)
    return dict(
        z=z,
        z_row=z.stride(0),
        z_group=z.stride(1),
        z_tower=z.stride(2),
        width=z.shape[3],
        inputs=z.shape[1] * z.shape[3],
        shift=shift,
        shift_row=shift.stride(0),
        shift_tower=shift.stride(1),
        **shifts_of(times),
    )


def shifts_of(times: Sequence[int]) -> dict[str, int]:
    """Bit masks of the groups that are shifted once, and of those shifted once per neighbour."""
    once = sum((often == 1) << a for a, often in enumerate(times))
    return dict(ONCE=once, EACH=sum((often == 2) << a for a, often in enumerate(times)))


def sizes_of(inputs: dict[str, Any]) -> list[int]:
    """Strides and sizes from which kernels compute the offsets of inputs."""
    names = ("z_row", "z_group", "z_tower", "width", "shift_row", "shift_tower")
    return [inputs[name] for name in names]
