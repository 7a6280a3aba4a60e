"""What `fuzz` is told: which modes of execution, where, and what to leave out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from pna.ops.backend import availability

#: Modes that are a backend, by the backend's name.
BACKENDS: dict[str, Literal["reference", "cpu", "triton"]] = {
    "reference": "reference",
    "c": "cpu",
    "triton": "triton",
    "interpreter": "triton",
}

#: Every mode, and how often it is drawn.
MODES = {
    "reference": 2.0,
    "c": 6.0,
    "triton": 6.0,
    "interpreter": 2.0,
    "vmap": 2.0,
    "compile": 0.05,  # slow to begin with
}


@dataclass(frozen=True)
class Settings:
    device: str = "cpu"
    mode: tuple[str, ...] = ()  # those to draw from; all that can run here, if none is named
    #: Values of `draw.VALUES` that are never drawn; "spread": no var and std of kernels.
    without: frozenset[str] = field(default_factory=frozenset)

    def arguments(self, seed: int) -> str:
        """As they are given to the command."""
        modes = [f"--mode {mode}" for mode in self.mode]
        without = [f"--without {value}" for value in sorted(self.without)]
        return " ".join([f"--seed {seed}", f"--device {self.device}", *modes, *without])

    def modes(self) -> tuple[list[str], list[float]]:
        """Those that can run here, and how often."""
        chosen = [name for name in self.mode or MODES if self.unavailable(name) is None]
        if not self.mode and "interpreter" in chosen and self.device == "cpu":
            chosen.remove("interpreter")
        return chosen, [MODES[name] for name in chosen]

    def unavailable(self, mode: str) -> str | None:
        """Why a mode cannot run; None where it can."""
        if mode in ("c",) and self.device != "cpu":
            return "the C kernels run on a CPU"
        if mode == "triton" and self.device == "cpu":
            return "Triton needs --device cuda; --mode interpreter runs its kernels on the CPU"
        if mode == "interpreter":
            if self.device != "cpu":
                return "Triton's interpreter runs on the CPU"
            if os.environ.get("TRITON_INTERPRET") != "1":
                return "set TRITON_INTERPRET=1 for Triton's interpreter"
        return availability()[BACKENDS[mode]] if mode in BACKENDS else None
