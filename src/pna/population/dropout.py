"""Dropout whose mask is a hash of given integers: the definition in plain torch, and a kernel.

The hash uses 64-bit integers. Plain torch needs about forty passes over x, the kernel one. Under
vmap the layout is (rows, members, features).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.hashing import GOLDEN, scramble
from pna.ops.operators import operator
from pna.ops.vmap_rules import Fold
from pna.population.linears import has_kernels
from pna.torch_internals import is_batched


def dropout(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int = 0,
    graph: Tensor | None = None,
    position: Tensor | None = None,
) -> Tensor:
    """Set each element of x (rows, features) to 0 with probability p, or divide it by 1 − p.

    The mask of an element is a function of `seed` and `passes` (int64 scalars), `time`, the
    `graph` of its row and the row's `position` in the graph ((rows,) int64 each), and the feature.
    `graph` defaults to the row index, `position` to 0.
    """
    plain = not has_kernels(x, 0, 0) or _is_batched(graph) or _is_batched(position)
    if plain or not fast_paths.is_on("dropout"):
        return definition(x, p, seed, passes, time, graph, position)
    inputs = (seed[None], passes[None], time, graph, position)
    out, _ = _dropout(x[:, None], p, *inputs)
    return out.squeeze(1)


def _is_batched(numbers: Tensor | None) -> bool:
    """Return whether the members of a vmap have different values."""
    return numbers is not None and is_batched(numbers)


def definition(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int,
    graph: Tensor | None,
    position: Tensor | None,
) -> Tensor:
    """`dropout` in plain torch."""
    number = torch.arange(x.shape[0], device=x.device)
    graph = number if graph is None else graph
    position = torch.zeros_like(number) if position is None else position
    feature = torch.arange(x.shape[1], device=x.device)
    at = scramble(scramble(graph) + position)[:, None] + feature * GOLDEN
    when = scramble(scramble(seed) + passes) + time
    bits = scramble(scramble(when) + at)
    kept = (bits & 0xFFFFFF) >= int(p * 2**24)
    return torch.where(kept, x / (1 - p), 0)


class Dropped(NamedTuple):
    out: Tensor  # (rows, members, features)
    key: Tensor  # (members,): reproduces the mask in backward, after `passes` has changed


def _forward(
    x: Tensor,
    p: float,
    seed: Tensor,
    passes: Tensor,
    time: int,
    graph: Tensor | None,
    position: Tensor | None,
) -> Dropped:
    """x is (rows, members, features); seed and passes are (members,)."""
    from pna.population.triton import dropout as kernels

    out, key = _allocate(x, seed)
    if out.numel() > 0:
        of_key = (seed.contiguous(), passes.contiguous(), time)
        kernels.drop(x, out, p, key, of_key, graph, position)
    return Dropped(out, key)


def _allocate(x: Tensor, seed: Tensor) -> Dropped:
    return Dropped(_like(x), torch.empty_like(seed))


def _again(
    x: Tensor, p: float, key: Tensor, graph: Tensor | None, position: Tensor | None
) -> Tensor:
    from pna.population.triton import dropout as kernels

    out = _like(x)
    if out.numel() > 0:
        kernels.drop(x, out, p, key.contiguous(), None, graph, position)
    return out


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(
    grad: Tensor, p: float, key: Tensor, graph: Tensor | None, position: Tensor | None
) -> Tensor:
    """Apply the mask of the forward pass to the gradient."""
    return _dropout_again(grad, p, key, graph, position)


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
