"""A gated recurrent unit, with one kernel for each pass.

A program owns a member and visits tiles of its rows in a grid-stride loop. Input and state are
concatenated, and so are the weights of all gates. One product gives the gates, one the gradients of
input and state, and one the gradients of the weights. The backward pass recomputes the gates. Each
program accumulates its own partial sums of the parameters' gradients; they are added at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pna.ops.tracing import likely
from pna.ops.triton.launcher import Kernel, cdiv, on_device
from pna.ops.triton.products import block_of, parts, precision, product_of_parts, unit_stride
from pna.ops.triton.sums import Sums
from pna.population.triton.linears import _TILE, _tile_of

#: Approximate number of programs of a launch that loops over tiles.
_PROGRAMS = 264


@triton.jit
def _side_by_side(a_0, a_1, a_2, a_3, COUNT: tl.constexpr):
    """Concatenate the columns of the first COUNT of four tiles; COUNT = 3 or 4 takes all four."""
    if COUNT == 1:
        return a_0
    elif COUNT == 2:
        both = tl.permute(tl.join(a_0, a_1), (0, 2, 1))
        return tl.reshape(both, [a_0.shape[0], 2 * a_0.shape[1]])
    else:
        every = tl.permute(tl.join(tl.join(a_0, a_2), tl.join(a_1, a_3)), (0, 2, 3, 1))
        return tl.reshape(every, [a_0.shape[0], 4 * a_0.shape[1]])


@triton.jit
def _tanh(a):
    """tanh with a series near zero, where a difference of exponentials would cancel."""
    square = a * a
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    size = tl.abs(a)
    far = 1 - 2 / (tl.exp(2 * size) + 1)
    return tl.where(size < 0.625, a + a * square * series, tl.where(a < 0, -far, far))


@triton.jit
def _weight_pointers(member, gate, unit, inputs, hidden, column, BLOCK: tl.constexpr):
    """Return offsets and masks that map the joint weight to weight_ih and to weight_hh.

    The joint weight is (4 gates × units, inputs and states). Its gates are r, z, the part of n that
    depends on the input, and the part of n that depends on the state, which r multiplies.
    """
    of_state = column - BLOCK
    live = unit < hidden
    row = (member * 3 + tl.minimum(gate, 2)) * hidden + unit
    in_ih = (live & (gate < 3))[:, None] & (column < inputs)[None, :]
    in_hh = (live & (gate != 2))[:, None] & ((of_state >= 0) & (of_state < hidden))[None, :]
    to_ih = row[:, None] * inputs + column[None, :]
    to_hh = row[:, None] * hidden + of_state[None, :]
    return to_ih, in_ih, to_hh, in_hh


@triton.jit
def _parameters_of(
    weight_ih, weight_hh, bias_ih, bias_hh, member, inputs, hidden, gate, unit, column,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Load the joint weight and bias of a member."""
    to_ih, in_ih, to_hh, in_hh = _weight_pointers(member, gate, unit, inputs, hidden, column, BLOCK)
    weight = tl.load(weight_ih + to_ih, mask=in_ih, other=0).to(tl.float32)
    weight += tl.load(weight_hh + to_hh, mask=in_hh, other=0).to(tl.float32)
    offset, live = (member * 3 + tl.minimum(gate, 2)) * hidden + unit, unit < hidden
    bias = tl.load(bias_ih + offset, mask=live & (gate < 3), other=0).to(tl.float32)
    bias += tl.load(bias_hh + offset, mask=live & (gate != 2), other=0).to(tl.float32)
    return weight, bias


