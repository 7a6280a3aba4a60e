"""GraphSAGE of Hamilton, Ying and Leskovec."""

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

#: Aggregators that may be taken after a linear map as well as before it; no subclasses of them.
_LINEAR = (Mean, Sum, NormalisedMean)


class SAGEConv(Conv):
    """x_i' = W_l ⊕_{j→i} x_j + b + W_r x_i.

    Results are those of PyG's layer of this name. Where ⊕ is linear and the result narrower than x,
    W_l comes first.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the result.
        aggregator: ⊕, any one, by name or as an object of `pna.aggregators`, whose tensors (a
            temperature, say) become buffers, or parameters if they are.
        normalise: divide each x_i' by its length.
        edge_dim: None; edge features are refused.
    """

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
        """x (nodes, in_channels) to (nodes, out_channels); edge features are refused."""
        weight, bias = self.lin_l.weight, self.lin_l.bias
        adjacency = self._checked(x, edge_index, edge_attr, weight)
        own, aggregator = self.lin_r(x), self.aggregator
        first = self.out_channels < self.in_channels and type(aggregator) in _LINEAR
        if first and may_be_read(self.lin_l, Linear):
            sent = linear(x, weight)
            out = aggregate(sent, adjacency, [aggregator])[:, 0] + own + bias.to(own.dtype)
        else:
            out = self.lin_l(aggregate(x, adjacency, [aggregator])[:, 0]) + own
        # autocast has the norm in float32 on a GPU, and would widen the result with it
        return F.normalize(out, dim=1).to(out.dtype) if self.normalise else out

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"aggregator={type(self._aggregator).__name__})"
        )


register("sage", Entry(SAGEConv, act="relu", restriction="all"))
register("diffpool", Entry(SAGEConv, act="relu", restriction="all", pooled=True))
