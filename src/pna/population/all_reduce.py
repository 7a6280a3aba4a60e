"""A sum over the processes of a run (all-reduce), with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from pna.ops.operators import operator


def all_reduce_sum(x: Tensor) -> Tensor:
    """The sum of this tensor over all processes; x itself where there is one process."""
    return x if world_size() == 1 else _all_reduce_sum(x)


def world_size() -> int:
    """How many processes work together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def _forward(x: Tensor) -> Tensor:
    total = x.contiguous().clone()
    distributed.all_reduce(total)
    return total


def _allocate(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(grad: Tensor) -> Tensor:
    """Each process has its share of the loss, which depends on what the others put in."""
    return _all_reduce_sum(grad)


def _vmap(info: Any, in_dims: Sequence[Any], x: Tensor) -> tuple[Tensor, Any]:
    return _all_reduce_sum(x), in_dims[0]


_all_reduce_sum = operator(
    "all_reduce_sum",
    _forward,
    fake=_allocate,
    backward=_backward,
    differentiable=("x",),
    vmap=_vmap,
)
