"""Dropout whose mask is a function of numbers that are told: the definition, and a kernel for it.

Whole numbers are hashed in 64 bits, as torch does it in some forty steps for every number of x,
or a kernel on the way. Under vmap members stay between rows and features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.operators import Function, below_autograd, differentiate, library
from pna.population.linears import fold, has_kernels
from pna.torch_internals import is_batched

_MIX = 0x45D9F3B3335B369  # odd, so that multiplying by it loses nothing
_GOLDEN = 0x1E3779B97F4A7C15


def dropout(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int = 0,
    graph: Tensor | None = None,
    place: Tensor | None = None,
) -> Tensor:
    """x (rows, features) with each number 0 with probability p, or divided by 1 − p.

    Which ones follows from `seed` and `passes`, int64 of no axes, from `time`, and from each
    number's `graph` and `place` in it, (rows,) int64, and feature. Without a graph, that is the
    row's number; without a place, 0.
    """
    plain = not has_kernels(x, 0, 0) or _is_batched(graph) or _is_batched(place)
    if plain or not fast_paths.is_on("dropout"):
        return definition(x, p, seed, passes, time, graph, place)
    told = (seed[None], passes[None], time, graph, place)
    out, _ = torch.ops.pna.dropout(x[:, None], p, *told)
    return out.squeeze(1)


def _is_batched(numbers: Tensor | None) -> bool:
    """Whether each member of a vmap has its own."""
    return numbers is not None and is_batched(numbers)


def definition(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int,
    graph: Tensor | None,
    place: Tensor | None,
) -> Tensor:
    """The same in plain torch."""
    number = torch.arange(x.shape[0], device=x.device)
    graph = number if graph is None else graph
    place = torch.zeros_like(number) if place is None else place
    feature = torch.arange(x.shape[1], device=x.device)
    at = _scramble(_scramble(graph) + place)[:, None] + feature * _GOLDEN
    when = _scramble(_scramble(seed) + passes) + time
    bits = _scramble(_scramble(when) + at)
    kept = (bits & 0xFFFFFF) >= int(p * 2**24)
    return torch.where(kept, x / (1 - p), 0)


def _scramble(numbers: Tensor) -> Tensor:
    """Other whole numbers, one for each, in which every bit depends on all bits."""
    numbers = (numbers + 1) * _GOLDEN
    for shift in (29, 32):
        numbers = (numbers ^ (numbers >> shift)) * _MIX
    return numbers ^ (numbers >> 30)


# x (rows, members, features); seed, passes and key (members,). The key is what a mask needs to be
# made again when passes have gone on.
_ROWS = "Tensor? graph, Tensor? place"
library.define(
    f"dropout(Tensor x, float p, Tensor seed, Tensor passes, int time, {_ROWS}) -> (Tensor, Tensor)"
)
library.define(f"dropout_again(Tensor x, float p, Tensor key, {_ROWS}) -> Tensor")


@torch.library.impl(library, "dropout", "CompositeExplicitAutograd")
def _forward(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int,
    graph: Tensor | None,
    place: Tensor | None,
) -> tuple[Tensor, Tensor]:
    from pna.population.triton import dropout as kernels

    out, key = _like(x), torch.empty_like(seed)
    if out.numel() > 0:
        of_key = (seed.contiguous(), passes.contiguous(), time)
        kernels.drop(x, out, p, key, of_key, graph, place)
    return out, key


@torch.library.impl(library, "dropout_again", "CompositeExplicitAutograd")
def _again(x: Tensor, p: float, key: Tensor, graph: Tensor | None, place: Tensor | None) -> Tensor:
    from pna.population.triton import dropout as kernels

    out = _like(x)
    if out.numel() > 0:
        kernels.drop(x, out, p, key.contiguous(), None, graph, place)
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("pna::dropout", lib=library)
def _(x: Tensor, p: float, seed: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(x), torch.empty_like(seed)


@torch.library.register_fake("pna::dropout_again", lib=library)
def _(x: Tensor, *_: Any) -> Tensor:
    return _like(x)


class _Differentiable(Function):
    """The operator, whose gradient is dropped as x was."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        _, ctx.p, *_, graph, place = inputs
        ctx.set_materialize_grads(False)  # the key has none
        out, key = below_autograd(torch.ops.pna.dropout.default, keyset, inputs)
        ctx.save_for_backward(key, graph, place)
        ctx.mark_non_differentiable(key)
        return out, key

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        return None, torch.ops.pna.dropout_again(grad, ctx.p, *ctx.saved_tensors), *[None] * 6


class _DifferentiableAgain(Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        _, ctx.p, *told = inputs
        ctx.save_for_backward(*told)
        return below_autograd(torch.ops.pna.dropout_again.default, keyset, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, torch.ops.pna.dropout_again(grad, ctx.p, *ctx.saved_tensors), *[None] * 4


differentiate("dropout", _Differentiable)
differentiate("dropout_again", _DifferentiableAgain)


@torch.library.register_vmap("pna::dropout", lib=library)
def _(
    info: Any,
    in_dims: Sequence[Any],
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    *told: Any,
) -> Any:
    batch = info.batch_size
    x = fold(x, in_dims[0], 1, batch)
    seed, passes = fold(seed, in_dims[2], 0, batch), fold(passes, in_dims[3], 0, batch)
    out, key = torch.ops.pna.dropout(x, p, seed, passes, *told)
    return (out.unflatten(1, (batch, -1)), key.unflatten(0, (batch, -1))), (1, 0)


@torch.library.register_vmap("pna::dropout_again", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], x: Tensor, p: float, key: Tensor, *rows: Tensor | None
) -> Any:
    batch = info.batch_size
    x, key = fold(x, in_dims[0], 1, batch), fold(key, in_dims[2], 0, batch)
    out = torch.ops.pna.dropout_again(x, p, key, *rows)
    return out.unflatten(1, (batch, -1)), 1
