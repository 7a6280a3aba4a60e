"""GraphSAGE of Hamilton et al. (2017)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.hooks import may_be_read
from pna.nn.linear import Linear
from pna.nn.neighbourhood import keep_tensors, with_tensors
from pna.nn.registry import Entry, register
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import Aggregator, Mean, NormalisedMean, Sum, resolve
from pna.population.linears import linear

#: Aggregators that commute with a linear map; their subclasses may not.
_LINEAR = (Mean, Sum, NormalisedMean)


class SAGEConv(Conv):
    """x_i' = W_l ⊕_{j→i} x_j + b + W_r x_i.

    The results are those of PyG's `SAGEConv`. If ⊕ is linear and the output is narrower than x,
    W_l is applied first.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output.
        aggregator: ⊕, the name or an object of `pna.aggregators`. Its tensors (such as a
            temperature) become buffers, its parameters parameters.
        normalise: divide each x_i' by its Euclidean norm.
        edge_dim: must be None; edge features are not supported.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (1, 0, 3, 0)
    takes_edge_features = False

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregator: str | Aggregator | type[Aggregator] = "mean",
        normalise: bool = False,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, edge_dim)
        [self._aggregator], self.normalise = resolve([aggregator]), normalise
        keep_tensors(self, "aggregator", self._aggregator)
        self.lin_l = Linear(in_channels, out_channels)
        self.lin_r = Linear(in_channels, out_channels, bias=False)

    @property
    def aggregator(self) -> Aggregator:
        """⊕, with the tensors that this module holds now."""
        return with_tensors(self, "aggregator", self._aggregator)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        weight, bias = self.lin_l.weight, self.lin_l.bias
        adjacency = self._checked(x, edge_index, edge_attr, weight)
        own, aggregator = self.lin_r(x), self.aggregator
        first = self.out_channels < self.in_channels and type(aggregator) in _LINEAR
        if first and may_be_read(self.lin_l, Linear):
            sent = linear(x, weight)
            out = aggregate(sent, adjacency, [aggregator])[:, 0] + own + bias.to(own.dtype)
        else:
            out = self.lin_l(aggregate(x, adjacency, [aggregator])[:, 0]) + own
        # autocast computes the norm in float32 on a GPU, which would widen the output
        return F.normalize(out, dim=1).to(out.dtype) if self.normalise else out

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"aggregator={type(self._aggregator).__name__})"
        )


register("sage", Entry(SAGEConv, act="relu", restriction="all"))
register("diffpool", Entry(SAGEConv, act="relu", restriction="all", pooled=True))
