"""Predictions for all nodes of one large graph, layer by layer and for some nodes at a time.

A full batch needs the intermediate tensors of a layer for all nodes. Here each layer is computed
for slices of the receivers: the edges that reach them and the states of the senders are gathered.
Every node has all of its edges, so the results are those of the full batch, except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pna.adjacency import Adjacency
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.structure import offsets
from pna.machine import free_memory
from pna.nn.architectures.base import Architecture, Prediction
from pna.nn.batch_context import batch_context
from pna.nn.conv.pna import PNAConv
from pna.nn.convolution import Convolution
from pna.train.population import Population

#: Share of the free memory that the states of nodes may take, and that a slice may take.
_SHARE = 0.4


def whole_graph(model: nn.Module) -> str | None:
    """The part of a model that needs all nodes of a graph at once; None if there is none."""
    return model.whole_graph() if isinstance(model, Architecture) else type(model).__name__


def is_at_once(population: Population, graphs: GraphSet) -> bool:
    """Whether models see all nodes at once: they fit into the free memory, or must be seen so."""
    if len(graphs) != 1 or whole_graph(population.model) is not None:
        return True
    sizes = (graphs.num_nodes, graphs.num_nodes)
    convolutions = _convolutions(population.model)
    needs = [_bytes_of(c.conv, sizes, graphs.num_edges) for c in convolutions]
    needs.append(graphs.num_labels * _bytes_of_label(convolutions))
    return len(population) * max(needs) <= 2 * _SHARE * free_memory(population.device)


def _convolutions(model: nn.Module) -> list[Convolution]:
    return [module for module in model.modules() if isinstance(module, Convolution)]


@torch.no_grad()
def layerwise_outputs(
    population: Population,
    graphs: GraphSet,
    slice_nodes: int | None = None,
    weights: Tensor | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> list[Prediction]:
    """Predictions of every member for all nodes of one graph, and for its labelled edges.

    Models must be in evaluation mode. Slices are computed on the device of the population, where
    the result is too. The graph may be on another device. States are on the CPU if the device has
    too little memory for them.

    Args:
        population: the models.
        graphs: a set of one graph.
        slice_nodes: number of nodes of a slice. Default: as many as fit into the free memory.
        weights: weights of the members, as in `Population.apply`. Default: those of the population.
        buffers: their buffers. Default: those of the population.
    """
    _check(population.model, graphs, slice_nodes)
    members = _Members(population, weights, buffers)
    blocks = _Blocks(graphs, population, slice_nodes)
    model: Any = population.model
    state = blocks.of_rows(partial(members.call, "encode"), graphs.x)
    for number in range(model.num_layers(graphs.num_nodes)):
        layer = partial(members.call, "layer", number)
        state = blocks.of_edges(layer, state)
    node: Tensor | list[None] = [None] * len(population)
    edge = node
    if model.node_head is not None:
        node = blocks.of_rows(partial(members.call, "node_outputs"), state).to(population.device)
    if model.edge_head is not None:
        edge = blocks.of_labels(partial(members.call, "edge_outputs"), state).to(population.device)
    return [Prediction(n, None, edge=e) for n, e in zip(node, edge, strict=True)]


def _check(model: nn.Module, graphs: GraphSet, slice_nodes: int | None) -> None:
    """Raise unless the layers of the model can be computed for some nodes at a time."""
    if slice_nodes is not None and slice_nodes < 1:
        raise ValueError(f"got slice_nodes={slice_nodes}, expected at least 1")
    if len(graphs) != 1:
        raise ValueError(
            f"got {len(graphs)} graphs, expected one, whose nodes are computed in slices; leave "
            "out slice_nodes (--slice-nodes)"
        )
    if model.training:
        raise ValueError("got models in training mode, expected evaluation mode; call train(False)")
    part = whole_graph(model)
    if part is not None:
        raise ValueError(
            f"got a model with {part}, which needs all nodes of the graph at once, expected one "
            "whose layers can be computed for some nodes at a time; leave out slice_nodes "
            "(--slice-nodes), or use a model without this part"
        )


class _Members:
    """The models of a population, whose parts are called one by one."""

    def __init__(
        self, population: Population, weights: Tensor | None, buffers: dict[str, Tensor] | None
    ) -> None:
        flat = population.flat if weights is None else weights
        buffers = population.buffers if buffers is None else buffers
        self._stacked = {**population.parameters_from(flat.detach()), **buffers}
        self._parts = _Parts(population.model)

    def call(self, part: str, *inputs: Any, member: int) -> Tensor:
        """A method of the architecture, with the weights of a member."""
        own = {f"model.{name}": tensor[member] for name, tensor in self._stacked.items()}
        return functional_call(self._parts, own, (part, *inputs))


class _Parts(nn.Module):
    """A model of which any method can be called with `functional_call`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, part: str, *inputs: Any) -> Tensor:
        return getattr(self.model, part)(*inputs)


