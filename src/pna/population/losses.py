"""Errors of predictions, summed over the rows that have a target, for many models at once.

For few rows plain torch launches eight short kernels, forward and backward. Here there are two: one
sums the errors and computes their slopes, one multiplies the slopes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import Fold, gradient_operator, operator

#: The errors there are of a prediction p with a target y: (p − y)², |p − y|, Huber's, and
#: log(1 + eᵖ) − p y. Kernels take their numbers.
KINDS = {"mse": 0, "mae": 1, "huber": 2, "bce": 3}

#: One program sums the rows of a task; more rows would need several.
_MOST_ROWS = 2048


def takes(outputs: Tensor, values: Tensor) -> bool:
    """Whether `summed_errors` has a kernel for these."""
    few = 0 < outputs.shape[0] <= _MOST_ROWS and outputs.shape[1] > 0
    single = outputs.dtype == values.dtype == torch.float32
    taken = few and single and choose(outputs.device) == "triton"
    return taken and fast_paths.is_on("losses")


def summed_errors(outputs: Tensor, values: Tensor, known: Tensor, kind: str) -> Tensor:
    """Σ of the errors of outputs (rows, tasks), over the rows with `known` (rows, tasks) bool
    values (rows, tasks): (tasks,). What is not known is not looked at."""
    return _summed_errors(outputs.unsqueeze(1), values, known, kind)[0].squeeze(0)


class Errors(NamedTuple):
    sums: Tensor  # (members, tasks)
    slopes: Tensor  # of the errors, (rows, members, tasks)


def _forward(outputs: Tensor, values: Tensor, known: Tensor, kind: str) -> Errors:
    """Of outputs (rows, members, tasks)."""
    from pna.population.triton import losses as kernels

    errors = _allocate(outputs)
    kernels.forward(outputs, values, known, KINDS[kind], *errors)
    return errors


def _allocate(outputs: Tensor) -> Errors:
    return Errors(outputs.new_empty(outputs.shape[1:]), outputs.new_empty(outputs.shape))


def _backward(grad: Tensor, slopes: Tensor, gradients: tuple[Tensor]) -> None:
    torch.mul(slopes, grad, out=gradients[0])


_summed_errors_backward = gradient_operator(
    "summed_errors_backward",
    _backward,
    of="a sum of errors",
    like=("slopes",),
    vmap=Fold({"grad": 0, "slopes": 1}, results=(1,)),
)
_summed_errors = operator(
    "summed_errors",
    _forward,
    fake=_allocate,
    backward=_summed_errors_backward,
    differentiable=("outputs",),
    vmap=Fold({"outputs": 1}, results=(0, 1)),
)
