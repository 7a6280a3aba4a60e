"""The paper's model: one convolution over and over, as often as a graph asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.front import first_nodes
from pna.names import lookup
from pna.nn.architectures.parts import (
    READOUTS,
    Prediction,
    Reduction,
    cluster_readout,
    edge_features_of,
    features_of,
    gate,
    graph_head,
    node_head,
    with_clusters,
)
from pna.nn.batch_context import active_nodes, batch_context
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.depth import check_rule, depth_of, levels
from pna.nn.dropout import Dropout
from pna.nn.family import Convolution, Prepared
from pna.nn.hooks import is_hooked
from pna.nn.readout import Set2Set, max_nodes
from pna.nn.recurrent import GRU, recur
from pna.population.all_reduce import processes

#: Convolutions that walk the edges of nodes, and look at no others; of these, such as take the
#: first nodes of a batch for all.
_BY_NODES = ("pna", "pna-no-scalers", "mpnn-sum", "mpnn-max", "gat", "gcn", "gin")
_OF_THE_FIRST = ("gat", "gcn", "gin")


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
        gru: whether a GRU stands after each convolution, whose result is the next state otherwise.
        readout: "set2set", "sum", "mean" or "max" of a graph's nodes.
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
        gru: bool = True,
        readout: Literal["set2set"] | Reduction = "set2set",
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
        if swap_gru and not gru:
            raise ValueError("got swap_gru without a GRU; leave it out, or take gru=True")
        self.depth, self.tolerance, self.swap_gru = check_rule(depth), tolerance, swap_gru
        usual = arguments.get("edge_dim") is None and "aggregators" not in arguments
        usual = usual and arguments.get("pre_layers", 1) == 1  # which makes messages of edges
        self._by_nodes = convolution in _BY_NODES and usual and dropout == 0 and hidden <= 1024
        self.first = Convolution(convolution, in_channels, hidden, **arguments)
        self.again = Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
        self.gru, self.dropout = GRU(hidden) if gru else None, Dropout(dropout)
        self.gate = gate(convolution, hidden)
        self.node_head = node_head(hidden, node_targets, final) if node_targets else None
        by_name = readout != "set2set"
        self.readout = lookup("readout", readout, READOUTS) if by_name else None
        self.set2set = None if by_name or not graph_targets else Set2Set(hidden)
        self.clusters = cluster_readout(convolution, hidden, clusters, graph_targets)
        width = hidden if by_name else 2 * hidden
        width += 0 if self.clusters is None else hidden
        self.graph_head = graph_head(width, hidden, graph_targets, final)

    def levels(self, smallest: int, largest: int) -> Sequence[int]:
        """Sizes of graphs, between these, above which others take more steps; none where a batch
        must not be cut in fronts."""
        return levels(self.depth, smallest, largest) if self._by_nodes else ()

    def forward(self, batch: Batch) -> Prediction:
        with batch_context(batch):
            return self._predict(self._states(batch), batch)

    def _states(self, batch: Batch) -> Tensor:
        """The last state of every node."""
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
            last = recur(
                again, self.gru, state, adjacency, edges, depth.most - 1, until, self.swap_gru,
                depth.fronts,
            )  # fmt: skip
            if last is not None:
                return last
        fronts = depth.fronts if self.first.name in _OF_THE_FIRST else ()
        going = self._going(until, depth.most)
        rest: list[Tensor] = []  # states of nodes that take no more steps, those behind last
        for step in range(1, depth.most):
            if fronts and fronts[step - 1].nodes < len(state):
                _, nodes, room = fronts[step - 1]
                state, done = state.split([nodes, len(state) - nodes])
                rest.insert(0, done)
                adjacency = first_nodes(batch.adjacency, nodes, room)
            at = None if until is None else until[: len(state)]
            with active_nodes(None if going is None else going[step - 1, : len(state)]):
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
        """The last state, where something is done to every one of them: dropped, or compared."""
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
            # processes that share sums go on together
            if moving is not None and processes() == 1 and _seen(moving) and not moving.any():
                break
        return state

    def _going(self, until: Tensor | None, most: int) -> Tensor | None:
        """Of each step but the first, which nodes take it: (steps − 1, nodes), at once."""
        if until is None:
            return None
        return until > torch.arange(1, most, device=until.device)[:, None]

    def _update(
        self, state: Tensor, result: Tensor, until: Tensor | None = None, step: int = 0
    ) -> Tensor:
        if self.gru is None:
            return result if until is None else torch.where((until > step)[:, None], result, state)
        pair = (state, result) if self.swap_gru else (result, state)
        return self.gru(*pair, until, step, self.swap_gru)

    def _moving(self, new: Tensor, state: Tensor, before: Tensor | None, batch: Batch) -> Tensor:
        """Graphs, (graphs, 1), of which some state still moves."""
        change = (new - state).detach().abs().amax(1, keepdim=True)
        moving = max_nodes(change, batch.sizes, batch.starts) > self.tolerance
        if batch.real is not None:
            moving = moving & batch.real[:, None]
        return moving if before is None else moving & before

    def _predict(self, state: Tensor, batch: Batch) -> Prediction:
        state = self.gate(state)
        node = None if self.node_head is None else self.node_head(state)
        if self.graph_head is None:
            return Prediction(node, None)
        read = self._read(state, batch)
        read, own_loss = with_clusters(read, self.clusters, state, batch)
        return Prediction(node, self.graph_head(read), own_loss)

    def _read(self, state: Tensor, batch: Batch) -> Tensor:
        """What the states of its nodes say of every graph."""
        if self.set2set is None:
            assert self.readout is not None
            return self.readout(state, batch.sizes, batch.starts)
        most = batch.sizes_between()[1]
        return self.set2set(state, batch.sizes, most, batch.real, batch.starts)


def _seen(tensor: Tensor) -> bool:
    """Whether values may be looked at: on the CPU, and nothing transformed or compiled."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return tensor.device.type == "cpu"
