"""The model of the real-world benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.baselines.edge_features import to_slots
from pna.data.batch import Batch, SampledLayer
from pna.names import lookup, renamed_keywords
from pna.nn.activation import activation
from pna.nn.architectures.base import (
    Architecture,
    Outputs,
    Prediction,
    Readout,
    check_layers,
    columns_of,
    ends_of,
    features_of,
    labels_of,
    register,
)
from pna.nn.augmentation import RandomFlip, RandomRotate, RandomScaleShift, RandomSigns
from pna.nn.batch_context import batch_context
from pna.nn.conv.inputs import NARROW, EdgeFeatures
from pna.nn.convolution import Convolution
from pna.nn.dropout import Dropout
from pna.nn.edge_update import EdgeStates, EdgeUpdate
from pna.nn.encoder import Embedding, GraphEncoder, encoder
from pna.nn.hooks import may_be_read
from pna.nn.linear import MLP, Linear, Offset
from pna.nn.norm import BatchNorm
from pna.nn.registry import CONVOLUTIONS
from pna.nn.stochastic_depth import StochasticDepth
from pna.nn.virtual_node import VirtualNode
from pna.population.segments import spread

#: Normalisations of rows by name; each is made for a width.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "layer": nn.LayerNorm,
    "none": nn.Identity,
}

#: Combinations of categories of an edge up to which a CPU makes the features of all of them once.
_MOST_COMBINATIONS = 64


class Stacked(Architecture):
    """The model of the real-world benchmarks: an embedding, a stack of convolutions, a readout and
    a head.

    Each convolution is followed by normalisation, activation (ELU for "gat", otherwise ReLU), a
    residual connection and dropout. With `feed_forward`, x + dropout(MLP(norm(x))) comes after
    each layer. With `norm_before_mixing` a layer is that of the authors'
    benchmark code: normalisation and dropout come between the towers and the linear layer that
    mixes them, then LeakyReLU and the residual connection.

    Args:
        convolution: name of the convolution, one of `pna.nn.registry.CONVOLUTIONS`.
        in_channels: columns of node features.
        hidden: features of a node between layers.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        node_values: number of categories of each column of node features; 0 for a numeric column.
            Default: all are numeric.
        node_scales: mean and standard deviation of each column of node features, by which numeric
            columns are standardised if there are categorical ones.
        edge_columns: columns of edge features; 0 for none.
        edge_values: as `node_values`, for the columns of edge features.
        edge_scales: as `node_scales`, for the columns of edge features.
        edge_width: width of the embedded edge features. "gated-gcn", whose edges have states,
            uses `hidden` instead, with or without edge features.
        layers: number of convolutions.
        out_channels: features after the last convolution. Default: `hidden`.
        readout: "sum", "mean" or "max" over the nodes of a graph, or "set2set".
        head: widths inside the head. Default: a half and a quarter of its input, or 4 and 4 if that
            has fewer than 4 features.
        residual: add a layer's input to its output if they have the same width.
        graph_norm: divide node states by the square root of the graph's number of nodes, and edge
            states by that of its number of edges.
        norm: normalise the output of a layer over the "batch", or over the features of each node
            ("layer"); "none" for neither.
        batch_norm: False is the former way to write norm="none".
        feed_forward: width of the MLP in a feed-forward block, in units of the layer's width; 0
            for no such blocks.
        act_before_norm: apply a layer's activation before its normalisation, not after.
        virtual_node: whether every graph has a `VirtualNode`, updated between layers.
        norm_before_mixing: whether the towers are mixed after the normalisation; for convolutions
            with towers only.
        flip: coordinates that training mirrors, as in `RandomFlip`: for columns 3 and 4, which
            range from 0 to 1, ((3, 1.0), (4, 1.0)). Default: none.
        rotate: largest angle in degrees by which training rotates a graph, as in `RandomRotate`;
            0 for none.
        centre: the two coordinates that are rotated, and their centre: ((3, 0.5), (4, 0.5)).
        scale_shift: groups of columns that training scales and shifts, as in
            `RandomScaleShift`: (((3, 4), 0.5, 0.1, 0.05),). Default: none.
        signs: columns of node features whose sign training flips at random, as in `RandomSigns`,
            such as those of Laplacian eigenvectors. Default: none.
        dropout: probability of dropping a feature after a layer.
        dropout_first: apply dropout to the result of a layer before its input is added, not after.
        stochastic_depth: probability that training leaves out the last layer for a graph; that of
            layer i of L is i / L of it. Only results to which the input is added can be left out.
        final: activation of the predictions; "none" for none.
        graph_means: constants added to the predictions of a graph, one for each graph target.
        clusters: clusters per graph, for "diffpool" only. Default: 8.
        edge_targets: numbers to predict for each labelled edge; 0 for none.
        symmetric: whether predictions for edges ignore the order of their ends.
        edge_updates: update the states of edges after each layer, by an `EdgeUpdate`. Without edge
            features, all edges begin with the same state. For convolutions with edge features
            only. Predictions for edges see their last states.
        graph_scales: mean and standard deviation of each column of graph features, by which they
            are standardised in a `GraphEncoder`. Its output and the readout are the input of the
            head for graphs. Default: graph features are not used.
        graph_width: width of the encoded graph features. Default: `hidden`.
        graph_dropout: probability of dropping a graph feature.
        **arguments: arguments of `Convolution`.

    Shapes:
        - **batch**: a `pna.data.batch.Batch` with x (nodes, in_channels) and, for `edge_columns`
          above 0, edge_attr (edges, edge_columns), and, with `graph_scales`, x_graph (graphs,
          columns)
        - **output**: a `Prediction`: node (nodes, node_targets), graph (graphs, graph_targets),
          edge (labelled edges, edge_targets)
    """

    @renamed_keywords(mirror="flip", turn="rotate", vary="scale_shift")
    def __init__(
        self,
        convolution: str,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        *,
        node_values: Sequence[int] = (),
        node_scales: Sequence[tuple[float, float]] = (),
        edge_columns: int = 0,
        edge_values: Sequence[int] = (),
        edge_scales: Sequence[tuple[float, float]] = (),
        edge_width: int = 50,
        layers: int = 4,
        out_channels: int | None = None,
        readout: Readout = "sum",
        head: Sequence[int] | None = None,
        residual: bool = True,
        graph_norm: bool = False,
        norm: str = "batch",
        batch_norm: bool = True,
        feed_forward: float = 0.0,
        act_before_norm: bool = False,
        virtual_node: bool = False,
        norm_before_mixing: bool = False,
        flip: Sequence[tuple[int, float]] = (),
        rotate: float = 0.0,
        centre: Sequence[tuple[int, float]] = (),
        scale_shift: Sequence[tuple[Sequence[int], float, float, float]] = (),
        signs: Sequence[int] = (),
        dropout: float = 0.0,
        dropout_first: bool = False,
        stochastic_depth: float = 0.0,
        final: str = "none",
        graph_means: Sequence[float] = (),
        clusters: int | None = None,
        edge_targets: int = 0,
        symmetric: bool = False,
        edge_updates: bool = False,
        graph_scales: Sequence[tuple[float, float]] = (),
        graph_width: int | None = None,
        graph_dropout: float = 0.0,
        **arguments: Any,
    ) -> None:
        super().__init__()
        check_layers(layers)
        entry = lookup("convolution", convolution, CONVOLUTIONS)
        self.carries, self.edge_columns = entry.carries, edge_columns
        edge_width = hidden if entry.carries else edge_width
        has_states = entry.carries or edge_updates
        arguments["edge_dim"] = edge_width if edge_columns or has_states else None
        if edge_updates and (entry.carries or not entry.edges):
            able = ", ".join(n for n, e in CONVOLUTIONS.items() if e.edges and not e.carries)
            why = "updates edges itself" if entry.carries else "does not support edge features"
            raise ValueError(
                f"got edge_updates for {convolution!r}, which {why}; leave it out, or use one of "
                f"{able}"
            )
        if norm_before_mixing and not entry.towers:
            able = ", ".join(name for name, other in CONVOLUTIONS.items() if other.towers)
            raise ValueError(
                f"got norm_before_mixing for {convolution!r}, which has no towers to mix; leave it "
                f"out, or use one of {able}"
            )
        if norm_before_mixing and act_before_norm:
            raise ValueError(
                "got act_before_norm with norm_before_mixing, which applies the activation after "
                "the mixing; leave out one of them"
            )
        if norm_before_mixing and dropout_first:
            raise ValueError(
                "got dropout_first with norm_before_mixing, which applies dropout before the "
                "mixing; leave out one of them"
            )
        if norm_before_mixing:
            arguments["mixing"] = False
        self.categorical, self.edge_categorical = any(node_values), any(edge_values)
        for name, given in (("flip", flip), ("rotate", rotate), ("scale_shift", scale_shift)):
            if given and self.categorical:
                raise ValueError(
                    f"got {name} for nodes with categorical features, expected numeric features "
                    f"only; leave {name} out"
                )
        if centre and not rotate:
            raise ValueError(
                f"got centre={list(centre)} without rotate, expected both or neither; set the "
                "largest angle in degrees, such as rotate=10.0"
            )
        # checkpoints hold their states under these names
        self.mirror = RandomFlip(flip, in_channels) if flip else None
        self.turn = RandomRotate(rotate, centre, in_channels) if rotate else None
        self.vary = RandomScaleShift(scale_shift, in_channels) if scale_shift else None
        if any(node_values[column] for column in signs if column < len(node_values)):
            raise ValueError(
                f"got signs of the columns {list(signs)}, of which some are categories, expected "
                "columns of numbers; leave the others out"
            )
        self.signs = RandomSigns(signs, in_channels) if signs else None
        self.embed = encoder(node_values, in_channels, hidden, node_scales)
        self.embed_edges: nn.Module | None = None
        if edge_columns:
            self.embed_edges = encoder(edge_values, edge_columns, edge_width, edge_scales)
            vectors = (
                sum(max(v, 1) for v in edge_values) if self.edge_categorical else edge_columns + 1
            )
            self._takes_basis = entry.towers and vectors <= NARROW and not edge_updates
        elif has_states:
            self.embed_edges = Linear(1, edge_width)  # every edge starts from a 1
        widths = [hidden] * layers + [hidden if out_channels is None else out_channels]
        self.convolutions = nn.ModuleList(
            Convolution(convolution, widths[i], widths[i + 1], act="none", **arguments)
            for i in range(layers)
        )
        act = None if norm_before_mixing else "elu" if entry.act == "elu" else "relu"
        self.first_act = activation(act if act_before_norm else None)
        act = None if act_before_norm else act
        make_norm = lookup("norm", norm if batch_norm else "none", NORMS)
        fused = make_norm is BatchNorm and act == "relu"
        self.norms = nn.ModuleList(
            BatchNorm(w, relu=True) if fused else make_norm(w) for w in widths[1:]
        )
        self.act = activation(None if fused else act)
        # edge states of the last layer are used by predictions for edges only
        updated = widths[1:] if edge_targets else widths[1:-1]
        self.has_edge_states = edge_updates  # also if one layer has nothing to update
        self.edge_updates = nn.ModuleList(
            EdgeUpdate(w, edge_width) for w in updated if edge_updates
        )
        of_edges = widths[1:-1] if entry.carries else []
        self.edge_norms = nn.ModuleList(
            BatchNorm(w, level="edge", relu=True)
            if make_norm is BatchNorm
            else nn.Sequential(make_norm(w), nn.ReLU())
            for w in of_edges
        )
        if not 0 <= feed_forward < math.inf:
            raise ValueError(
                f"got feed_forward={feed_forward}, expected a width in units of the layer's width, "
                "such as 2; 0 for no feed-forward blocks"
            )
        blocks = widths[1:] if feed_forward else []
        self.feed_forward = nn.ModuleList(
            nn.Sequential(make_norm(w), MLP([w, max(round(feed_forward * w), 1), w]))
            for w in blocks
        )
        mixing = [Linear(width, width) for width in widths[1:]] if norm_before_mixing else []
        self.mixing = nn.ModuleList(mixing)
        between = widths[1:-1] if virtual_node else []
        self.virtual_nodes = nn.ModuleList(VirtualNode(width) for width in between)
        self.dropout, self.residual, self.graph_norm = Dropout(dropout), residual, graph_norm
        self.dropout_first = dropout_first
        if not 0 <= stochastic_depth < 1:
            raise ValueError(
                f"got stochastic_depth={stochastic_depth}, expected a probability of at least 0 "
                "and below 1"
            )
        if stochastic_depth and not residual:
            raise ValueError(
                f"got stochastic_depth={stochastic_depth} without residual connections, by which "
                "a layer can be left out; leave it out, or set residual=True"
            )
        chances = [stochastic_depth * (i + 1) / layers for i in range(layers)]
        left_out = [
            p if a == b else 0.0 for p, a, b in zip(chances, widths, widths[1:], strict=False)
        ]
        self.layer_drops = nn.ModuleList(map(StochasticDepth, left_out if stochastic_depth else ()))
        of_blocks = chances if stochastic_depth and feed_forward else ()
        self.block_drops = nn.ModuleList(map(StochasticDepth, of_blocks))

        def make_head(level: str, inputs: int, width: int, targets: int) -> MLP:
            narrow = (inputs // 2, inputs // 4) if inputs >= 4 else (4, 4)
            inside = narrow if head is None else head
            return MLP([inputs, *inside, targets], last=None if final == "none" else final)

        edge_dim = edge_width if edge_columns or edge_updates else 0
        targets = Outputs(node_targets, graph_targets, edge_targets, edge_dim, symmetric)
        embed_graph = None
        if graph_scales and graph_targets:
            width = hidden if graph_width is None else graph_width
            embed_graph = GraphEncoder(graph_scales, width, graph_dropout)
        self._add_heads(convolution, widths[-1], targets, readout, clusters, make_head, embed_graph)
        if graph_means and len(graph_means) != graph_targets:
            raise ValueError(
                f"got {len(graph_means)} graph_means, expected one for each of {graph_targets} "
                "graph_targets"
            )
        self.graph_shift = Offset(graph_means) if graph_means else nn.Identity()

    def forward(self, batch: Batch) -> Prediction:
        with batch_context(batch):
            x = columns_of(batch) if self.categorical else features_of(batch, self.embed)
            for seen in (self.mirror, self.turn, self.vary, self.signs):
                x = x if seen is None else seen(x, batch)
            x = self.encode(x)
            self.dropout.advance()
            if batch.layers:
                return self._of_sample(x, batch, self._label_features(batch))
            edges: Any = self._edges(batch) if self.edge_columns else None
            labels: Any = self._label_features(batch)
            if self.carries or self.has_edge_states:
                edges = self._edge_states(edges, batch.adjacency)
            if self.has_edge_states:
                edges = EdgeStates(batch.adjacency, edges)
                labels = self._label_states(labels, batch)
            shrink = None
            if self.graph_norm:
                shrink = batch.sizes.clamp(min=1).to(x.dtype).rsqrt()[batch.graph_of_node]
            virtual: Tensor | None = None
            for layer, convolution in enumerate(self.convolutions):
                conv_input = x
                if layer > 0 and self.virtual_nodes:
                    conv_input, virtual = self.virtual_nodes[layer - 1](x, virtual, batch)
                if self.carries:
                    result, edges = self._carry(layer, conv_input, batch, edges)
                elif self.has_edge_states:
                    result = convolution(conv_input, *edges.in_slot_order())
                else:
                    result = convolution(conv_input, batch.adjacency, edges)
                x = self._updated(layer, x, result, batch, shrink)
                if layer < len(self.edge_updates):
                    is_last = layer == len(self.convolutions) - 1
                    for states in (None if is_last else edges, labels):
                        if states is not None:
                            states.update(self.edge_updates[layer], x)
            if isinstance(labels, EdgeStates):
                labels = labels.in_given_order()
            found = self._predict(x, batch, labels)
            graph = None if found.graph is None else self.graph_shift(found.graph)
            return replace(found, graph=graph)

    def whole_graph(self) -> str | None:
        for part, used in (
            ("virtual_node", bool(self.virtual_nodes)),
            ("graph_norm", self.graph_norm),
            ("edge states, of gated-gcn", self.carries),
            ("edge_updates", self.has_edge_states),
            ("stochastic_depth", bool(self.layer_drops)),
        ):
            if used:
                return part
        return super().whole_graph()

    @property
    def kept_rows(self) -> float:
        rows = 3.0 + 2 * bool(self.mixing)  # results of the norm, the activation and the sum
        if self.feed_forward:
            block: Any = self.feed_forward[0]
            inner, width = next(block[1].parameters()).shape
            rows += 3 + inner / width
        return rows

    @property
    def kept_by_edges(self) -> int:
        if not self.edge_updates:
            return 0
        width, inputs = next(self.edge_updates[0].parameters()).shape
        # of each update: its input, its activation and the sum; and one gradient of the input
        return len(self.edge_updates) * (inputs + 2 * width) + inputs

    def num_layers(self, nodes: int) -> int:
        return len(self.convolutions)

    def encode(self, x: Tensor) -> Tensor:
        return self.embed(x if self.categorical else x.to(next(self.embed.parameters()).dtype))

    def layer(self, number: int, state: Tensor, batch: Batch | SampledLayer) -> Tensor:
        result = self.convolutions[number](
            ends_of(state, batch.adjacency), batch.adjacency, self._edges(batch)
        )
        return self._updated(number, state[: result.shape[0]], result, batch)

    def _updated(
        self,
        layer: int,
        x: Tensor,
        result: Tensor,
        batch: Batch | SampledLayer,
        shrink: Tensor | None = None,
    ) -> Tensor:
        """The states after a layer, from those before it and the result of its convolution."""
        result = self.first_act(result)
        result = _normalised(self.norms[layer], result, shrink)
        result = self.act(result)
        after = not self.mixing and not self.dropout_first
        if not after:
            result = self.dropout(result, layer)
        if self.mixing:
            result = F.leaky_relu(self.mixing[layer](result))
        if self.layer_drops:
            result = self.layer_drops[layer](result, batch)
        x = self._residual(x, result)
        if after:
            x = self.dropout(x, layer)
        if self.feed_forward:
            inner = self.dropout(self.feed_forward[layer](x), len(self.convolutions) + layer)
            x = x + (self.block_drops[layer](inner, batch) if self.block_drops else inner)
        return x

    def _residual(self, x: Tensor, result: Tensor) -> Tensor:
        """A layer's output, plus its input if there is a residual connection."""
        return result + x if self.residual and result.shape == x.shape else result

    def _label_states(self, features: Tensor | None, batch: Batch) -> EdgeStates | None:
        """The states of edges to be predicted; None if there are none."""
        if self.edge_head is None:
            return None
        labels = labels_of(batch)
        return EdgeStates(labels, self._edge_states(features, labels), self.edge_head.symmetric)

    def _edge_states(self, features: Any, adjacency: Adjacency) -> Tensor:
        """Initial edge states, (edges, width), in slot order, from embedded features if any."""
        if features is not None:
            return to_slots(features, adjacency)
        embed = self.embed_edges
        assert embed is not None
        if isinstance(embed, Linear) and may_be_read(embed, Linear):
            return (embed.weight.t() + embed.bias).expand(adjacency.num_edges, -1)
        dtype = next(embed.parameters()).dtype
        return embed(torch.ones(adjacency.num_edges, 1, dtype=dtype, device=adjacency.device))

    def _carry(
        self, layer: int, x: Tensor, batch: Batch, edges: Any
    ) -> tuple[Tensor, Tensor | None]:
        """A layer's output, and the next edge states; None after the last layer."""
        convolution: Any = self.convolutions[layer]
        result, states = convolution.conv.update(x, batch.adjacency, edges)
        if layer == len(self.edge_norms):
            return result, None
        shrink = None
        if self.graph_norm:
            starts = batch.adjacency.indptr[batch.indptr]  # first edge of every graph
            shrink = starts.diff().clamp(min=1).to(states.dtype).rsqrt()[:, None]
            shrink = spread(shrink, starts, batch.adjacency.num_edges)[:, 0]
        return result, self._residual(edges, _normalised(self.edge_norms[layer], states, shrink))

    def _label_features(self, batch: Batch) -> Tensor | None:
        """Embedded features of the edges to be predicted, (labelled, edge_width)."""
        embed, given = self.embed_edges, batch.label_attr
        if self.edge_head is None or not self.edge_columns or embed is None or given is None:
            return None
        return embed(given if self.edge_categorical else given.to(next(embed.parameters()).dtype))

    def _edges(self, batch: Batch | SampledLayer) -> EdgeFeatures:
        """Embedded edge features, in the form that needs the fewest numbers per edge.

        One categorical column becomes (table, index), and on a CPU, so do several columns with few
        combinations. Other columns, if they are few, become (basis, coefficients), if the
        convolution supports that. Otherwise, and if `embed_edges` has hooks or was replaced,
        `embed_edges` is called on every edge.
        """
        embed, given = self.embed_edges, batch.edge_attr
        if embed is None:
            return None
        if given is None:
            raise ValueError(
                f"got a batch without edge features, expected {self.edge_columns} columns of them: "
                "the model was made for graphs with edge features"
            )
        if not self.edge_categorical:
            given = given.to(next(embed.parameters()).dtype)
        if isinstance(embed, Embedding) and may_be_read(embed, Embedding):
            if given.shape[1] == 1:
                return embed.weight, given[:, 0].long()
            if given.device.type == "cpu" and embed.combinations <= _MOST_COMBINATIONS:
                return embed.every_output(), embed.combination_of(given)
            if self._takes_basis:
                return embed.weight, embed.coefficients(given)
        elif self._takes_basis and isinstance(embed, Linear) and may_be_read(embed, Linear):
            return torch.cat([embed.weight.t(), embed.bias[None]]), F.pad(given, (0, 1), value=1.0)
        return embed(given)


def _normalised(norm: nn.Module, result: Tensor, shrink: Tensor | None) -> Tensor:
    """The norm of a result (rows, width), each row multiplied by its `shrink` (rows,) first."""
    if isinstance(norm, BatchNorm):
        return norm(result, shrink)
    return norm(result if shrink is None else result * shrink[:, None])


register("stacked", Stacked, hidden=64)
