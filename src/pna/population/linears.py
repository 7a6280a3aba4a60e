"""Linear maps of one input through several weights, for many models at once.

`torch.vmap` makes of `F.linear` a batched product with models in front, whose weights' gradients,
sums over all nodes, are the slowest kernel of a small model. Here members stay between nodes and
features, (rows, members, features), as in the other operators, and sums over rows are split.
Where there are no kernels, `F.linear` it is, or what is faster on an Arm CPU.
"""

from __future__ import annotations

import math
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
    room,
)
from pna.population import untransposed

#: The widest input and output for which Triton's kernels are made, and the widest where some are
#: odd, so that numbers are moved one by one; the libraries' do well beyond.
WIDEST, WIDEST_ODD = 256, 128


def linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """x W_kᵀ + b_k for every k: x (…, inputs), W_k (outputs, inputs), b_k (outputs) or None.

    Parameters take the type of x, and all take autocast's, as in `torch.nn.functional.linear`.
    """
    x, *rest = of_one_type(x, *weights, *biases)
    weights, biases = rest[: len(weights)], rest[len(weights) :]
    if not takes_widths(x, x.shape[-1], *(w.shape[0] for w in weights)):
        return [untransposed.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    rows = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    outputs = torch.ops.pna.linears(
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
    """`linears` in every tower: x (rows, towers, inputs), W_k (towers, outputs, inputs), b_k
    (towers, outputs) or None, to (rows, towers, outputs) each."""
    x, *rest = of_one_type(x, *weights, *biases)
    weights, biases = rest[: len(weights)], rest[len(weights) :]
    if takes_towers(x, weights):
        return list(torch.ops.pna.linears(x, weights, biases))
    return [untransposed.tower_linear(x, w, b) for w, b in zip(weights, biases, strict=True)]


def takes_towers(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether kernels do `tower_linears` of these, all of them at once."""
    return takes_widths(x, *(n for w in weights for n in w.shape[1:]))


def takes_widths(x: Tensor, *widths: int) -> bool:
    """Whether kernels take tensors like x with so many inputs and outputs."""
    odd, widest = any(width % 2 for width in widths), max(widths)
    if not has_kernels(x, widest, WIDEST_ODD if odd else WIDEST):
        return False
    if not fast_paths.is_on("linears"):
        return False
    return widest <= WIDEST_ODD or fast_paths.is_on("wide_linear")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, fast for few features and under vmap."""
    return linears(x, [weight], [bias])[0]


def of_one_type(x: Tensor, *others: Tensor | None) -> list[Any]:
    """All in the type of autocast where it is enabled, else in that of x."""
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
    return [None if t is None else t.to(dtype) for t in (x, *others)]


def has_kernels(x: Tensor, widest: int, limit: int) -> bool:
    """Whether Triton's kernels take tensors like x, the widest of them as wide as said."""
    short = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return short and widest <= limit and choose(x.device) == "triton"


library.define("linears(Tensor x, Tensor[] weights, Tensor?[] biases) -> Tensor[]")
library.define(
    "linears_backward(Tensor?[] grads, bool[] needs, Tensor x, Tensor[] weights) "
    "-> (Tensor, Tensor)"
)


@torch.library.impl(library, "linears", "CompositeExplicitAutograd")
def _forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """x (rows, members, inputs) through weights (members, outputs, inputs), each contiguous."""
    from pna.population.triton import linears as kernels

    outputs = _allocate(x, weights)
    kernels.forward(x, weights, biases, outputs)
    return outputs


def _allocate(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [x.new_empty((*x.shape[:2], w.shape[1])) for w in weights]


@torch.library.register_fake("pna::linears", lib=library)
def _(x: Tensor, weights: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return _allocate(x, weights)


@torch.library.impl(library, "linears_backward", "CompositeExplicitAutograd")
def _backward(
    grads: Sequence[Tensor | None], needs: Sequence[bool], x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, one after another, of every weight and its bias.

    `needs` is of x and of any parameter; what is not needed has no length. Parameters with no
    gradient above them have room that is left unwritten.
    """
    from pna.population.triton import linears as kernels

    grad_x, flat = _empty_gradients(needs, x, weights)
    kernels.backward(grads, x, weights, grad_x, flat)
    return grad_x, flat


def _empty_gradients(
    needs: Sequence[bool], x: Tensor, weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    size = sum(_sizes(weights)) if needs[1] else 0
    return room(x, needs[0], x), x.new_empty(size)


def _sizes(weights: Sequence[Tensor]) -> list[int]:
    """How many numbers each weight has, then its bias."""
    return [n for w in weights for n in (math.prod(w.shape), math.prod(w.shape[:2]))]


def gradients_in(flat: Tensor, weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The gradients of every weight and bias in the tensor that holds them all."""
    parts = flat.split(_sizes(weights))
    pairs = zip(parts[::2], parts[1::2], weights, strict=True)
    return [(of_w.view(w.shape), of_b.view(w.shape[:2])) for of_w, of_b, w in pairs]


@torch.library.register_fake("pna::linears_backward", lib=library)
def _(grads: Any, needs: Sequence[bool], x: Tensor, weights: Sequence[Tensor]) -> Any:
    return _empty_gradients(needs, x, weights)


class _Differentiable(Function):
    """The operator and its gradients; parameters one by one, as autograd sees into no list."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, x: Tensor, *parameters: Any) -> Any:
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *weights)
        inputs = (x, weights, biases)
        return tuple(below_autograd(torch.ops.pna.linears.default, keyset, inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        x, *weights = ctx.saved_tensors
        _, for_x, *for_parameters = ctx.needs_input_grad
        used = [g is not None for g in grads]
        wanted = [n and u for n, u in zip(for_parameters, used * 2, strict=True)]
        needs = [for_x and any(used), any(wanted)]
        given: list[Tensor | None] = [None] * len(wanted)
        if not any(needs):
            return None, None, *given
        grad_x, flat = torch.ops.pna.linears_backward(grads, needs, x, weights)
        if needs[1]:
            parts = gradients_in(flat, weights)
            both = [of_w for of_w, _ in parts] + [of_b for _, of_b in parts]
            given = [g if w else None for g, w in zip(both, wanted, strict=True)]
        return None, grad_x if needs[0] else None, *given


class _Flat:
    """`_Differentiable` with the arguments and the result of the operator."""

    @staticmethod
    def apply(
        keyset: Any, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
    ) -> list[Tensor]:
        run: Any = _Differentiable
        return list(run.apply(keyset, x, *weights, *biases))


differentiate("linears", _Flat)  # type: ignore[arg-type]
differentiate_once("linears_backward", "pna.population.linears")


@torch.library.register_vmap("pna::linears", lib=library)
def _(
    info: Any,
    in_dims: Sequence[Any],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[list[Tensor], list[int]]:
    """Members of a vmap are members; where they have no parameters of their own, rows."""
    batch = info.batch_size
    x_dim, weight_dims, bias_dims = in_dims
    if all(d is None for d in (*weight_dims, *bias_dims)):
        outputs = torch.ops.pna.linears(x.movedim(x_dim, 1).flatten(0, 1), weights, biases)
        return [y.unflatten(0, (-1, batch)) for y in outputs], [1] * len(outputs)
    outputs = torch.ops.pna.linears(
        fold(x, x_dim, 1, batch),
        [fold(w, d, 0, batch) for w, d in zip(weights, weight_dims, strict=True)],
        [
            None if b is None else fold(b, d, 0, batch)
            for b, d in zip(biases, bias_dims, strict=True)
        ],
    )
    return [y.unflatten(1, (batch, -1)) for y in outputs], [1] * len(outputs)


@torch.library.register_vmap("pna::linears_backward", lib=library)
def _(info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
    """One by one: met only where a derivative itself is vmapped."""

    def select(argument: Any, dim: Any, i: int) -> Any:
        if isinstance(dim, (list, tuple)):
            return [select(a, d, i) for a, d in zip(argument, dim, strict=True)]
        return argument.select(dim, i) if isinstance(dim, int) else argument

    results = [
        torch.ops.pna.linears_backward(
            *[select(a, d, i) for a, d in zip(arguments, in_dims, strict=True)]
        )
        for i in range(info.batch_size)
    ]
    return tuple(torch.stack(r) for r in zip(*results, strict=True)), (0, 0)
