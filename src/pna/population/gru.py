"""A gated recurrent unit, `torch.nn.GRUCell`, for many models at once and in one kernel each way.

    r = σ(W_ir x + b_ir + W_hr h + b_hr)
    z = σ(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))
    h' = (1 − z) ⊙ n + z ⊙ h

Weights and biases hold the gates r, z, n one after another. The kernels keep nothing but the
inputs for the backward pass and find the gates anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    fold,
    library,
    one_by_one,
    room,
)
from pna.population import gru_cpu
from pna.population.linears import has_kernels, of_one_type

#: The widest input and state for which Triton's kernels are made: beyond, registers spill.
WIDEST = 32


def gru_cell(
    x: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    until: Tensor | None = None,
    step: int = 0,
    swapped: bool = False,
) -> Tensor:
    """The next state h' (rows, hidden) of h, after the input x (rows, inputs).

    weight_ih is (3·hidden, inputs), weight_hh (3·hidden, hidden), biases (3·hidden). All take the
    type of x, or autocast's. Of a recurrence this may be one `step`, of which row i takes those
    below until[i]; then it stays as it is: h, or x where that is the state, `swapped`.
    """
    x, h, *parameters = of_one_type(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    if has_kernels(x, max(x.shape[1], h.shape[1]), WIDEST) and fast_paths.is_on("gru"):
        stacked = [p.unsqueeze(0) for p in parameters]
        wide = (x.unsqueeze(1), h.unsqueeze(1))
        return torch.ops.pna.gru_cell(*wide, *stacked, until, step, swapped).squeeze(1)
    by_c = choose(x.device) == "cpu" and gru_cpu.takes(x, h) and fast_paths.is_on("gru_cpu")
    new = (gru_cpu.gru_cell if by_c else definition)(x, h, *parameters)
    if until is None:
        return new
    return torch.where((until > step)[:, None], new, x if swapped else h)


def definition(
    x: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """`gru_cell` in plain torch, as fast on a CPU as `torch.nn.GRUCell`."""
    i_r, i_z, i_n = linear(x, weight_ih, bias_ih).chunk(3, -1)
    h_r, h_z, h_n = linear(h, weight_hh, bias_hh).chunk(3, -1)
    z = torch.sigmoid(i_z + h_z)
    n = torch.tanh(i_n + torch.sigmoid(i_r + h_r) * h_n)
    return n + z * (h - n)


_INPUTS = "Tensor x, Tensor h, Tensor weight_ih, Tensor weight_hh, Tensor bias_ih, Tensor bias_hh"
_HOW = "Tensor? until, int step, bool swapped"
_COUNT = 6
library.define(f"gru_cell({_INPUTS}, {_HOW}) -> Tensor")
library.define(
    f"gru_cell_backward(Tensor grad, bool[] needs, {_INPUTS}, {_HOW}) -> (Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "gru_cell", "CompositeExplicitAutograd")
def _forward(x: Tensor, h: Tensor, *rest: Any) -> Tensor:
    """h' (rows, members, hidden), contiguous.

    x and h are (rows, members, …), weights (members, 3·hidden, …), biases (members, 3·hidden).
    """
    from pna.population.triton import gru as kernels

    *parameters, until, step, swapped = rest
    out = h.new_empty(h.shape)
    turn = kernels.Turn(swapped=swapped, until=until, step=step)
    kernels.forward(x, h, parameters, out, turn)
    return out


@torch.library.register_fake("pna::gru_cell", lib=library)
def _(x: Tensor, h: Tensor, *_: Any) -> Tensor:
    return h.new_empty(h.shape)


@torch.library.impl(library, "gru_cell_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor, needs: Sequence[bool], x: Tensor, h: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of h, and of all parameters one after another; `needs` is of these three,
    and those not needed have no length."""
    from pna.population.triton import gru as kernels

    *parameters, until, step, swapped = rest
    grads = _empty_gradients(needs, x, h, parameters)
    turn = kernels.Turn(swapped=swapped, until=until, step=step)
    kernels.backward(grad, x, h, parameters, *grads, turn)
    return grads


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, h: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    size = sum(math.prod(p.shape) for p in parameters) if needs[2] else 0
    return room(x, needs[0], x), room(h, needs[1], h), x.new_empty(size)


def _parts(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of every parameter in the tensor that holds them all."""
    parts = flat.split([math.prod(p.shape) for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


@torch.library.register_fake("pna::gru_cell_backward", lib=library)
def _(grad: Tensor, needs: Sequence[bool], x: Tensor, h: Tensor, *rest: Any) -> Any:
    return _empty_gradients(needs, x, h, rest[: _COUNT - 2])


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        *tensors, ctx.step, ctx.swapped = inputs
        ctx.save_for_backward(*tensors)
        return below_autograd(torch.ops.pna.gru_cell.default, keyset, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        _, for_x, for_h, *for_parameters = ctx.needs_input_grad[: _COUNT + 1]
        needs = [for_x, for_h, any(for_parameters)]
        tensors = ctx.saved_tensors
        grad_x, grad_h, flat = torch.ops.pna.gru_cell_backward(
            grad, needs, *tensors, ctx.step, ctx.swapped
        )
        given: list[Tensor | None] = [None] * 4
        if needs[2]:
            parts = zip(_parts(flat, tensors[2:_COUNT]), for_parameters, strict=True)
            given = [part if needed else None for part, needed in parts]
        return None, grad_x if for_x else None, grad_h if for_h else None, *given, *[None] * 3


differentiate("gru_cell", _Differentiable)
differentiate_once("gru_cell_backward", "pna.ops.gru_cell")


@torch.library.register_vmap("pna::gru_cell", lib=library)
def _(info: Any, in_dims: Sequence[Any], x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, int]:
    """Members of a vmap are members; where they have no parameters of their own, rows."""
    batch, (*parameters, until, step, swapped) = info.batch_size, rest
    if in_dims[_COUNT] is not None:
        raise ValueError("got a vmapped until, expected rows that all members share")
    x, h = (fold(t, d, 1, batch) for t, d in zip((x, h), in_dims[:2], strict=True))
    if all(d is None for d in in_dims[2:_COUNT]):
        x, h = (t.unflatten(1, (batch, -1)).flatten(0, 1) for t in (x, h))
        until = None if until is None else until.repeat_interleave(batch)
        out = torch.ops.pna.gru_cell(x, h, *parameters, until, step, swapped)
        return out.unflatten(0, (-1, batch)), 1
    own = [fold(p, d, 0, batch) for p, d in zip(parameters, in_dims[2:_COUNT], strict=True)]
    out = torch.ops.pna.gru_cell(x, h, *own, until, step, swapped)
    return out.unflatten(1, (batch, -1)), 1


torch.library.register_vmap("pna::gru_cell_backward", one_by_one("gru_cell_backward"), lib=library)
