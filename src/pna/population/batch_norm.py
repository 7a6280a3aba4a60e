"""Batch normalisation over the real rows of a padded batch, for many models at once.

    y = (x − μ) / √(σ² + ε) ⊙ w + b

The mean μ and the variance σ² are those of the real rows of all processes. Each row of x may first
be multiplied by a factor, and a ReLU may follow. Padding rows are normalised like any other row.
The kernels need two launches per pass; plain torch needs about forty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.operators import gradient_operator, no_second_derivative, operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold, one_by_one
from pna.population.all_reduce import all_reduce_sum, world_size
from pna.population.linears import has_kernels


class Norm(NamedTuple):
    """Parameters and running statistics, (width,) each; momentum and eps as in
    `torch.nn.BatchNorm1d`."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    eps: float


def batch_norm(
    x: Tensor,
    real: Tensor | None,
    norm: Norm,
    relu: bool = False,
    factors: Tensor | None = None,
) -> Tensor:
    """Apply `torch.nn.functional.batch_norm` in training mode to x (rows, width).

    The result has the shape and dtype of x. real (rows,) bool marks the real rows; None means that
    all are real. factors (rows,) are None if all are 1. The running statistics are updated with
    `momentum` and the unbiased variance of the batch. If fewer than two rows are real, the running
    statistics stay unchanged and are used to normalise the batch.
    """
    kernels = has_kernels(x, 0, 0) and norm.weight.dtype != torch.float64 and world_size() == 1
    kernels = kernels and fast_paths.is_on("batch_norm")
    if factors is not None and (not kernels or factors.requires_grad):
        x, factors = x * factors[:, None].to(x.dtype), None
    if not kernels:
        y = definition(x, real, norm)
        return torch.relu(y) if relu else y
    if real is None:
        real = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    weight, bias, mean, var = (t.unsqueeze(0) for t in norm[:4])
    stacked = Norm(weight, bias, mean, var, norm.momentum, norm.eps)
    return _batch_norm(x.unsqueeze(1), real, stacked, relu, factors)[0].squeeze(1)


def definition(x: Tensor, real: Tensor | None, norm: Norm) -> Tensor:
    """`batch_norm` in plain torch, without factors and ReLU.

    It computes in float32, or in float64 if the weights are float64.
    """
    weight, bias, running_mean, running_var, momentum, eps = norm
    dtype, x = x.dtype, x.to(wide_type(weight.dtype))
    mask = None if real is None else real[:, None].to(x.dtype)
    count = x.new_full((), float(x.shape[0])) if mask is None else mask.sum()
    total = all_reduce_sum(
        torch.cat([(x if mask is None else torch.where(mask > 0, x, 0)).sum(0), count[None]])
    )
    sums, count = total[:-1], total[-1]
    mean = sums / count.clamp(min=1)
    centred = (x - mean) if mask is None else torch.where(mask > 0, x - mean, 0)
    squares = all_reduce_sum((centred * centred).sum(0))
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


class Normalised(NamedTuple):
    """The result, and the float32 moments that the backward pass needs.

    The moments are the mean and the inverse standard deviation used for normalisation, and
    1 / (number of real rows), or 0 if the running statistics were used.
    """

    y: Tensor  # (rows, members, width), contiguous
    moments: Tensor  # (3, members, width)


def _forward(x: Tensor, real: Tensor, norm: Norm, relu: bool, factors: Tensor | None) -> Normalised:
    """x is (rows, members, width), real and factors (rows,), tensors of norm (members, width)."""
    from pna.population.triton import batch_norm as kernels

    given = (norm.running_mean, norm.running_var)
    running = [t.contiguous() for t in given]
    results = _allocate(x)
    statistics = norm._replace(running_mean=running[0], running_var=running[1])
    kernels.forward(x, real, statistics, relu, factors, results)
    for old, moved in zip(given, running, strict=True):
        if moved is not old:
            old.copy_(moved)
    return results


def _allocate(x: Tensor) -> Normalised:
    moments = x.new_empty((3, *x.shape[1:]), dtype=torch.float32)
    return Normalised(x.new_empty(x.shape), moments)


class NormInputs(NamedTuple):
    """Inputs of the backward pass."""

    x: Tensor
    real: Tensor
    weight: Tensor
    bias: Tensor
    moments: Tensor
    relu: bool
    factors: Tensor | None


def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    inputs: NormInputs,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of x, weight and bias. Moments, running statistics and factors have no
    gradient."""
    from pna.population.triton import batch_norm as kernels

    kernels.backward(grad, inputs, gradients)


def _vmap(info: Any, in_dims: Sequence[Any], *inputs: Any) -> Any:
    if None in in_dims[4:6]:
        raise ValueError(
            "got running statistics that all members of a vmap share, but each member changes "
            "them; expected one for every member, as `Population` gives them"
        )
    return _folded(info, in_dims, *inputs)


_batch_norm_backward = gradient_operator(
    "batch_norm_backward",
    _backward,
    tangent=no_second_derivative("pna.population.batch_norm"),
    like=("x", "weight", "bias"),
)
_batch_norm = operator(
    "batch_norm",
    _forward,
    fake=_allocate,
    backward=_batch_norm_backward,
    differentiable=("x", "weight", "bias"),
    vmap=_vmap,
    mutates=("running_mean", "running_var"),
)
_folded = Fold(
    {"x": 1, **dict.fromkeys(Norm._fields[:4], 0)},
    results=(1, 1),
    # if `real` or `factors` differ between members
    otherwise=one_by_one(_batch_norm.overload, copy=False),
).rule(_batch_norm)
