"""The simple PNA layer: aggregates and scales the features of neighbours, then mixes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from pna.adjacency import as_adjacency
from pna.degree import DegreeStats, Linear, Power
from pna.names import check_keywords
from pna.nn.activation import activation
from pna.nn.conv.base import Conv, Edges
from pna.nn.conv.inputs import check_features, working_type
from pna.nn.conv.plain import call
from pna.nn.hooks import may_be_read
from pna.nn.neighbourhood import Neighbourhood, StdConvention
from pna.nn.registry import Entry, register
from pna.nn.towers import TowerLinear, first_of, named_layers, tower_layers
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import Aggregator
from pna.ops.degree_linear import degree_linear


class PNASimpleConv(Conv):
    """x_i' = U(⊕_{j→i} x_j): a PNA layer without M, without towers, and without x_i.

    This is the layer of the paper's MolHIV model. A node does not see its own features: add
    self-loops, or a residual connection. The arguments are those of `PNAConv`. Edge features are
    not supported.

    Shapes:
        - **x**: (nodes, in_channels), **edge_index**: (2, edges), or a `pna.Adjacency`
        - **output**: (nodes, out_channels)
    """

    _memory_rows = (5.5, 0, 6, 0)
    takes_edge_features = False

    @check_keywords()
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggregators: Sequence[str | Aggregator | type[Aggregator]],
        scalers: Sequence[str | Power | Linear],
        deg: Tensor | DegreeStats | None,
        post_layers: int = 1,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        act_kwargs: dict[str, Any] | None = None,
        train_norm: bool = False,
        *,
        std: StdConvention = "paper",
    ) -> None:
        super().__init__(in_channels, out_channels, post_layers=post_layers)
        self.neighbourhood = Neighbourhood(aggregators, scalers, deg, train_norm, std)
        self.act = activation(act, act_kwargs)
        results = self.neighbourhood.num_aggregators * self.neighbourhood.num_scalers
        self.post = tower_layers(1, results * in_channels, out_channels, post_layers)

    def forward(self, x: Tensor, edge_index: Edges, edge_attr: None = None) -> Tensor:
        layers = named_layers("post", self.post)
        bias = getattr(self.post[0], "bias", None)
        check_features(x, self.in_channels, bias if isinstance(bias, Tensor) else x)
        if edge_attr is not None:
            raise ValueError(
                "got edge_attr, expected none: PNASimpleConv does not support edge features; leave "
                "it out"
            )
        adjacency = as_adjacency(edge_index, x.shape[0])
        factors = self.neighbourhood.factors(adjacency, x.dtype)
        x = x.to(working_type(x))
        results = aggregate(x, adjacency, self.neighbourhood.aggregators)[:, :, None]
        counts = (self.neighbourhood.num_scalers, self.neighbourhood.num_aggregators)
        first = first_of(self.post)
        weight = first.weight if may_be_read(first, TowerLinear) else None
        shape = (1, self.out_channels, math.prod(counts) * self.in_channels)
        if weight is not None and weight.shape == shape:
            mix = weight.unflatten(2, (*counts, self.in_channels))
            mix = mix.permute(2, 0, 3, 4, 1).flatten(2, 3)
            out = degree_linear(results, mix, factors, adjacency) + first.bias.to(x.dtype)
        else:
            self._warn_once("post[0]")
            scaled = (factors[:, :, None, None, None] * results[:, None]).to(results.dtype)
            scaled = scaled.permute(0, 3, 1, 2, 4).flatten(2)
            out = call("post[0]", first, scaled, self.out_channels)
        for name, layer in layers[1:]:
            out = call(name, layer, self.act(out), self.out_channels)
        return out[:, 0]


_PAPER = partial(
    PNASimpleConv,
    aggregators=("mean", "std", "max", "min"),
    scalers=("identity", "amplification", "attenuation"),
)
register("pna-simple", Entry(_PAPER, act="relu", restriction="all"))
