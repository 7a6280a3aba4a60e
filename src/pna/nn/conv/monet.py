"""MoNet, the mixture model network of Monti et al. (2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pna.baselines.edge_features import to_slots
from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.linear import Linear
from pna.nn.registry import Entry, register
from pna.ops.edges import Slots, from_receivers, from_senders, sum_to_receivers


class MoNetConv(Conv):
    """x_i' = Σ_{j→i} Σ_k w_k(u_ij) W_k x_j + b, w_k(u) = exp(−½ Σ_c ((u_c − μ_kc) / σ_kc)²).

    The pseudo-coordinates u of an edge are its features if the layer has an `edge_dim`. Otherwise
    they are tanh(V (1/sqrt(d_i + 1), 1/sqrt(d_j + 1)) + v), with d the in-degree, as in Dwivedi et
    al.'s benchmark. The sums are those of PyG's `GMMConv` with ``aggr="add"`` and
    ``root_weight=False``.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        kernels: number of Gaussian kernels.
        dim: number of pseudo-coordinates computed from the degrees.
        edge_dim: features of an edge, which are then the pseudo-coordinates. Default: none.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair (table, index); optional
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (1, 3.6, 2, 7)
    _shown = ("kernels", "edge_dim")

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernels: int = 3,
        dim: int = 2,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, edge_dim, kernels=kernels, dim=dim)
        self.kernels = kernels
        coordinates = dim if edge_dim is None else edge_dim
        self.lin = Linear(in_channels, kernels * out_channels, bias=False)
        self.mean = nn.Parameter(torch.empty(kernels, coordinates))
        self.inverse_sigma = nn.Parameter(torch.empty(kernels, coordinates))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.project = Linear(2, dim) if edge_dim is None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.normal_(self.mean, 0, 0.1)
        nn.init.ones_(self.inverse_sigma)
        nn.init.zeros_(self.bias)
        if self.project is not None:
            self.project.reset_parameters()

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        adjacency = self._checked(x, edge_index, edge_attr, self.lin.weight)
        slots = Slots.of(adjacency)
        weights = self._weights(x, slots, edge_attr)
        h = self.lin(x).unflatten(1, (self.kernels, self.out_channels))
        messages = (from_senders(h, slots) * weights[:, :, None].to(h.dtype)).sum(1)
        out = sum_to_receivers(messages.to(h.dtype), slots)
        return out + self.bias.to(out.dtype)

    def _weights(self, x: Tensor, slots: Slots, edge_attr: EdgeFeatures) -> Tensor:
        """w_k of every edge, (edges, kernels), in slot order."""
        if edge_attr is not None:
            return to_slots(edge_attr, slots.adjacency, self._gaussians)
        assert self.project is not None
        wide = torch.promote_types(x.dtype, torch.float32)
        by_degree = (slots.adjacency.degree + 1).to(wide).rsqrt().to(x.dtype)
        pair = [from_receivers(by_degree, slots), from_senders(by_degree, slots)]
        return self._gaussians(self.project(torch.stack(pair, 1)).tanh())

    def _gaussians(self, u: Tensor) -> Tensor:
        """(…, coordinates) to (…, kernels)."""
        distance = (u[:, None] - self.mean) * self.inverse_sigma
        return (-0.5 * distance.square().sum(2)).exp()


register("monet", Entry(MoNetConv, act="relu", restriction="all"))
