"""Dropout whose mask is a function of seed, pass, time, graph, node and feature.

So a model drops the same numbers alone and as a member of a population, in batches put together in
any way, padded or not, on one process or many, and again after a run was resumed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pna.nn.batch_context import Level, row_info
from pna.nn.buffers import Buffers
from pna.population.dropout import dropout


class Dropout(Buffers):
    """Zeroes each number with probability `p` in training, and divides the rest by 1 − p.

    Two buffers go to the checkpoint with the weights: a seed, drawn when the module is made, and
    how many passes there have been. A model that drops several times in a pass calls `advance`
    once and then tells which `time` it is; otherwise every call is a pass. `level` says whether a
    row is of a "node" or of a "graph". Under `torch.utils.checkpoint` a backward pass repeats the
    last pass: give each its own backward before the next, and compile the checkpoint with the
    model, not the model alone.
    """

    seed: Tensor
    passes: Tensor
    changing: tuple[str, ...] = ()  # each member of a population has its own

    def __init__(self, p: float, level: Level = "node") -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"got dropout={p}, expected a probability of at least 0 and below 1")
        self.p, self.level = p, level
        if p > 0:
            self.changing = ("seed", "passes")
            self.hold(persistent=True)

    def beginnings(self) -> dict[str, Tensor]:
        """A seed, and no passes."""
        return {
            "seed": torch.randint(2**62, ()),
            "passes": torch.zeros((), dtype=torch.int64),
        }

    def advance(self) -> None:
        """Begin another pass over the model, unless a backward pass repeats the last one, as
        `torch.utils.checkpoint` has it: that must drop the same numbers."""
        if self.training and self.p > 0 and not _is_repeated():
            self.passes += 1

    def forward(self, x: Tensor, time: int | None = None) -> Tensor:
        """(rows, features), as it is when not training."""
        if not self.training or self.p == 0:
            return x
        if time is None:
            self.advance()
        known = row_info(self.level)
        told = (self.seed, self.passes, time or 0, known.graph, known.position)
        return dropout(x, self.p, *told)

    def extra_repr(self) -> str:
        return f"p={self.p}, level={self.level!r}"


def _is_repeated() -> bool:
    """Whether a backward pass is under way, as far as can be told: what is compiled cannot ask."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0
