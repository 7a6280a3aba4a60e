"""Dropout whose mask is a function of seed, forward pass, call, graph, node and feature.

A model therefore drops the same numbers alone and as a member of a population, for any batching
and padding, on one process or many, and after a run is resumed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pna.nn.batch_context import Level, row_info
from pna.nn.buffers import Buffers
from pna.population.dropout import dropout
from pna.torch_internals import backward_pass


class Dropout(Buffers):
    """In training, sets each number to 0 with probability `p`, and divides the others by 1 − p.

    Two buffers are stored in the checkpoint with the weights: a seed, drawn when the module is
    made, and the number of forward passes so far. A model that calls the module several times in a
    pass calls `advance` once, then passes a different `time` to each call. Otherwise every call
    counts as a pass.

    `torch.utils.checkpoint` repeats the last forward pass in the backward pass. Run the backward
    pass of each forward pass before the next one, and compile the checkpoint together with the
    model, not the model alone.

    Args:
        p: probability, at least 0 and below 1.
        level: whether a row belongs to a "node" or a "graph".

    Shapes:
        - **x**: (rows, features)
        - **output**: (rows, features)
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
        """A random seed, and no passes."""
        seed = torch.empty((), dtype=torch.int64).random_(2**62)  # meta: randint imports SymPy, 1 s
        return {"seed": seed, "passes": torch.zeros((), dtype=torch.int64)}

    def advance(self) -> None:
        """Begin another forward pass, unless a backward pass repeats the last one
        (`torch.utils.checkpoint`), which must drop the same numbers."""
        if not self.training or self.p == 0:
            return
        # compiled code cannot find out whether a backward pass is running
        if torch.compiler.is_compiling() or backward_pass() < 0:
            self.passes += 1

    def forward(self, x: Tensor, time: int | None = None) -> Tensor:
        """`time` is the number of this call in a pass that `advance` began."""
        if not self.training or self.p == 0:
            return x
        if time is None:
            self.advance()
        known = row_info(self.level)
        key = (self.seed, self.passes, time or 0, *known.of_first(x.shape[0]))
        return dropout(x, self.p, *key)

    def extra_repr(self) -> str:
        return f"p={self.p}, level={self.level!r}"
