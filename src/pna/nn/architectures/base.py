"""What architectures share: predictions, readouts, heads, and how features enter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.data.batch import Batch, SampledLayer
from pna.names import lookup
from pna.nn.batch_context import active_nodes
from pna.nn.conv.mlp import Gate
from pna.nn.conv.pna import FLOW, PNAConv
from pna.nn.convolution import Convolution
from pna.nn.edge_update import slot_of_edge
from pna.nn.encoder import GraphEncoder
from pna.nn.linear import MLP
from pna.nn.norm import BatchNorm
from pna.nn.pooling import ClusterReadout
from pna.nn.readout import Set2Set, max_nodes, mean_nodes, sum_nodes
from pna.nn.registry import CONVOLUTIONS
from pna.ops.edges import Slots, from_receivers, from_senders


@dataclass(frozen=True)
class Prediction:
    """The output of a model for a batch of graphs."""

    node: Tensor | None  # (nodes, node_targets); None if the model has no node targets
    graph: Tensor | None  # (graphs, graph_targets); None if the model has no graph targets
    own_loss: Tensor | None = None  # (graphs,) added to the loss of the targets by pooling models
    edge: Tensor | None = None  # (labelled edges, edge_targets), in the order of `Batch.y_edge`
    vector: Tensor | None = None  # (graphs, features), the input of the head for graphs

    def at(self, level: str) -> Tensor:
        """The predictions of a level: "node", "graph" or "edge"."""
        found = {"node": self.node, "graph": self.graph, "edge": self.edge}[level]
        if found is None:
            raise ValueError(f"got a model without {level} targets, expected some")
        return found


class Outputs(NamedTuple):
    """The numbers that a model predicts for each node, graph and edge; 0 for none."""

    node: int
    graph: int
    edge: int = 0
    edge_dim: int = 0  # edge features that the head for edges sees
    symmetric: bool = False  # whether the head for edges ignores the order of the ends


Readout = Literal["set2set", "sum", "mean", "max"]

READOUTS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "sum": sum_nodes,
    "mean": mean_nodes,
    "max": max_nodes,
}

#: Makes a head for a "node", a "graph" or an "edge" from its inputs, the width of node states, and
#: targets.
Head = Callable[[str, int, int, int], MLP]


class EdgeHead(nn.Module):
    """Predictions for edges: MLP([x_i, x_j, e_ij]), where i sends to j.

    If it is symmetric: MLP([x_i + x_j, |x_i − x_j|, e_ij]), which is the same for (j, i).

    Args:
        mlp: module from (edges, 2 × width + edge_dim) to (edges, targets).
        symmetric: ignore the order of the ends.

    Shapes:
        - **state**: (nodes, width)
        - **edges**: a `pna.Adjacency`
        - **features**: (edges, edge_dim), in the given order of the edges; optional
        - **output**: (edges, targets), in the given order of the edges
    """

    def __init__(self, mlp: nn.Module, symmetric: bool) -> None:
        super().__init__()
        self.mlp, self.symmetric = mlp, symmetric

    def forward(self, state: Tensor, edges: Adjacency, features: Tensor | None) -> Tensor:
        slots = Slots.of(edges)
        parts = [from_senders(state, slots), from_receivers(state, slots)]
        if self.symmetric:
            parts = [parts[0] + parts[1], (parts[0] - parts[1]).abs()]
        if features is not None:
            parts.append(features.index_select(0, edges.edge_ids))
        return self.mlp(torch.cat(parts, 1)).index_select(0, slot_of_edge(edges))

    def extra_repr(self) -> str:
        return f"symmetric={self.symmetric}"


class Architecture(nn.Module):
    """A model from a batch of graphs to a `Prediction`.

    The constructor of every architecture takes (convolution, in_channels, hidden, node_targets,
    graph_targets), then its own arguments by name, of which the rest go to `Convolution`.

    A subclass calls `_add_heads` at the end of its constructor, and `_predict` with the last node
    states.

    Node states can be computed layer by layer, for some nodes of one large graph at a time: in
    evaluation (`pna.train.layerwise`), and in training with sampled neighbours. The parts are
    `encode`, then `layer` for each of `num_layers`, then `node_outputs` and `edge_outputs`.
    `whole_graph` says if that is impossible.
    """

    def whole_graph(self) -> str | None:
        """The part of the model that needs all nodes of a graph at once; None if there is none."""
        if self.graph_head is not None:
            return "predictions of graphs"
        for module in self.modules():
            if isinstance(module, PNAConv) and (module.outgoing or module.flow != FLOW):
                return "messages along outgoing edges"
        return None

    def check_sample(self, layers: int) -> None:
        """Raise unless the model takes neighbours that were sampled for this number of layers."""
        part = self.whole_graph()
        if part is not None:
            raise ValueError(
                f"got sampled neighbours for a model with {part}, which needs all nodes of the "
                "graph, expected a model without this part; leave out sample (--sample), or change "
                "the model"
            )
        own = self.num_layers(0)
        if own != layers:
            raise ValueError(
                f"got {layers} fan-outs in sample for a model of {own} layers, expected one for "
                "each layer; change --sample or --layers"
            )

    @property
    def kept_rows(self) -> float:
        """Rows of features for each node that a layer keeps for the backward pass, besides its
        convolution. An estimate."""
        raise NotImplementedError

    @property
    def kept_by_edges(self) -> int:
        """Numbers for each edge that are kept for the backward pass, besides convolutions."""
        return 0

    def num_layers(self, nodes: int) -> int:
        """Number of layers for a graph of this many nodes."""
        raise NotImplementedError

    def encode(self, x: Tensor) -> Tensor:
        """The first node states from node features, (nodes, in_channels)."""
        raise NotImplementedError

    def layer(self, number: int, state: Tensor, batch: Batch | SampledLayer) -> Tensor:
        """The states of the receivers after a layer, from those of all senders.

        The receivers are the first of the senders. Only the adjacency and the edge features of the
        batch are read.
        """
        raise NotImplementedError

    def _of_sample(self, state: Tensor, batch: Batch, edges: Tensor | None) -> Prediction:
        """Predictions for the seeds of a sampled batch, from the states before the first layer and
        the features of labelled edges."""
        self.check_sample(len(batch.layers))
        takes_pairs = self._takes_pairs()
        for number, sampled in enumerate(batch.layers):
            given = sampled if takes_pairs else sampled.square()
            with active_nodes(given.counted):
                state = self.layer(number, state, given)
            state = state[: sampled.adjacency.num_receivers]
        return self._predict(state, batch, edges)

    def _takes_pairs(self) -> bool:
        """Whether all convolutions take the states of senders and of receivers as a pair."""
        convolutions = (m.conv for m in self.modules() if isinstance(m, Convolution))
        return all(isinstance(conv, PNAConv) for conv in convolutions)

    def node_outputs(self, state: Tensor) -> Tensor:
        """Predictions for nodes, (nodes, node_targets), from their last states."""
        assert self.node_head is not None
        return self.node_head(self.gate(state))

    def edge_outputs(self, state: Tensor, batch: Batch) -> Tensor:
        """Predictions for the labelled edges of a batch, (labelled, edge_targets), from the last
        states of the nodes."""
        assert self.edge_head is not None
        return self.edge_head(self.gate(state), labels_of(batch), self._label_features(batch))

    def _label_features(self, batch: Batch) -> Tensor | None:
        """Features of the edges to be predicted, as the head for edges sees them."""
        raise NotImplementedError

    def _add_heads(
        self,
        convolution: str,
        width: int,
        targets: Outputs,
        readout: Readout,
        clusters: int | None,
        head: Head,
        embed_graph: GraphEncoder | None = None,
    ) -> None:
        """Make all modules that come after the node states (nodes, width).

        Args:
            convolution: name of the convolution, which may ask for a gate or clusters.
            width: features of a node state.
            targets: numbers to predict.
            readout: how the node states of a graph are combined.
            clusters: clusters per graph, for a pooling convolution; None for the default.
            head: makes the heads.
            embed_graph: encodes features of graphs, which the head of graphs then sees too.
        """
        node, graph, edge, edge_dim, symmetric = targets
        self.gate = Gate(width) if CONVOLUTIONS[convolution].gated else nn.Identity()
        self.node_head = head("node", width, width, node) if node else None
        by_attention = readout == "set2set"
        self.readout = None if by_attention else lookup("readout", readout, READOUTS)
        self.set2set = Set2Set(width) if by_attention and graph else None
        self.clusters = _cluster_readout(convolution, width, clusters, graph)
        read = width * (1 + by_attention + (self.clusters is not None))
        self.embed_graph = embed_graph
        if embed_graph is not None:
            read += embed_graph.lin.out_features
        self.graph_head = head("graph", read, width, graph) if graph else None
        self.edge_head = None
        if edge:
            self.edge_head = EdgeHead(head("edge", 2 * width + edge_dim, width, edge), symmetric)

    def _predict(self, state: Tensor, batch: Batch, edges: Tensor | None = None) -> Prediction:
        """Predictions from the last node states, (nodes, width), and the features of labelled
        edges, (labelled, edge_dim)."""
        state = self.gate(state)
        node = None if self.node_head is None else self.node_head(state)
        edge = None
        if self.edge_head is not None:
            edge = self.edge_head(state, labels_of(batch), edges)
        if self.graph_head is None:
            return Prediction(node, None, edge=edge)
        read, own_loss = self._read(state, batch), None
        if self.clusters is not None:
            of_clusters, own_loss = self.clusters(state, batch)
            read = torch.cat([read, of_clusters], 1)
        if self.embed_graph is not None:
            read = torch.cat([read, self.embed_graph(graph_features_of(batch))], 1)
        return Prediction(node, self.graph_head(read), own_loss, edge, read)

    def _read(self, state: Tensor, batch: Batch) -> Tensor:
        """Node states (nodes, width) to graphs (graphs, width), or twice as wide by Set2Set."""
        if self.set2set is None:
            assert self.readout is not None
            return self.readout(state, batch.sizes, batch.starts)
        most = batch.sizes_between()[1]
        return self.set2set(state, batch.sizes, most, batch.real, batch.starts)


ARCHITECTURES: dict[str, type[Architecture]] = {}

#: Arguments of `pna.train.ModelSettings` if none are given, by architecture.
DEFAULTS: dict[str, dict[str, Any]] = {}


def register(name: str, architecture: type[Architecture], *, hidden: int, **defaults: Any) -> None:
    """Add an architecture, with its default width and other default arguments in training."""
    if name in ARCHITECTURES:
        raise ValueError(f"got two architectures called {name!r}, expected one; rename one of them")
    ARCHITECTURES[name], DEFAULTS[name] = architecture, {"hidden": hidden, **defaults}


#: Normalisations in the graph head of the paper's multi-task models, each made for a width.
HEAD_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": partial(BatchNorm, level="graph"),
    "layer": nn.LayerNorm,
}


def paper_head(final: str, norm: str = "batch") -> Head:
    """The heads of the paper's multi-task models, with the activation `final`; "none" for none, and
    one of `HEAD_NORMS` in the graph head."""
    last = None if final == "none" else final
    of_graphs = lookup("norm", norm, HEAD_NORMS)

    def make(level: str, inputs: int, width: int, targets: int) -> MLP:
        if level != "graph":
            return MLP([inputs, width, width, targets], "leaky_relu", last)
        return MLP([inputs, width, width, targets], "relu", last, of_graphs)

    return make


def _cluster_readout(
    convolution: str, width: int, clusters: int | None, graph_targets: int
) -> ClusterReadout | None:
    """The second readout of a pooling model; None for other models."""
    if not CONVOLUTIONS[convolution].pooled:
        if clusters is not None:
            raise ValueError(
                f"got clusters={clusters} for {convolution!r}, which does not cluster nodes; "
                "leave it out, or use 'diffpool'"
            )
        return None
    if graph_targets == 0:
        raise ValueError(
            f"got no graph targets for {convolution!r}, which pools graphs to predict theirs; "
            "use 'sage', which has the same layers"
        )
    return ClusterReadout(width, 8 if clusters is None else clusters)


def ends_of(state: Tensor, adjacency: Adjacency) -> Any:
    """The input of a convolution whose receivers are the first of the nodes: the states, or a pair
    of those of senders and of receivers."""
    receivers = adjacency.num_receivers
    return state if receivers == adjacency.num_senders else (state, state[:receivers])


def check_layers(layers: int) -> None:
    if layers < 1:
        raise ValueError(f"got layers={layers}, expected at least 1")


def columns_of(batch: Batch) -> Tensor:
    """Node features, (nodes, columns)."""
    if batch.x is None:
        raise ValueError(
            "got graphs without node features, expected at least one; give every node a 1, say"
        )
    return batch.x


def features_of(batch: Batch, first: nn.Module) -> Tensor:
    """Node features, in the dtype of the weights of `first`."""
    return columns_of(batch).to(next(first.parameters()).dtype)


def edge_features_of(batch: Batch | SampledLayer, first: Any) -> Tensor | None:
    """Edge features, in the dtype of the weights; None if the model was made without them."""
    if first.edge_dim is None:
        return None
    if batch.edge_attr is None:
        raise ValueError(
            "got a batch without edge features, expected them: the model was made for graphs with "
            "edge features"
        )
    return batch.edge_attr.to(next(first.parameters()).dtype)


def graph_features_of(batch: Batch) -> Tensor:
    """Features of graphs, (graphs, columns)."""
    if batch.x_graph is None:
        raise ValueError(
            "got a batch without graph features, expected them: the model was made for graphs with "
            "features of whole graphs (x_graph)"
        )
    return batch.x_graph


def labels_of(batch: Batch) -> Adjacency:
    """The edges to be predicted."""
    if batch.labels is None:
        raise ValueError(
            "got a batch without labelled edges, expected them: the model predicts targets of "
            "edges; make the graphs by NodeGraph.graph_set"
        )
    return batch.labels


def label_features_of(batch: Batch, first: Any) -> Tensor | None:
    """As `edge_features_of`, of the edges to be predicted."""
    if first.edge_dim is None or batch.label_attr is None:
        return None
    return batch.label_attr.to(next(first.parameters()).dtype)
