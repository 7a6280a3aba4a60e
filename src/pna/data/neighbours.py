"""Neighbour sampling: batches of seed nodes of one large graph, with some of their in-neighbours.

A model of L layers needs the in-neighbours of the seeds, theirs, and so on, L times. Each layer
takes a sample of at most k in-neighbours of every node that it computes.

The in-neighbours of a node are in a random order, which depends on seed, epoch and node alone. A
layer takes the first k of them. A node therefore sends and receives the same in every batch of an
epoch, in every process, and also if it is a seed and a neighbour at once. If two layers have
different fan-outs, the smaller sample is contained in the larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.data.batch import Batch, SampledLayer
from pna.data.graphset import GraphSet
from pna.data.node_graph import NodeGraph
from pna.data.order import order
from pna.data.structure import offsets
from pna.ops.hashing import GOLDEN, scramble
from pna.sharing import map_tensors

_MOST = 1000  # largest fan-out: the time of a draw grows with its square
_NO_ROW = 2**31 - 1
_AT_ONCE = 2**25  # most elements of a tensor of `entries_at_once`


class NeighbourBatches:
    """Batches of seed nodes of one graph, each with a sample of their in-neighbours.

    It is an iterable of `pna.data.batch.Batch`, made on the device of the graph. Every iteration
    is another epoch, with its own order of the seeds and its own samples. In a batch, row i of x is
    node ``batch.nodes[i]``; the first ``batch.num_seeds`` rows are the seeds; `y_node` has their
    targets; ``batch.layers[l]`` has the edges for layer l. Degrees are those of the whole graph.

    Args:
        graph: a graph set of one graph, or a `NodeGraph`, of which the training nodes of the first
            split are taken.
        fan_out: most in-neighbours that a node receives from, for each layer of the model; that of
            the last layer, which computes the seeds, comes first.
        batch_size: number of seeds in a batch.
        nodes: the seed nodes: a mask (nodes,) or indices. Default: those with a known target, which
            must be in one split: pass ``graphs.split("train")``.
        edges: labelled edges instead of nodes, as a mask or indices. Default, if nodes have no
            targets: those with a known target. The seeds are then the ends of the labelled edges,
            each once; `batch_size` counts edges; `labels`, `label_attr` and `y_edge` of a batch are
            those of its labelled edges.
        seed: random seed of the samples and of the order of the seeds.
        shuffle: draw a new order of the seeds every epoch.
    """

    def __init__(
        self,
        graph: GraphSet | NodeGraph,
        fan_out: Sequence[int],
        batch_size: int = 1024,
        *,
        nodes: Tensor | None = None,
        edges: Tensor | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        graphs = graph.graph_set() if isinstance(graph, NodeGraph) else graph
        if isinstance(graph, NodeGraph) and graphs.splits_inside:
            graphs = graphs.split("train")
        check_alone(graphs)
        self.fan_out = check_fan_out(fan_out)
        if batch_size < 1:
            raise ValueError(f"got batch_size={batch_size}, expected at least 1")
        self.graphs, self.batch_size, self.seed, self.shuffle = graphs, batch_size, seed, shuffle
        self.nodes, self.edges = _seeds(graphs, nodes, edges)
        self.next_epoch = 0  # of the next iteration
        self._starts = offsets(graphs.degree)
        self._row = torch.empty(graphs.num_nodes, dtype=torch.int32, device=graphs.device)
        self._stream: torch.cuda.Stream | None = None
        if graphs.device.type == "cuda":
            self._stream = torch.cuda.Stream(graphs.device)
            self._stream.wait_stream(torch.cuda.current_stream(graphs.device))

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return -(-len(self._items) // self.batch_size)

    @property
    def _items(self) -> np.ndarray:
        """The nodes, or labelled edges, of all batches."""
        return self.nodes if self.edges is None else self.edges

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(epoch)

    def epoch(self, epoch: int, rank: int = 0, processes: int = 1) -> Iterator[Batch]:
        """The batches of an epoch; with several processes, the share of one of them."""
        self.graphs.check_unchanged()
        chosen = self._items[order(len(self._items), self.shuffle, self.seed, epoch)]
        sample = self.sample if self.edges is None else self.sample_edges
        for start in range(0, len(chosen), self.batch_size):
            parts = np.array_split(chosen[start : start + self.batch_size], processes)
            yield self._beside(partial(sample, torch.from_numpy(parts[rank]), epoch))

    def _beside(self, make: Callable[[], Batch]) -> Batch:
        """Make a batch on another stream of a GPU. To know its size, the host has to wait, but not
        for the training step of the batch before, which goes on meanwhile."""
        if self._stream is None:
            return make()
        current = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            batch = make()
        current.wait_stream(self._stream)

        def used_here(tensor: Tensor) -> Tensor:
            if tensor.is_cuda:
                tensor.record_stream(current)  # its memory is not given away before
            return tensor

        made: Batch = map_tensors(used_here, batch)
        return made

    def sample(self, nodes: Tensor, epoch: int) -> Batch:
        """The batch of these seed nodes, (seeds,), in an epoch."""
        graphs, device = self.graphs, self.graphs.device
        nodes = nodes.to(device, torch.int64, non_blocking=True)
        degree = graphs.degree.index_select(0, nodes).long()
        count, edges = len(nodes), int(degree.clamp(max=self.fan_out[0]).sum())
        key = int(scramble(scramble(torch.tensor(self.seed)) + epoch))
        self._row.fill_(_NO_ROW)
        self._row.scatter_reduce_(0, nodes, _range(0, count, device), "amin")
        orders, layers, new = list[Tensor](), list[SampledLayer](), nodes
        for hop, most in enumerate(self.fan_out):
            orders.append(self._neighbours(new, max(self.fan_out[hop:]), key))
            edge_ids, receivers = _first(orders, degree.clamp(max=most), edges)
            senders = graphs.senders.index_select(0, edge_ids).long()
            # a new sender gets the number of its first edge, and then a row
            number = _range(count, edges, device)
            self._row.scatter_reduce_(0, senders, number, "amin")
            is_new = self._row.index_select(0, senders) == number
            of_senders = graphs.degree.index_select(0, senders).long()
            later = (*self.fan_out, 0)[hop + 1]
            more = torch.where(is_new, of_senders.clamp(max=later), 0).sum()
            more += degree.clamp(max=later).sum()
            found, edges = torch.stack([is_new.sum(), more]).tolist()  # waits for the device
            new, of_new = _chosen(torch.stack([senders, of_senders]), is_new, found)
            self._row[new] = _range(count, found, device)
            index = torch.stack([self._row.index_select(0, senders).long(), receivers])
            adjacency = Adjacency.from_edge_index(index, (count + found, count), degree)
            nodes, degree = torch.cat([nodes, new]), torch.cat([degree, of_new])
            attr = None if graphs.edge_attr is None else graphs.edge_attr.index_select(0, edge_ids)
            layers.append(SampledLayer(adjacency, degree, edge_ids, attr))
            count += found
        layers.reverse()
        seeds = nodes[: layers[-1].adjacency.num_receivers]
        return Batch(
            adjacency=layers[0].adjacency,
            graph_of_node=torch.zeros_like(nodes),
            sizes=torch.full((1,), count, device=device),
            x=None if graphs.x is None else graphs.x.index_select(0, nodes),
            edge_attr=None,
            y_node=None if graphs.y_node is None else graphs.y_node.index_select(0, seeds),
            y_graph=None,
            graph_ids=torch.zeros(1, dtype=torch.int64, device=device),
            size_range=(count, count),
            nodes=nodes,
            layers=tuple(layers),
        )

    def sample_edges(self, edges: Tensor, epoch: int) -> Batch:
        """The batch of these labelled edges, (edges,), in an epoch. The seeds are their ends."""
        graphs, device = self.graphs, self.graphs.device
        edges = edges.to(device, torch.int64, non_blocking=True)
        assert graphs.label_ends is not None
        ends = graphs.label_ends.index_select(0, edges).long().flatten()
        number = _range(0, len(ends), device)
        self._row.fill_(_NO_ROW)
        self._row.scatter_reduce_(0, ends, number, "amin")
        first = self._row.index_select(0, ends)  # where the same node is first
        is_first = first == number
        (seeds,) = _chosen(ends[None], is_first, int(is_first.sum()))
        rows = (is_first.cumsum(0) - 1).index_select(0, first)
        attr, y = graphs.label_attr, graphs.y_edge
        return replace(
            self.sample(seeds, epoch),
            labels=Adjacency.from_edge_index(rows.view(-1, 2).t(), len(seeds)),
            label_attr=None if attr is None else attr.index_select(0, edges),
            y_edge=None if y is None else y.index_select(0, edges),
        )

    def _neighbours(self, nodes: Tensor, most: int, key: int) -> Tensor:
        """The edges from the first in-neighbours of each node in its random order, (most, nodes).

        An entry after those of a node's own edges has no meaning, but is an edge.
        """
        degree = self.graphs.degree.index_select(0, nodes).long()
        ranks = shuffled(scramble(nodes + key), degree, most)
        last = max(self.graphs.num_edges - 1, 0)
        return (self._starts.index_select(0, nodes) + ranks).clamp_(max=last)

    def __repr__(self) -> str:
        return (
            f"NeighbourBatches({len(self._items)} {'nodes' if self.edges is None else 'edges'}, "
            f"fan_out={self.fan_out}, batch_size={self.batch_size})"
        )


def shuffled(keys: Tensor, sizes: Tensor, most: int) -> Tensor:
    """The first `most` entries of a random permutation of 0 to size − 1 for each key, (most, keys).

    A permutation depends only on its key and its size. Entries after the first `size` have no
    meaning. It is the shuffle of Fisher and Yates: step i swaps entry i with the entry at i plus a
    random number below size − i. Only the entries that are moved are stored.
    """
    steps = torch.arange(most, device=keys.device)[:, None]
    bits = scramble(keys + steps * GOLDEN) & (2**62 - 1)
    other = steps + bits % (sizes - steps).clamp(min=1)  # with which entry step i swaps
    at_once = keys.device.type == "cuda" and most * other.numel() <= _AT_ONCE
    return entries_at_once(other) if at_once else entries_in_turn(other)


def entries_in_turn(other: Tensor) -> Tensor:
    """What step i of the shuffle puts at i, if it swaps i and ``other[i]``, (steps, keys)."""
    steps = torch.arange(len(other), device=other.device)[:, None]
    moved = steps.repeat(1, other.shape[1])  # what is at i before step i
    result = other.clone()  # what is at `other` before step i
    for i in range(len(other) - 1):
        later = slice(i + 1, None)
        moved[later] = torch.where(other[i] == steps[later], moved[i], moved[later])
        result[later] = torch.where(other[i] == other[later], moved[i], result[later])
    return result


def entries_at_once(other: Tensor) -> Tensor:
    """`entries_in_turn` in fewer, larger operations: each launches a kernel on a GPU.

    Step i finds at a place what the last step before it that swapped this place left there: the
    entry that was at that step's own place, which is found in the same way.
    """
    steps = torch.arange(len(other), device=other.device)
    now, before = steps[:, None], steps[:, None, None]

    def last_before(place: Tensor) -> Tensor:
        """The last step before i that swapped the place of step i, or -1."""
        swapped = (other[:, None] == place) & (before < now)
        return torch.where(swapped, before, -1).amax(0)

    own = last_before(now)
    source = torch.where(own < 0, now, own)
    for _ in range((len(other) - 1).bit_length()):
        source = source.gather(0, source)
    found = last_before(other)
    return torch.where(found < 0, other, source.gather(0, found.clamp(min=0)))


def _first(orders: Sequence[Tensor], lengths: Tensor, edges: int) -> tuple[Tensor, Tensor]:
    """The first edges of every receiver, as many as `lengths` says, and the receivers of these.

    `orders` have the edges (most, receivers) of groups of receivers; `edges` is the sum of lengths.
    """
    receivers = torch.repeat_interleave(lengths, output_size=edges)
    before = (lengths.cumsum(0) - lengths).index_select(0, receivers)
    rank = torch.arange(edges, device=lengths.device) - before
    least = min(len(order) for order in orders)
    drawn = torch.cat([order[:least] for order in orders], 1).flatten()
    return drawn.index_select(0, rank * len(lengths) + receivers), receivers


def check_alone(graphs: GraphSet) -> None:
    """Raise unless this is one graph."""
    if len(graphs) != 1:
        raise ValueError(
            f"got {len(graphs)} graphs to sample neighbours from, expected one; leave out sample "
            "(--sample): batches of small graphs are whole"
        )


def check_fan_out(fan_out: Any) -> tuple[int, ...]:
    """The fan-outs as a tuple; raises unless there is one, and all are from 1 to 1,000."""
    given = tuple(fan_out) if isinstance(fan_out, Sequence) else (fan_out,)
    odd = [k for k in given if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= _MOST]
    if odd or not given:
        raise ValueError(
            f"got sample={', '.join(map(repr, given)) or 'nothing'}, expected a number of "
            f"in-neighbours for each layer, from 1 to {_MOST:,}, such as 15,10,5; leave it out to "
            "train with all neighbours"
        )
    return given


def _seeds(
    graphs: GraphSet, nodes: Tensor | None, edges: Tensor | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The indices of seed nodes, or none and those of labelled edges."""
    if nodes is not None and edges is not None:
        raise ValueError("got nodes and edges as seeds, expected one of them; leave out the other")
    if nodes is None and edges is None:
        if graphs.y_node is not None:
            nodes = _known(graphs, "node")
        elif graphs.y_edge is not None:
            edges = _known(graphs, "edge")
        else:
            raise ValueError(
                "got a graph without targets of nodes or edges, and no nodes, expected one of "
                "them; pass nodes=torch.arange(graph.num_nodes) for all nodes"
            )
    if edges is not None:
        if graphs.label_ends is None:
            raise ValueError(
                "got edges for a graph without labelled edges, expected some to predict; make it "
                "by NodeGraph.graph_set, or pass nodes"
            )
        return np.arange(0), _indices(edges, graphs.num_labels, "edge")
    return _indices(nodes, graphs.num_nodes, "node"), None


