"""GCN of Kipf and Welling (2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.baselines.neighbour_sum import neighbour_sum
from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.hooks import may_be_read
from pna.nn.linear import Linear
from pna.nn.registry import Entry, register
from pna.ops.edges import count_self_loops
from pna.ops.request import wide_type
from pna.population.linears import linear


class GCNConv(Conv):
    """x_i' = W Σ_{j→i} x_j / sqrt(d_i d_j) + b, over the in-neighbours and the node itself.

    Every node gets exactly one self-loop, also if the graph has others or none. d is the in-degree
    including the self-loop. The results are those of PyG's `GCNConv`. No tensor has a row for
    each edge. The sum is computed before or after W, where the features are narrower.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        edge_dim: must be None; edge features are not supported.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (2, 0, 3, 0)
    takes_edge_features = False

    @check_keywords()
    def __init__(self, in_channels: int, out_channels: int, edge_dim: int | None = None) -> None:
        super().__init__(in_channels, out_channels, edge_dim)
        self.lin = Linear(in_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        adjacency = self._checked(x, edge_index, edge_attr, self.lin.weight)
        return self._through(x, adjacency, _Norm.of(adjacency, x.dtype))

    def prepared(self) -> Callable[..., Tensor]:
        """The layer for many calls on one graph, then on its first nodes (`pna.front`).

        The degrees are computed in the first call only.
        """
        known: list[_Norm] = []

        def call(x: Tensor, adjacency: Adjacency, edge_attr: None = None) -> Tensor:
            if not known:
                known.append(_Norm.of(adjacency, x.dtype))
            factor, own = (t[: adjacency.num_receivers] for t in known[0])
            return self._through(x, adjacency, _Norm(factor, own))

        return call

    def _through(self, x: Tensor, adjacency: Adjacency, norm: _Norm) -> Tensor:
        if self.in_channels <= self.out_channels or not may_be_read(self.lin, Linear):
            # the product then includes the bias
            return self.lin(neighbour_sum(x, adjacency, *norm))
        out = neighbour_sum(linear(x, self.lin.weight), adjacency, *norm)
        return out + self.lin.bias.to(out.dtype)


class _Norm(NamedTuple):
    """1 / sqrt(d) of every node, and the weight of the node itself, (nodes,) each.

    Sums run over the given edges, so the weight corrects the number of self-loops to one: it is
    1 / d without a self-loop, 0 with one, and negative with several.
    """

    factor: Tensor
    own: Tensor

    @staticmethod
    def of(adjacency: Adjacency, dtype: torch.dtype) -> _Norm:
        missing = 1 - count_self_loops(adjacency)
        degree = (adjacency.degree + missing).to(wide_type(dtype))
        return _Norm(degree.rsqrt(), missing / degree)


register("gcn", Entry(GCNConv, act="leaky_relu", restriction="first"))
