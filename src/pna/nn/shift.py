"""Predictions that begin from something else than zero."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pna.nn.buffers import Buffers


class Shift(Buffers):
    """Adds a constant to every column: what is far from zero need not be learned from there.

    Args:
        means: the constants, of targets their means over the training set, say.
    """

    constants: Tensor

    def __init__(self, means: Sequence[float]) -> None:
        super().__init__()
        self.means = tuple(means)
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        return {"constants": torch.tensor(self.means)}

    def forward(self, x: Tensor) -> Tensor:
        """(rows, columns) to the same."""
        return x + self.constants

    def extra_repr(self) -> str:
        return f"{list(self.means)}"
