"""Products of a tall input with several narrow weights of every member.

In the forward pass and for the gradient of the input, a program owns a tile of a member's rows and
reads it once for all weights. The gradients of weights and biases are small sums over many rows.
For these a program owns a block of a weight and visits tiles of rows in a grid-stride loop. It
accumulates its own partial sums, which are added at the end. The products of these sums are plain
float32 products unless TF32 is allowed: tensor cores would gain less than it costs to transpose the
tiles and split them into bfloat16 parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna.ops.tracing import likely
from pna.ops.triton import wide_linear
from pna.ops.triton.alignment import aligned, unit_of
from pna.ops.triton.launcher import Kernel, cdiv, on_device
from pna.ops.triton.products import (
    block_of,
    cut,
    parts,
    precision,
    product,
    product_of_parts,
    uncut_precision,
    unit_stride,
)
from pna.ops.triton.sums import Sums

#: Rows per tile.
_TILE = 64

#: Rows per tile in the kernel that sums over rows.
_SHORT_TILE = 16

#: Largest input and output width that fits into one program; wider maps use `wide_linear`.
_WIDEST = 128

#: Most weights per launch, and most outputs of these weights in the gradient of the input.
_AT_ONCE, _OUTPUTS_AT_ONCE = 4, 128

#: Approximate number of programs of a launch that sums over rows.
_PROGRAMS = 1056


@triton.jit
def _tile_of(x, begin, row, live, x_row, column, live_column):
    """Load columns of a tile of rows that starts at row `begin`, as float32, 0 where masked.

    Offsets within the tile are 32-bit, which halves the registers they need."""
    pointers = x + begin * x_row + (row[:, None] * x_row + column[None, :])
    return tl.load(pointers, mask=live[:, None] & live_column[None, :], other=0).to(tl.float32)


@triton.jit
def _through(
    tile, rest, weight, w_out, w_in, bias, out, outputs, inputs, begin, row, live, member, members,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr, BLOCK_I: tl.constexpr,
    REST: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Multiply a tile by one weight and write the result, in blocks of outputs. `rest` holds the
    columns of the tile beyond BLOCK_I."""
    outputs, w_out = aligned(outputs, UNIT), aligned(w_out, UNIT)
    for first in range(0, outputs, BLOCK_O):
        output = first + tl.arange(0, BLOCK_O)
        live_output = output < outputs
        column = tl.arange(0, BLOCK_I)
        pointers = weight + output[None, :] * w_out + column[:, None] * w_in
        mask = (column < inputs)[:, None] & live_output[None, :]
        total = product(tile, tl.load(pointers, mask=mask, other=0).to(tl.float32), PRECISION)
        if REST > 0:
            column = BLOCK_I + tl.arange(0, REST)
            pointers = weight + output[None, :] * w_out + column[:, None] * w_in
            mask = (column < inputs)[:, None] & live_output[None, :]
            total += product(rest, tl.load(pointers, mask=mask, other=0).to(tl.float32), PRECISION)
        if BIAS:
            own = tl.load(bias + output, mask=live_output, other=0)
            total += own.to(tl.float32)[None, :]
        to = out + (begin * members + member) * outputs
        to += (row * members * outputs)[:, None] + output[None, :]
        tl.store(to, total, mask=live[:, None] & live_output[None, :])


