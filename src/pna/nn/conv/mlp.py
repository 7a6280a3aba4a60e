"""Layers that ignore the graph: the baseline that every convolution should beat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures, check_features, check_sizes
from pna.nn.linear import Linear
from pna.nn.registry import Entry, register


class MLPConv(Conv):
    """x_i' = W x_i + b: a linear layer with the signature of a convolution.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        edge_dim: must be None; edge features are not supported.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (0.5, 0, 2, 0)
    takes_edge_features = False

    @check_keywords()
    def __init__(self, in_channels: int, out_channels: int, edge_dim: int | None = None) -> None:
        super().__init__(in_channels, out_channels, edge_dim)
        self.lin = Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        check_features(x, self.in_channels, self.lin.weight)
        if edge_attr is not None:
            raise ValueError("got edge_attr, expected none: MLPConv ignores edges; leave it out")
        return self.lin(x)


class Gate(nn.Module):
    """x ⊙ σ(W x + b): each feature is multiplied by a gate between 0 and 1.

    Args:
        channels: features of x.

    Shapes:
        - **x**: (…, channels)
        - **output**: (…, channels)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        check_sizes(channels=channels)
        self.lin = Linear(channels, channels)

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.lin(x))


register("mlp", Entry(MLPConv, act="relu", restriction="all"))
register("mlp-gated", Entry(MLPConv, act="relu", restriction="all", gated=True))
