"""The paper's model: one convolution applied repeatedly, as often as each graph needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna.data.batch import Batch, SampledLayer
from pna.front import first_nodes
from pna.nn.architectures.base import (
    Architecture,
    Outputs,
    Prediction,
    Readout,
    edge_features_of,
    ends_of,
    features_of,
    label_features_of,
    paper_head,
    register,
)
from pna.nn.batch_context import active_nodes, batch_context
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.convolution import Convolution, Prepared
from pna.nn.depth import check_rule, depth_of, levels, steps_of
from pna.nn.dropout import Dropout
from pna.nn.hooks import is_hooked
from pna.nn.readout import max_nodes
from pna.nn.recurrent import GRU, recur
from pna.population.all_reduce import world_size
from pna.torch_internals import in_transform


class Recurrent(Architecture):
    """The paper's model: one convolution, then a second one applied repeatedly, a GRU after each.

    The number of steps depends on the graph (`depth`). Every graph of a batch takes its own number
    of steps, and gets the result it would get alone.

    Args:
        convolution: name of the convolution, one of `pna.nn.registry.CONVOLUTIONS`.
        in_channels: features of a node.
        hidden: features of a node's state.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        depth: number of steps, or a rule of `pna.nn.depth`: "N", "N/2", "4log2N", "2log2N" or
            "3sqrtN" (N nodes), "diameter", or "adaptive", which stops when no state of the graph
            changes by more than `tolerance`, after N steps at most.
        dropout: probability of dropping a feature after every convolution but the last.
        final: activation of the predictions; "none" for none.
        head_norm: normalisation in the head for graphs: over the "batch", or over the features of
            each graph ("layer"). The first divides by deviations in training, which may be near 0.
        gru: whether a GRU follows each convolution; without it, the convolution's output is the
            next state.
        readout: "set2set", or "sum", "mean" or "max" over the nodes of a graph.
        swap_gru: swap the GRU's input and state, as in the authors' code: the node state is the
            input, the convolution's output the state.
        tolerance: largest change of a state that "adaptive" ignores.
        clusters: clusters per graph, for "diffpool" only. Default: 8.
        edge_targets: numbers to predict for each labelled edge; 0 for none.
        symmetric: whether predictions for edges ignore the order of their ends.
        **arguments: arguments of `Convolution`: deg, towers, edge_dim, …

    Shapes:
        - **batch**: a `pna.data.batch.Batch` with x (nodes, in_channels)
        - **output**: a `Prediction`: node (nodes, node_targets), graph (graphs, graph_targets),
          edge (labelled edges, edge_targets)
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
        head_norm: str = "batch",
        gru: bool = True,
        readout: Readout = "set2set",
        swap_gru: bool = False,
        tolerance: float = 1e-3,
        clusters: int | None = None,
        edge_targets: int = 0,
        symmetric: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if in_channels > hidden:
            raise ValueError(
                f"got in_channels={in_channels} and hidden={hidden}, expected hidden to be at "
                f"least in_channels; use hidden={in_channels} or more"
            )
        if swap_gru and not gru:
            raise ValueError("got swap_gru=True with gru=False, expected a GRU; leave out one")
        self.depth, self.tolerance, self.swap_gru = check_rule(depth), tolerance, swap_gru
        usual = arguments.get("edge_dim") is None and "aggregators" not in arguments
        usual = usual and arguments.get("pre_layers", 1) == 1  # more layers store messages
        usual = usual and arguments.get("direction", "in") == "in"  # nodes hear of later ones too
        self.first = Convolution(convolution, in_channels, hidden, **arguments)
        usual = usual and self.first.entry.restriction != "all"
        self._takes_first_nodes = usual and dropout == 0 and hidden <= 1024
        self.again = Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
        self.gru, self.dropout = GRU(hidden) if gru else None, Dropout(dropout)
        edge_dim = arguments.get("edge_dim") or 0
        targets = Outputs(node_targets, graph_targets, edge_targets, edge_dim, symmetric)
        head = paper_head(final, head_norm)
        self._add_heads(convolution, hidden, targets, readout, clusters, head)

    def levels(self, smallest: int, largest: int) -> Sequence[int]:
        """Graph sizes between these above which graphs take more steps, largest first.

        Empty if steps cannot be restricted to the first nodes of a batch.
        """
        return levels(self.depth, smallest, largest) if self._takes_first_nodes else ()

    def whole_graph(self) -> str | None:
        if self.depth in ("adaptive", "diameter"):
            return f"depth={self.depth!r}"
        return super().whole_graph()

    def check_sample(self, layers: int) -> None:
        raise ValueError(
            "got sampled neighbours for a recurrent model, whose steps all have the same weights, "
            "expected a stacked or standard model; leave out sample (--sample), or use "
            "--architecture stacked"
        )

    @property
    def kept_rows(self) -> float:
        gates = 5 if self.gru is not None else 1
        return gates + 1.0 + (self.dropout.p > 0)

    def _label_features(self, batch: Batch) -> Tensor | None:
        return label_features_of(batch, self.first)

    def num_layers(self, nodes: int) -> int:
        """At least 2 if the depth depends on more than the number of nodes."""
        return 2 if self.depth in ("adaptive", "diameter") else steps_of(self.depth, nodes)

    def encode(self, x: Tensor) -> Tensor:
        return x.to(next(self.first.parameters()).dtype)

    def layer(self, number: int, state: Tensor, batch: Batch | SampledLayer) -> Tensor:
        convolution = self.first if number == 0 else self.again
        result = convolution(
            ends_of(state, batch.adjacency), batch.adjacency, edge_features_of(batch, convolution)
        )
        return self._update(state[: result.shape[0]], result)

    def forward(self, batch: Batch) -> Prediction:
        if batch.layers:
            self.check_sample(len(batch.layers))
        with batch_context(batch):
            return self._predict(self._states(batch), batch, self._label_features(batch))

    def _states(self, batch: Batch) -> Tensor:
        """The last state of every node, (nodes, hidden)."""
        depth = depth_of(batch, self.depth)
        adjacency, edges = batch.adjacency, edge_features_of(batch, self.first)
        x = features_of(batch, self.first)
        state = self._update(x, self.first(x, adjacency, edges))
        again = self.again if is_hooked(self.again) else self.again.prepared()
        until = None if depth.steps is None else depth.steps[batch.graph_of_node]
        self.dropout.advance()
        if self.depth == "adaptive" or (self.training and self.dropout.p > 0):
            return self._watched(state, again, edges, until, depth.most, batch)
        if self.gru is not None and isinstance(again, Prepared):
            last = recur(again, self.gru, state, adjacency, edges, depth, until, self.swap_gru)
            if last is not None:
                return last
        fronts = depth.fronts if self.first.entry.restriction == "first" else ()
        going = None  # which nodes take each step but the first, (steps − 1, nodes)
        if until is not None:
            going = until > torch.arange(1, depth.most, device=until.device)[:, None]
        rest: list[Tensor] = []  # final states of nodes that take no more steps
        for step in range(1, depth.most):
            if fronts and fronts[step - 1].nodes < state.shape[0]:
                _, nodes, num_edges = fronts[step - 1]
                state, done = state.split([nodes, state.shape[0] - nodes])
                rest.insert(0, done)
                adjacency = first_nodes(batch.adjacency, nodes, num_edges)
            rows = state.shape[0]  # not len(state): an exported program takes any number
            at = None if until is None else until[:rows]
            with active_nodes(None if going is None else going[step - 1, :rows]):
                result = again(state, adjacency, edges)
            state = self._update(state, result, at, step)
        return torch.cat([state, *rest]) if rest else state

    def _watched(
        self,
        state: Tensor,
        again: Convolution | Prepared,
        edges: EdgeFeatures,
        until: Tensor | None,
        most: int,
        batch: Batch,
    ) -> Tensor:
        """The last states, with dropout or with adaptive depth, which see every step."""
        moving: Tensor | None = None
        for step in range(1, most):
            going = None if until is None else until > step
            if going is not None and moving is not None:
                going = going & moving[batch.graph_of_node, 0]
            with active_nodes(going):
                dropped = self.dropout(state, step)
                new = self._update(dropped, again(dropped, batch.adjacency, edges))
            if self.depth == "adaptive":
                moving = self._moving(new, state, moving, batch)
            state = new if going is None else torch.where(going[:, None], new, state)
            # processes that share sums must take the same number of steps
            if moving is not None and world_size() == 1 and _seen(moving) and not moving.any():
                break
        return state

    def _update(
        self, state: Tensor, result: Tensor, until: Tensor | None = None, step: int = 0
    ) -> Tensor:
        if self.gru is None:
            return result if until is None else torch.where((until > step)[:, None], result, state)
        pair = (state, result) if self.swap_gru else (result, state)
        return self.gru(*pair, until, step, self.swap_gru)

    def _moving(self, new: Tensor, state: Tensor, before: Tensor | None, batch: Batch) -> Tensor:
        """Which graphs still have a state that changes, (graphs, 1) bool."""
        change = (new - state).detach().abs().amax(1, keepdim=True)
        moving = max_nodes(change, batch.sizes, batch.starts) > self.tolerance
        if batch.real is not None:
            moving = moving & batch.real[:, None]
        return moving if before is None else moving & before


def _seen(tensor: Tensor) -> bool:
    """Whether values can be read without waiting: on the CPU, not transformed or compiled."""
    if torch.compiler.is_compiling() or in_transform():
        return False
    return tensor.device.type == "cpu"


register("recurrent", Recurrent, hidden=16, towers=4)
