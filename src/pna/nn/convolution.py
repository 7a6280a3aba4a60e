"""Convolutions by their registered names, made with one signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

import pna.nn.conv as _conv  # which registers every convolution
from pna.adjacency import Adjacency
from pna.degree import DegreeStats
from pna.names import lookup
from pna.nn.activation import activation
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.hooks import is_hooked
from pna.nn.registry import CONVOLUTIONS

_conv.register_all()


class Convolution(nn.Module):
    """A registered convolution, made by its name, with its activation.

    Args:
        name: one of `pna.nn.registry.CONVOLUTIONS`, such as "pna", "gat", "gcn".
        in_channels: features of a node.
        out_channels: features of a node in the output.
        deg: degrees of the training set; ignored by layers without scalers.
        towers: number of towers; ignored by layers without towers.
        divide_input: whether each tower sees its share of the input only.
        edge_dim: features of an edge; None if edges have no features.
        act: activation after the layer; "none" for none. Default: that of the registry.
        **arguments: arguments of the layer itself, such as aggregators, heads, swap_extrema.

    Shapes:
        - **x**: (nodes, in_channels), **adjacency**: a `pna.Adjacency`
        - **edge_attr**: (edges, edge_dim), or a pair as in `PNAConv`
        - **output**: (nodes, out_channels)
    """

    def __init__(
        self,
        name: str,
        in_channels: int,
        out_channels: int,
        *,
        deg: Tensor | DegreeStats | None = None,
        towers: int = 1,
        divide_input: bool = False,
        edge_dim: int | None = None,
        act: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self.entry = lookup("convolution", name, CONVOLUTIONS)
        self.name, self.edge_dim = name, edge_dim
        if self.entry.degrees:
            arguments["deg"] = deg
        if self.entry.towers:
            arguments |= {"towers": towers, "divide_input": divide_input}
        if edge_dim is not None:
            if not self.entry.edges:
                able = ", ".join(other for other, entry in CONVOLUTIONS.items() if entry.edges)
                raise ValueError(
                    f"got edge features for {name!r}, which does not support them; train without "
                    f"them, or use one of {able}"
                )
            arguments["edge_dim"] = edge_dim
        self.conv = self.entry.make(in_channels, out_channels, **arguments)
        usual = self.entry.act if act is None else act
        self.act = activation(None if usual in (None, "none") else usual)

    def forward(self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures = None) -> Tensor:
        return self.act(self.conv(x, adjacency, edge_attr))

    def prepared(self) -> Prepared:
        """The layer for many calls, between which its weights do not change."""
        ready = getattr(self.conv, "prepared", None)
        own = self.conv if ready is None or is_hooked(self.conv) else ready()
        return Prepared(own, self.act)


class Prepared(NamedTuple):
    """A layer whose weights do not change between calls, with its activation."""

    conv: Callable[..., Tensor]
    act: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures = None) -> Tensor:
        return self.act(self.conv(x, adjacency, edge_attr))
