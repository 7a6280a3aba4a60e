"""Stochastic depth: layers that training leaves out at random."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pna.nn.dropout import Dropout


class StochasticDepth(nn.Module):
    """In training, sets the rows of a graph to 0 with probability `p`, and divides those of others
    by 1 − p (Huang and others, 2016).

    Applied to the result of a layer to which the layer's input is added, it leaves the layer out.
    What is drawn depends on the seed, the forward pass and the graph alone, as for `Dropout`.

    Args:
        p: probability, at least 0 and below 1.

    Shapes:
        - **x**: (nodes, features), **batch**: the graphs of these nodes
        - **output**: (nodes, features)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.coin = Dropout(p, level="graph")

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * self.coin(x.new_ones(batch.num_graphs, 1))[batch.graph_of_node]

    def extra_repr(self) -> str:
        return f"p={self.p:g}"
