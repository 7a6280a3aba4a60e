"""Whole models: from a batch of graphs to predictions for its nodes and graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.names import lookup
from pna.nn.conv.inputs import NARROW, EdgeFeatures
from pna.nn.conv.mlp import Gate
from pna.nn.current import still, working_on
from pna.nn.depth import check_rule, depth_of
from pna.nn.dropout import Dropout
from pna.nn.encoder import Embedding, encoder
from pna.nn.family import KINDS, Convolution
from pna.nn.linear import MLP, Linear
from pna.nn.norm import BatchNorm
from pna.nn.pooling import ClusterReadout
from pna.nn.readout import Set2Set, max_nodes, mean_nodes, sum_nodes
from pna.nn.recurrent import GRU, recur
from pna.ops.across import processes
from pna.ops.edges import to_slots


@dataclass(frozen=True)
class Prediction:
    """What a model says of a batch; None where it was made without such targets."""

    node: Tensor | None  # (nodes, targets)
    graph: Tensor | None  # (graphs, targets)
    own_loss: Tensor | None = None  # (graphs,) what a model that pools adds to that of its errors


READOUTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": sum_nodes,
    "mean": mean_nodes,
    "max": max_nodes,
}


class Recurrent(nn.Module):
    """The paper's model: one convolution, then another over and over, a GRU after each.

    How often is decided by `depth` from each graph: a rule of `pna.nn.depth`, or a number. Graphs
    of a batch each get their own depth, with the results they have alone. ``"adaptive"`` stops at
    a graph once none of its states has moved by more than `tolerance`.

    Args:
        convolution: name of the convolution, one of `pna.nn.family.KINDS`.
        in_channels: features of a node.
        hidden: features of a node's state.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        depth: rule of depth.
        dropout: probability that a number is dropped after a convolution but the last.
        final: activation of the predictions; "none" for none.
        swap_gru: the state is the GRU's input and the convolution's result its state, as in the
            authors' code.
        tolerance: of adaptive depth.
        clusters: how many a graph is given, if the model is "diffpool"; 8 if left out.
        **arguments: of `Convolution`: deg, towers, edge_dim, …
    """

    def __init__(
        self,
        convolution: str,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        *,
        depth: str | int = "N/2",
        dropout: float = 0.0,
        final: str = "leaky_relu",
        swap_gru: bool = False,
        tolerance: float = 1e-3,
        clusters: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if in_channels > hidden:
            raise ValueError(
                f"got nodes of {in_channels} features for states of hidden={hidden}, expected at "
                f"most as many; take hidden={in_channels} or more"
            )
        self.depth, self.tolerance, self.swap_gru = check_rule(depth), tolerance, swap_gru
        self.first = Convolution(convolution, in_channels, hidden, **arguments)
        self.again = Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
        self.gru, self.dropout = GRU(hidden), Dropout(dropout)
        self.gate = _gate(convolution, hidden)
        self.node_head = _node_head(hidden, node_targets, final) if node_targets else None
        self.set2set = Set2Set(hidden) if graph_targets else None
        self.clusters = _clusters(convolution, hidden, clusters, graph_targets)
        width = 2 * hidden if self.clusters is None else 3 * hidden
        self.graph_head = _graph_head(width, hidden, graph_targets, final)

    def forward(self, batch: Batch) -> Prediction:
        with working_on(batch):
            return self._predict(self._states(batch), batch)

    def _states(self, batch: Batch) -> Tensor:
        """The last state of every node."""
        depth = depth_of(batch, self.depth)
        adjacency, edges = batch.adjacency, _edge_features(batch, self.first)
        x = _features(batch, self.first)
        state = self._update(x, self.first(x, adjacency, edges))
        again = self.again.prepared()
        steps = None if depth.steps is None else depth.steps[batch.graph_of_node, None]
        moving: Tensor | None = None
        self.dropout.advance()
        if self.depth != "adaptive" and not (self.training and self.dropout.p > 0):
            until = None if steps is None else steps.squeeze(1)
            last = recur(
                again, self.gru, state, adjacency, edges, depth.most - 1, until, self.swap_gru
            )
            if last is not None:
                return last
        for step in range(1, depth.most):
            going = None if steps is None else steps > step
            if going is not None and moving is not None:
                going = going & moving[batch.graph_of_node]
            with still(going):
                dropped = self.dropout(state, step)
                new = self._update(dropped, again(dropped, adjacency, edges))
            if self.depth == "adaptive":
                moving = self._moving(new, state, moving, batch)
            state = new if going is None else torch.where(going, new, state)
            # processes that share sums go on together
            if moving is not None and processes() == 1 and _seen(moving) and not moving.any():
                break
        return state

    def _update(self, state: Tensor, result: Tensor) -> Tensor:
        return self.gru(state, result) if self.swap_gru else self.gru(result, state)

    def _moving(self, new: Tensor, state: Tensor, before: Tensor | None, batch: Batch) -> Tensor:
        """Graphs, (graphs, 1), of which some state still moves."""
        change = (new - state).detach().abs().amax(1, keepdim=True)
        moving = max_nodes(change, batch.sizes) > self.tolerance
        if batch.real is not None:
            moving = moving & batch.real[:, None]
        return moving if before is None else moving & before

    def _predict(self, state: Tensor, batch: Batch) -> Prediction:
        state = self.gate(state)
        node = None if self.node_head is None else self.node_head(state)
        if self.graph_head is None or self.set2set is None:
            return Prediction(node, None)
        read = self.set2set(state, batch.sizes, batch.sizes_between()[1], batch.real)
        read, own_loss = _with_clusters(read, self.clusters, state, batch)
        return Prediction(node, self.graph_head(read), own_loss)


class Standard(nn.Module):
    """The paper's model without recurrence: convolutions of their own weights, and skip
    connections from the input and from each of them to the heads, of mean readout.

    Args:
        layers: how many convolutions.
        Others as for `Recurrent`.
    """

    def __init__(
        self,
        convolution: str,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        *,
        layers: int = 8,
        readout: str = "mean",
        dropout: float = 0.0,
        final: str = "leaky_relu",
        clusters: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"got layers={layers}, expected at least 1")
        first = Convolution(convolution, in_channels, hidden, **arguments)
        others = (
            Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
            for _ in range(layers - 1)
        )
        self.convolutions = nn.ModuleList([first, *others])
        self.dropout = Dropout(dropout)
        self.readout = lookup("readout", readout, READOUTS)
        width = in_channels + layers * hidden
        self.gate = _gate(convolution, width)
        self.node_head = _node_head(width, node_targets, final) if node_targets else None
        self.clusters = _clusters(convolution, width, clusters, graph_targets)
        read = width if self.clusters is None else 2 * width
        self.graph_head = _graph_head(read, width, graph_targets, final)

    def forward(self, batch: Batch) -> Prediction:
        with working_on(batch):
            self.dropout.advance()
            states = [_features(batch, self.convolutions[0])]
            edges = _edge_features(batch, self.convolutions[0])
            for i, convolution in enumerate(self.convolutions):
                x = states[-1] if i == 0 else self.dropout(states[-1], i)
                states.append(convolution(x, batch.adjacency, edges))
            seen = self.gate(torch.cat(states, 1))
            node = None if self.node_head is None else self.node_head(seen)
            if self.graph_head is None:
                return Prediction(node, None)
            read = self.readout(seen, batch.sizes)
            read, own_loss = _with_clusters(read, self.clusters, seen, batch)
            return Prediction(node, self.graph_head(read), own_loss)


class Stacked(nn.Module):
    """The model of the real-world benchmarks: an embedding, convolutions with normalisation,
    activation, residual and dropout, a readout, and a head that narrows.

    With `norm_before_mixing` a layer is that of the authors' benchmark code: normalisation and
    dropout come between the towers and the linear layer that mixes them, LeakyReLU and residual
    after it.

    Args:
        convolution: name of the convolution, one of `pna.nn.family.KINDS`.
        in_channels: columns of a node's features.
        hidden: features of a node between layers.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        node_values: how many values each column of the nodes has, where they are whole numbers.
        edge_columns: columns of an edge's features; 0 for none.
        edge_values: how many values each column of the edges has, where they are whole numbers.
        edge_width: features that edges are given; `hidden` where they have states of their own,
            as in "gated-gcn", with or without features to begin with.
        layers: how many convolutions.
        out_channels: features after the last; as `hidden` if left out.
        readout: "sum", "mean" or "max" over the nodes of a graph.
        head: widths inside the head; a half and a quarter of its input if left out.
        residual: add a layer's input to its result where they are equally wide.
        graph_norm: divide by the square root of the number of nodes in the graph.
        norm_before_mixing: of convolutions with towers, whether they are mixed after the
            normalisation.
        dropout: probability that a number is dropped after a layer.
        final: activation of the predictions; "none" for none.
        clusters: how many a graph is given, if the model is "diffpool"; 8 if left out.
        **arguments: of `Convolution`.
    """

    def __init__(
        self,
        convolution: str,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        *,
        node_values: Sequence[int] = (),
        edge_columns: int = 0,
        edge_values: Sequence[int] = (),
        edge_width: int = 50,
        layers: int = 4,
        out_channels: int | None = None,
        readout: str = "sum",
        head: Sequence[int] | None = None,
        residual: bool = True,
        graph_norm: bool = False,
        norm_before_mixing: bool = False,
        dropout: float = 0.0,
        final: str = "none",
        clusters: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"got layers={layers}, expected at least 1")
        kind = lookup("convolution", convolution, KINDS)
        self.carries, self.edge_columns = kind.carries, edge_columns
        edge_width = hidden if kind.carries else edge_width
        arguments["edge_dim"] = edge_width if edge_columns or kind.carries else None
        if norm_before_mixing and not kind.towers:
            able = ", ".join(name for name, other in KINDS.items() if other.towers)
            raise ValueError(
                f"got norm_before_mixing for {convolution!r}, which has no towers to mix; leave it "
                f"out, or take one of {able}"
            )
        if norm_before_mixing:
            arguments["mixing"] = False
        self._takes_basis = kind.towers and edge_columns < NARROW
        self.whole = bool(node_values)
        self.embed = encoder(node_values, in_channels, hidden)
        self.embed_edges: nn.Module | None = None
        if edge_columns:
            self.embed_edges = encoder(edge_values, edge_columns, edge_width)
        elif kind.carries:
            self.embed_edges = Linear(1, edge_width)  # of a 1 for each
        widths = [hidden] * layers + [hidden if out_channels is None else out_channels]
        self.convolutions = nn.ModuleList(
            Convolution(convolution, widths[i], widths[i + 1], act="none", **arguments)
            for i in range(layers)
        )
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths[1:])
        # nobody asks for the edges of the last layer
        of_edges = widths[1:-1] if kind.carries else []
        self.edge_norms = nn.ModuleList(BatchNorm(width, level="edge") for width in of_edges)
        mixing = [Linear(width, width) for width in widths[1:]] if norm_before_mixing else []
        self.mixing = nn.ModuleList(mixing)
        self.dropout, self.residual, self.graph_norm = Dropout(dropout), residual, graph_norm
        self.readout = lookup("readout", readout, READOUTS)
        width = widths[-1]
        self.gate = _gate(convolution, width)
        self.node_head = _narrow_head(width, head, node_targets, final)
        self.clusters = _clusters(convolution, width, clusters, graph_targets)
        read = width if self.clusters is None else 2 * width
        self.graph_head = _narrow_head(read, head, graph_targets, final)

    def forward(self, batch: Batch) -> Prediction:
        with working_on(batch):
            x = self.embed(_columns(batch) if self.whole else _features(batch, self.embed))
            edges = self._edge_states(batch) if self.carries else self._edges(batch)
            self.dropout.advance()
            shrink = None
            if self.graph_norm:
                shrink = batch.sizes.clamp(min=1).to(x.dtype).rsqrt()[batch.graph_of_node, None]
            for layer, convolution in enumerate(self.convolutions):
                if self.carries:
                    result, edges = self._carry(layer, x, batch, edges)
                else:
                    result = convolution(x, batch.adjacency, edges)
                result = self.norms[layer](result if shrink is None else result * shrink)
                if self.mixing:
                    mixed = self.mixing[layer](self.dropout(result, layer))
                    x = self._beside(x, F.leaky_relu(mixed))
                else:
                    x = self.dropout(self._beside(x, torch.relu(result)), layer)
            x = self.gate(x)
            node = None if self.node_head is None else self.node_head(x)
            if self.graph_head is None:
                return Prediction(node, None)
            read = self.readout(x, batch.sizes)
            read, own_loss = _with_clusters(read, self.clusters, x, batch)
            return Prediction(node, self.graph_head(read), own_loss)

    def _beside(self, x: Tensor, result: Tensor) -> Tensor:
        """A layer's result, with its input added where that is to be and can be."""
        return result + x if self.residual and result.shape == x.shape else result

    def _edge_states(self, batch: Batch) -> Tensor:
        """What the states of edges begin as, by slot."""
        if self.edge_columns:
            given = self._edges(batch)
            assert given is not None
            return to_slots(given, batch.adjacency)
        assert isinstance(self.embed_edges, Linear)
        one = self.embed_edges.weight.t() + self.embed_edges.bias
        return one.expand(batch.adjacency.num_edges, -1)

    def _carry(
        self, layer: int, x: Tensor, batch: Batch, edges: Any
    ) -> tuple[Tensor, Tensor | None]:
        """A layer's result, and the edges' next states, normalised and beside those before."""
        convolution: Any = self.convolutions[layer]
        result, states = convolution.conv.update(x, batch.adjacency, edges)
        if layer == len(self.edge_norms):
            return result, None
        return result, self._beside(edges, torch.relu(self.edge_norms[layer](states)))

    def _edges(self, batch: Batch) -> EdgeFeatures:
        """Edge features, as a table and a place in it where they are of few kinds; as a basis and
        coefficients where they are few numbers and the convolution takes that, so that none of
        their embedding is made for every edge."""
        if self.embed_edges is None:
            return None
        if batch.edge_attr is None:
            raise ValueError("got a batch without edge features, expected those it was made for")
        embed = self.embed_edges
        if isinstance(embed, Embedding) and batch.edge_attr.shape[1] == 1:
            return embed.weight, batch.edge_attr[:, 0].long()
        if isinstance(embed, Embedding):
            return embed(batch.edge_attr)
        assert isinstance(embed, Linear)
        given = batch.edge_attr.to(embed.weight.dtype)
        if not self._takes_basis:
            return embed(given)
        return torch.cat([embed.weight.t(), embed.bias[None]]), F.pad(given, (0, 1), value=1.0)


