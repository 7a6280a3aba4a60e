"""Batches that are padded to a fixed shape, as a captured step (CUDA graph) requires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.shapes import Shape, usual_shapes
from pna.data.structure import offsets
from pna.ops.backend import choose
from pna.ops.streams import SideStream
from pna.rows import SEGMENT, Rows


class _Layout(NamedTuple):
    """Where the rows of a batch come from: ``shape.num_ids`` graphs, then a graph of padding."""

    ids: Tensor  # (graphs + 1,) int64, 0 for padding
    real: Tensor  # (graphs + 1,) bool
    sizes: Tensor  # (graphs + 1,) int64
    starts: Tensor  # (graphs + 2,) int64, first node of every graph, and the end of the last
    graph_of_node: Tensor  # (nodes,) int64
    from_node: Tensor  # (nodes,) int64, index in the set, 0 for padding
    from_edge: Tensor  # (edges,) int64, index in the set, 0 for padding


class PaddedBatches:
    """Builds batches of a given shape from the graphs of a set, on its device.

    Graphs of padding have no nodes, with two exceptions. Graphs that fill up a front have nodes
    without edges. The last graph has all remaining nodes and edges. These edges are self-loops,
    spread evenly over its nodes; if there are fronts, they belong to no node.
    """

    def __init__(self, graphs: GraphSet, diameters: Tensor | None = None) -> None:
        self.graphs, self._diameters = graphs, diameters
        device = graphs.device
        self._first_node = graphs.node_offsets.to(device)
        self._first_edge = graphs.edge_offsets.to(device)
        self._indptrs = (offsets(graphs.degree), offsets(graphs.out_degree))
        self._short = graphs.degree.dtype == graphs.out_degree.dtype == torch.uint8
        sizes = graphs.sizes
        self._size_range = (int(sizes.min()), int(sizes.max())) if len(graphs) else (0, 0)
        self._max_diameter = None
        if diameters is not None:
            self._max_diameter = int(diameters.max()) if len(graphs) else 0
        self._constants: dict[Shape, tuple[Tensor, ...]] = {}  # kept for captured steps

    def shapes(self, batch_size: int, levels: Sequence[int] = ()) -> list[Shape]:
        """Return `usual_shapes`, with fronts at the `levels` if kernels sort nodes by degree."""
        if levels:
            made = usual_shapes(self.graphs, batch_size, levels=levels)
            ranked = all(self._has_kernels(shape) and self._ranks(shape) for shape in made)
            # paths that materialise messages do not support edges that belong to no node
            made_messages = any(map(fast_paths.is_off, ("statistics", "split", "attention")))
            if ranked and not made_messages and fast_paths.is_on("fronts"):
                return made
        return usual_shapes(self.graphs, batch_size)

    def batch(self, ids: Tensor, shape: Shape) -> Batch:
        """Build a batch of the graphs with these ids (shape.num_ids,), int64 on the device.

        The id −1 means no graph, and −1 − n means n nodes of padding. The graphs must fit into the
        shape; the ids of ``shape.arrange`` do. The call never waits for the device.
        """
        graphs = self.graphs
        ranking, of_edges = SideStream(ids.device), SideStream(ids.device, 1)
        if self._has_kernels(shape):
            layout, adjacency = self._lay_out_in_kernels(ids, shape, ranking)
        else:
            layout, adjacency = self._lay_out(ids, shape)

        def rows(tensor: Tensor | None, index: Tensor) -> Tensor | None:
            return None if tensor is None else _rows(tensor, index)

        with of_edges:
            edge_attr = rows(graphs.edge_attr, layout.from_edge)
        x = rows(graphs.x, layout.from_node)
        x_graph = rows(graphs.x_graph, layout.ids)
        ranking.join()
        of_edges.join()
        return Batch(
            adjacency=adjacency,
            graph_of_node=layout.graph_of_node,
            sizes=layout.sizes,
            x=x,
            edge_attr=edge_attr,
            x_graph=None if x_graph is None else torch.where(layout.real[:, None], x_graph, 0),
            y_node=rows(graphs.y_node, layout.from_node),
            y_graph=rows(graphs.y_graph, layout.ids),
            sample_weight=rows(graphs.sample_weight, layout.ids),
            graph_ids=layout.ids,
            diameter=rows(self._diameters, layout.ids),
            real=layout.real,
            size_range=self._size_range,
            max_diameter=self._max_diameter,
            starts=layout.starts,
            fronts=shape.fronts if self._has_kernels(shape) and self._ranks(shape) else (),
        )

    def _lay_out(self, ids: Tensor, shape: Shape) -> tuple[_Layout, Adjacency]:
        graphs, device = self.graphs, ids.device
        real = ids >= 0
        safe = ids.clamp(min=0)
        first_node, first_edge = self._first_node[safe], self._first_edge[safe]
        own_sizes = self._first_node[safe + 1] - first_node
        sizes = _with_rest(torch.where(real, own_sizes, -1 - ids), shape.nodes)
        edges = _with_rest((self._first_edge[safe + 1] - first_edge) * real, shape.edges)
        starts = offsets(sizes)
        numbers = torch.arange(shape.num_ids + 1, device=device)
        of_node = torch.repeat_interleave(numbers, sizes, output_size=shape.nodes)
        of_edge = torch.repeat_interleave(numbers, edges, output_size=shape.edges)
        node = torch.arange(shape.nodes, device=device)
        edge = torch.arange(shape.edges, device=device)
        position = node - starts[of_node]
        none = first_node.new_zeros(1)
        there = torch.cat([real, none.bool()])
        is_node, is_edge = there[of_node], there[of_edge]
        from_node = torch.where(is_node, torch.cat([first_node, none])[of_node] + position, 0)
        first_of_edge = torch.cat([first_edge, none]) - offsets(edges)[:-1]
        from_edge = torch.where(is_edge, first_of_edge[of_edge] + edge, 0)

        # node k of the n nodes of padding gets edges k·e/n up to (k + 1)·e/n of e edges
        spread = (position * edges[-1]).div(sizes[-1].clamp(min=1), rounding_mode="floor")
        until = ((position + 1) * edges[-1]).div(sizes[-1].clamp(min=1), rounding_mode="floor")
        padding = (until - spread) * (of_node == shape.num_ids)
        if shape.fronts:
            padding = torch.zeros_like(padding)
        degree = torch.where(is_node, _rows(graphs.degree, from_node).long(), padding)
        out_degree = torch.where(is_node, _rows(graphs.out_degree, from_node).long(), padding)
        indptr = offsets(degree)
        if shape.fronts:
            loops = torch.zeros_like(edge)
        else:
            loops = torch.repeat_interleave(node, degree, output_size=shape.edges)
        before = starts[of_edge]
        senders = torch.where(is_edge, _rows(graphs.senders, from_edge).long() + before, loops)
        receivers = torch.where(is_edge, _rows(graphs.receivers, from_edge).long() + before, loops)
        rank = torch.zeros_like(edge) if shape.fronts else edge - indptr[loops]
        ranks = torch.where(is_edge, _rows(graphs.out_ranks, from_edge).long(), rank)
        adjacency = Adjacency.from_csr(
            indptr,
            senders,
            max_degree=SEGMENT if self._short else -1,
            transpose=(offsets(out_degree), receivers, ranks),
        )
        every = torch.cat([safe * real, none])
        return _Layout(every, there, sizes, starts, of_node, from_node, from_edge), adjacency

    def _has_kernels(self, shape: Shape) -> bool:
        if choose(self.graphs.device) != "triton":
            return False
        from pna.ops.triton import assemble

        empty = self.graphs.num_nodes == 0 or self.graphs.num_edges == 0
        fits = not empty and shape.num_ids < assemble.MOST_GRAPHS and shape.edges < 2**31 - 1
        return fits and fast_paths.is_on("assemble")

    def _ranks(self, shape: Shape) -> bool:
        """Return whether kernels sort nodes by degree."""
        from pna.ops.triton import assemble

        few = self._short and 0 < shape.nodes <= assemble.MOST_RANKED
        return few and fast_paths.is_on("ranking")

    def _lay_out_in_kernels(
        self, ids: Tensor, shape: Shape, ranking: SideStream
    ) -> tuple[_Layout, Adjacency]:
        """`_lay_out` with fused kernels. Work on the stream `ranking` sorts nodes by degree."""
        from pna.ops.triton import assemble

        graphs = self.graphs
        ends = (graphs.senders, graphs.receivers, graphs.out_ranks)
        firsts = (self._first_node, self._first_edge)
        found = assemble.lay_out(
            ids, shape.nodes, shape.edges, firsts, self._indptrs, ends, loose=bool(shape.fronts)
        )
        layout = _Layout(
            found.ids, found.real, found.sizes, found.starts, found.graph_of_node,
            found.from_node, found.from_edge,
        )  # fmt: skip
        if not self._ranks(shape):
            adjacency = Adjacency.from_csr(
                found.indptr,
                found.senders,
                max_degree=SEGMENT if self._short else -1,
                transpose=(found.out_indptr, found.receivers, found.out_ranks),
            )
            return layout, adjacency
        numbers, no_rank, windows = self._constants_of(shape, ids.device)
        several = bool(shape.fronts) or shape.nodes > assemble.WINDOW
        with ranking:
            order, out_order, by_degree, degree = assemble.by_length(
                found.indptr, found.out_indptr, windows, several
            )

        def short_rows(indptr: Tensor, neighbours: Tensor, order: Tensor) -> Rows:
            no_row = indptr[:0]
            return Rows(indptr, neighbours, no_row, no_rank, indptr[:1], no_row, order)

        adjacency = Adjacency(
            incoming=short_rows(found.indptr, found.senders, order),
            outgoing=short_rows(found.out_indptr, found.receivers, out_order),
            edge_ids=numbers,
            out_ranks=found.out_ranks,
            by_degree=by_degree,
            degree=degree,
        )
        return layout, adjacency

    def _constants_of(self, shape: Shape, device: torch.device) -> tuple[Tensor, ...]:
        """Return the constants of a shape: edge numbers, ranks for the case without long rows, and
        the windows within which nodes are sorted by degree."""
        from pna.ops.triton import assemble

        if shape not in self._constants:
            numbers = torch.arange(shape.edges, dtype=torch.int32, device=device)
            no_rank = torch.full((shape.nodes,), -1, dtype=torch.int32, device=device)
            cuts = [front.nodes for front in shape.fronts]
            windows = assemble.windows(shape.nodes, cuts, device)
            self._constants[shape] = (numbers, no_rank, windows)
        return self._constants[shape]


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return rows of a tensor, or zeros if it is empty: all rows are then padding."""
    if len(tensor) == 0:
        return tensor.new_zeros(len(index), *tensor.shape[1:])
    return tensor.index_select(0, index)


def _with_rest(counts: Tensor, total: int) -> Tensor:
    """Append one more count, so that the counts sum to `total`."""
    return torch.cat([counts, (total - counts.sum())[None]])