def _known(graphs: GraphSet, level: str) -> Tensor:
    """Which nodes or labelled edges have a known target, (rows,) bool; raises if splits differ."""
    y, splits = getattr(graphs, f"y_{level}"), getattr(graphs, f"split_of_{level}")
    known: Tensor = ~y.isnan()
    if splits is not None:
        tags = splits.view(len(known), -1).expand_as(known)[known].unique()
        if len(tags) > 1:
            names = ", ".join(graphs.splits[tag] for tag in tags.tolist())
            raise ValueError(
                f"got a graph with targets of several splits ({names}), expected those of one, or "
                f'{level}s; pass graphs.split("train")'
            )
    return known.any(1)


def _indices(given: Any, count: int, what: str) -> np.ndarray:
    """The indices (seeds,) int64 of a mask (count,) or of indices; `what` is in errors."""
    numbers = torch.as_tensor(given).cpu()
    if numbers.dtype == torch.bool and numbers.shape == (count,):
        numbers = numbers.nonzero()[:, 0]
    if numbers.dim() != 1 or numbers.dtype in (torch.bool, torch.float32, torch.float64):
        raise ValueError(
            f"got {what}s of shape {tuple(numbers.shape)} and type {numbers.dtype}, expected a "
            f"mask ({count},), or indices of {what}s (seeds,)"
        )
    found = numbers.long()
    if len(found) and not (0 <= int(found.min()) and int(found.max()) < count):
        odd = int(found[(found < 0) | (found >= count)][0])
        raise ValueError(f"got seed {what} {odd}, expected {what}s from 0 to {count - 1}")
    return found.numpy()


def _range(start: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(start, start + count, dtype=torch.int32, device=device)


def _chosen(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """The `count` columns of values where the mask is true, without waiting for the device."""
    where = torch.where(mask, mask.cumsum(0) - 1, count)
    made = values.new_empty((len(values), count + 1))
    return made.index_copy_(1, where, values)[:, :count]
