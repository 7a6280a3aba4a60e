"""GatedGCN of Bresson and Laurent (2017), without its residual connection."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pna.adjacency import Adjacency
from pna.baselines.edge_features import to_slots
from pna.baselines.gates import gated_sum
from pna.names import check_keywords
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.hooks import may_be_read
from pna.nn.linear import Linear
from pna.nn.registry import Entry, register
from pna.population.linears import linears, takes_widths


class GatedGCNConv(Conv, own_methods=("update",)):
    """x_i' = U x_i + Σ_{j→i} σ(e'_ji) ⊙ V x_j / (Σ_{j→i} σ(e'_ji) + 10⁻⁶), with
    e'_ji = A x_i + B x_j [+ C e_ji].

    This is the layer of Dwivedi et al.'s benchmark. Residual connections, normalisation and
    activation of nodes and edges are left to the model. A stack that keeps edge states calls
    `update`.

    Args:
        in_channels: features of a node.
        out_channels: features of a node, and of an edge state, in the output.
        normalise: divide by the sum of the gates. Otherwise the sums are those of PyG's
            `ResGatedGraphConv`.
        edge_dim: features of an edge. Default: none.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair (table, index); optional
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (0, 5.2, 3, 1)
    _shown = ("edge_dim",)

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        normalise: bool = True,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, edge_dim)
        self.normalise = normalise
        self.nodes = Linear(in_channels, 4 * out_channels)  # A, B, U, V
        self.edges = None if edge_dim is None else Linear(edge_dim, out_channels)  # C

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: EdgeFeatures = None) -> Tensor:
        adjacency = self._checked(x, edge_index, edge_attr, self.nodes.weight)
        edge = None if edge_attr is None else to_slots(edge_attr, adjacency, self.edges)
        return self._update(x, adjacency, edge)[0]

    def update(self, x: Tensor, adjacency: Adjacency, e: Tensor | None) -> tuple[Tensor, Tensor]:
        """x' (nodes, out_channels) and e' (edges, out_channels).

        Unlike in `forward`, e (edges, edge_dim) and e' are in slot order, so that consecutive
        layers need not sort them. `pna.baselines.edge_features.to_slots` sorts them once.
        """
        self._checked(x, adjacency, e, self.nodes.weight)
        edge = None if self.edges is None else self.edges(e)
        return self._update(x, adjacency, edge)

    def _update(
        self, x: Tensor, adjacency: Adjacency, edge: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x' and e', given C e (edges, out_channels) in slot order."""
        at_receiver, at_sender, own, sent = self._parts(x)
        total, state = gated_sum(at_receiver, at_sender, sent, adjacency, edge, self.normalise)
        return own + total, state

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        """A x, B x, U x and V x; with kernels from four products, otherwise cut from one."""
        whole = not takes_widths(x, self.in_channels, self.out_channels)
        if whole or not may_be_read(self.nodes, Linear):
            return self.nodes(x).chunk(4, 1)
        bias = self.nodes.bias
        biases = [None] * 4 if bias is None else list(bias.chunk(4))
        return linears(x, self.nodes.weight.chunk(4), biases)


register("gated-gcn", Entry(GatedGCNConv, act="relu", restriction="all"))
