"""A node beside those of every graph, through which they hear of each other at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.linear import Linear
from pna.nn.readout import mean_nodes
from pna.population.segments import spread


class VirtualNode(nn.Module):
    """What a node that is joined to all others of its graph does before a layer: it hears them,
    v ← relu(W (v + mean of x_i) + b), and the layer hears it, x_i + v in the place of x_i.

    Nothing is normalised over graphs: they are few in a batch, and what is fitted to the noise of
    their statistics does not hold for other graphs.

    Args:
        width: features of a node, and of the virtual one.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = Linear(width, width)

    def forward(self, x: Tensor, state: Tensor | None, batch: Batch) -> tuple[Tensor, Tensor]:
        """x (nodes, width) and v (graphs, width), 0 if it is None, to what the layer hears and the
        next v."""
        heard = mean_nodes(x, batch.sizes, batch.starts)
        state = torch.relu(self.lin(heard if state is None else state + heard))
        return x + spread(state, batch.indptr, batch.num_nodes), state
