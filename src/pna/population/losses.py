"""Errors of predictions, summed over the rows that have a target, for many models at once.

Of few rows plain torch launches eight kernels, forward and backward, that do next to nothing. Here
it is one, which finds the slopes of the errors too, and one that multiplies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    fold,
    library,
)

#: The errors there are of a prediction p with a target y: (p − y)², |p − y|, Huber's, and
#: log(1 + eᵖ) − p y. Kernels take their numbers.
KINDS = {"mse": 0, "mae": 1, "huber": 2, "bce": 3}

#: One program adds up the rows of a task; of more rows several should.
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
    return torch.ops.pna.summed_errors(outputs.unsqueeze(1), values, known, kind)[0].squeeze(0)


library.define(
    "summed_errors(Tensor outputs, Tensor values, Tensor known, str kind) -> (Tensor, Tensor)"
)
library.define("summed_errors_backward(Tensor grad, Tensor slopes) -> Tensor")


@torch.library.impl(library, "summed_errors", "CompositeExplicitAutograd")
def _forward(outputs: Tensor, values: Tensor, known: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Sums (members, tasks) of outputs (rows, members, tasks), and slopes of errors, as outputs."""
    from pna.population.triton import losses as kernels

    sums, slopes = _allocate(outputs)
    kernels.forward(outputs, values, known, KINDS[kind], sums, slopes)
    return sums, slopes


def _allocate(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.new_empty(outputs.shape[1:]), outputs.new_empty(outputs.shape)


@torch.library.register_fake("pna::summed_errors", lib=library)
def _(outputs: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _allocate(outputs)


@torch.library.impl(library, "summed_errors_backward", "CompositeExplicitAutograd")
def _backward(grad: Tensor, slopes: Tensor) -> Tensor:
    return slopes * grad


@torch.library.register_fake("pna::summed_errors_backward", lib=library)
def _(grad: Tensor, slopes: Tensor) -> Tensor:
    return torch.empty_like(slopes)


class _Differentiable(Function):
    """The operator and its gradient; slopes have none."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        sums, slopes = below_autograd(torch.ops.pna.summed_errors.default, keyset, inputs)
        ctx.mark_non_differentiable(slopes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slopes)
        return sums, slopes

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
        of_outputs = None
        if grad is not None:
            of_outputs = torch.ops.pna.summed_errors_backward(grad, *ctx.saved_tensors)
        return None, of_outputs, None, None, None


differentiate("summed_errors", _Differentiable)
differentiate_once("summed_errors_backward", "a sum of errors")


@torch.library.register_vmap("pna::summed_errors", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], outputs: Tensor, values: Tensor, known: Tensor, kind: str
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Members of a vmap are members, with the same targets."""
    if in_dims[1:3] != (None, None):
        raise ValueError("got vmapped targets, expected such as all members share")
    batch = info.batch_size
    outputs = fold(outputs, in_dims[0], 1, batch)
    sums, slopes = torch.ops.pna.summed_errors(outputs, values, known, kind)
    return (sums.unflatten(0, (batch, -1)), slopes.unflatten(1, (batch, -1))), (0, 1)


@torch.library.register_vmap("pna::summed_errors_backward", lib=library)
def _(info: Any, in_dims: Sequence[Any], grad: Tensor, slopes: Tensor) -> tuple[Tensor, int]:
    batch = info.batch_size
    folded = fold(grad, in_dims[0], 0, batch), fold(slopes, in_dims[1], 1, batch)
    return torch.ops.pna.summed_errors_backward(*folded).unflatten(1, (batch, -1)), 1
