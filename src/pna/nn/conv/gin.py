"""GIN, the graph isomorphism network of Xu et al. (2019)."""

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

    The MLP is linear, ReLU, normalisation, linear, ReLU, in the order of PNA's authors. Its hidden
    width is the larger of `in_channels` and `out_channels`. The sums are those of PyG's `GINConv`
    and `GINEConv`. In training, `torch.nn.BatchNorm1d` refuses fewer than two nodes.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        eps: ε, or its initial value.
        train_eps: learn ε.
        norm: makes the normalisation for a width.
        edge_dim: features of an edge. Default: none. With edge features, all messages are stored,
            (edges, in_channels).

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair (table, index); optional
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (4, 0, 3, 0)
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
