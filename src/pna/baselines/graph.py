"""The graph as read by kernels that walk edges in both directions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pna.adjacency import Adjacency
from pna.rows import Rows


class Graph(NamedTuple):
    """The edges of a graph, by receiver and by sender."""

    incoming: Rows
    outgoing: Rows
    out_ranks: Tensor

    @staticmethod
    def of(adjacency: Adjacency) -> Graph:
        return Graph(adjacency.incoming, adjacency.outgoing, adjacency.out_ranks)
