"""A sum over the processes of a run (all-reduce), with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from pna.ops.operators import operator


def all_reduce_sum(x: Tensor) -> Tensor:
    """Return the sum of x over all processes, or x itself if there is only one process."""
    return x if world_size() == 1 else _all_reduce_sum(x)


def world_size() -> int:
    """Return the number of processes in the run."""
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
    """Sum the gradient over processes: the loss of each process depends on x of all processes."""
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
    opaque=True,
)
