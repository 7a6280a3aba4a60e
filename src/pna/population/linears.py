"""Linear maps of one input through several weights, for many models at once.

`torch.vmap` turns `F.linear` into a batched product with the members as first axis. The gradients
of its weights are sums over all nodes; their kernel is the slowest of a small model. The operator
of this file keeps the layout (rows, members, features), like the other operators, and splits the
sums over rows. Without kernels it calls `F.linear`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import empty_gradient, gradient_operator, operator
from pna.ops.vmap_rules import Fold

#: Largest input and output width of the Triton kernels, and the limit if a width is odd: elements
#: are then loaded one by one. For wider maps the libraries are fast.
WIDEST, WIDEST_ODD = 256, 128


def linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Return x W_kᵀ + b_k for every k: x (…, inputs), W_k (outputs, inputs), b_k (outputs) or None.

    Parameters are cast to the dtype of x. Under autocast all tensors are cast to its dtype, as in
    `torch.nn.functional.linear`.
    """
    x, *rest = of_one_type(x, *weights, *biases)
    weights, biases = rest[: len(weights)], rest[len(weights) :]
    if not takes_widths(x, x.shape[-1], *(w.shape[0] for w in weights)):
        return [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    rows = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    outputs = _linears(
        rows.unsqueeze(1),
        [w.unsqueeze(0) for w in weights],
        [None if b is None else b.unsqueeze(0) for b in biases],
    )
    if x.dim() == 2:
        return [y.squeeze(1) for y in outputs]
    return [y.reshape(*x.shape[:-1], y.shape[-1]) for y in outputs]


def tower_linears(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> list[Tensor]:
    """Apply `linears` in every tower. x is (rows, towers, inputs), W_k (towers, outputs, inputs),
    b_k (towers, outputs) or None; each result is (rows, towers, outputs)."""
    x, *rest = of_one_type(x, *weights, *biases)
    weights, biases = rest[: len(weights)], rest[len(weights) :]
    if takes_towers(x, weights):
        return list(_linears(x, weights, biases))
    return [tower_linear(x, w, b) for w, b in zip(weights, biases, strict=True)]


def tower_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear map in every tower, in plain torch: x (rows, towers, inputs), weight
    (towers, outputs, inputs) and bias (towers, outputs) to (rows, towers, outputs)."""
    out = torch.einsum("nti,toi->nto", x, weight)
    return out if bias is None else out + bias


def takes_towers(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Return whether the kernels compute `tower_linears` of all these weights at once."""
    return takes_widths(x, *(n for w in weights for n in w.shape[1:]))


def takes_widths(x: Tensor, *widths: int) -> bool:
    """Return whether the kernels support tensors like x with these input and output widths."""
    odd, widest = any(width % 2 for width in widths), max(widths)
    if not has_kernels(x, widest, WIDEST_ODD if odd else WIDEST):
        return False
    if not fast_paths.is_on("linears"):
        return False
    return widest <= WIDEST_ODD or fast_paths.is_on("wide_linear")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, but fast for few features and under vmap."""
    return linears(x, [weight], [bias])[0]


def of_one_type(x: Tensor, *others: Tensor | None) -> list[Any]:
    """Cast all tensors to the dtype of autocast if it is enabled, else to the dtype of x.

    Autocast is ignored if x is float64.
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
    return [None if t is None else t.to(dtype) for t in (x, *others)]


def has_kernels(x: Tensor, widest: int, limit: int) -> bool:
    """Return whether the Triton kernels support tensors like x whose largest width is `widest`."""
    short = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return short and widest <= limit and choose(x.device) == "triton"


def _forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Apply weights (members, outputs, inputs) to x (rows, members, inputs).

    The outputs are contiguous.
    """
    from pna.population.triton import linears as kernels

    outputs = _allocate(x, weights)
    kernels.forward(x, weights, biases, outputs)
    return outputs


def _allocate(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty((*x.shape[:2], w.shape[1])) for w in weights]


def _backward(
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
    x: Tensor,
    weights: Sequence[Tensor],
    gradients: tuple[Tensor, Tensor],
) -> None:
    """Write the gradient of x, and those of every weight and its bias, concatenated and flat.

    `needs` says whether x, and whether any parameter, needs a gradient. If an output has no
    gradient, the part of its weight and bias in the flat tensor is not written.
    """
    from pna.population.triton import linears as kernels

    kernels.backward(grads, x, weights, *gradients)


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    size = sum(_sizes(weights)) if needs[1] else 0
    return empty_gradient(x, needs[0], x), x.new_empty(size)


def _sizes(weights: Sequence[Tensor]) -> list[int]:
    """Return the numbers of elements of every weight and its bias, in turn."""
    return [n for w in weights for n in (math.prod(w.shape), math.prod(w.shape[:2]))]


def gradients_in(flat: Tensor, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Split the flat gradient into views: (weight, bias) for every linear map."""
    parts = flat.split(_sizes(weights))
    pairs = zip(parts[::2], parts[1::2], weights, strict=True)
    return [(of_w.view(w.shape), of_b.view(w.shape[:2])) for of_w, of_b, w in pairs]


def _tangent(
    x: Tensor, weights: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> list[Tensor]:
    """The outputs are linear in x, and in the parameters."""
    of_x, of_parameters = tangents
    results = [y.zero_() for y in _allocate(x, weights)]
    if of_x is not None:
        of_each = _linears(of_x, weights, [None] * len(weights))
        results = [y + z for y, z in zip(results, of_each, strict=True)]
    if of_parameters is not None:
        of_weights, of_biases = zip(*gradients_in(of_parameters, weights), strict=True)
        of_each = _linears(x, of_weights, of_biases)
        results = [y + z for y, z in zip(results, of_each, strict=True)]
    return results


_linears_backward = gradient_operator(
    "linears_backward", _backward, tangent=_tangent, allocate=_empty_gradients
)


def _gradients(
    grads: Sequence[Tensor | None], needs: Sequence[bool], x: Tensor, weights: Sequence[Tensor]
) -> Any:
    for_parameters = needs[1] or needs[2]
    grad_x, flat = _linears_backward(grads, [needs[0], for_parameters], x, weights)
    if not for_parameters:
        return grad_x, None, None
    parts = gradients_in(flat, weights)
    given = [p if g is not None else (None, None) for p, g in zip(parts, grads, strict=True)]
    return grad_x, [of_w for of_w, _ in given], [of_b for _, of_b in given]


_linears = operator(
    "linears",
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=("x", "weights", "biases"),
    vmap=Fold({"x": 1, "weights": 0, "biases": 0}, results=(1,), rows=("x",)),
)
