"""A linear map whose weight depends on the node's degree, without a copy of its input per scaler.

A scaler is one number for each node, and the same for nodes of one degree. So U applied to
scalers ⊗ aggregates is Σ_r s_r(d) · (U_r aggregates), and for the nodes of one degree a single
product with Σ_r s_r(d) · U_r. Nodes are taken in the order of their degrees: those that stand
among their like, a tile of one degree, cost one product, the others one for each scaler.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops import degree_groups
from pna.ops.backend import choose
from pna.ops.degree_groups import definition, shifted
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    library,
    one_by_one,
    room,
)


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

    z is (receivers, A, towers, K), weight (R, towers, A·K, outputs), base as the result. factors
    (receivers, R) must be equal at receivers of equal degree. To the a-th of the A results in z,
    shift (receivers, towers, K) is first added once where times[a] is 1, as often as there are
    neighbours where it is 2.
    """
    weight = weight.to(z.dtype)
    base = None if base is None else base.to(z.dtype)
    shift = None if shift is None else shift.to(z.dtype)
    times = list(times) if shift is not None else []
    backend = choose(z.device)
    plain = backend == "reference" or (backend == "triton" and z.dtype == torch.float64)
    if plain or not fast_paths.is_on("degree_linear"):
        return definition(shifted(z, shift, times, adjacency.degree), weight, factors, base)
    graph = (adjacency.indptr, adjacency.by_degree)
    return torch.ops.pna.degree_linear(z, weight, factors, base, shift, times, *graph, backend)


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from pna.ops.triton import degree_linear as kernels

        return kernels
    return degree_groups


_GRAPH = "Tensor? shift, int[] times, Tensor indptr, Tensor by_degree, str backend"
library.define(
    f"degree_linear(Tensor z, Tensor weight, Tensor factors, Tensor? base, {_GRAPH}) -> Tensor"
)
library.define(
    "degree_linear_backward(Tensor grad, bool[] needs, Tensor z, Tensor weight, Tensor factors, "
    f"{_GRAPH}) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "degree_linear", "CompositeExplicitAutograd")
def _forward(z: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    *inputs, backend = rest
    out = _allocate(z, weight)
    if out.numel() > 0:
        _kernels(backend).forward(z, weight, *inputs, out)
    return out


def _allocate(z: Tensor, weight: Tensor) -> Tensor:
    return z.new_empty((z.shape[0], weight.shape[1], weight.shape[3]))


@torch.library.register_fake("pna::degree_linear", lib=library)
def _(z: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return _allocate(z, weight)


@torch.library.impl(library, "degree_linear_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    shift: Tensor | None,
    times: Sequence[int],
    indptr: Tensor,
    by_degree: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of z, weight, factors and shift; empty where `needs` does not ask for one."""
    grads = _empty_gradients(z, weight, factors, shift, needs)
    grad_z, grad_weight, grad_factors, grad_shift = grads
    if needs[2]:
        moved = shifted(z, shift, times, indptr.diff())
        for r in range(weight.shape[0]):
            product = definition(moved, weight[r : r + 1], torch.ones_like(factors[:, :1]))
            grad_factors[:, r] = (product * grad).flatten(1).sum(1)
    if grad.numel() == 0:
        for gradient in (grad_z, grad_weight, grad_shift):
            gradient.zero_()
    elif needs[0] or needs[1] or needs[3]:
        graph = (indptr, by_degree)
        of = (grad_z, grad_weight, grad_shift)
        _kernels(backend).backward(grad, z, weight, factors, shift, times, *graph, *of)
    return grads


def _empty_gradients(
    z: Tensor, weight: Tensor, factors: Tensor, shift: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for a gradient of each; that of shift is the sum of some of z's."""
    needed = (needs[0] or needs[3], *needs[1:])
    given = zip((z, weight, factors, shift), needed, strict=True)
    grad_z, grad_weight, grad_factors, grad_shift = (room(t, n, like=z) for t, n in given)
    return grad_z, grad_weight, grad_factors, grad_shift


@torch.library.register_fake("pna::degree_linear_backward", lib=library)
def _(
    grad: Tensor, needs: Sequence[bool], z: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight, factors, shift, *_ = rest
    return _empty_gradients(z, weight, factors, shift, needs)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        z, weight, factors, _, shift, times, indptr, by_degree, backend = inputs
        ctx.times, ctx.backend = times, backend
        ctx.save_for_backward(z, weight, factors, shift, indptr, by_degree)
        return below_autograd(torch.ops.pna.degree_linear.default, keyset, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, weight, factors, shift, *graph = ctx.saved_tensors
        _, for_z, for_weight, for_factors, for_base, for_shift, *_ = ctx.needs_input_grad
        wanted = [for_z, for_weight, for_factors, for_shift]
        grads: Sequence[Tensor | None] = (None,) * 4
        if any(wanted):
            grads = torch.ops.pna.degree_linear_backward(
                grad, wanted, z, weight, factors, shift, ctx.times, *graph, ctx.backend
            )
        grad_z, grad_weight, grad_factors, grad_shift = (
            g if w else None for g, w in zip(grads, wanted, strict=True)
        )
        to_base = grad if for_base else None
        return None, grad_z, grad_weight, grad_factors, to_base, grad_shift, *[None] * 4


differentiate("degree_linear", _Differentiable)
differentiate_once("degree_linear_backward", "the PNA layer")


@torch.library.register_vmap("pna::degree_linear", lib=library)
def _(
    info: Any,
    in_dims: Sequence[Any],
    z: Tensor,
    weight: Tensor,
    factors: Tensor,
    base: Tensor | None,
    shift: Tensor | None,
    times: Sequence[int],
    *graph: Any,
) -> tuple[Tensor, int]:
    """Members become towers; where each has factors of its own, the definition does it."""

    def fold(tensor: Tensor | None, dim: int | None, axis: int) -> Tensor | None:
        if tensor is None:
            return None
        if dim is None:
            shape = (*tensor.shape[:axis], info.batch_size, *tensor.shape[axis:])
            return tensor.unsqueeze(axis).expand(shape).flatten(axis, axis + 1)
        return tensor.movedim(dim, axis).flatten(axis, axis + 1)

    inputs = (z, weight, base, shift)
    dims = (in_dims[0], in_dims[1], in_dims[3], in_dims[4])
    folded: Any = map(fold, inputs, dims, (2, 1, 1, 1))
    z, weight, base, shift = folded
    if in_dims[2] is None:
        out = torch.ops.pna.degree_linear(z, weight, factors, base, shift, times, *graph)
    else:
        towers = weight.shape[1] // info.batch_size
        own = factors.movedim(in_dims[2], 2).repeat_interleave(towers, 2)
        out = definition(shifted(z, shift, times, graph[0].diff()), weight, own, base)
    return out.unflatten(1, (info.batch_size, -1)), 1


torch.library.register_vmap(
    "pna::degree_linear_backward", one_by_one("degree_linear_backward"), lib=library
)
