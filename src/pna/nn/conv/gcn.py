"""Graph convolution of Kipf and Welling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.nn.conv.baseline import Edges, check_sizes, checked, refuse_edge_features
from pna.nn.conv.inputs import EdgeFeatures
from pna.ops.aggregate import aggregate
from pna.ops.edges import count_self_loops


class GCNConv(nn.Module):
    """x_i' = W Σ_{j→i} x_j / sqrt(d_i d_j) + b, over the in-neighbours and the node itself.

    Every node has one self-loop, whatever self-loops were given; d counts it, and otherwise the
    edges that reach a node. Results are those of PyG's layer of this name. No tensor has a row of
    features for each edge, and the sum is taken where features are narrower: before W or after.
    """

    def __init__(self, in_channels: int, out_channels: int, edge_dim: int | None = None) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels)
        refuse_edge_features("GCNConv", edge_dim)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = nn.Linear(in_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels); edge features are refused."""
        weight, bias = self.lin.weight, self.lin.bias
        adjacency = checked(x, edge_index, edge_attr, self.in_channels, None, weight)
        if self.in_channels < self.out_channels:
            return self.lin(_normalised_sum(x, adjacency))
        out = _normalised_sum(F.linear(x, weight), adjacency)
        return out + bias.to(out.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


def _normalised_sum(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Σ x_j / sqrt(d_i d_j), each node with exactly one self-loop: (nodes, features).

    The sum runs over the edges as they are, then self-loops are added or taken away to make one.
    """
    loops = count_self_loops(adjacency)
    missing = 1 - loops
    factor = (adjacency.degree + missing).to(torch.promote_types(x.dtype, torch.float32)).rsqrt()
    factor = factor[:, None].to(x.dtype)
    sent = factor * x
    total = aggregate(sent, adjacency, ["sum"])[:, 0]
    return factor * torch.addcmul(total, missing[:, None].to(x.dtype), sent)
