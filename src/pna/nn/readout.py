"""Readouts: x (nodes, features) to (graphs, features), for graphs of any size.

The nodes of a graph are consecutive rows. `sizes` (graphs,) is the number of nodes of each graph.
`starts` (graphs + 1,) is the first node of each graph, and the end of the last; it is computed if
not given. A graph may have no nodes; its readout is then 0. No function waits for the device, and
all are deterministic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.nn.linear import RecurrentWeights
from pna.ops.request import wide_type
from pna.population.segments import segment_max, segment_sum
from pna.population.set2set import set2set


def sum_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """Sum over the nodes of each graph."""
    return segment_sum(x, _starts(sizes) if starts is None else starts)


def mean_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """Mean over the nodes of each graph."""
    wide = wide_type(x.dtype)  # sums and sizes may overflow half precision
    total = sum_nodes(x.to(wide), sizes, starts)
    mean = total / sizes.clamp(min=1).to(wide)[:, None]
    return mean.to(x.dtype) if x.is_floating_point() else mean


def max_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """Maximum over the nodes of each graph. Tied maxima share the gradient evenly."""
    return segment_max(x, _starts(sizes) if starts is None else starts)


class Set2Set(RecurrentWeights):
    """Set2Set of Vinyals et al. (2015): an LSTM that attends to the nodes of a graph repeatedly.

    Each step computes q = LSTM(q*), r = Σ softmax(x_n · q) x_n, q* = [q, r]; the output is the
    last q*.

    Args:
        width: features of a node.
        steps: number of steps. Default: each graph takes as many as it has nodes.

    Shapes:
        - **x**: (nodes, width), **sizes**: (graphs,) number of nodes of each graph
        - **real**: (graphs,) bool, False for padding; **starts**: (graphs + 1,)
        - **output**: (graphs, 2 · width)
    """

    def __init__(self, width: int, steps: int | None = None) -> None:
        if steps is not None and steps < 0:
            raise ValueError(f"got steps={steps}, expected at least 0, or None for one per node")
        super().__init__(4, 2 * width, width)
        self.steps = steps

    def forward(
        self,
        x: Tensor,
        sizes: Tensor,
        max_size: int,
        real: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> Tensor:
        """Return the readout (graphs, 2 · width).

        No `real` graph may have more than `max_size` nodes. Padding takes no steps.
        """
        steps, most = sizes, max_size
        if self.steps is not None:
            steps, most = torch.full_like(sizes, self.steps), self.steps
        if real is not None:
            steps = torch.where(real, steps, 0)
        starts = _starts(sizes) if starts is None else starts
        return set2set(x, starts, steps, *self.weights, most)

    def extra_repr(self) -> str:
        return f"{self.width}" if self.steps is None else f"{self.width}, steps={self.steps}"


def _starts(sizes: Tensor) -> Tensor:
    """First node of every graph, and the end of the last."""
    return F.pad(sizes.cumsum(0), (1, 0))