@Kernel
def _linears_kernel(
    x, x_row, x_member, inputs, num_rows, members,
    weight_0, w_member_0, w_out_0, w_in_0, bias_0, b_member_0, out_0, outputs_0,
    weight_1, w_member_1, w_out_1, w_in_1, bias_1, b_member_1, out_1, outputs_1,
    weight_2, w_member_2, w_out_2, w_in_2, bias_2, b_member_2, out_2, outputs_2,
    weight_3, w_member_3, w_out_3, w_in_3, bias_3, b_member_3, out_3, outputs_3,
    COUNT: tl.constexpr, BIASES: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, REST: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of one member's rows by COUNT weights.

    Bit k of BIASES says whether weight k has a bias. The columns are split into a block of BLOCK_I
    and one of REST (0: none), if that needs less padding than a single block.
    """
    x_row, x_member, inputs = aligned(x_row, UNIT), aligned(x_member, UNIT), aligned(inputs, UNIT)
    w_member_0, w_member_1 = aligned(w_member_0, UNIT), aligned(w_member_1, UNIT)
    w_member_2, w_member_3 = aligned(w_member_2, UNIT), aligned(w_member_3, UNIT)
    begin = tl.program_id(0).to(tl.int64) * BLOCK_R
    row, column = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_I)
    live = begin + row < num_rows
    member = tl.program_id(1).to(tl.int64)
    x += member * x_member
    tile = _tile_of(x, begin, row, live, x_row, column, column < inputs)
    rest = tile
    if REST > 0:
        column = BLOCK_I + tl.arange(0, REST)
        rest = _tile_of(x, begin, row, live, x_row, column, column < inputs)
    _through(
        tile, rest, weight_0 + member * w_member_0, w_out_0, w_in_0,
        bias_0 + member * b_member_0, out_0, outputs_0, inputs, begin, row, live, member,
        members, BIASES % 2 == 1, PRECISION, UNIT, BLOCK_I, REST, BLOCK_O,
    )  # fmt: skip
    if COUNT > 1:
        _through(
            tile, rest, weight_1 + member * w_member_1, w_out_1, w_in_1,
            bias_1 + member * b_member_1, out_1, outputs_1, inputs, begin, row, live, member,
            members, BIASES // 2 % 2 == 1, PRECISION, UNIT, BLOCK_I, REST, BLOCK_O,
        )  # fmt: skip
    if COUNT > 2:
        _through(
            tile, rest, weight_2 + member * w_member_2, w_out_2, w_in_2,
            bias_2 + member * b_member_2, out_2, outputs_2, inputs, begin, row, live, member,
            members, BIASES // 4 % 2 == 1, PRECISION, UNIT, BLOCK_I, REST, BLOCK_O,
        )  # fmt: skip
    if COUNT > 3:
        _through(
            tile, rest, weight_3 + member * w_member_3, w_out_3, w_in_3,
            bias_3 + member * b_member_3, out_3, outputs_3, inputs, begin, row, live, member,
            members, BIASES // 8 % 2 == 1, PRECISION, UNIT, BLOCK_I, REST, BLOCK_O,
        )  # fmt: skip


@triton.jit
def _back_through(
    total, g_1, g_2, g_3, weight, w_out, w_in, output, outputs, column, inputs,
    PRECISION: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Add the gradient that flows through some outputs of one weight to some columns of a tile.

    g_1..3 are the `parts` of the gradient of these outputs.
    """
    w_out = aligned(w_out, UNIT)
    pointers = weight + output[:, None] * w_out + column[None, :] * w_in
    mask = (output < outputs)[:, None] & (column < inputs)[None, :]
    w_1, w_2, w_3 = parts(tl.load(pointers, mask=mask, other=0).to(tl.float32), PRECISION)
    return total + product_of_parts(g_1, g_2, g_3, w_1, w_2, w_3, PRECISION)


@Kernel
def _linears_input_kernel(
    grad_x, inputs, num_rows, members,
    grad_0, row_0, member_0, weight_0, w_member_0, w_out_0, w_in_0, outputs_0,
    grad_1, row_1, member_1, weight_1, w_member_1, w_out_1, w_in_1, outputs_1,
    grad_2, row_2, member_2, weight_2, w_member_2, w_out_2, w_in_2, outputs_2,
    grad_3, row_3, member_3, weight_3, w_member_3, w_out_3, w_in_3, outputs_3,
    COUNT: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Write, or ADD, the gradient of a tile of one member's rows, summed over COUNT weights.

    If there is one weight, its outputs may be split into a block of BLOCK_O and one of REST, as the
    columns are in `_linears_kernel`.
    """
    inputs, outputs_0 = aligned(inputs, UNIT), aligned(outputs_0, UNIT)
    outputs_1, outputs_2 = aligned(outputs_1, UNIT), aligned(outputs_2, UNIT)
    outputs_3, row_0, row_1 = aligned(outputs_3, UNIT), aligned(row_0, UNIT), aligned(row_1, UNIT)
    row_2, row_3, member_0 = aligned(row_2, UNIT), aligned(row_3, UNIT), aligned(member_0, UNIT)
    member_1, member_2 = aligned(member_1, UNIT), aligned(member_2, UNIT)
    member_3, w_member_0 = aligned(member_3, UNIT), aligned(w_member_0, UNIT)
    w_member_1, w_member_2 = aligned(w_member_1, UNIT), aligned(w_member_2, UNIT)
    w_member_3 = aligned(w_member_3, UNIT)
    begin = tl.program_id(0).to(tl.int64) * BLOCK_R
    row, output = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_O)
    live = begin + row < num_rows
    member = tl.program_id(1).to(tl.int64)
    tile = _tile_of(grad_0 + member * member_0, begin, row, live, row_0, output, output < outputs_0)
    a_1, a_2, a_3 = parts(tile, PRECISION)
    b_1, b_2, b_3 = a_1, a_2, a_3  # placeholders, replaced below if used
    c_1, c_2, c_3 = a_1, a_2, a_3
    d_1, d_2, d_3 = a_1, a_2, a_3
    if REST > 0:
        last = BLOCK_O + tl.arange(0, REST)
        tile = _tile_of(grad_0 + member * member_0, begin, row, live, row_0, last, last < outputs_0)
        b_1, b_2, b_3 = parts(tile, PRECISION)
    if COUNT > 1:
        tile = _tile_of(
            grad_1 + member * member_1, begin, row, live, row_1, output, output < outputs_1
        )
        b_1, b_2, b_3 = parts(tile, PRECISION)
    if COUNT > 2:
        tile = _tile_of(
            grad_2 + member * member_2, begin, row, live, row_2, output, output < outputs_2
        )
        c_1, c_2, c_3 = parts(tile, PRECISION)
    if COUNT > 3:
        tile = _tile_of(
            grad_3 + member * member_3, begin, row, live, row_3, output, output < outputs_3
        )
        d_1, d_2, d_3 = parts(tile, PRECISION)
    for first in range(0, inputs, BLOCK_I):
        column = first + tl.arange(0, BLOCK_I)
        to = grad_x + (begin * members + member) * inputs
        to += (row * members * inputs)[:, None] + column[None, :]
        mask = live[:, None] & (column < inputs)[None, :]
        total = tl.zeros([BLOCK_R, BLOCK_I], tl.float32)
        if ADD:
            total += tl.load(to, mask=mask, other=0)
        total = _back_through(
            total, a_1, a_2, a_3, weight_0 + member * w_member_0, w_out_0, w_in_0, output,
            outputs_0, column, inputs, PRECISION, UNIT,
        )  # fmt: skip
        if REST > 0:
            last = BLOCK_O + tl.arange(0, REST)
            total = _back_through(
                total, b_1, b_2, b_3, weight_0 + member * w_member_0, w_out_0, w_in_0, last,
                outputs_0, column, inputs, PRECISION, UNIT,
            )  # fmt: skip
        if COUNT > 1:
            total = _back_through(
                total, b_1, b_2, b_3, weight_1 + member * w_member_1, w_out_1, w_in_1, output,
                outputs_1, column, inputs, PRECISION, UNIT,
            )  # fmt: skip
        if COUNT > 2:
            total = _back_through(
                total, c_1, c_2, c_3, weight_2 + member * w_member_2, w_out_2, w_in_2, output,
                outputs_2, column, inputs, PRECISION, UNIT,
            )  # fmt: skip
        if COUNT > 3:
            total = _back_through(
                total, d_1, d_2, d_3, weight_3 + member * w_member_3, w_out_3, w_in_3, output,
                outputs_3, column, inputs, PRECISION, UNIT,
            )  # fmt: skip
        tl.store(to, total, mask=mask)


@Kernel
def _linears_weight_kernel(
    x, x_row, x_member, inputs, num_rows, members, tiles, partial, size,
    grad_0, grad_1, grad_2, grad_3, row, member_stride, outputs, blocks_i, blocks,
    COUNT: tl.constexpr, MORE: tl.constexpr, PRECISION: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of a block of one of COUNT weights, and of its bias, over some tiles of one
    member's rows.

    The sums go to partial (splits, size), where each weight is followed by its bias. If MORE, they
    are added to those already there.
    """
    x_row, x_member, inputs = aligned(x_row, UNIT), aligned(x_member, UNIT), aligned(inputs, UNIT)
    row, member_stride = aligned(row, UNIT), aligned(member_stride, UNIT)
    outputs = aligned(outputs, UNIT)
    member = tl.program_id(1).to(tl.int64)
    which, block = tl.program_id(2) // blocks, tl.program_id(2) % blocks
    grad = grad_0
    if COUNT > 1:
        grad = grad_1 if which == 1 else grad
    if COUNT > 2:
        grad = grad_2 if which == 2 else grad
    if COUNT > 3:
        grad = grad_3 if which == 3 else grad
    column = block % blocks_i * BLOCK_I + tl.arange(0, BLOCK_I)
    output = block // blocks_i * BLOCK_O + tl.arange(0, BLOCK_O)
    live_column, live_output = column < inputs, output < outputs
    own = partial + tl.program_id(0).to(tl.int64) * size
    own += which * members * outputs * (inputs + 1)
    offset = member * outputs + output
    to_weight = own + offset[:, None] * inputs + column[None, :]
    to_bias = own + members * outputs * inputs + offset
    in_weight = live_output[:, None] & live_column[None, :]
    in_bias = live_output & (block % blocks_i == 0)
    of_weight = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    of_bias = tl.zeros([BLOCK_O], tl.float32)
    if MORE:
        of_weight += tl.load(to_weight, mask=in_weight, other=0)
        of_bias += tl.load(to_bias, mask=in_bias, other=0)
    x += member * x_member
    grad += member * member_stride
    line = tl.arange(0, BLOCK_R)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + line < num_rows
        above = _tile_of(grad, begin, line, live, row, output, live_output)
        tile = _tile_of(x, begin, line, live, x_row, column, live_column)
        of_weight = tl.dot(tl.trans(above), tile, of_weight, input_precision=PRECISION)
        of_bias += tl.sum(above, 0)
    tl.store(to_weight, of_weight, mask=in_weight)
    tl.store(to_bias, of_bias, mask=in_bias)


def forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> None:
    """Multiply x (rows, members, inputs) by each weight and write the result to its output."""
    present = [k for k, out in enumerate(outputs) if out.numel() > 0]
    if not present:
        return
    x = unit_stride(x)
    rows, members, inputs = x.shape
    if _is_wide(weights):
        for k in present:
            bias, weight = biases[k], weights[k].transpose(1, 2)
            base = None if bias is None else bias.expand(rows, -1, -1)
            wide_linear.multiply(x[:, None], weight, outputs[k][:, None], base)
        return
    block_i, rest = cut(inputs)
    for at in range(0, len(present), _AT_ONCE):
        group = present[at : at + _AT_ONCE]
        narrow = block_i + rest <= 32
        block_o = min(block_of(max(outputs[k].shape[2] for k in group)), 64 if narrow else 32)
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
        with on_device(x):
            _linears_kernel[(cdiv(rows, _TILE), members)](
                x=x, x_row=x.stride(0), x_member=x.stride(1), inputs=inputs, num_rows=rows,
                members=members, **_numbered(named), COUNT=len(group),
                BIASES=sum(1 << i for i, k in enumerate(group) if biases[k] is not None),
                PRECISION=precision(x), UNIT=_unit_of(x, named, "outputs"), BLOCK_R=_TILE,
                BLOCK_I=block_i, REST=rest, BLOCK_O=block_o, num_warps=4, num_stages=1,
            )  # fmt: skip


def backward(
    grads: Sequence[Tensor | None],
    x: Tensor,
    weights: Sequence[Tensor],
    grad_x: Tensor,
    flat: Tensor,
) -> None:
    """Write the gradient of x, and those of each weight and its bias, concatenated, to `flat`.

    The part of a weight whose output has no gradient is not written. Tensors without elements are
    skipped.
    """
    if all(g is None or g.numel() == 0 for g in grads):
        grad_x.zero_()
        flat.zero_()
        return
    sums = sums_of(x, weights, flat)
    add_backward(grads, x, weights, grad_x, sums)
    sums.finish()


def sums_of(x: Tensor, weights: Sequence[Tensor], flat: Tensor) -> Sums:
    """Return the partial sums that `add_backward` adds to; `flat` receives the result."""
    rows, members, inputs = x.shape
    blocks = sum(_blocks(w.shape[1]) for w in weights) * _blocks(inputs)
    most = likely(cdiv(rows, _SHORT_TILE))
    return Sums(flat, max(1, min(most, _PROGRAMS // (members * blocks))))


def _block_of_sums(width: int) -> int:
    """Return the block size with the least padding for the kernel that sums over rows."""
    block = min((64, 32), key=lambda block: cdiv(width, block) * block)
    return min(block, block_of(width))


def _blocks(width: int) -> int:
    return max(1, cdiv(width, _block_of_sums(width)))


def add_backward(
    grads: Sequence[Tensor | None],
    x: Tensor,
    weights: Sequence[Tensor],
    grad_x: Tensor,
    sums: Sums,
    add: bool = False,
) -> None:
    """Add the gradients of weights and biases to `sums`; write the gradient of x, or `add` it."""
    above = {k: unit_stride(g) for k, g in enumerate(grads) if g is not None and g.numel() > 0}
    with on_device(x):
        if sums.needed:
            _add_to_sums(above, x, weights, sums)
        if grad_x.numel() > 0:
            _write_input(above, weights, grad_x, add)


def _add_to_sums(
    above: Mapping[int, Tensor], x: Tensor, weights: Sequence[Tensor], sums: Sums
) -> None:
    x = unit_stride(x)
    rows, members, inputs = x.shape
    size, more = sums.out.numel(), sums.go_on()
    partial = sums.partial.view(-1)
    block_i = _block_of_sums(inputs)
    for group in _alike(above):
        first = above[group[0]]
        outputs = first.shape[2]
        at = sum(w.shape[0] * w.shape[1] for w in weights[: group[0]]) * (inputs + 1)
        block_o = _block_of_sums(outputs)
        blocks = _blocks(outputs) * _blocks(inputs)
        given = [above[k] for k in group]
        padded = [*given, *[first] * (_AT_ONCE - len(given))]
        _linears_weight_kernel[(sums.splits, members, len(group) * blocks)](
            x, x.stride(0), x.stride(1), inputs, rows, members, cdiv(rows, _SHORT_TILE),
            partial[at:], size, *padded, first.stride(0), first.stride(1), outputs,
            _blocks(inputs), blocks, COUNT=len(group), MORE=more,
            PRECISION=uncut_precision(),
            UNIT=unit_of(*x.stride()[:2], inputs, *first.stride()[:2], outputs),
            BLOCK_R=_SHORT_TILE, BLOCK_I=block_i, BLOCK_O=block_o, num_stages=3,
            num_warps=min(4, max(1, block_i * block_o // 512)),
        )  # fmt: skip


def _alike(above: Mapping[int, Tensor]) -> Iterator[list[int]]:
    """Group consecutive weights whose gradients have equal shapes and strides: one launch each."""
    group: list[int] = []
    for k, grad in above.items():
        if group:
            last = above[group[-1]]
            alike = last.shape == grad.shape and last.stride() == grad.stride()
            if not alike or group[-1] != k - 1 or len(group) == _AT_ONCE:
                yield group
                group = []
        group.append(k)
    if group:
        yield group


def _write_input(
    above: Mapping[int, Tensor], weights: Sequence[Tensor], grad_x: Tensor, add: bool
) -> None:
    rows, members, inputs = grad_x.shape
    if _is_wide(weights):
        for k, grad in above.items():
            base = grad_x if add else None
            wide_linear.multiply(grad[:, None], weights[k], grad_x[:, None], base)
            add = True
        return
    for group in _narrow_enough(list(above), [w.shape[1] for w in weights]):
        widest = max(weights[k].shape[1] for k in group)
        block_o, rest = cut(widest) if len(group) == 1 else (block_of(widest), 0)
        wide = (block_o + rest) * len(group) > 32
        named = [
            dict(
                grad=above[k],
                row=above[k].stride(0),
                member=above[k].stride(1),
                **_strided(weights[k]),
                outputs=above[k].shape[2],
            )
            for k in group
        ]
        _linears_input_kernel[(cdiv(rows, _TILE), members)](
            grad_x=grad_x, inputs=inputs, num_rows=rows, members=members, **_numbered(named),
            COUNT=len(group), ADD=add, PRECISION=precision(grad_x),
            UNIT=_unit_of(grad_x, named, "row", "member", "outputs"), BLOCK_R=_TILE,
            BLOCK_I=min(block_of(inputs), 32 if wide else 64), BLOCK_O=block_o, REST=rest,
            num_warps=4, num_stages=1,
        )  # fmt: skip
        add = True


def _narrow_enough(present: Sequence[int], outputs: Sequence[int]) -> Iterator[list[int]]:
    """Group weights such that the gradients of their outputs fit into one program together."""
    group: list[int] = []
    for k in present:
        wide = (len(group) + 1) * block_of(max(outputs[j] for j in [*group, k]))
        if group and (wide > _OUTPUTS_AT_ONCE or len(group) == _AT_ONCE):
            yield group
            group = []
        group.append(k)
    yield group


def _is_wide(weights: Sequence[Tensor]) -> bool:
    """Return whether inputs or outputs are too wide for one program."""
    return max(width for w in weights for width in w.shape[1:]) > _WIDEST


def _strided(weight: Tensor) -> dict[str, Any]:
    member, out, into = weight.stride()
    return dict(weight=weight, w_member=member, w_out=out, w_in=into)


def _unit_of(first: Tensor, named: Sequence[dict[str, Any]], *sizes: str) -> int:
    """Return `unit_of` the strides and width of a tensor (rows, members, width), of the strides of
    the weights, and of the named `sizes`."""
    of_weights = (given[name] for given in named for name in ("w_member", "w_out", *sizes))
    return unit_of(*first.stride()[:2], first.shape[2], *of_weights)


def _numbered(named: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Append the weight's index to the names of its arguments; unused indices repeat weight 0."""
    padded = [*named, *[named[0]] * (_AT_ONCE - len(named))]
    return {f"{name}_{k}": v for k, given in enumerate(padded) for name, v in given.items()}
