"""A gated recurrent unit (`torch.nn.GRUCell`) for many models at once, with one kernel per pass.

    r = σ(W_ir x + b_ir + W_hr h + b_hr)
    z = σ(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))
    h' = (1 − z) ⊙ n + z ⊙ h

Weights and biases concatenate the gates r, z, n. The Triton kernels save only the inputs for the
backward pass, which recomputes the gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from pna import fast_paths
from pna.ops.operators import empty_gradient, gradient_operator, no_second_derivative, operator
from pna.ops.vmap_rules import Fold
from pna.population.linears import has_kernels, of_one_type

#: Largest input and state width of the Triton kernels; wider tiles spill registers.
WIDEST = 32


class Parameters(NamedTuple):
    """Parameters of `torch.nn.GRUCell`; rows are the gates r, z, n, concatenated."""

    weight_ih: Tensor  # (3·hidden, inputs)
    weight_hh: Tensor  # (3·hidden, hidden)
    bias_ih: Tensor  # (3·hidden,)
    bias_hh: Tensor  # (3·hidden,)


class StepNumber(NamedTuple):
    """Position in a recurrence; the fields are arguments of `gru_cell`."""

    until: Tensor | None
    step: int
    swapped: bool


def gru_cell(
    x: Tensor,
    h: Tensor,
    parameters: Sequence[Tensor],
    until: Tensor | None = None,
    step: int = 0,
    swapped: bool = False,
) -> Tensor:
    """Return the next state h' (rows, hidden) of state h after input x (rows, inputs).

    `parameters` are those of `Parameters`. All tensors are cast to the dtype of x, or to that of
    autocast. The call may be one `step` of a recurrence: row i is updated while step < until[i].
    After that, the result is its state unchanged: h, or x if `swapped`.
    """
    x, h, *parameters = of_one_type(x, h, *parameters)
    if has_kernels(x, max(x.shape[1], h.shape[1]), WIDEST) and fast_paths.is_on("gru"):
        stacked = Parameters(*[p.unsqueeze(0) for p in parameters])
        wide = (x.unsqueeze(1), h.unsqueeze(1))
        return _gru_cell(*wide, stacked, until, step, swapped).squeeze(1)
    new = definition(x, h, *parameters)
    if until is None:
        return new
    return torch.where((until > step)[:, None], new, x if swapped else h)


def definition(
    x: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """`gru_cell` in plain torch. On a CPU it is as fast as `torch.nn.GRUCell`."""
    i_r, i_z, i_n = linear(x, weight_ih, bias_ih).chunk(3, -1)
    h_r, h_z, h_n = linear(h, weight_hh, bias_hh).chunk(3, -1)
    z = torch.sigmoid(i_z + h_z)
    n = torch.tanh(i_n + torch.sigmoid(i_r + h_r) * h_n)
    return n + z * (h - n)


def _forward(
    x: Tensor, h: Tensor, parameters: Parameters, until: Tensor | None, step: int, swapped: bool
) -> Tensor:
    """Return h' (rows, members, hidden), contiguous.

    x and h are (rows, members, …), weights (members, 3·hidden, …), biases (members, 3·hidden).
    """
    from pna.population.triton import gru as kernels

    out = h.new_empty(h.shape)
    turn = kernels.StepOptions(swapped=swapped, until=until, step=step)
    kernels.forward(x, h, parameters, out, turn)
    return out


def _allocate(h: Tensor) -> Tensor:
    return h.new_empty(h.shape)


def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    h: Tensor,
    parameters: Parameters,
    turn: StepNumber,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of x, of h, and of all parameters, concatenated and flat.

    `needs` says which of these three are needed.
    """
    from pna.population.triton import gru as kernels

    until, step, swapped = turn
    how = kernels.StepOptions(swapped=swapped, until=until, step=step)
    kernels.backward(grad, x, h, parameters, *gradients, how)


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, h: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    size = sum(math.prod(p.shape) for p in parameters) if needs[2] else 0
    return empty_gradient(x, needs[0], x), empty_gradient(h, needs[1], h), x.new_empty(size)


def gradients_in(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Split the flat gradient of all parameters into views, one for each parameter."""
    parts = flat.split([math.prod(p.shape) for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


_gru_cell_backward = gradient_operator(
    "gru_cell_backward",
    _backward,
    tangent=no_second_derivative("pna.population.gru"),
    allocate=_empty_gradients,
)


def _gradients(
    grad: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    h: Tensor,
    parameters: Parameters,
    turn: StepNumber,
) -> Any:
    for_x, for_h, *for_parameters = needs
    wanted = [for_x, for_h, any(for_parameters)]
    to_x, to_h, flat = _gru_cell_backward(grad, wanted, x, h, parameters, turn)
    return to_x, to_h, *(gradients_in(flat, parameters) if wanted[2] else [None] * 4)


_gru_cell = operator(
    "gru_cell",
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=("x", "h", *Parameters._fields),
    vmap=Fold(
        {"x": 1, "h": 1, **dict.fromkeys(Parameters._fields, 0)},
        results=(1,),
        rows=("x", "h", "until"),
    ),
)
