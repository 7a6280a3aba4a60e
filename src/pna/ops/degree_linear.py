"""A linear map whose weight depends on the node's degree, without a copy of its input per scaler.

A scaler is one number per node, equal for nodes of equal degree. So U applied to scalers ⊗
aggregates is Σ_r s_r(d) · (U_r aggregates). For the nodes of one degree, this is a single product
with Σ_r s_r(d) · U_r. Nodes are sorted by degree. A tile of nodes of one degree costs one product,
any other tile one product per scaler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops import degree_groups
from pna.ops.backend import choose
from pna.ops.operators import empty_gradient, gradient_operator, operator
from pna.ops.product import Product, definition, shifted
from pna.ops.vmap_rules import Fold, fold


def degree_linear(
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    adjacency: Adjacency,
    base: Tensor | None = None,
    shift: Tensor | None = None,
    times: Sequence[int] = (),
) -> Tensor:
    """base_i + Σ_r factors[i, r] · z_i W_r, in every tower: (receivers, towers, outputs).

    z is (receivers, A, towers, K), weight (R, towers, A·K, outputs); base has the shape of the
    result. factors (receivers, R) are monotone in `Adjacency.reached_degree`. First, shift
    (receivers, towers, K) is added to group a of the A groups of z: once if times[a] is 1, once per
    neighbour if it is 2.
    """
    weight = weight.to(z.dtype)
    base = None if base is None else base.to(z.dtype)
    shift = None if shift is None else shift.to(z.dtype)
    times = list(times) if shift is not None else []
    backend = choose(z.device)
    plain = backend == "reference" or (backend == "triton" and z.dtype == torch.float64)
    if plain or not fast_paths.is_on("degree_linear"):
        moved = shifted(z, shift, times, adjacency.incoming.lengths)
        return definition(moved, weight, factors, base)
    product = Product(z, weight, factors, shift, times, adjacency.indptr, adjacency.by_degree)
    return degree_linear_operator(product, base, backend)


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from pna.ops.triton import degree_linear as kernels

        return kernels
    return degree_groups


def _forward(product: Product, base: Tensor | None, backend: str) -> Tensor:
    out = _allocate(product.z, product.weight)
    if out.numel() > 0:
        _kernels(backend).forward(product, base, out)
    return out


def _allocate(z: Tensor, weight: Tensor) -> Tensor:
    return z.new_empty((z.shape[0], weight.shape[1], weight.shape[3]))


def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    product: Product,
    backend: str,
    gradients: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of z, weight, factors and shift."""
    grad_z, grad_weight, grad_factors, grad_shift = gradients
    if needs[2]:
        moved, one = product.shifted_z(), torch.ones_like(product.factors[:, :1])
        for r in range(product.weight.shape[0]):
            each = definition(moved, product.weight[r : r + 1], one)
            grad_factors[:, r] = (each * grad).flatten(1).sum(1)
    if needs[0] or needs[1] or needs[3]:
        _kernels(backend).backward(grad, product, (grad_z, grad_weight, grad_shift))


def _empty_gradients(
    needs: Sequence[bool], z: Tensor, weight: Tensor, factors: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocate gradients; that of z is also needed for that of shift, a sum over its groups."""
    return (
        empty_gradient(z, needs[0] or needs[3], z),
        empty_gradient(weight, needs[1], z),
        empty_gradient(factors, needs[2], z),
        empty_gradient(shift, needs[3], z),
    )


def _tangent(product: Product, backend: str, tangents: Sequence[Tensor | None]) -> Tensor:
    """The product is linear in z and shift, in weight, and in factors."""
    of_z, of_weight, of_factors, of_shift = tangents
    parts = [_allocate(product.z, product.weight).zero_()]
    if of_z is not None or of_shift is not None:
        of_z = torch.zeros_like(product.z) if of_z is None else of_z
        moved = replace(product, z=of_z, shift=of_shift)
        parts.append(degree_linear_operator(moved, None, backend))
    if of_weight is not None:
        parts.append(degree_linear_operator(replace(product, weight=of_weight), None, backend))
    if of_factors is not None:  # which are no function of the degree
        parts.append(definition(product.shifted_z(), product.weight, of_factors))
    return sum(parts[1:], parts[0])


degree_linear_backward = gradient_operator(
    "degree_linear_backward", _backward, tangent=_tangent, allocate=_empty_gradients
)


def _gradients(grad: Tensor, needs: Sequence[bool], product: Product, backend: str) -> Any:
    *others, _ = needs
    if not any(others):
        return None, None, None, None, grad
    return *degree_linear_backward(grad, others, product, backend), grad


def _with_own_factors(
    info: Any,
    in_dims: Sequence[Any],
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    shift: Tensor | None,
    times: Sequence[int],
    *rest: Any,
) -> tuple[Tensor, int]:
    """The vmap rule if each member has its own factors: apply the definition."""
    indptr, _, base, _ = rest
    given = ((z, 0, 2), (weight, 1, 1), (base, 7, 1), (shift, 3, 1))
    folded: Any = (
        None if t is None else fold(t, in_dims[place], axis, info.batch_size)
        for t, place, axis in given
    )
    z, weight, base, shift = folded
    own = factors.movedim(in_dims[2], 2).repeat_interleave(weight.shape[1] // info.batch_size, 2)
    out = definition(shifted(z, shift, times, indptr.diff()), weight, own, base)
    return out.unflatten(1, (info.batch_size, -1)), 1


degree_linear_operator = operator(
    "degree_linear",
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=("z", "weight", "factors", "shift", "base"),
    vmap=Fold(
        {"z": 2, "weight": 1, "shift": 1, "base": 1}, results=(1,), otherwise=_with_own_factors
    ),
)
