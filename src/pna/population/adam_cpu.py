"""A step of Adam on a CPU: adam.c, called through ctypes on Python threads."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.ops import cpu

_Problem = cpu.structure(
    ("is_double", "parameters"), ("weights", "mean", "square", "grad", "numbers", "moves")
)  # `struct adam` of adam.c
_kernel = cpu.kernel("adam", _Problem, 1, interface=1)
built = _kernel is not None


def takes(weights: Tensor) -> bool:
    """Return whether adam.c was built and supports these weights."""
    return built and weights.dtype in (torch.float32, torch.float64) and weights.is_contiguous()


def step(
    weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, numbers: Tensor, moves: Tensor
) -> None:
    """Move the members that `moves` (members,) names, in place; clear it for those that cannot.

    `numbers` (members, 8), float64, are those that adam.c lists.
    """
    assert _kernel is not None
    kernel, grad, numbers = _kernel, grad.contiguous(), numbers.contiguous()
    members, parameters = weights.shape
    tensors = (weights, mean, square, grad, numbers, moves)
    pointers = [tensor.data_ptr() for tensor in tensors]
    problem = _Problem(weights.dtype == torch.float64, parameters, *pointers)
    cpu.share([(k,) for k in range(members)], lambda k: kernel(problem, k), weights.numel())
