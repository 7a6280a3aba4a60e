"""From nodes to graphs: x (nodes, features) to (graphs, features), whatever the graphs' sizes.

Nodes of one graph stand together; `sizes` (graphs,) says how many each has, and `starts`
(graphs + 1,), where it is known already, which is the first, and the end. A graph may have no
nodes; what is read of it is 0. Nothing here waits for the device, and all of it is repeatable.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.ops.request import wide_type
from pna.population.segments import segment_max, segment_sum
from pna.population.set2set import set2set


def sum_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """Σ over the nodes of each graph."""
    return segment_sum(x, _starts(sizes) if starts is None else starts)


def mean_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """The mean over the nodes of each graph."""
    wide = wide_type(x.dtype)  # sums and sizes that half precision may not hold
    total = sum_nodes(x.to(wide), sizes, starts)
    mean = total / sizes.clamp(min=1).to(wide)[:, None]
    return mean.to(x.dtype) if x.is_floating_point() else mean


def max_nodes(x: Tensor, sizes: Tensor, starts: Tensor | None = None) -> Tensor:
    """The maximum over the nodes of each graph; those that have it share its gradient evenly."""
    return segment_max(x, _starts(sizes) if starts is None else starts)


class Set2Set(nn.Module):
    """An LSTM that asks the nodes of a graph again and again (Vinyals et al., 2015).

    q = LSTM(q*), r = Σ softmax(x_n · q) x_n, q* = [q, r], as often as there are steps; the result
    is the last q*, twice as wide as x.

    Args:
        width: features of a node.
        steps: how many steps every graph takes; as many as it has nodes if left out.
    """

    def __init__(self, width: int, steps: int | None = None) -> None:
        super().__init__()
        if steps is not None and steps < 0:
            raise ValueError(f"got steps={steps}, expected at least 0, or None: one for each node")
        self.width, self.steps = width, steps
        self.weight_ih = nn.Parameter(torch.empty(4 * width, 2 * width))
        self.weight_hh = nn.Parameter(torch.empty(4 * width, width))
        self.bias_ih = nn.Parameter(torch.empty(4 * width))
        self.bias_hh = nn.Parameter(torch.empty(4 * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `torch.nn.LSTM` is initialised."""
        bound = 1 / math.sqrt(self.width) if self.width > 0 else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Tensor,
        sizes: Tensor,
        max_size: int,
        real: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> Tensor:
        """x (nodes, width) to (graphs, 2·width); no graph has more than `max_size` nodes, but for
        those that are not `real` (graphs,), which take no steps."""
        steps, most = sizes, max_size
        if self.steps is not None:
            steps, most = torch.full_like(sizes, self.steps), self.steps
        if real is not None:
            steps = torch.where(real, steps, 0)
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        starts = _starts(sizes) if starts is None else starts
        return set2set(x, starts, steps, *weights, most)

    def extra_repr(self) -> str:
        return f"{self.width}" if self.steps is None else f"{self.width}, steps={self.steps}"


def _starts(sizes: Tensor) -> Tensor:
    """First node of every graph, and the end of the last."""
    return F.pad(sizes.cumsum(0), (1, 0))
