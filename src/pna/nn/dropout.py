"""Dropout whose mask is a function of seed, pass, time, graph, node and feature.

So a model drops the same numbers alone and as a member of a population, in batches put together in
any way, padded or not, on one process or many, and again after a run was resumed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pna.nn.current import rows

_MIX = 0x45D9F3B3335B369  # odd, so that multiplying by it loses nothing
_GOLDEN = 0x1E3779B97F4A7C15


class Dropout(nn.Module):
    """Zeroes each number with probability `p` in training, and divides the rest by 1 − p.

    Two buffers go to the checkpoint with the weights: a seed, drawn when the module is made, and
    how many passes there have been. A model that drops several times in a pass calls `advance`
    once and then tells which `time` it is; otherwise every call is a pass. `level` says whether a
    row is of a "node" or of a "graph".
    """

    seed: Tensor
    passes: Tensor
    changing: tuple[str, ...] = ()  # each member of a population has its own

    def __init__(self, p: float, level: str = "node") -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"got dropout={p}, expected a probability of at least 0 and below 1")
        self.p, self.level = p, level
        if p > 0:
            self.changing = ("seed", "passes")
            self.register_buffer("seed", torch.randint(2**62, ()))
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def advance(self) -> None:
        """Begin another pass over the model."""
        if self.training and self.p > 0:
            self.passes += 1

    def forward(self, x: Tensor, time: int | None = None) -> Tensor:
        """(rows, features), as it is when not training."""
        if not self.training or self.p == 0:
            return x
        if time is None:
            self.advance()
        known = rows(self.level)
        number = torch.arange(x.shape[0], device=x.device)
        graph = number if known.graph is None else known.graph
        place = torch.zeros_like(number) if known.place is None else known.place
        feature = torch.arange(x.shape[1], device=x.device)
        at = _scramble(_scramble(graph) + place)[:, None] + feature * _GOLDEN
        when = _scramble(_scramble(self.seed) + self.passes) + (time or 0)
        bits = _scramble(_scramble(when) + at)
        kept = (bits & 0xFFFFFF) >= int(self.p * 2**24)
        return torch.where(kept, x / (1 - self.p), 0)

    def extra_repr(self) -> str:
        return f"p={self.p}, level={self.level!r}"


def _scramble(numbers: Tensor) -> Tensor:
    """Other whole numbers, one for each, in which every bit depends on all bits."""
    numbers = (numbers + 1) * _GOLDEN
    for shift in (29, 32):
        numbers = (numbers ^ (numbers >> shift)) * _MIX
    return numbers ^ (numbers >> 30)
