"""Products of a tall input with several narrow weights of every member.

A program owns a member. Forward it has one tile of rows, read once for all weights. Backward it
walks every so manyeth tile, gives the input's gradient there, and keeps its own sums of the
weights' and biases' gradients, which are added in the end: rows are many, sums few and small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.products import parts, precision, product, product_of_parts, unit_stride
from pna.ops.triton.sums import Sums

#: How many rows a tile has.
_TILE = 64

#: How many weights a kernel takes at a time, and how many outputs of theirs backward.
_AT_ONCE, _OUTPUTS_AT_ONCE = 4, 128

#: About how many programs that walk tiles run side by side.
PROGRAMS = 264


@triton.jit
def _tile_of(x, begin, row, live, x_row, column, live_column):
    """Some columns of the rows of a tile that starts at `begin`, in float32; zero where none is.

    Within the tile 32 bits find a number, which spares half the registers."""
    place = x + begin * x_row + (row[:, None] * x_row + column[None, :])
    return tl.load(place, mask=live[:, None] & live_column[None, :], other=0).to(tl.float32)


@triton.jit
def _through(
    tile, weight, w_out, w_in, bias, out, outputs, inputs, begin, row, live, member, members,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Write a tile through one weight, a block of outputs after second."""
    column = tl.arange(0, BLOCK_I)
    for first in range(0, outputs, BLOCK_O):
        output = first + tl.arange(0, BLOCK_O)
        live_output = output < outputs
        place = weight + output[None, :] * w_out + column[:, None] * w_in
        mask = (column < inputs)[:, None] & live_output[None, :]
        total = product(tile, tl.load(place, mask=mask, other=0).to(tl.float32), PRECISION)
        if BIAS:
            own = tl.load(bias + output, mask=live_output, other=0)
            total += own.to(tl.float32)[None, :]
        to = out + (begin * members + member) * outputs
        to += (row * members * outputs)[:, None] + output[None, :]
        tl.store(to, total, mask=live[:, None] & live_output[None, :])