ARCHITECTURES: dict[str, type[nn.Module]] = {
    "recurrent": Recurrent,
    "standard": Standard,
    "stacked": Stacked,
}


def _node_head(width: int, targets: int, final: str) -> MLP:
    return MLP([width, width, width, targets], "leaky_relu", None if final == "none" else final)


def _graph_head(width: int, inside: int, targets: int, final: str) -> MLP | None:
    if targets == 0:
        return None
    last = None if final == "none" else final
    norm = partial(BatchNorm, level="graph")
    return MLP([width, inside, inside, targets], "relu", last, norm=norm)


def _narrow_head(width: int, inside: Sequence[int] | None, targets: int, final: str) -> MLP | None:
    if targets == 0:
        return None
    inside = (width // 2, width // 4) if inside is None else inside
    return MLP([width, *inside, targets], last=None if final == "none" else final)


def _gate(convolution: str, width: int) -> nn.Module:
    """What the last states pass before they are read."""
    return Gate(width) if KINDS[convolution].gated else nn.Identity()


def _clusters(
    convolution: str, width: int, clusters: int | None, graph_targets: int
) -> ClusterReadout | None:
    """What reads graphs by their clusters, in a model that does."""
    if not KINDS[convolution].pooled:
        if clusters is not None:
            raise ValueError(
                f"got clusters={clusters} for {convolution!r}, which makes none of its nodes; "
                "leave it out, or take 'diffpool'"
            )
        return None
    if graph_targets == 0:
        raise ValueError(
            f"got no targets of graphs for {convolution!r}, which pools graphs to predict theirs; "
            "take 'sage', which has its layers"
        )
    return ClusterReadout(width, 8 if clusters is None else clusters)


def _with_clusters(
    read: Tensor, clusters: ClusterReadout | None, state: Tensor, batch: Batch
) -> tuple[Tensor, Tensor | None]:
    """What was read of every graph, beside what its clusters say, and their loss."""
    if clusters is None:
        return read, None
    said, loss = clusters(state, batch)
    return torch.cat([read, said], 1), loss


def _columns(batch: Batch) -> Tensor:
    if batch.x is None:
        raise ValueError(
            "got graphs whose nodes have no features, expected some; give every node a 1, say"
        )
    return batch.x


def _features(batch: Batch, first: nn.Module) -> Tensor:
    """Node features, in the type of the weights."""
    return _columns(batch).to(next(first.parameters()).dtype)


def _edge_features(batch: Batch, first: Any) -> Tensor | None:
    """Edge features, in the type of the weights; none where the model was made without them."""
    if first.edge_dim is None:
        return None
    if batch.edge_attr is None:
        raise ValueError("got a batch without edge features, expected those it was made for")
    return batch.edge_attr.to(next(first.parameters()).dtype)


def _seen(tensor: Tensor) -> bool:
    """Whether values may be looked at: on the CPU, and nothing transformed or compiled."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return tensor.device.type == "cpu"
