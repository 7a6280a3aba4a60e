"""Graph isomorphism network of Xu, Hu, Leskovec and Jegelka."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.baselines.edge_features import to_slots
from pna.baselines.neighbour_sum import neighbour_sum
from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.linear import Linear
from pna.nn.norm import BatchNorm
from pna.nn.registry import Entry, register
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
    _shown = ("edge_dim",)

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
        super().__init__(in_channels, out_channels, edge_dim)
        self.initial_eps = eps
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
        super().reset_parameters()

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        """x (nodes, in_channels) to (nodes, out_channels); `edge_attr` as in `PNAConv`."""
        adjacency = self._checked(x, edge_index, edge_attr, self.first.weight)
        if self.edge_encoder is None or edge_attr is None:
            total = neighbour_sum(x, adjacency)
        else:
            edge = to_slots(edge_attr, adjacency, self.edge_encoder)
            slots = Slots.of(adjacency)
            total = x + sum_to_receivers(F.relu(from_senders(x, slots) + edge), slots)
        h = torch.addcmul(total, self.eps.to(x.dtype), x)
        return F.relu(self.last(self.norm(F.relu(self.first(h)))))


register("gin", Entry(partial(GINConv, norm=BatchNorm), act=None, restriction="first"))
