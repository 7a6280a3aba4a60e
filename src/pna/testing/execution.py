"""How `fuzz` runs its cases: the modes of execution, and what all kinds of cases share."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pna.ops.backend import availability

#: Modes that are a backend, by the backend's name.
BACKENDS: dict[str, Literal["reference", "cpu", "triton"]] = {
    "reference": "reference",
    "c": "cpu",
    "triton": "triton",
    "interpreter": "triton",
}

#: Every mode, and the weight with which it is drawn.
MODES = {
    "reference": 2.0,
    "c": 6.0,
    "triton": 6.0,
    "interpreter": 2.0,
    "vmap": 2.0,
    "compile": 0.05,  # takes minutes to compile
}

_programs: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class FuzzSettings:
    device: str = "cpu"
    mode: tuple[str, ...] = ()  # modes to draw from; empty: all that can run here

    def arguments(self, seed: int) -> str:
        """The options of the command that give these settings."""
        modes = [f"--mode {mode}" for mode in self.mode]
        return " ".join([f"--seed {seed}", f"--device {self.device}", *modes])

    def modes(self) -> tuple[list[str], list[float]]:
        """The modes that can run here, and their weights."""
        chosen = [name for name in self.mode or MODES if self.unavailable(name) is None]
        if not self.mode and "interpreter" in chosen and self.device == "cpu":
            chosen.remove("interpreter")
        return chosen, [MODES[name] for name in chosen]

    def unavailable(self, mode: str) -> str | None:
        """The reason why a mode cannot run; None if it can."""
        if mode == "c" and self.device != "cpu":
            return "the C kernels run on a CPU"
        if mode == "triton" and self.device == "cpu":
            return "Triton needs --device cuda; --mode interpreter runs its kernels on the CPU"
        if mode == "interpreter":
            if self.device != "cpu":
                return "Triton's interpreter runs on the CPU"
            if os.environ.get("TRITON_INTERPRET") != "1":
                return "set TRITON_INTERPRET=1 for Triton's interpreter"
        return availability()[BACKENDS[mode]] if mode in BACKENDS else None


def output_and_gradients(
    out: Tensor, leaves: dict[str, Tensor], upstream: Tensor
) -> dict[str, Tensor]:
    """ "out", and the gradient of every leaf, 0 where it has none: float64, on the CPU."""
    gradients = torch.autograd.grad(
        out, list(leaves.values()), upstream, allow_unused=True, materialize_grads=True
    )
    results = {"out": out, **dict(zip(leaves, gradients, strict=True))}
    return {name: value.detach().double().cpu() for name, value in results.items()}


def compiled(key: Hashable, program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The first program that was given for this key, compiled for all sizes."""
    if key not in _programs:
        _programs[key] = torch.compile(program, dynamic=True)
    return _programs[key]
