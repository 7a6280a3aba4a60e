"""Batch normalisation over the real rows of a padded batch, for many models at once.

    y = (x − μ) / √(σ² + ε) ⊙ w + b

with the mean μ and the variance σ² of the real rows, in all processes; of x with each row times a
factor, where these are given, and max(y, 0) of it where a ReLU is to follow. Padding is mapped like
any other row. Kernels take two launches each way, whatever of this there is, of plain torch about
forty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
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
from pna.ops.request import wide_type
from pna.population.all_reduce import processes, sum_of_all
from pna.population.linears import has_kernels


def batch_norm(
    x: Tensor,
    real: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    relu: bool = False,
    factors: Tensor | None = None,
) -> Tensor:
    """`torch.nn.functional.batch_norm` in training: x (rows, width) to as much, in its type.

    real (rows,) bool is None where all rows are, factors (rows,) where all are 1; the others are
    (width,). The running statistics
    move by `momentum` towards those of the batch, with an unbiased variance. Where no two rows
    are real they stay as they are, and are what is normalised with.
    """
    kernels = has_kernels(x, 0, 0) and weight.dtype != torch.float64 and processes() == 1
    kernels = kernels and fast_paths.is_on("batch_norm")
    if factors is not None and (not kernels or factors.requires_grad):
        x, factors = x * factors[:, None].to(x.dtype), None
    if not kernels:
        y = definition(x, real, weight, bias, running_mean, running_var, momentum, eps)
        return torch.relu(y) if relu else y
    if real is None:
        real = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    stacked = [t.unsqueeze(0) for t in (weight, bias, running_mean, running_var)]
    y, _ = torch.ops.pna.batch_norm(x.unsqueeze(1), real, *stacked, momentum, eps, relu, factors)
    return y.squeeze(1)


def definition(
    x: Tensor,
    real: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    """`batch_norm` without factors and ReLU, in plain torch, in float32 or the weights' type."""
    dtype, x = x.dtype, x.to(wide_type(weight.dtype))
    mask = None if real is None else real[:, None].to(x.dtype)
    count = x.new_full((), float(x.shape[0])) if mask is None else mask.sum()
    total = sum_of_all(
        torch.cat([(x if mask is None else torch.where(mask > 0, x, 0)).sum(0), count[None]])
    )
    sums, count = total[:-1], total[-1]
    mean = sums / count.clamp(min=1)
    centred = (x - mean) if mask is None else torch.where(mask > 0, x - mean, 0)
    squares = sum_of_all((centred * centred).sum(0))
    several = count > 1
    with torch.no_grad():
        share = momentum * several.to(x.dtype)
        unbiased = squares / (count - 1).clamp(min=1)
        running_mean += share * (mean - running_mean)
        running_var += share * (unbiased - running_var)
    mean = torch.where(several, mean, running_mean)
    var = torch.where(several, squares / count.clamp(min=1), running_var)
    scale = weight * (var + eps).rsqrt()
    return torch.addcmul(bias - mean * scale, x, scale).to(dtype)


library.define(
    "batch_norm(Tensor x, Tensor real, Tensor weight, Tensor bias, Tensor(a!) running_mean, "
    "Tensor(b!) running_var, float momentum, float eps, bool relu, "
    "Tensor? factors) -> (Tensor, Tensor)"
)
library.define(
    "batch_norm_backward(Tensor grad, bool[] needs, Tensor x, Tensor real, Tensor weight, "
    "Tensor bias, Tensor moments, bool relu, Tensor? factors) -> (Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "batch_norm", "CompositeExplicitAutograd")
def _forward(
    x: Tensor,
    real: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """y, contiguous, of x (rows, members, width), real and factors (rows,), and others (members,
    width).

    Then, for its gradients and in float32, moments (3, members, width): the mean and the inverse
    standard deviation that rows were normalised with, and the weight of a row in them.
    """
    from pna.population.triton import batch_norm as kernels

    running = running_mean.contiguous(), running_var.contiguous()
    y, moments = _allocate(x)
    kernels.forward(x, real, weight, bias, *running, momentum, eps, relu, factors, y, moments)
    for given, moved in zip((running_mean, running_var), running, strict=True):
        if moved is not given:
            given.copy_(moved)
    return y, moments


def _allocate(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((3, *x.shape[1:]), dtype=torch.float32)


@torch.library.register_fake("pna::batch_norm", lib=library)
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _allocate(x)


@torch.library.impl(library, "batch_norm_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    x: Tensor,
    real: Tensor,
    weight: Tensor,
    bias: Tensor,
    moments: Tensor,
    relu: bool,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias; those not needed have no length."""
    from pna.population.triton import batch_norm as kernels

    grads = _empty_gradients(needs, x, weight)
    kernels.backward(grad, x, real, weight, bias, moments, relu, factors, *grads)
    return grads


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return room(x, needs[0], x), room(weight, needs[1], weight), room(weight, needs[2], weight)


@torch.library.register_fake("pna::batch_norm_backward", lib=library)
def _(grad: Tensor, needs: Sequence[bool], x: Tensor, real: Tensor, weight: Tensor, *_: Any) -> Any:
    return _empty_gradients(needs, x, weight)


class _Differentiable(Function):
    """The operator and its gradients; moments, running statistics and factors have none."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        y, moments = below_autograd(torch.ops.pna.batch_norm.default, keyset, inputs)
        ctx.mark_non_differentiable(moments)
        ctx.set_materialize_grads(False)
        *_, ctx.relu, factors = inputs
        ctx.save_for_backward(*inputs[:4], moments, factors)
        return y, moments

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> Any:
        _, for_x, _, for_weight, for_bias, *rest = ctx.needs_input_grad
        needs = [for_x, for_weight, for_bias]
        if grad is None or not any(needs):
            return (None,) * len(ctx.needs_input_grad)
        *saved, factors = ctx.saved_tensors
        grads = torch.ops.pna.batch_norm_backward(grad, needs, *saved, ctx.relu, factors)
        grad_x, grad_weight, grad_bias = (
            g if n else None for g, n in zip(grads, needs, strict=True)
        )
        return None, grad_x, None, grad_weight, grad_bias, *[None] * len(rest)


differentiate("batch_norm", _Differentiable)
differentiate_once("batch_norm_backward", "pna.population.batch_norm")


@torch.library.register_vmap("pna::batch_norm", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], x: Tensor, real: Tensor, *rest: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Members of a vmap are members; where they have rows or factors of their own, one after
    another."""
    batch = info.batch_size
    if None in in_dims[4:6]:
        raise ValueError(
            "got running statistics that all members of a vmap share, but each member changes "
            "them; expected one for every member, as `Population` gives them"
        )
    if in_dims[1] is not None or in_dims[-1] is not None:
        pairs = list(zip((x, real, *rest), in_dims, strict=True))
        results = [
            torch.ops.pna.batch_norm(*[a if d is None else a.select(d, i) for a, d in pairs])
            for i in range(batch)
        ]
        y, moments = (torch.stack(r, 1) for r in zip(*results, strict=True))
        return (y, moments), (1, 1)
    parameters = [fold(t, d, 0, batch) for t, d in zip(rest[:4], in_dims[2:6], strict=True)]
    x = fold(x, in_dims[0], 1, batch)
    y, moments = torch.ops.pna.batch_norm(x, real, *parameters, *rest[4:])
    return (y.unflatten(1, (batch, -1)), moments.unflatten(1, (batch, -1))), (1, 1)


torch.library.register_vmap(
    "pna::batch_norm_backward", one_by_one("batch_norm_backward"), lib=library
)
