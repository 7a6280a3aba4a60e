"""Every convolution of the paper's comparisons by its name, made with one signature.

Two of them are a convolution and what a model does beside it: ``mlp-gated`` and ``diffpool``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.degree import DegreeStats
from pna.names import lookup
from pna.nn.activation import activation
from pna.nn.conv.gat import GATConv
from pna.nn.conv.gated_gcn import GatedGCNConv
from pna.nn.conv.gcn import GCNConv
from pna.nn.conv.gin import GINConv
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.mlp import MLPConv
from pna.nn.conv.monet import MoNetConv
from pna.nn.conv.pna import PNAConv
from pna.nn.conv.sage import SAGEConv
from pna.nn.conv.simple import PNASimpleConv
from pna.nn.hooks import is_hooked
from pna.nn.norm import BatchNorm

_ALL_SCALERS = ("identity", "amplification", "attenuation")
_ALL_FOUR = ("mean", "std", "max", "min")


@dataclass(frozen=True)
class Kind:
    """How a convolution is made, and what is done to its result."""

    make: Callable[..., nn.Module]
    act: str | None
    edges: bool  # whether it has a place for edge features
    degrees: bool = False  # whether it takes δ
    towers: bool = False  # whether it runs as towers
    carries: bool = False  # whether edges have states, which a stack hands from layer to layer
    gated: bool = False  # whether a model of it gates the last states by themselves
    pooled: bool = False  # whether a model of it reads graphs by their clusters too

    def __post_init__(self) -> None:
        """What is declared must be what the layer takes: a layer that is not given its δ or towers
        would be another one, without a word."""
        takes = signature(self.make).parameters
        for name, argument in (("degrees", "deg"), ("towers", "towers")):
            if getattr(self, name) is not (argument in takes):
                raise ValueError(
                    f"got a convolution with {name}={getattr(self, name)}, whose layer takes "
                    f"{'the' if argument in takes else 'no'} argument {argument!r}; declare what "
                    "it takes"
                )
        if self.edges and "edge_dim" not in takes:
            raise ValueError(
                "got a convolution with edges=True, whose layer takes no argument 'edge_dim'; "
                "declare edges=False"
            )


def _message_passing(aggregators: tuple[str, ...], scalers: tuple[str, ...]) -> Kind:
    make = partial(PNAConv, aggregators=aggregators, scalers=scalers)
    return Kind(make, act="leaky_relu", edges=True, degrees=True, towers=True)


KINDS = {
    "pna": _message_passing(_ALL_FOUR, _ALL_SCALERS),
    "pna-no-scalers": _message_passing(_ALL_FOUR, ("identity",)),
    "pna-moments": _message_passing(("mean", "std", "moment_3"), _ALL_SCALERS),
    "pna-simple": Kind(
        partial(PNASimpleConv, aggregators=_ALL_FOUR, scalers=_ALL_SCALERS),
        act="relu",
        degrees=True,
        edges=False,
    ),
    "mpnn-sum": _message_passing(("sum",), ("identity",)),
    "mpnn-max": _message_passing(("max",), ("identity",)),
    "mpnn-mean-max-min": _message_passing(("mean", "max", "min"), ("identity",)),
    "gat": Kind(GATConv, act="elu", edges=True),
    "gcn": Kind(GCNConv, act="leaky_relu", edges=False),
    "gin": Kind(partial(GINConv, norm=BatchNorm), act=None, edges=True),
    "sage": Kind(SAGEConv, act="relu", edges=False),
    "monet": Kind(MoNetConv, act="relu", edges=True),
    "gated-gcn": Kind(GatedGCNConv, act="relu", edges=True, carries=True),
    "mlp": Kind(MLPConv, act="relu", edges=False),
    "mlp-gated": Kind(MLPConv, act="relu", edges=False, gated=True),
    "diffpool": Kind(SAGEConv, act="relu", edges=False, pooled=True),
}


class Convolution(nn.Module):
    """One of `KINDS` with its activation: x (nodes, inputs) to (nodes, outputs).

    Args:
        name: which one.
        in_channels: features of a node.
        out_channels: features of a node in the result.
        deg: degrees of the training set, for those that have scalers.
        towers: narrow layers side by side, for those that have towers.
        divide_input: whether each of them sees its share of the input.
        edge_dim: features of an edge, if there are any.
        act: another activation than the usual one; "none" for none.
        **arguments: of the layer itself, such as aggregators, heads, swap_extrema.
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
        self.kind = lookup("convolution", name, KINDS)
        self.name, self.edge_dim = name, edge_dim
        if self.kind.degrees:
            arguments["deg"] = deg
        if self.kind.towers:
            arguments |= {"towers": towers, "divide_input": divide_input}
        if edge_dim is not None:
            if not self.kind.edges:
                able = ", ".join(other for other, kind in KINDS.items() if kind.edges)
                raise ValueError(
                    f"got edge features for {name!r}, which has no place for them; train without "
                    f"them, or take one of {able}"
                )
            arguments["edge_dim"] = edge_dim
        self.conv = self.kind.make(in_channels, out_channels, **arguments)
        usual = self.kind.act if act is None else act
        self.act = activation(None if usual in (None, "none") else usual)

    def forward(self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures = None) -> Tensor:
        return self.act(self.conv(x, adjacency, edge_attr))

    def prepared(self) -> Prepared:
        """The layer as it is now, for many calls."""
        ready = getattr(self.conv, "prepared", None)
        if ready is None or is_hooked(self.conv):
            return Prepared(self.conv, self.act)
        return Prepared(ready(), self.act)


class Prepared(NamedTuple):
    """A layer whose weights do not change between calls, and its activation."""

    conv: Callable[..., Tensor]
    act: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor, adjacency: Adjacency, edge_attr: EdgeFeatures = None) -> Tensor:
        return self.act(self.conv(x, adjacency, edge_attr))
