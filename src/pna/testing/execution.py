"""What cases of `fuzz` have in common when they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

_programs: dict[Hashable, Any] = {}


def output_and_gradients(
    out: Tensor, leaves: dict[str, Tensor], upstream: Tensor
) -> dict[str, Tensor]:
    """ "out", and the gradient of every leaf, 0 where it has none: float64, on the CPU."""
    gradients = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True)
    results = {"out": out}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        results[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return {name: value.detach().double().cpu() for name, value in results.items()}


def compiled(key: Hashable, program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The first program that was given for this key, compiled for all sizes."""
    if key not in _programs:
        _programs[key] = torch.compile(program, dynamic=True)
    return _programs[key]
