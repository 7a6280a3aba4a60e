"""Some graphs as one: what a model is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency, values_visible
from pna.front import Front
from pna.sharing import send_by_value


@dataclass(frozen=True, eq=False)
class Batch:
    """Some graphs of a `GraphSet` side by side as one graph, nodes numbered on. Immutable.

    What the set does not have is None. Edges are in the order of their receivers.
    """

    adjacency: Adjacency
    graph_of_node: Tensor  # (nodes,) int64, ascending; PyG calls it `batch`
    sizes: Tensor  # (graphs,) int64, how many nodes each graph has
    x: Tensor | None  # (nodes, features)
    edge_attr: Tensor | None  # (edges, features)
    y_node: Tensor | None  # (nodes, targets)
    y_graph: Tensor | None  # (graphs, targets)
    graph_ids: Tensor | None = None  # (graphs,) int64, place of each graph in the set
    diameter: Tensor | None = None  # (graphs,) int64, where a model asks for it
    real: Tensor | None = None  # (graphs,) bool, False for padding; None where there is none
    size_range: tuple[int, int] | None = None  # bounds on the sizes of real graphs, where known
    max_diameter: int | None = None  # bound on the diameters of real graphs, where known
    starts: Tensor | None = None  # (graphs + 1,) what `indptr` says, where it is known
    fronts: tuple[Front, ...] = ()  # shortest first, where graphs stand by their sizes

    @property
    def indptr(self) -> Tensor:
        """First node of every graph, and the end of the last: (graphs + 1,)."""
        if self.starts is not None:
            return self.starts
        return torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])

    @property
    def real_nodes(self) -> Tensor | None:
        """(nodes,) bool, False for padding; None where there is none."""
        return None if self.real is None else self.real[self.graph_of_node]

    def sizes_between(self) -> tuple[int, int]:
        """Bounds on the sizes of real graphs; waits for the device where they are not known."""
        if self.size_range is not None:
            return self.size_range
        sizes = self.sizes if self.real is None else self.sizes[self.real]
        return (int(sizes.min()), int(sizes.max())) if sizes.numel() else (0, 0)

    def largest_diameter(self) -> int:
        """A bound on the diameters of real graphs; waits for the device where it is not known.

        Without diameters, or in code being compiled, which cannot see them, it is that of a path
        through the largest graph.
        """
        if self.max_diameter is not None:
            return self.max_diameter
        if self.diameter is None or not values_visible():
            return max(self.sizes_between()[1] - 1, 0)
        known = self.diameter if self.real is None else self.diameter[self.real]
        return int(known.max()) if known.numel() else 0

    @property
    def num_graphs(self) -> int:
        """How many graphs there are, those without nodes too."""
        return self.sizes.shape[0]

    @property
    def num_nodes(self) -> int:
        """How many nodes all graphs have together."""
        return self.graph_of_node.shape[0]

    @property
    def num_edges(self) -> int:
        """How many edges all graphs have together."""
        return self.adjacency.num_edges

    @property
    def device(self) -> torch.device:
        """Where all its tensors are."""
        return self.sizes.device

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """A copy on another device; itself if it is there already."""
        if torch.device(device) == self.device:
            return self

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return Batch(
            adjacency=self.adjacency.to(device, non_blocking),
            graph_of_node=self.graph_of_node.to(device, non_blocking=non_blocking),
            sizes=self.sizes.to(device, non_blocking=non_blocking),
            x=moved(self.x),
            edge_attr=moved(self.edge_attr),
            y_node=moved(self.y_node),
            y_graph=moved(self.y_graph),
            graph_ids=moved(self.graph_ids),
            diameter=moved(self.diameter),
            real=moved(self.real),
            size_range=self.size_range,
            max_diameter=self.max_diameter,
            starts=moved(self.starts),
            fronts=self.fronts,
        )

    def __repr__(self) -> str:
        return (
            f"Batch({self.num_graphs} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{self.device})"
        )


# As inputs of compiled and exported code, and between processes.
torch.export.register_dataclass(Batch, serialized_type_name="pna.Batch")
send_by_value(Batch)
