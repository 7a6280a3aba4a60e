"""Whole models: from a batch of graphs to predictions for its nodes and graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.names import lookup
from pna.nn.conv.mlp import Gate
from pna.nn.current import still, working_on
from pna.nn.depth import check_rule, depth_of
from pna.nn.dropout import Dropout
from pna.nn.encoder import Embedding, encoder
from pna.nn.family import KINDS, Convolution
from pna.nn.linear import MLP
from pna.nn.norm import BatchNorm
from pna.nn.pooling import ClusterReadout
from pna.nn.readout import Set2Set, max_nodes, mean_nodes, sum_nodes
from pna.nn.recurrent import GRU, recur
from pna.ops.across import processes


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
    activation and dropout, a readout, and a head that narrows.

    Args:
        convolution: name of the convolution, one of `pna.nn.family.KINDS`.
        in_channels: columns of a node's features.
        hidden: features of a node between layers.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        node_values: how many values each column of the nodes has, where they are whole numbers.
        edge_columns: columns of an edge's features; 0 for none.
        edge_values: how many values each column of the edges has, where they are whole numbers.
        edge_width: features that edges are given.
        layers: how many convolutions.
        out_channels: features after the last; as `hidden` if left out.
        readout: "sum", "mean" or "max" over the nodes of a graph.
        head: widths inside the head; a half and a quarter of its input if left out.
        residual: add a layer's input to its result where they are equally wide.
        graph_norm: divide by the square root of the number of nodes in the graph.
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
        dropout: float = 0.0,
        final: str = "none",
        clusters: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"got layers={layers}, expected at least 1")
        arguments["edge_dim"] = edge_width if edge_columns else None
        self.whole = bool(node_values)
        self.embed = encoder(node_values, in_channels, hidden)
        self.embed_edges = encoder(edge_values, edge_columns, edge_width) if edge_columns else None
        widths = [hidden] * layers + [hidden if out_channels is None else out_channels]
        self.convolutions = nn.ModuleList(
            Convolution(convolution, widths[i], widths[i + 1], act="none", **arguments)
            for i in range(layers)
        )
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths[1:])
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
            edges = self._edges(batch)
            self.dropout.advance()
            layers = zip(self.convolutions, self.norms, strict=True)
            for layer, (convolution, norm) in enumerate(layers):
                result = convolution(x, batch.adjacency, edges)
                if self.graph_norm:
                    nodes = batch.sizes.clamp(min=1)[batch.graph_of_node, None]
                    result = result * nodes.to(result.dtype).rsqrt()
                result = torch.relu(norm(result))
                if self.residual and result.shape == x.shape:
                    result = result + x
                x = self.dropout(result, layer)
            x = self.gate(x)
            node = None if self.node_head is None else self.node_head(x)
            if self.graph_head is None:
                return Prediction(node, None)
            read = self.readout(x, batch.sizes)
            read, own_loss = _with_clusters(read, self.clusters, x, batch)
            return Prediction(node, self.graph_head(read), own_loss)

    def _edges(self, batch: Batch) -> Any:
        """Edge features, as a table and a place in it where they are of few kinds."""
        if self.embed_edges is None:
            return None
        if batch.edge_attr is None:
            raise ValueError("got a batch without edge features, expected those it was made for")
        embed = self.embed_edges
        if isinstance(embed, Embedding) and batch.edge_attr.shape[1] == 1:
            return embed.weight, batch.edge_attr[:, 0].long()
        whole = isinstance(embed, Embedding)
        dtype = next(embed.parameters()).dtype
        return embed(batch.edge_attr if whole else batch.edge_attr.to(dtype))


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