@triton.jit
def _linears_kernel(
    x, x_row, x_member, inputs, num_rows, members,
    weight_0, w_member_0, w_out_0, w_in_0, bias_0, b_member_0, out_0, outputs_0,
    weight_1, w_member_1, w_out_1, w_in_1, bias_1, b_member_1, out_1, outputs_1,
    weight_2, w_member_2, w_out_2, w_in_2, bias_2, b_member_2, out_2, outputs_2,
    weight_3, w_member_3, w_out_3, w_in_3, bias_3, b_member_3, out_3, outputs_3,
    COUNT: tl.constexpr, BIASES: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """A tile of one member's rows through COUNT weights; bit k of BIASES says whose has a bias."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK_R
    row, column = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_I)
    live = begin + row < num_rows
    member = tl.program_id(1).to(tl.int64)
    tile = _tile_of(x + member * x_member, begin, row, live, x_row, column, column < inputs)
    _through(
        tile, weight_0 + member * w_member_0, w_out_0, w_in_0, bias_0 + member * b_member_0,
        out_0, outputs_0, inputs, begin, row, live, member, members,
        BIASES % 2 == 1, PRECISION, BLOCK_I, BLOCK_O,
    )  # fmt: skip
    if COUNT > 1:
        _through(
            tile, weight_1 + member * w_member_1, w_out_1, w_in_1, bias_1 + member * b_member_1,
            out_1, outputs_1, inputs, begin, row, live, member, members,
            BIASES // 2 % 2 == 1, PRECISION, BLOCK_I, BLOCK_O,
        )  # fmt: skip
    if COUNT > 2:
        _through(
            tile, weight_2 + member * w_member_2, w_out_2, w_in_2, bias_2 + member * b_member_2,
            out_2, outputs_2, inputs, begin, row, live, member, members,
            BIASES // 4 % 2 == 1, PRECISION, BLOCK_I, BLOCK_O,
        )  # fmt: skip
    if COUNT > 3:
        _through(
            tile, weight_3 + member * w_member_3, w_out_3, w_in_3, bias_3 + member * b_member_3,
            out_3, outputs_3, inputs, begin, row, live, member, members,
            BIASES // 8 % 2 == 1, PRECISION, BLOCK_I, BLOCK_O,
        )  # fmt: skip


@triton.jit
def _weight_of(weight, w_out, w_in, output, outputs, column, inputs):
    place = weight + output[:, None] * w_out + column[None, :] * w_in
    mask = (output < outputs)[:, None] & (column < inputs)[None, :]
    return tl.load(place, mask=mask, other=0).to(tl.float32)


@triton.jit
def _side_by_side(a_0, a_1, a_2, a_3, COUNT: tl.constexpr):
    """The first COUNT of four tiles, or all where it is 3, as one with so many more columns."""
    if COUNT == 1:
        return a_0
    elif COUNT == 2:
        both = tl.permute(tl.join(a_0, a_1), (0, 2, 1))
        return tl.reshape(both, [a_0.shape[0], 2 * a_0.shape[1]])
    else:
        every = tl.permute(tl.join(tl.join(a_0, a_2), tl.join(a_1, a_3)), (0, 2, 3, 1))
        return tl.reshape(every, [a_0.shape[0], 4 * a_0.shape[1]])


@triton.jit
def _above_each_other(a_0, a_1, a_2, a_3, COUNT: tl.constexpr):
    """`_side_by_side`, with so many more rows."""
    if COUNT == 1:
        return a_0
    elif COUNT == 2:
        both = tl.permute(tl.join(a_0, a_1), (2, 0, 1))
        return tl.reshape(both, [2 * a_0.shape[0], a_0.shape[1]])
    else:
        every = tl.permute(tl.join(tl.join(a_0, a_2), tl.join(a_1, a_3)), (2, 3, 0, 1))
        return tl.reshape(every, [4 * a_0.shape[0], a_0.shape[1]])


@triton.jit
def _sum_places(partial, member, members, output, outputs, mine, column, inputs):
    """Where the sums of one weight (members, outputs, inputs) and, behind, of its bias stand, and
    which of them do."""
    live = mine & (output < outputs)
    place = member * outputs + output
    of_weight = partial + place[:, None] * inputs + column[None, :]
    of_bias = partial + members * outputs * inputs + place
    in_weight = live[:, None] & (column < inputs)[None, :]
    return of_weight, of_bias, in_weight, live & (tl.program_id(2) == 0)


@triton.jit
def _load_sums(
    to_weights, to_biases, partial, member, members, output, outputs, mine, column, inputs
):
    """Sums, with those of one weight and its bias added to them."""
    of_weight, of_bias, in_weight, in_bias = _sum_places(
        partial, member, members, output, outputs, mine, column, inputs
    )
    to_weights += tl.load(of_weight, mask=in_weight, other=0)
    return to_weights, to_biases + tl.load(of_bias, mask=in_bias, other=0)


@triton.jit
def _store_sums(
    to_weights, to_biases, partial, member, members, output, outputs, mine, column, inputs
):
    """Write the sums of one weight and its bias."""
    of_weight, of_bias, in_weight, in_bias = _sum_places(
        partial, member, members, output, outputs, mine, column, inputs
    )
    tl.store(of_weight, to_weights, mask=in_weight)
    tl.store(of_bias, to_biases, mask=in_bias)


@triton.jit
def _linears_backward_kernel(
    x, x_row, x_member, inputs, num_rows, members, tiles, grad_x, partial, size,
    grad_0, row_0, member_0, weight_0, w_member_0, w_out_0, w_in_0, outputs_0, at_0,
    grad_1, row_1, member_1, weight_1, w_member_1, w_out_1, w_in_1, outputs_1, at_1,
    grad_2, row_2, member_2, weight_2, w_member_2, w_out_2, w_in_2, outputs_2, at_2,
    grad_3, row_3, member_3, weight_3, w_member_3, w_out_3, w_in_3, outputs_3, at_3,
    COUNT: tl.constexpr, TO_X: tl.constexpr, ADD: tl.constexpr, TO_WEIGHTS: tl.constexpr,
    MORE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr, BLOCKS_O: tl.constexpr,
):  # fmt: skip
    """Some tiles of one member's rows, a block of its inputs; of the k-th weight and bias, sums
    over these tiles at at_k in partial (splits, size), where there may be MORE. Weights stand
    side by side in one, each with BLOCK_O outputs."""
    member = tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK_I + tl.arange(0, BLOCK_I)
    output = tl.arange(0, BLOCK_O)
    x += member * x_member
    grad_0 += member * member_0
    grad_1 += member * member_1
    grad_2 += member * member_2
    grad_3 += member * member_3
    weight_0 += member * w_member_0
    weight_1 += member * w_member_1
    weight_2 += member * w_member_2
    weight_3 += member * w_member_3
    live_0, live_1 = output < outputs_0, output < outputs_1
    live_2, live_3 = output < outputs_2, output < outputs_3
    of_0 = _weight_of(weight_0, w_out_0, w_in_0, output, outputs_0, column, inputs)
    of_1, of_2, of_3 = of_0, of_0, of_0  # as many as it takes
    if COUNT > 1:
        of_1 = _weight_of(weight_1, w_out_1, w_in_1, output, outputs_1, column, inputs)
    if COUNT > 2:
        of_2 = _weight_of(weight_2, w_out_2, w_in_2, output, outputs_2, column, inputs)
        of_3 = tl.zeros_like(of_0)
    if COUNT > 3:
        of_3 = _weight_of(weight_3, w_out_3, w_in_3, output, outputs_3, column, inputs)
    weight = _above_each_other(of_0, of_1, of_2, of_3, COUNT)
    w_1, w_2, w_3 = parts(weight, PRECISION)
    to_weights = tl.zeros([BLOCKS_O, BLOCK_I], tl.float32)
    to_biases = tl.zeros([BLOCKS_O], tl.float32)
    place = tl.arange(0, BLOCKS_O)
    out, k = place % BLOCK_O, place // BLOCK_O
    own = partial + tl.program_id(0).to(tl.int64) * size
    if TO_WEIGHTS and MORE:
        to_weights, to_biases = _load_sums(
            to_weights, to_biases, own + at_0, member, members, out, outputs_0, k == 0,
            column, inputs,
        )  # fmt: skip
        if COUNT > 1:
            to_weights, to_biases = _load_sums(
                to_weights, to_biases, own + at_1, member, members, out, outputs_1, k == 1,
                column, inputs,
            )  # fmt: skip
        if COUNT > 2:
            to_weights, to_biases = _load_sums(
                to_weights, to_biases, own + at_2, member, members, out, outputs_2, k == 2,
                column, inputs,
            )  # fmt: skip
        if COUNT > 3:
            to_weights, to_biases = _load_sums(
                to_weights, to_biases, own + at_3, member, members, out, outputs_3, k == 3,
                column, inputs,
            )  # fmt: skip
    row = tl.arange(0, BLOCK_R)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        to = grad_x + (begin * members + member) * inputs
        to += (row * members * inputs)[:, None] + column[None, :]
        mask = live[:, None] & (column < inputs)[None, :]
        start = tl.zeros([BLOCK_R, BLOCK_I], tl.float32)
        if TO_X and ADD:  # read now, to be there when the product is
            start += tl.load(to, mask=mask, other=0)
        tile_0 = _tile_of(grad_0, begin, row, live, row_0, output, live_0)
        tile_1, tile_2, tile_3 = tile_0, tile_0, tile_0
        if COUNT > 1:
            tile_1 = _tile_of(grad_1, begin, row, live, row_1, output, live_1)
        if COUNT > 2:
            tile_2 = _tile_of(grad_2, begin, row, live, row_2, output, live_2)
            tile_3 = tl.zeros_like(tile_0)
        if COUNT > 3:
            tile_3 = _tile_of(grad_3, begin, row, live, row_3, output, live_3)
        upstream = _side_by_side(tile_0, tile_1, tile_2, tile_3, COUNT)
        u_1, u_2, u_3 = parts(upstream, PRECISION)
        if TO_WEIGHTS:
            tile = _tile_of(x, begin, row, live, x_row, column, column < inputs)
            x_1, x_2, x_3 = parts(tile, PRECISION)
            to_weights += product_of_parts(
                tl.trans(u_1), tl.trans(u_2), tl.trans(u_3), x_1, x_2, x_3, PRECISION
            )
            to_biases += tl.sum(upstream, 0)
        if TO_X:
            total = product_of_parts(u_1, u_2, u_3, w_1, w_2, w_3, PRECISION)
            tl.store(to, total + start, mask=mask)
    if TO_WEIGHTS:
        _store_sums(
            to_weights, to_biases, own + at_0, member, members, out, outputs_0, k == 0,
            column, inputs,
        )  # fmt: skip
        if COUNT > 1:
            _store_sums(
                to_weights, to_biases, own + at_1, member, members, out, outputs_1, k == 1,
                column, inputs,
            )  # fmt: skip
        if COUNT > 2:
            _store_sums(
                to_weights, to_biases, own + at_2, member, members, out, outputs_2, k == 2,
                column, inputs,
            )  # fmt: skip
        if COUNT > 3:
            _store_sums(
                to_weights, to_biases, own + at_3, member, members, out, outputs_3, k == 3,
                column, inputs,
            )  # fmt: skip


def forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> None:
    """Write x (rows, members, inputs) through each weight to its output."""
    present = [k for k, out in enumerate(outputs) if out.numel() > 0]
    if not present:
        return
    x = unit_stride(x)
    rows, members, inputs = x.shape
    block_i = _block(inputs)
    for at in range(0, len(present), _AT_ONCE):
        group = present[at : at + _AT_ONCE]
        block_o = min(_block(max(outputs[k].shape[2] for k in group)), 64 if block_i <= 32 else 32)
        named = []
        for k in group:
            bias = biases[k]
            bias = weights[k] if bias is None else unit_stride(bias)
            named.append(
                dict(
                    **_strided(weights[k]),
                    bias=bias,
                    b_member=bias.stride(0),
                    out=outputs[k],
                    outputs=outputs[k].shape[2],
                )
            )
        with torch.cuda.device_of(x):
            _linears_kernel[(triton.cdiv(rows, _TILE), members)](
                x=x, x_row=x.stride(0), x_member=x.stride(1), inputs=inputs, num_rows=rows,
                members=members, **_numbered(named), COUNT=len(group),
                BIASES=sum(1 << i for i, k in enumerate(group) if biases[k] is not None),
                PRECISION=precision(x), BLOCK_R=_TILE, BLOCK_I=block_i, BLOCK_O=block_o,
                num_warps=4, num_stages=1,
            )  # fmt: skip


def backward(
    grads: Sequence[Tensor | None],
    x: Tensor,
    weights: Sequence[Tensor],
    grad_x: Tensor,
    flat: Tensor,
) -> None:
    """Write the gradients of x, and of each weight and its bias one after another to flat; where
    there is no gradient above, nothing. Those of no length are not needed."""
    if all(g is None or g.numel() == 0 for g in grads):
        grad_x.zero_()
        flat.zero_()
        return
    sums = sums_of(x, flat)
    add_backward(grads, x, weights, grad_x, sums)
    sums.finish()


def sums_of(x: Tensor, flat: Tensor) -> Sums:
    """The sums that `add_backward` goes on with, of each weight and its bias in flat."""
    rows, members, inputs = x.shape
    most = triton.cdiv(rows, _TILE)
    programs = PROGRAMS // (members * _blocks(inputs))
    return Sums(flat, max(1, min(most, programs)) if flat.numel() > 0 else most)


def _blocks(inputs: int) -> int:
    return max(1, triton.cdiv(inputs, _block_backward(inputs)))


def _block_backward(inputs: int) -> int:
    return min(32, _block(inputs))


def add_backward(
    grads: Sequence[Tensor | None],
    x: Tensor,
    weights: Sequence[Tensor],
    grad_x: Tensor,
    sums: Sums,
    add: bool = False,
) -> None:
    """Add the gradients of weights and biases to the sums; write that of x, or `add` it."""
    rows, members, inputs = x.shape
    present = [k for k, g in enumerate(grads) if g is not None and g.numel() > 0]
    x = unit_stride(x)
    size, more = sums.out.numel(), sums.go_on()
    at = [0]
    for w in weights:
        at.append(at[-1] + w.shape[0] * w.shape[1] * (inputs + 1))
    for first, group in _groups(present, [w.shape[1] for w in weights]):
        block_o = _block(max(weights[k].shape[1] for k in group))
        blocks_o = block_o * triton.next_power_of_2(len(group))
        wide = blocks_o > 64
        tall = _TILE // 2 if wide else _TILE
        named = []
        for k in group:
            grad = grads[k]
            assert grad is not None
            grad = unit_stride(grad)
            named.append(
                dict(
                    grad=grad,
                    row=grad.stride(0),
                    member=grad.stride(1),
                    **_strided(weights[k]),
                    outputs=grad.shape[2],
                    at=at[k],
                )
            )
        with torch.cuda.device_of(x):
            _linears_backward_kernel[(sums.splits, members, _blocks(inputs))](
                x=x, x_row=x.stride(0), x_member=x.stride(1), inputs=inputs, num_rows=rows,
                members=members, tiles=triton.cdiv(rows, tall), grad_x=grad_x,
                partial=sums.partial, size=size, **_numbered(named), COUNT=len(group),
                TO_X=grad_x.numel() > 0, ADD=add or not first, TO_WEIGHTS=size > 0, MORE=more,
                PRECISION=precision(x), BLOCK_R=tall, BLOCK_I=_block_backward(inputs),
                BLOCK_O=block_o, BLOCKS_O=blocks_o, num_warps=8 if wide else 4, num_stages=2,
            )  # fmt: skip


def _groups(present: Sequence[int], outputs: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
    """Weights that a backward kernel takes together, and whether they are the first."""
    group: list[int] = []
    first = True
    for k in present:
        side_by_side = triton.next_power_of_2(len(group) + 1)
        wide = side_by_side * _block(max(outputs[j] for j in [*group, k]))
        if group and (wide > _OUTPUTS_AT_ONCE or len(group) == _AT_ONCE):
            yield first, group
            group, first = [], False
        group.append(k)
    yield first, group


def _strided(weight: Tensor) -> dict[str, Any]:
    member, out, into = weight.stride()
    return dict(weight=weight, w_member=member, w_out=out, w_in=into)


def _numbered(named: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Arguments of each weight, with its number; unused ones point somewhere harmless."""
    padded = [*named, *[named[0]] * (_AT_ONCE - len(named))]
    return {f"{name}_{k}": v for k, given in enumerate(padded) for name, v in given.items()}


def _block(width: int) -> int:
    return max(16, triton.next_power_of_2(width))
