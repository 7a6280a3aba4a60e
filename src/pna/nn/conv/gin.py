"""Graph isomorphism network of Xu, Hu, Leskovec and Jegelka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.baselines.edge_features import to_slots
from pna.baselines.neighbour_sum import neighbour_sum
from pna.names import check_keywords
from pna.nn.conv.base import Conv
from pna.nn.conv.baseline import Edges, checked
from pna.nn.conv.inputs import EdgeFeatures, check_sizes
from pna.nn.linear import Linear
from pna.ops.edges import Slots, from_senders, sum_to_receivers


class GINConv(Conv):
    """x_i' = MLP((1 + ε) x_i + Σ_{j→i} x_j); with edge features, Σ relu(x_j + W_e e_ji + b_e).

    The MLP is linear, ReLU, normalisation, linear, ReLU, the order of the authors of PNA, and as
    wide inside as the wider of its ends. Sums are those of PyG's `GINConv` and `GINEConv`. A
    batch normalisation refuses, in training, to be given less than two nodes.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the result.
        eps: ε, or where it starts.
        train_eps: learn ε.
        norm: makes the normalisation of so many features.
        edge_dim: features of an edge, if there are any. Then all messages are made, (edges,
            in_channels).
    """

    eps: Tensor

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        eps: float = 0.1,
        train_eps: bool = True,
        norm: Callable[[int], nn.Module] = nn.BatchNorm1d,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_channels=out_channels, edge_dim=edge_dim)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.edge_dim, self.initial_eps = edge_dim, eps
        start = torch.tensor([float(eps)])
        if train_eps:
            self.eps = nn.Parameter(start)
        else:
            self.register_buffer("eps", start)
        hidden = max(in_channels, out_channels)
        self.first = Linear(in_channels, hidden)
        self.norm = norm(hidden)
        self.last = Linear(hidden, out_channels)
        self.edge_encoder = None if edge_dim is None else Linear(edge_dim, in_channels)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.eps, self.initial_eps)
        modules: tuple[Any, ...] = (self.first, self.norm, self.last, self.edge_encoder)
        for module in modules:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels); `edge_attr` as in `PNAConv`."""
        adjacency = checked(
            x, edge_index, edge_attr, self.in_channels, self.edge_dim, self.first.weight
        )
        if self.edge_encoder is None or edge_attr is None:
            total = neighbour_sum(x, adjacency)
        else:
            edge = to_slots(edge_attr, adjacency, self.edge_encoder)
            slots = Slots.of(adjacency)
            total = x + sum_to_receivers(F.relu(from_senders(x, slots) + edge), slots)
        h = torch.addcmul(total, self.eps.to(x.dtype), x)
        return F.relu(self.last(self.norm(F.relu(self.first(h)))))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"edge_dim={self.edge_dim})"
        )
