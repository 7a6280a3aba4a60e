"""A virtual node for every graph, connected to all of its nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.linear import Linear
from pna.nn.readout import mean_nodes
from pna.population.segments import spread


class VirtualNode(nn.Module):
    """A virtual node, updated before a layer: v ← relu(W (v + mean of x_i) + b).

    The layer then sees x_i + v in place of x_i. There is no batch normalisation over graphs: a
    batch has few of them, and fitting the noise of their statistics does not generalise.

    Args:
        width: features of a node, and of the virtual node.

    Shapes:
        - **x**: (nodes, width), **state**: v, (graphs, width); None for 0
        - **output**: x + v (nodes, width), and the next v (graphs, width)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = Linear(width, width)

    def forward(self, x: Tensor, state: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor]:
        mean = mean_nodes(x, batch.sizes, batch.starts)
        state = torch.relu(self.lin(mean if state is None else state + mean))
        return x + spread(state, batch.indptr, batch.num_nodes), state
