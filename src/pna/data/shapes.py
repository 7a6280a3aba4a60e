"""Shapes that batches are padded to, and which of their places each graph has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pna.adjacency import SEGMENT
from pna.data.graphset import GraphSet
from pna.front import Front


@dataclass(frozen=True)
class Shape:
    """Room for so many graphs, and for so many nodes and edges in all."""

    graphs: int
    nodes: int
    edges: int
    degree: int = SEGMENT  # the most edges that a node of padding may have
    #: Where graphs stand by their sizes, shortest first. Edges left over are then of no node, which
    #: layers that walk the edges of nodes do not see.
    fronts: tuple[Front, ...] = ()

    def holds(self, graphs: int, nodes: int, edges: int) -> bool:
        """Whether these fit, and what is left over makes a graph of padding whose nodes have no
        more edges than a short row."""
        spare_nodes, spare_edges = self.nodes - nodes, self.edges - edges
        if graphs > self.graphs or spare_nodes < 0 or spare_edges < 0:
            return False
        return bool(self.fronts) or spare_edges <= spare_nodes * self.degree

    @property
    def places(self) -> int:
        """How many ids a batch is made of: of graphs, and of what fills up each front."""
        return self.graphs + len(self.fronts)

    def arrange(
        self, ids: NDArray[np.int64], sizes: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """The ids (graphs,) of graphs of these sizes and so many edges as `PaddedBatches.batch`
        takes them, largest first where there are fronts; None where they do not fit."""
        if len(ids) > self.graphs:
            return None
        if self.fronts:
            largest_first = np.argsort(-sizes, kind="stable")
            ids, sizes, edges = ids[largest_first], sizes[largest_first], edges[largest_first]
        ends, edge_ends = np.append(0, sizes.cumsum()), np.append(0, edges.cumsum())
        filled = np.full(self.places, -1)
        at, begin, padding = 0, 0, 0  # places, graphs, and nodes between them, so far
        for front in self.fronts:
            fit = np.searchsorted(ends, front.nodes - padding, "right")
            count = int(min(fit, np.searchsorted(edge_ends, front.edges, "right"))) - 1
            if count < len(ids) and sizes[count] > front.size:
                return None
            filled[at : at + count - begin] = ids[begin:count]
            at, begin = at + count - begin + 1, count
            rest = front.nodes - padding - int(ends[count])
            filled[at - 1], padding = -1 - rest, padding + rest
        if not self.holds(len(ids), padding + int(ends[-1]), int(edge_ends[-1])):
            return None
        filled[at : at + len(ids) - begin] = ids[begin:]
        return filled


_STEP = 64  # of which shapes are multiples

#: How many standard deviations above the mean each shape holds, in all and in a front.
_ABOVE = ((0.5, 2.0), (4.0, 4.5))


def usual_shapes(graphs: GraphSet, batch_size: int, *, levels: Sequence[int] = ()) -> list[Shape]:
    """Shapes that hold nearly all batches of graphs drawn at random: the smallest half of them in
    the first of two, those up to four standard deviations above the mean in the last.

    With fronts for graphs of more nodes than each of the `levels`, if there are any.
    """
    together = min(batch_size, len(graphs))
    left = (len(graphs) - together) / max(len(graphs) - 1, 1)

    def of_a_batch(numbers: Tensor) -> tuple[float, float]:
        """Mean and deviation of a sum of `together` drawn without replacement."""
        numbers = numbers.double()
        deviation = (together * left * numbers.var(unbiased=False)) ** 0.5
        return float(together * numbers.mean()), float(deviation)

    in_all = [of_a_batch(numbers) for numbers in (graphs.sizes, graphs.edge_counts)]
    large = [(size, graphs.sizes > size) for size in sorted(levels, reverse=True)]
    in_fronts = [
        (size, of_a_batch(graphs.sizes * which), of_a_batch(graphs.edge_counts * which))
        for size, which in large
    ]
    # states of padding may grow with depth, as those of nodes do, but not faster
    degree = min(max(-(-2 * graphs.num_edges // max(graphs.num_nodes, 1)), 1), SEGMENT)
    longest = int(graphs.sizes.max()) if len(graphs) else 0
    shapes = []
    for above, above_front in _ABOVE:
        nodes, edges = (int(mean + above * deviation) + 1 for mean, deviation in in_all)
        left_over = (above + 4) * in_all[1][1] + _STEP  # edges, nearly always
        spare = 1 + int(left_over / degree)  # nodes for them, also where sizes do not vary
        fronts: list[Front] = []
        for k, (size, of_nodes, of_edges) in enumerate(in_fronts):
            first, reached = (int(m + above_front * d) + 1 for m, d in (of_nodes, of_edges))
            # what fills up the fronts before is about half a graph in each
            first = _rounded(first + k * longest // 2)
            # with smaller graphs, where there is room
            more = reached + degree * int(first - of_nodes[0])
            # by more than 8 for each node kernels would take rows for long ones
            fronts.append(Front(size, first, _rounded(max(reached, min(more, 8 * first)))))
        wide, edges = _rounded(nodes + len(fronts) * longest // 2), _rounded(edges)
        useful = _useful(fronts, wide, edges)
        nodes = wide if useful else _rounded(nodes + spare)
        shapes.append(Shape(together, nodes, edges, degree, useful))
    return shapes


def _useful(fronts: Sequence[Front], nodes: int, edges: int) -> tuple[Front, ...]:
    """Those that are shorter than the next, of which the last is everything."""
    found: list[Front] = []
    for front in reversed(fronts):
        if front.nodes < nodes:
            nodes, edges = front.nodes, min(front.edges, edges)
            found.append(front._replace(edges=edges))
    return tuple(reversed(found))


def _rounded(number: int) -> int:
    return -(-number // _STEP) * _STEP
