"""The labels of the multi-task benchmark: one function each, registered by its decorator.

To add a label, write a function with ``@label("node")`` or ``@label("graph")`` here, and what
NetworkX computes for it in the test of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class LabelInputs:
    """Graphs of one size, and the node inputs that their labels depend on."""

    graphs: NDArray[np.bool_]  # (count, n, n), symmetric
    source: NDArray[np.int64]  # (count,) node from which shortest paths are measured
    feature: Numbers  # (count, n)
    protocol: str  # "paper" or "published"

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The adjacency matrices as numbers, (count, n, n)."""
        return self.graphs.astype(np.float64)

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """(count, n)."""
        return np.asarray(self.graphs.sum(2))

    @cached_property
    def distance(self) -> NDArray[np.int16]:
        """Lengths of shortest paths, (count, n, n), −1 where there is none."""
        return shortest_paths(self.graphs)

    @cached_property
    def is_connected(self) -> NDArray[np.bool_]:
        """(count,)."""
        return np.asarray((self.distance[:, 0] >= 0).all(1))

    @cached_property
    def is_bipartite(self) -> NDArray[np.bool_]:
        """(count,). The root of a node is the first node that reaches it. A graph is bipartite if
        no edge joins two nodes whose distances from their root have equal parity."""
        root = (self.distance >= 0).argmax(2)
        parity = np.take_along_axis(self.distance, root[:, :, None], 2)[..., 0] % 2
        return ~(self.graphs & (parity[:, :, None] == parity[:, None])).any((1, 2))


def shortest_paths(graphs: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Path lengths between all pairs of nodes of (count, n, n) graphs, −1 where there is none.

    The nodes that a node reaches are a row of bits. Each step joins it with its neighbours' rows.
    """
    count, n, _ = graphs.shape
    nodes = count * n
    near = graphs | np.eye(n, dtype=bool)
    graph, _, neighbour = np.nonzero(near)
    neighbour += graph * n
    begin = np.concatenate([[0], near.sum(2).ravel().cumsum()[:-1]])
    itself = np.broadcast_to(np.eye(n, dtype=bool), (count, n, n)).reshape(nodes, n)
    packed = np.packbits(itself, axis=1)
    words = -(-packed.shape[1] // 8)
    reached = np.zeros((nodes, 8 * words), np.uint8)
    reached[:, : packed.shape[1]] = packed
    distance = np.zeros((nodes, n), np.int16)
    for _ in range(n):
        bits = np.unpackbits(reached, axis=1, count=n).view(bool)
        rows = reached.view(np.uint64)
        grown = np.bitwise_or.reduceat(rows[neighbour], begin, axis=0) if nodes else rows
        if np.array_equal(grown, rows):
            distance[~bits] = -1
            break
        distance += ~bits
        reached = grown.view(np.uint8)
    return distance.reshape(count, n, n)


Function = Callable[[LabelInputs], Numbers]


@dataclass(frozen=True)
class Label:
    """A target of the benchmark. Its name is that of the function that computes it."""

    level: str  # "node" or "graph"
    compute: Function  # (count, n) for a node label, (count,) for a graph label


#: Every label by name, in the order of this file.
LABELS: dict[str, Label] = {}

#: The labels of the paper, in its order.
SIX = ("sssp", "eccentricity", "laplacian", "connected", "diameter", "spectral_radius")


def label(level: str) -> Callable[[Function], Function]:
    """Register a function as the label of its name: of every node, or of the graph."""

    def register(compute: Function) -> Function:
        name = compute.__name__
        if level not in ("node", "graph") or name in LABELS:
            raise ValueError(
                f"got the label {name!r} of level {level!r}, expected a new name and the level "
                "'node' or 'graph'; rename the function or correct the level"
            )
        LABELS[name] = Label(level, compute)
        return compute

    return register


@label("node")
def sssp(inputs: LabelInputs) -> Numbers:
    """Length of the shortest path from the source; 0 for a node that it does not reach."""
    rows = inputs.distance[np.arange(len(inputs.source)), inputs.source]
    return np.maximum(rows, 0).astype(np.float64)


@label("node")
def eccentricity(inputs: LabelInputs) -> Numbers:
    """Largest distance to a reachable node."""
    return inputs.distance.max(2).astype(np.float64)


@label("node")
def laplacian(inputs: LabelInputs) -> Numbers:
    """(D − A) x"""
    around = np.matmul(inputs.matrix, inputs.feature[:, :, None])[..., 0]
    return inputs.degree * inputs.feature - around


@label("graph")
def connected(inputs: LabelInputs) -> Numbers:
    """1 for a connected graph, else 0. The protocol `published` has 0 for every bipartite graph."""
    if inputs.protocol == "published":
        return (inputs.is_connected & ~inputs.is_bipartite).astype(np.float64)
    return inputs.is_connected.astype(np.float64)


@label("graph")
def diameter(inputs: LabelInputs) -> Numbers:
    """Largest distance between two nodes of one component."""
    return inputs.distance.max((1, 2)).astype(np.float64)


@label("graph")
def spectral_radius(inputs: LabelInputs) -> Numbers:
    """Largest eigenvalue of the adjacency matrix."""
    return np.linalg.eigvalsh(inputs.matrix)[:, -1]


@label("node")
def degree(inputs: LabelInputs) -> Numbers:
    """Number of neighbours."""
    return inputs.degree.astype(np.float64)


@label("node")
def pagerank(inputs: LabelInputs) -> Numbers:
    """Stationary distribution of a random walk that restarts with probability 0.15."""
    count, n, _ = inputs.graphs.shape
    walk = inputs.matrix / np.maximum(inputs.degree, 1)[:, None]  # a step from column to row
    system = np.eye(n) - 0.85 * walk
    return np.linalg.solve(system, np.full((count, n, 1), 0.15 / n))[..., 0]


@label("node")
def triangles(inputs: LabelInputs) -> Numbers:
    """Number of triangles that contain the node."""
    return np.einsum("bij,bij->bi", np.matmul(inputs.matrix, inputs.matrix), inputs.matrix) / 2


@label("node")
def clustering(inputs: LabelInputs) -> Numbers:
    """Fraction of the pairs of neighbours that are joined; 0 where there is no pair."""
    pairs = inputs.degree * (inputs.degree - 1) / 2
    return triangles(inputs) / np.maximum(pairs, 1)


@label("graph")
def bipartite(inputs: LabelInputs) -> Numbers:
    """1 for a bipartite graph, else 0."""
    return inputs.is_bipartite.astype(np.float64)
