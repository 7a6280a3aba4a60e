"""A batch of graphs: the input of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.front import Front
from pna.sharing import map_tensors, send_by_value
from pna.visible import values_visible


@dataclass(frozen=True, eq=False)
class SampledLayer:
    """The edges that one layer of a model takes in a batch of sampled neighbours.

    Its senders are the first rows of the batch, and its receivers the first of its senders.
    """

    adjacency: Adjacency  # from senders to receivers, which have their degrees in the whole graph
    degree: Tensor  # (senders,) in-degree in the whole graph
    edge_ids: Tensor  # (edges,) index of each edge in the graph set
    edge_attr: Tensor | None  # (edges, features)
    counted: Tensor | None = None  # (receivers,) bool, False for rows that batch normalisation
    # leaves out; None for none

    def square(self) -> SampledLayer:
        """The same edges between all senders, for convolutions that take no pair (x_j, x_i).

        Only the rows of the receivers are of use; batch normalisation leaves out all others.
        """
        own = self.adjacency
        others = own.num_senders - own.num_receivers
        indptr = torch.cat([own.indptr, own.indptr[-1:].expand(others)])
        transpose = (own.outgoing.indptr, own.outgoing.neighbours, own.out_ranks)
        adjacency = Adjacency.from_csr(indptr, own.senders, transpose=transpose)
        counted = self.counted
        if counted is None:
            counted = torch.ones(own.num_receivers, dtype=torch.bool, device=own.device)
        return replace(
            self,
            adjacency=adjacency.with_degree(self.degree),
            counted=torch.cat([counted, counted.new_zeros(others)]),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Several graphs of a `GraphSet` as one graph with consecutive node numbers. Immutable.

    A tensor is None if the set does not have it. Edges are sorted by receiver.

    A batch of `NeighbourBatches` has `layers`: the edges for each layer of a model. Its first rows
    are the seeds, `y_node` has the targets of the seeds only, and `adjacency` is that of the first
    layer.
    """

    adjacency: Adjacency
    graph_of_node: Tensor  # (nodes,) int64, ascending; PyG calls it `batch`
    sizes: Tensor  # (graphs,) int64, number of nodes of each graph
    x: Tensor | None  # (nodes, features)
    edge_attr: Tensor | None  # (edges, features)
    y_node: Tensor | None  # (nodes, targets)
    y_graph: Tensor | None  # (graphs, targets)
    graph_ids: Tensor | None = None  # (graphs,) int64, index of each graph in the set
    diameter: Tensor | None = None  # (graphs,) int64, if a model needs it
    real: Tensor | None = None  # (graphs,) bool, False for padding; None without padding
    size_range: tuple[int, int] | None = None  # bounds on the sizes of real graphs, if known
    max_diameter: int | None = None  # bound on the diameters of real graphs, if known
    starts: Tensor | None = None  # (graphs + 1,), the value of `indptr`, if known
    fronts: tuple[Front, ...] = ()  # shortest first, if graphs are sorted by size
    labels: Adjacency | None = None  # edges to be predicted; not all of them need send messages
    label_attr: Tensor | None = None  # (labelled edges, features)
    y_edge: Tensor | None = None  # (labelled edges, targets)
    nodes: Tensor | None = None  # (nodes,) int64, index in the set, if neighbours were sampled
    layers: tuple[SampledLayer, ...] = ()  # in the order of a model's layers, if so
    x_graph: Tensor | None = None  # (graphs, features), 0 for padding
    sample_weight: Tensor | None = None  # (graphs,) in the loss; None: 1 each

    @property
    def indptr(self) -> Tensor:
        """First node of every graph, and the end of the last: (graphs + 1,)."""
        if self.starts is not None:
            return self.starts
        return torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])

    @property
    def real_nodes(self) -> Tensor | None:
        """(nodes,) bool, False for padding; None without padding."""
        return None if self.real is None else self.real[self.graph_of_node]

    def sizes_between(self) -> tuple[int, int]:
        """Return bounds on the sizes of real graphs. Waits for the device if they are not known."""
        if self.size_range is not None:
            return self.size_range
        sizes = self.sizes if self.real is None else self.sizes[self.real]
        return (int(sizes.min()), int(sizes.max())) if sizes.numel() else (0, 0)

    def largest_diameter(self) -> int:
        """Return a bound on the diameters of real graphs. Waits for the device if it is not known.

        Without diameters, or in compiled code, which cannot read them, the bound is the length of a
        path through all nodes of the largest graph.
        """
        if self.max_diameter is not None:
            return self.max_diameter
        if self.diameter is None or not values_visible():
            return max(self.sizes_between()[1] - 1, 0)
        known = self.diameter if self.real is None else self.diameter[self.real]
        return int(known.max()) if known.numel() else 0

    @property
    def num_seeds(self) -> int:
        """Number of nodes whose neighbours were sampled: the first rows."""
        return self.layers[-1].adjacency.num_receivers if self.layers else self.num_nodes

    @property
    def num_graphs(self) -> int:
        """Number of graphs, including those without nodes."""
        return self.sizes.shape[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return self.graph_of_node.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs."""
        return self.adjacency.num_edges

    def rows(self, level: str) -> int:
        """Number of nodes, graphs or labelled edges, by the level "node", "graph" or "edge"."""
        if level == "edge":
            return 0 if self.labels is None else self.labels.num_edges
        return self.num_nodes if level == "node" else self.num_graphs

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.sizes.device

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """Return a copy on another device, or the batch itself if it is already there."""
        if torch.device(device) == self.device:
            return self
        return map_tensors(lambda t: t.to(device, non_blocking=non_blocking), self)

    def __repr__(self) -> str:
        return (
            f"Batch({self.num_graphs} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{self.device})"
        )


# so that a batch can be an input of compiled and exported code, and be sent between processes
torch.export.register_dataclass(SampledLayer, serialized_type_name="pna.SampledLayer")
torch.export.register_dataclass(Batch, serialized_type_name="pna.Batch")
send_by_value(SampledLayer, Batch)