class _Blocks:
    """Consecutive nodes of a graph, for which a function of all members is computed at a time."""

    def __init__(self, graphs: GraphSet, population: Population, nodes: int | None) -> None:
        self._graphs, self._device, self._members = graphs, population.device, len(population)
        self._indptr = offsets(graphs.degree)
        convolutions = _convolutions(population.model)
        self._bipartite = all(isinstance(c.conv, PNAConv) for c in convolutions)
        self._loops = None if self._bipartite else _self_loops(graphs)
        size, free = population.flat.element_size(), free_memory(population.device)
        widths = [max(c.conv.in_channels, c.conv.out_channels) for c in convolutions]
        states = 2 * self._members * graphs.num_nodes * max(widths) * size
        self._place = population.device if states <= _SHARE * free else torch.device("cpu")
        self._labels = max(int(_SHARE * free) // _bytes_of_label(convolutions), 1)
        if nodes is None:

            def fits(receivers: int, edges: int) -> bool:
                senders = min(receivers + edges, graphs.num_nodes)
                ends = (senders, receivers if self._bipartite else senders)
                needs = [_bytes_of(c.conv, ends, edges) for c in convolutions]
                return max(needs) <= _SHARE * free

            self.bounds = _bounds(self._indptr.cpu(), fits)
        else:
            self._labels = nodes
            starts = range(0, max(graphs.num_nodes, 1), nodes)
            self.bounds = [(a, min(a + nodes, graphs.num_nodes)) for a in starts]

    def of_rows(self, compute: Callable[..., Tensor], x: Tensor | None) -> Tensor:
        """A function of the rows of x, (nodes, …) for all members or (members, nodes, …)."""
        assert x is not None
        outputs: list[Tensor] = []
        for first, end in self.bounds:
            for k in range(self._members):
                own = x[first:end] if x is self._graphs.x else x[k, first:end]
                self._write(outputs, k, first, compute(own.to(self._device), member=k))
        return outputs[0]

    def of_edges(self, compute: Callable[..., Tensor], state: Tensor) -> Tensor:
        """A function of states (members, nodes, …) and of the edges that reach a block."""
        outputs: list[Tensor] = []
        for first, end in self.bounds:
            batch, nodes = self._batch(first, end)
            nodes = nodes.to(self._place)
            for k in range(self._members):
                sent = state[k].index_select(0, nodes).to(self._device)
                with batch_context(batch):
                    self._write(outputs, k, first, compute(sent, batch, member=k)[: end - first])
        return outputs[0]

    def of_labels(self, compute: Callable[..., Tensor], state: Tensor) -> Tensor:
        """A function of the states (members, nodes, …) of the ends of labelled edges, and of
        these."""
        graphs, outputs, most = self._graphs, list[Tensor](), self._labels
        for first in range(0, max(graphs.num_labels, 1), most):
            batch, nodes = self._labelled(first, min(first + most, graphs.num_labels))
            nodes = nodes.to(self._place)
            for k in range(self._members):
                found = compute(state[k].index_select(0, nodes).to(self._device), batch, member=k)
                self._write(outputs, k, first, found, graphs.num_labels)
        return outputs[0]

    def _write(
        self, outputs: list[Tensor], k: int, first: int, rows: Tensor, total: int | None = None
    ) -> None:
        """Write the rows of member k from `first` on; `outputs` is made if empty. There are `total`
        rows of a member, by default one for each node."""
        if not outputs:
            total = self._graphs.num_nodes if total is None else total
            shape = (self._members, total, *rows.shape[1:])
            outputs.append(rows.new_empty(shape, device=self._place))
        outputs[0][k, first : first + len(rows)] = rows

    def _labelled(self, first: int, end: int) -> tuple[Batch, Tensor]:
        """Labelled edges without any others, and the number in the graph of each of their nodes:
        all senders, then all receivers."""
        graphs, count, device = self._graphs, end - first, self._device
        if graphs.label_ends is None:
            raise ValueError(
                "got a graph without labelled edges, expected them: the model predicts targets of "
                "edges; make the graph by NodeGraph.graph_set"
            )
        nodes = graphs.label_ends[first:end].t().flatten().long()
        attr = graphs.label_attr
        ends = torch.arange(2 * count, device=device).view(2, count)
        batch = Batch(
            adjacency=Adjacency.from_edge_index(ends[:, :0], 2 * count),
            graph_of_node=torch.zeros(2 * count, dtype=torch.int64, device=device),
            sizes=torch.tensor([2 * count], device=device),
            x=None,
            edge_attr=None,
            y_node=None,
            y_graph=None,
            labels=Adjacency.from_edge_index(ends, 2 * count),
            label_attr=None if attr is None else attr[first:end].to(device),
        )
        return batch, nodes

    def _batch(self, first: int, end: int) -> tuple[Batch, Tensor]:
        """The edges that reach a block, and the number in the graph of each of its nodes.

        The nodes are those of the block, then other senders. Unless all layers can have different
        senders and receivers, these are receivers too, with the degrees of the graph; of their
        edges there are only the self-loops, which a GCN counts.
        """
        graphs, attr, device = self._graphs, self._graphs.edge_attr, self._device
        begin, end_slot = self._indptr[[first, end]].tolist()
        senders = graphs.senders[begin:end_slot].long()
        nodes, local = _renumbered(senders, first, end, graphs.num_nodes)
        indptr = self._indptr[first : end + 1] - begin
        edge_attr = None if attr is None else attr[begin:end_slot]
        if self._loops is not None:
            ends = graphs.senders[self._loops].long()
            of_others = torch.isin(ends, nodes[end - first :])
            loops, ends = self._loops[of_others], ends[of_others]
            more = torch.bincount(local[ends], minlength=len(nodes))[end - first :]
            indptr = torch.cat([indptr, indptr[-1] + more.cumsum(0)])
            senders = torch.cat([senders, ends])
            edge_attr = None if attr is None else torch.cat([attr[begin:end_slot], attr[loops]])
        adjacency = Adjacency.from_csr(indptr.to(device), local[senders].to(device), len(nodes))
        if self._loops is not None:
            adjacency = adjacency.with_degree(graphs.degree[nodes].int().to(device))
        batch = Batch(
            adjacency=adjacency,
            graph_of_node=torch.zeros(len(nodes), dtype=torch.int64, device=device),
            sizes=torch.tensor([len(nodes)], device=device),
            x=None,
            edge_attr=None if edge_attr is None else edge_attr.to(device),
            y_node=None,
            y_graph=None,
        )
        return batch, nodes


def without_edges(graphs: GraphSet) -> Batch:
    """A batch of one graph that has its targets, but no features and no edges that send."""
    nodes, device, ends = graphs.num_nodes, graphs.device, graphs.label_ends
    none = torch.zeros(2, 0, dtype=torch.int64, device=device)
    return Batch(
        adjacency=Adjacency.from_edge_index(none, nodes),
        graph_of_node=torch.zeros(nodes, dtype=torch.int64, device=device),
        sizes=torch.tensor([nodes], device=device),
        x=None,
        edge_attr=None,
        y_node=graphs.y_node,
        y_graph=None,
        y_edge=graphs.y_edge,
        labels=None if ends is None else Adjacency.from_edge_index(ends.t(), nodes),
        graph_ids=torch.zeros(1, dtype=torch.int64, device=device),
    )


def _renumbered(senders: Tensor, first: int, end: int, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The nodes from `first` to `end`, then all other senders; and the index of each node among
    them, (num_nodes,), which is undefined for nodes that are not."""
    is_other = torch.zeros(num_nodes, dtype=torch.bool, device=senders.device)
    is_other[senders] = True
    is_other[first:end] = False
    block = torch.arange(first, end, device=senders.device)
    nodes = torch.cat([block, is_other.nonzero()[:, 0]])
    local = torch.empty(num_nodes, dtype=torch.int64, device=senders.device)
    local[nodes] = torch.arange(len(nodes), device=senders.device)
    return nodes, local


def _bytes_of(conv: Any, ends: tuple[int, int], edges: int) -> int:
    """About how many bytes a layer needs in evaluation, with the gathered states, the output, and
    the numbers of the nodes before the edges are sorted."""
    senders, receivers = ends
    size = next(conv.parameters()).element_size()
    states = (senders * conv.in_channels + receivers * conv.out_channels) * size
    return states + 32 * edges + conv.memory(ends, edges, training=False, table=False)


def _bytes_of_label(convolutions: Sequence[Convolution]) -> int:
    """About how many bytes the head for edges needs for a labelled edge."""
    conv: Any = convolutions[-1].conv
    return 8 * conv.out_channels * next(conv.parameters()).element_size()


def _self_loops(graphs: GraphSet) -> Tensor:
    """The slots of all self-loops, ascending."""
    nodes = torch.arange(graphs.num_nodes, device=graphs.device, dtype=torch.int32)
    receivers = nodes.repeat_interleave(graphs.degree.int(), output_size=graphs.num_edges)
    return (graphs.senders == receivers).nonzero()[:, 0]


def _bounds(indptr: Tensor, fits: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """The fewest blocks of similar numbers of nodes and edges that fit, in powers of 2."""
    nodes = len(indptr) - 1
    cost = indptr + torch.arange(nodes + 1)  # a node counts as much as an edge
    count = 1
    while True:
        targets = torch.linspace(0, float(cost[-1]), count + 1, dtype=torch.float64)
        bounds = torch.searchsorted(cost, targets[1:-1].long()).unique()
        bounds = torch.cat([bounds.new_zeros(1), bounds, bounds.new_tensor([nodes])]).unique()
        if nodes == 0:
            return [(0, 0)]
        edges = indptr[bounds].diff()
        if count >= nodes or fits(int(bounds.diff().max()), int(edges.max())):
            return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        count *= 2
