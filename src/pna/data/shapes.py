"""The shapes to which batches are padded, and the order of graphs in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.front import Front
from pna.rows import SEGMENT


@dataclass(frozen=True)
class Shape:
    """The size of a padded batch: its numbers of graphs, nodes and edges."""

    graphs: int
    nodes: int
    edges: int
    degree: int = SEGMENT  # largest number of edges of a padding node
    #: Fronts of graphs sorted by size, shortest first. With fronts, padding edges belong to no
    #: node. Layers read the edges of nodes, so they do not see padding edges.
    fronts: tuple[Front, ...] = ()

    def holds(self, graphs: int, nodes: int, edges: int) -> bool:
        """Return whether graphs with these numbers of nodes and edges fit, and the rest can form a
        graph of padding whose nodes have at most `degree` edges."""
        spare_nodes, spare_edges = self.nodes - nodes, self.edges - edges
        if graphs > self.graphs or spare_nodes < 0 or spare_edges < 0:
            return False
        return bool(self.fronts) or spare_edges <= spare_nodes * self.degree

    @property
    def num_ids(self) -> int:
        """Number of ids of a batch: one for each graph, and one for the padding of each front."""
        return self.graphs + len(self.fronts)

    def arrange(
        self, ids: NDArray[np.int64], sizes: NDArray[np.int64], edges: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Arrange graphs of these sizes and numbers of edges for `PaddedBatches.batch`.

        The result is ids (num_ids,), largest graph first if there are fronts; None if the graphs do
        not fit.
        """
        if len(ids) > self.graphs:
            return None
        if self.fronts:
            largest_first = np.argsort(-sizes, kind="stable")
            ids, sizes, edges = ids[largest_first], sizes[largest_first], edges[largest_first]
        ends, edge_ends = np.append(0, sizes.cumsum()), np.append(0, edges.cumsum())
        filled = np.full(self.num_ids, -1)
        at, begin, padding = 0, 0, 0  # ids, graphs, and nodes of padding so far
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


_STEP = 64  # the numbers of nodes and edges of a shape are multiples of it

#: Size of each shape, in standard deviations above the mean: of the batch, and of its fronts.
_ABOVE = ((0.5, 2.0), (4.0, 4.5))


def usual_shapes(graphs: GraphSet, batch_size: int, *, levels: Sequence[int] = ()) -> list[Shape]:
    """Return two shapes that hold nearly all batches of random graphs.

    The first holds more than half of the batches, the second those up to four standard deviations
    above the mean. For each of the `levels`, shapes have a front for the graphs of more nodes.
    """
    together = min(batch_size, len(graphs))
    left = (len(graphs) - together) / max(len(graphs) - 1, 1)

    def of_a_batch(numbers: Tensor) -> tuple[float, float]:
        """Return mean and standard deviation of the sum of `together` draws without replacement."""
        numbers = numbers.double()
        deviation = (together * left * numbers.var(unbiased=False)) ** 0.5
        return float(together * numbers.mean()), float(deviation)

    in_all = [of_a_batch(numbers) for numbers in (graphs.sizes, graphs.edge_counts)]
    large = [(size, graphs.sizes > size) for size in sorted(levels, reverse=True)]
    in_fronts = [
        (size, of_a_batch(graphs.sizes * which), of_a_batch(graphs.edge_counts * which))
        for size, which in large
    ]
    # limited, so that the states of padding nodes grow with depth no faster than those of real ones
    degree = min(max(-(-2 * graphs.num_edges // max(graphs.num_nodes, 1)), 1), SEGMENT)
    longest = int(graphs.sizes.max()) if len(graphs) else 0
    shapes = []
    for above, above_front in _ABOVE:
        nodes, edges = (int(mean + above * deviation) + 1 for mean, deviation in in_all)
        left_over = (above + 4) * in_all[1][1] + _STEP  # nearly always more than the spare edges
        spare = 1 + int(left_over / degree)  # nodes for the spare edges, even if sizes do not vary
        fronts: list[Front] = []
        for k, (size, of_nodes, of_edges) in enumerate(in_fronts):
            first, reached = (int(m + above_front * d) + 1 for m, d in (of_nodes, of_edges))
            # the padding of each earlier front is about half a graph
            first = _rounded(first + k * longest // 2)
            # edges also for the smaller graphs that fit into the front
            more = reached + degree * int(first - of_nodes[0])
            # at most 8 edges per node, or kernels would choose their variant for long rows
            fronts.append(Front(size, first, _rounded(max(reached, min(more, 8 * first)))))
        wide, edges = _rounded(nodes + len(fronts) * longest // 2), _rounded(edges)
        useful = _useful(fronts, wide, edges)
        nodes = wide if useful else _rounded(nodes + spare)
        shapes.append(Shape(together, nodes, edges, degree, useful))
    return shapes


def _useful(fronts: Sequence[Front], nodes: int, edges: int) -> tuple[Front, ...]:
    """Select the fronts that are shorter than the next one; the whole batch follows the last."""
    found: list[Front] = []
    for front in reversed(fronts):
        if front.nodes < nodes:
            nodes, edges = front.nodes, min(front.edges, edges)
            found.append(front._replace(edges=edges))
    return tuple(reversed(found))


def _rounded(number: int) -> int:
    return -(-number // _STEP) * _STEP
