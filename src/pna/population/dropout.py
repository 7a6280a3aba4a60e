"""Dropout whose mask is a function of given integers: the definition, and a kernel for it.

The integers are hashed in 64 bits: plain torch takes some forty steps for every number of x, the
kernel one pass. Under vmap members stay between rows and features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.operators import Fold, operator
from pna.population.linears import has_kernels
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
    """x (rows, features) with each element set to 0 with probability p, or divided by 1 − p.

    The mask is a function of `seed` and `passes`, int64 scalars, of `time`, and of the `graph` of
    each element, its `place` in the graph, (rows,) int64 each, and its feature. The default of
    graph is the row's number, that of place 0.
    """
    plain = not has_kernels(x, 0, 0) or _is_batched(graph) or _is_batched(place)
    if plain or not fast_paths.is_on("dropout"):
        return definition(x, p, seed, passes, time, graph, place)
    told = (seed[None], passes[None], time, graph, place)
    out, _ = _dropout(x[:, None], p, *told)
    return out.squeeze(1)


def _is_batched(numbers: Tensor | None) -> bool:
    """Whether each member of a vmap has its own values."""
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
    """Hash every integer: each bit of the result depends on all bits."""
    numbers = (numbers + 1) * _GOLDEN
    for shift in (29, 32):
        numbers = (numbers ^ (numbers >> shift)) * _MIX
    return numbers ^ (numbers >> 30)


class Dropped(NamedTuple):
    out: Tensor  # (rows, members, features)
    key: Tensor  # (members,) from which a mask is made again when `passes` has changed


def _forward(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int,
    graph: Tensor | None,
    place: Tensor | None,
) -> Dropped:
    """Of x (rows, members, features), with seed and passes (members,)."""
    from pna.population.triton import dropout as kernels

    out, key = _allocate(x, seed)
    if out.numel() > 0:
        of_key = (seed.contiguous(), passes.contiguous(), time)
        kernels.drop(x, out, p, key, of_key, graph, place)
    return Dropped(out, key)


def _allocate(x: Tensor, seed: Tensor) -> Dropped:
    return Dropped(_like(x), torch.empty_like(seed))


def _again(x: Tensor, p: float, key: Tensor, graph: Tensor | None, place: Tensor | None) -> Tensor:
    from pna.population.triton import dropout as kernels

    out = _like(x)
    if out.numel() > 0:
        kernels.drop(x, out, p, key.contiguous(), None, graph, place)
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(
    grad: Tensor, p: float, key: Tensor, graph: Tensor | None, place: Tensor | None
) -> Tensor:
    """The gradient is dropped as x was."""
    return _dropout_again(grad, p, key, graph, place)


_dropout = operator(
    "dropout",
    _forward,
    fake=_allocate,
    backward=_backward,
    differentiable=("x",),
    vmap=Fold({"x": 1, "seed": 0, "passes": 0}, results=(1, 0)),
)
_dropout_again = operator(
    "dropout_again",
    _again,
    fake=_like,
    backward=_backward,
    differentiable=("x",),
    vmap=Fold({"x": 1, "key": 0}, results=(1,)),
)
