"""GAT, graph attention of Veličković et al. (2018)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.baselines.attention import attention
from pna.baselines.edge_features import to_slots
from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.hooks import may_be_read
from pna.nn.linear import Linear
from pna.nn.registry import Entry, register
from pna.ops.edges import Slots, count_self_loops, sum_to_receivers
from pna.population.linears import linears


class GATConv(Conv):
    """x_i' = ‖_h Σ_{j→i} α_ij W_h x_j, with α the softmax over the edges that reach i of
    LeakyReLU(a_h · W_h x_i + b_h · W_h x_j [+ c_h · V_h e_ji]).

    A node without incoming edges gets 0. The results are those of PyG's `GATConv`, whose
    `out_channels` counts the features of one head.

    Args:
        in_channels: features of a node.
        out_channels: features of a node in the output, over all heads.
        heads: number of attention heads.
        concat: concatenate the heads; otherwise each has `out_channels` features and the output is
            their mean.
        negative_slope: slope of the LeakyReLU.
        add_self_loops: give every node exactly one self-loop, also if the graph has others. Its
            edge features are the mean over the other incoming edges.
        edge_dim: features of an edge. Default: none.
        bias: add a bias to the output.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair (table, index); optional
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (1, 1.4, 3, 3)
    _shown = ("heads", "edge_dim")

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 4,
        concat: bool = True,
        negative_slope: float = 0.2,
        add_self_loops: bool = False,
        edge_dim: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, edge_dim, heads=heads)
        if concat and out_channels % heads != 0:
            raise ValueError(
                f"got out_channels={out_channels} from {heads} heads side by side, expected a "
                f"multiple of {heads}; or pass concat=False, for the mean of heads of "
                f"{out_channels} features each"
            )
        self.heads, self.concat = heads, concat
        self.negative_slope, self.add_self_loops = negative_slope, add_self_loops
        each = out_channels // heads if concat else out_channels
        self.lin = Linear(in_channels, heads * each, bias=False)
        self.att_receiver = nn.Parameter(torch.empty(heads, each))
        self.att_sender = nn.Parameter(torch.empty(heads, each))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, heads * each, bias=False)
        self.att_edge = None if edge_dim is None else nn.Parameter(torch.empty(heads, each))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if name == "bias":
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        adjacency = self._checked(x, edge_index, edge_attr, self.lin.weight)
        return self._through(self._score_weight(), x, adjacency, edge_attr)

    def prepared(self) -> Callable[..., Tensor]:
        """The layer for many calls, which combines its parameters once."""
        return partial(self._through, self._score_weight())

    def _through(
        self,
        score_weight: Tensor | None,
        x: Tensor,
        adjacency: Adjacency,
        edge_attr: EdgeFeatures = None,
    ) -> Tensor:
        if score_weight is not None:
            h, scores = linears(x, [self.lin.weight, score_weight], [None, None])
            h, scores = h.unflatten(1, self.att_sender.shape), scores.unflatten(1, (self.heads, 2))
        else:
            h = self.lin(x).unflatten(1, self.att_sender.shape)
            both = (self.att_receiver, self.att_sender)
            scores = torch.stack([(h * vector).sum(2) for vector in both], 2)
        own = scores.sum(2) if self.add_self_loops else None
        edge = None
        if edge_attr is not None:
            edge = to_slots(edge_attr, adjacency, self._score_edges)
            if own is not None:
                own = own + _mean_without_self_loops(edge, adjacency)
        out = attention(h, scores, adjacency, self.negative_slope, edge, own)
        out = out.flatten(1) if self.concat else out.mean(1)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _score_weight(self) -> Tensor | None:
        """a_h W_h and b_h W_h of each head in turn, (2 · heads, in_channels), which give the scores
        in one narrow product. None if W must be called as a module."""
        if not may_be_read(self.lin, Linear):
            return None
        weight = self.lin.weight.unflatten(0, self.att_sender.shape)
        both = torch.stack([self.att_receiver, self.att_sender], 1)
        return (both[..., None] * weight[:, None]).sum(2).flatten(0, 1)

    def _score_edges(self, features: Tensor) -> Tensor:
        """c_h · V_h e, (…, heads), as one narrow product."""
        assert self.lin_edge is not None and self.att_edge is not None
        if not may_be_read(self.lin_edge, Linear):
            h = self.lin_edge(features).unflatten(1, self.att_edge.shape)
            return (h * self.att_edge).sum(2)
        weight = self.lin_edge.weight.unflatten(0, self.att_edge.shape)
        return F.linear(features, (weight * self.att_edge[..., None]).sum(1))


def _mean_without_self_loops(edge: Tensor, adjacency: Adjacency) -> Tensor:
    """Mean over the edges from other nodes, (nodes, heads), of scores (edges, heads) by slot."""
    slots = Slots.of(adjacency)
    is_loop = (adjacency.senders == slots.receivers)[:, None]
    others = (adjacency.incoming.lengths - count_self_loops(slots)).clamp(min=1)[:, None]
    return sum_to_receivers(edge.masked_fill(is_loop, 0), slots) / others.to(edge.dtype)


register("gat", Entry(GATConv, act="elu", restriction="first"))