@triton.jit
def _gates(
    t_1, t_2, t_3, w_1, w_2, w_3, bias,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return r, z, n, and the part of n that r multiplies.

    t_1..3 are the `parts` of the concatenated input and state, w_1..3 those of the joint weight.
    """
    gates = product_of_parts(t_1, t_2, t_3, tl.trans(w_1), tl.trans(w_2), tl.trans(w_3), PRECISION)
    gates += bias[None, :]
    gates = tl.permute(tl.reshape(gates, [BLOCK_R, 2, 2, BLOCK]), (0, 3, 1, 2))
    r_and_n, z_and_candidate = tl.split(gates)
    r, n = tl.split(r_and_n)
    z, candidate = tl.split(z_and_candidate)
    r, z = tl.sigmoid(r), tl.sigmoid(z)
    return r, z, _tanh(n + r * candidate), candidate


@triton.jit
def _bend(a, SLOPE: tl.constexpr):
    """Leaky ReLU with this SLOPE. If SLOPE is 0, negative values, −inf included, become 0. NaN
    stays NaN."""
    if SLOPE == 1:
        return a
    elif SLOPE == 0:
        return tl.where(a < 0, 0, a)
    else:
        return tl.where(a < 0, SLOPE * a, a)


@triton.jit
def _bend_back(grad, bent, SLOPE: tl.constexpr):
    """Return the gradient of the input of `_bend`, given its output, which has the same sign."""
    if SLOPE == 1:
        return grad
    else:
        return tl.where(bent > 0, grad, SLOPE * grad)


@partial(Kernel, unspecialised=["step", "near"])
def _gru_kernel(
    x, x_row, x_member, inputs, h, h_row, h_member, hidden,
    weight_ih, weight_hh, bias_ih, bias_hh, until, step, near, last, last_row, last_member,
    out, num_rows, members, tiles,
    X_SLOPE: tl.constexpr, H_SLOPE: tl.constexpr, STAYS: tl.constexpr, FAR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the next state for some tiles of one member's rows.

    If FAR, rows from `near` on are written to `last` instead of `out`.
    """
    member = tl.program_id(1).to(tl.int64)
    column, of_gate, unit = tl.arange(0, 2 * BLOCK), tl.arange(0, 4 * BLOCK), tl.arange(0, BLOCK)
    weight, bias = _parameters_of(
        weight_ih, weight_hh, bias_ih, bias_hh, member, inputs, hidden, of_gate // BLOCK,
        of_gate % BLOCK, column, BLOCK,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(weight, PRECISION)
    x += member * x_member
    h += member * h_member
    row = tl.arange(0, BLOCK_R)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        input = _tile_of(x, begin, row, live, x_row, unit, unit < inputs)
        state = _tile_of(h, begin, row, live, h_row, unit, unit < hidden)
        input, state = _bend(input, X_SLOPE), _bend(state, H_SLOPE)
        t_1, t_2, t_3 = parts(_side_by_side(input, state, input, state, 2), PRECISION)
        _, z, n, _ = _gates(t_1, t_2, t_3, w_1, w_2, w_3, bias, PRECISION, BLOCK_R, BLOCK)
        new = n + z * (state - n)
        if STAYS != "none":
            going = tl.load(until + begin + row, mask=live, other=0) > step
            new = tl.where(going[:, None], new, input if STAYS == "x" else state)
        to = out + (begin * members + member) * hidden
        to += (row * members * hidden)[:, None] + unit[None, :]
        if FAR:
            beyond = live & (begin + row >= near)
            live = live & (begin + row < near)
            past = last + begin * last_row + member * last_member
            past += (row * last_row)[:, None] + unit[None, :]
            tl.store(past, new, mask=beyond[:, None] & (unit < hidden)[None, :])
        tl.store(to, new, mask=live[:, None] & (unit < hidden)[None, :])


@partial(Kernel, unspecialised=["step", "near"])
def _gru_backward_kernel(
    grad, grad_row, grad_member, x, x_row, x_member, inputs, h, h_row, h_member, hidden,
    weight_ih, weight_hh, bias_ih, bias_hh, until, step, near, last, last_row, last_member,
    grad_x, grad_h, partial, size, num_rows, members, tiles,
    X_SLOPE: tl.constexpr, H_SLOPE: tl.constexpr, STAYS: tl.constexpr, FAR: tl.constexpr,
    TO_X: tl.constexpr, TO_H: tl.constexpr, TO_PARAMETERS: tl.constexpr, MORE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x and h for some tiles of one member's rows, and the sums of the
    parameters' gradients over these tiles to partial (splits, size).

    A row of partial holds weight_ih of all members, then weight_hh, bias_ih, bias_hh. If MORE, the
    sums are added to those already there. If FAR, the gradients of rows from `near` on are read
    from `last` instead of `grad`.
    """
    member = tl.program_id(1).to(tl.int64)
    column, of_gate, unit = tl.arange(0, 2 * BLOCK), tl.arange(0, 4 * BLOCK), tl.arange(0, BLOCK)
    gate, gate_unit = of_gate // BLOCK, of_gate % BLOCK
    weight, bias = _parameters_of(
        weight_ih, weight_hh, bias_ih, bias_hh, member, inputs, hidden, gate, gate_unit, column,
        BLOCK,
    )  # fmt: skip
    w_1, w_2, w_3 = parts(weight, PRECISION)
    to_weight = tl.zeros([4 * BLOCK, 2 * BLOCK], tl.float32)
    to_bias = tl.zeros([4 * BLOCK], tl.float32)
    to_ih, in_ih, to_hh, in_hh = _weight_pointers(
        member, gate, gate_unit, inputs, hidden, column, BLOCK
    )
    offset, in_bias = (member * 3 + tl.minimum(gate, 2)) * hidden + gate_unit, gate_unit < hidden
    partial_ih = partial + tl.program_id(0).to(tl.int64) * size
    partial_hh = partial_ih + members * 3 * hidden * inputs
    partial_b_ih = partial_hh + members * 3 * hidden * hidden
    partial_b_hh = partial_b_ih + members * 3 * hidden
    if TO_PARAMETERS and MORE:
        to_weight += tl.load(partial_ih + to_ih, mask=in_ih, other=0)
        to_weight += tl.load(partial_hh + to_hh, mask=in_hh, other=0)
        to_bias += tl.load(partial_b_ih + offset, mask=in_bias & (gate < 3), other=0)
        to_bias += tl.load(partial_b_hh + offset, mask=in_bias & (gate == 3), other=0)
    grad += member * grad_member
    last += member * last_member
    x += member * x_member
    h += member * h_member
    row = tl.arange(0, BLOCK_R)
    for i in range(tl.program_id(0), tiles, tl.num_programs(0)):
        begin = tl.cast(i, tl.int64) * BLOCK_R
        live = begin + row < num_rows
        input = _tile_of(x, begin, row, live, x_row, unit, unit < inputs)
        state = _tile_of(h, begin, row, live, h_row, unit, unit < hidden)
        input, state = _bend(input, X_SLOPE), _bend(state, H_SLOPE)
        if FAR:
            here = begin + row < near
            upstream = _tile_of(grad, begin, row, live & here, grad_row, unit, unit < hidden)
            upstream += _tile_of(last, begin, row, live & ~here, last_row, unit, unit < hidden)
        else:
            upstream = _tile_of(grad, begin, row, live, grad_row, unit, unit < hidden)
        past = tl.zeros_like(upstream)  # the gradient of rows whose state stays unchanged
        if STAYS != "none":
            going = tl.load(until + begin + row, mask=live, other=0) > step
            past = tl.where(going[:, None], 0, upstream)
            upstream = tl.where(going[:, None], upstream, 0)
        t_1, t_2, t_3 = parts(_side_by_side(input, state, input, state, 2), PRECISION)
        r, z, n, candidate = _gates(t_1, t_2, t_3, w_1, w_2, w_3, bias, PRECISION, BLOCK_R, BLOCK)
        by_n = upstream * (1 - z) * (1 - n * n)  # gradients before tanh and σ
        by_z = upstream * (state - n) * z * (1 - z)
        by_r = by_n * candidate * r * (1 - r)
        by_gate = _side_by_side(by_r, by_z, by_n, by_n * r, 4)
        g_1, g_2, g_3 = parts(by_gate, PRECISION)
        if TO_X or TO_H:
            total = product_of_parts(g_1, g_2, g_3, w_1, w_2, w_3, PRECISION)
            to_x, to_h = tl.split(tl.permute(tl.reshape(total, [BLOCK_R, 2, BLOCK]), (0, 2, 1)))
            first = begin * members + member
            if TO_X:
                to_x = _bend_back(to_x, input, X_SLOPE)
                if STAYS == "x":
                    to_x += past
                to = grad_x + first * inputs + ((row * members * inputs)[:, None] + unit[None, :])
                tl.store(to, to_x, mask=live[:, None] & (unit < inputs)[None, :])
            if TO_H:
                to = grad_h + first * hidden + ((row * members * hidden)[:, None] + unit[None, :])
                to_h = _bend_back(to_h + upstream * z, state, H_SLOPE)
                if STAYS == "h":
                    to_h += past
                tl.store(to, to_h, mask=live[:, None] & (unit < hidden)[None, :])
        if TO_PARAMETERS:
            to_weight += product_of_parts(
                tl.trans(g_1), tl.trans(g_2), tl.trans(g_3), t_1, t_2, t_3, PRECISION
            )
            to_bias += tl.sum(by_gate, 0)
    if TO_PARAMETERS:
        tl.store(partial_ih + to_ih, to_weight, mask=in_ih)
        tl.store(partial_hh + to_hh, to_weight, mask=in_hh)
        tl.store(partial_b_ih + offset, to_bias, mask=in_bias & (gate < 3))
        tl.store(partial_b_hh + offset, to_bias, mask=in_bias & (gate != 2))


@dataclass(frozen=True)
class StepOptions:
    """Options of a step of a recurrence.

    One of x and h is the state. The other goes through an activation with this `slope` below 0.
    From step until[i] on, the state of row i stays unchanged. Rows from `near` on take part in no
    later step: their results, or the gradients of these, are in `last`."""

    slope: float = 1.0
    swapped: bool = False  # whether x is the state
    until: Tensor | None = None  # (rows,)
    step: int = 0
    near: int = 0
    last: Tensor | None = None  # (rows, members, hidden)

    def arguments(self, like: Tensor) -> dict[str, Any]:
        state = "x" if self.swapped else "h"
        last = like if self.last is None else unit_stride(self.last)
        return dict(
            until=like if self.until is None else self.until.contiguous(),
            step=self.step,
            near=self.near,
            last=last,
            last_row=last.stride(0),
            last_member=last.stride(1),
            FAR=self.last is not None,
            STAYS="none" if self.until is None else state,
            X_SLOPE=1.0 if self.swapped else self.slope,
            H_SLOPE=self.slope if self.swapped else 1.0,
        )


_ALONE = StepOptions()


def forward(
    x: Tensor, h: Tensor, parameters: Sequence[Tensor], out: Tensor, turn: StepOptions = _ALONE
) -> None:
    """Write the next state (rows, members, hidden) to `out`."""
    if out.numel() == 0:
        return
    inputs = _arguments(x, h, parameters) | turn.arguments(x)
    programs = max(1, min(likely(inputs["tiles"]), 2 * _PROGRAMS // out.shape[1]))
    with on_device(x):
        _gru_kernel[(programs, out.shape[1])](**inputs, out=out, num_stages=2)


def backward(
    grad: Tensor,
    x: Tensor,
    h: Tensor,
    parameters: Sequence[Tensor],
    grad_x: Tensor,
    grad_h: Tensor,
    flat: Tensor,
    turn: StepOptions = _ALONE,
) -> None:
    """Write the gradients of x, of h, and of all parameters, concatenated, to `flat`. Tensors
    without elements are skipped."""
    if grad.numel() == 0:
        grad_x.zero_()
        flat.zero_()
        return
    sums = sums_of(h, flat)
    add_backward(grad, x, h, parameters, grad_x, grad_h, sums, turn)
    sums.finish()


def sums_of(h: Tensor, flat: Tensor) -> Sums:
    """Return the partial sums that `add_backward` adds to; `flat` receives the result."""
    tiles = likely(cdiv(h.shape[0], _TILE))
    return Sums(flat, max(1, min(tiles, _PROGRAMS // h.shape[1])) if flat.numel() > 0 else tiles)


def add_backward(
    grad: Tensor,
    x: Tensor,
    h: Tensor,
    parameters: Sequence[Tensor],
    grad_x: Tensor,
    grad_h: Tensor,
    sums: Sums,
    turn: StepOptions = _ALONE,
) -> None:
    """Write the gradients of x and h, and add those of the parameters to `sums`."""
    grad = unit_stride(grad)
    with on_device(x):
        _gru_backward_kernel[(sums.splits, grad.shape[1])](
            grad=grad, grad_row=grad.stride(0), grad_member=grad.stride(1),
            **_arguments(x, h, parameters), **turn.arguments(x), grad_x=grad_x, grad_h=grad_h,
            partial=sums.partial, size=sums.out.numel(), TO_X=grad_x.numel() > 0,
            TO_H=grad_h.numel() > 0, TO_PARAMETERS=sums.needed, MORE=sums.go_on(), num_stages=3,
        )  # fmt: skip


def _arguments(x: Tensor, h: Tensor, parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Return the arguments that both kernels share."""
    weight_ih, weight_hh, bias_ih, bias_hh = (p.contiguous() for p in parameters)
    x, h = unit_stride(x), unit_stride(h)
    block = block_of(max(x.shape[2], h.shape[2]))
    return dict(
        x=x,
        x_row=x.stride(0),
        x_member=x.stride(1),
        inputs=x.shape[2],
        h=h,
        h_row=h.stride(0),
        h_member=h.stride(1),
        hidden=h.shape[2],
        weight_ih=weight_ih,
        weight_hh=weight_hh,
        bias_ih=bias_ih,
        bias_hh=bias_hh,
        num_rows=h.shape[0],
        members=h.shape[1],
        PRECISION=precision(x),
        tiles=cdiv(h.shape[0], _TILE),
        BLOCK_R=_TILE,
        BLOCK=block,
        num_warps=4 if block == 16 else 8,
    )
