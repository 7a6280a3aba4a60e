"""Batches of one shape, whatever graphs are in them: what a captured step is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pna.adjacency import SEGMENT, Adjacency, Rows
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.structure import offsets
from pna.ops.backend import choose


@dataclass(frozen=True)
class Shape:
    """Room for so many graphs, and for so many nodes and edges in all."""

    graphs: int
    nodes: int
    edges: int
    degree: int = SEGMENT  # the most edges that a node of padding may have

    def holds(self, graphs: int, nodes: int, edges: int) -> bool:
        """Whether these fit, and what is left over makes a graph of padding whose nodes have no
        more edges than a short row."""
        spare_nodes, spare_edges = self.nodes - nodes, self.edges - edges
        if graphs > self.graphs or spare_nodes < 0 or spare_edges < 0:
            return False
        return spare_edges <= spare_nodes * self.degree


class _Layout(NamedTuple):
    """Where everything in a batch is from, with one graph of padding behind the others."""

    ids: Tensor  # (graphs + 1,) int64, 0 for padding
    real: Tensor  # (graphs + 1,) bool
    sizes: Tensor  # (graphs + 1,) int64
    starts: Tensor  # (graphs + 2,) int64, first node of every graph, and the end of the last
    graph_of_node: Tensor  # (nodes,) int64
    from_node: Tensor  # (nodes,) int64, place in the set, 0 for padding
    from_edge: Tensor  # (edges,) int64, likewise


class PaddedBatches:
    """Puts graphs of a set together in batches of a given shape, all of it on the device.

    Graphs of padding have no nodes, but for one more, the last, that has all nodes and edges that
    are left over, its edges being self-loops spread evenly.
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
        self._constants: dict[Shape, tuple[Tensor, Tensor]] = {}  # kept for captured steps

    def batch(self, ids: Tensor, shape: Shape) -> Batch:
        """The graphs of these ids (shape.graphs,), int64 on the device; −1 stands for none.

        They must fit: ``shape.holds`` what they have. Nothing here waits for the device.
        """
        graphs = self.graphs
        if self._has_kernels(ids, shape):
            layout, adjacency = self._lay_out_in_kernels(ids, shape)
        else:
            layout, adjacency = self._lay_out(ids, shape)

        def rows(tensor: Tensor | None, places: Tensor) -> Tensor | None:
            return None if tensor is None else _rows(tensor, places)

        return Batch(
            adjacency=adjacency,
            graph_of_node=layout.graph_of_node,
            sizes=layout.sizes,
            x=rows(graphs.x, layout.from_node),
            edge_attr=rows(graphs.edge_attr, layout.from_edge),
            y_node=rows(graphs.y_node, layout.from_node),
            y_graph=rows(graphs.y_graph, layout.ids),
            graph_ids=layout.ids,
            diameter=rows(self._diameters, layout.ids),
            real=layout.real,
            size_range=self._size_range,
            max_diameter=self._max_diameter,
            starts=layout.starts,
        )

    def _lay_out(self, ids: Tensor, shape: Shape) -> tuple[_Layout, Adjacency]:
        graphs, device = self.graphs, ids.device
        real = ids >= 0
        safe = ids.clamp(min=0)
        first_node, first_edge = self._first_node[safe], self._first_edge[safe]
        sizes = _with_rest((self._first_node[safe + 1] - first_node) * real, shape.nodes)
        edges = _with_rest((self._first_edge[safe + 1] - first_edge) * real, shape.edges)
        starts = offsets(sizes)
        numbers = torch.arange(shape.graphs + 1, device=device)
        of_node = torch.repeat_interleave(numbers, sizes, output_size=shape.nodes)
        of_edge = torch.repeat_interleave(numbers, edges, output_size=shape.edges)
        node = torch.arange(shape.nodes, device=device)
        edge = torch.arange(shape.edges, device=device)
        place = node - starts[of_node]
        is_node, is_edge = of_node < shape.graphs, of_edge < shape.graphs
        none = first_node.new_zeros(1)
        from_node = torch.where(is_node, torch.cat([first_node, none])[of_node] + place, 0)
        first_of_edge = torch.cat([first_edge, none]) - offsets(edges)[:-1]
        from_edge = torch.where(is_edge, first_of_edge[of_edge] + edge, 0)

        # k-th node of padding: edges k·e/n up to (k + 1)·e/n of the e that are spread over n
        spread = (place * edges[-1]).div(sizes[-1].clamp(min=1), rounding_mode="floor")
        until = ((place + 1) * edges[-1]).div(sizes[-1].clamp(min=1), rounding_mode="floor")
        padding = until - spread
        degree = torch.where(is_node, _rows(graphs.degree, from_node).long(), padding)
        out_degree = torch.where(is_node, _rows(graphs.out_degree, from_node).long(), padding)
        indptr = offsets(degree)
        loops = torch.repeat_interleave(node, degree, output_size=shape.edges)
        before = starts[of_edge]
        senders = torch.where(is_edge, _rows(graphs.senders, from_edge).long() + before, loops)
        receivers = torch.where(is_edge, _rows(graphs.receivers, from_edge).long() + before, loops)
        ranks = torch.where(
            is_edge, _rows(graphs.out_ranks, from_edge).long(), edge - indptr[loops]
        )
        adjacency = Adjacency.from_csr(
            indptr,
            senders,
            max_degree=SEGMENT if self._short else -1,
            transpose=(offsets(out_degree), receivers, ranks),
        )
        every, there = torch.cat([safe * real, none]), torch.cat([real, none.bool()])
        return _Layout(every, there, sizes, starts, of_node, from_node, from_edge), adjacency

    def _has_kernels(self, ids: Tensor, shape: Shape) -> bool:
        if choose(ids.device) != "triton":
            return False
        from pna.ops.triton import assemble

        empty = self.graphs.num_nodes == 0 or self.graphs.num_edges == 0
        return not empty and shape.graphs < assemble.MOST_GRAPHS and shape.edges < 2**31 - 1

    def _lay_out_in_kernels(self, ids: Tensor, shape: Shape) -> tuple[_Layout, Adjacency]:
        """The same, without a kernel for every operation."""
        from pna.ops.triton import assemble

        graphs = self.graphs
        ends = (graphs.senders, graphs.receivers, graphs.out_ranks)
        firsts = (self._first_node, self._first_edge)
        found = assemble.lay_out(ids, shape.nodes, shape.edges, firsts, self._indptrs, ends)
        layout = _Layout(
            found.ids, found.real, found.sizes, found.starts, found.graph_of_node,
            found.from_node, found.from_edge,
        )  # fmt: skip
        if not self._short or not 0 < shape.nodes <= assemble.MOST_RANKED:
            adjacency = Adjacency.from_csr(
                found.indptr,
                found.senders,
                max_degree=SEGMENT if self._short else -1,
                transpose=(found.out_indptr, found.receivers, found.out_ranks),
            )
            return layout, adjacency
        numbers, no_rank = self._constants_of(shape, ids.device)
        order, out_order = assemble.by_length(found.indptr, found.out_indptr)

        def short_rows(indptr: Tensor, neighbours: Tensor, order: Tensor) -> Rows:
            no_row = indptr[:0]
            return Rows(indptr, neighbours, no_row, no_rank, indptr[:1], no_row, order)

        adjacency = Adjacency(
            incoming=short_rows(found.indptr, found.senders, order),
            outgoing=short_rows(found.out_indptr, found.receivers, out_order),
            edge_ids=numbers,
            out_ranks=found.out_ranks,
            by_degree=order,
        )
        return layout, adjacency

    def _constants_of(self, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of every batch of a shape: the numbers of its edges, and no node having a long row."""
        if shape not in self._constants:
            numbers = torch.arange(shape.edges, dtype=torch.int32, device=device)
            no_rank = torch.full((shape.nodes,), -1, dtype=torch.int32, device=device)
            self._constants[shape] = (numbers, no_rank)
        return self._constants[shape]


def _rows(tensor: Tensor, places: Tensor) -> Tensor:
    """These rows; zeros of a tensor that has none, whose places are all of padding."""
    if len(tensor) == 0:
        return tensor.new_zeros(len(places), *tensor.shape[1:])
    return tensor.index_select(0, places)


def _with_rest(counts: Tensor, total: int) -> Tensor:
    """Counts, and one more that makes them a total."""
    return torch.cat([counts, (total - counts.sum())[None]])


_STEP = 64  # of which shapes are multiples


def usual_shapes(graphs: GraphSet, batch_size: int, count: int = 2) -> list[Shape]:
    """Shapes that hold nearly all batches of graphs drawn at random: the smallest half of them in
    the first of two, those up to four standard deviations above the mean in the last."""
    together = min(batch_size, len(graphs))
    sums = []
    for numbers in (graphs.sizes.double(), graphs.edge_counts.double()):
        # of a sum of `together` drawn without replacement
        left = (len(graphs) - together) / max(len(graphs) - 1, 1)
        sums.append(
            (together * numbers.mean(), (together * left * numbers.var(unbiased=False)) ** 0.5)
        )
    # states of padding may grow with depth, as those of nodes do, but not faster
    degree = min(max(-(-2 * graphs.num_edges // max(graphs.num_nodes, 1)), 1), SEGMENT)
    shapes = []
    for k in range(count):
        above = 4.0 if k == count - 1 else 0.5
        nodes, edges = (int(mean + above * deviation) + 1 for mean, deviation in sums)
        left_over = (above + 4) * float(sums[1][1]) + _STEP  # edges, nearly always
        spare = 1 + int(left_over / degree)  # nodes for them, also where sizes do not vary
        shapes.append(Shape(together, _rounded(nodes + spare), _rounded(edges), degree))
    return shapes


def _rounded(number: int) -> int:
    return -(-number // _STEP) * _STEP
