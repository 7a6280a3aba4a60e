"""What is to be predicted of a graph: one table of names, levels and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Labelled:
    """Graphs of one size with what their labels depend on."""

    graphs: NDArray[np.bool_]  # (count, n, n), symmetric
    source: NDArray[np.int64]  # (count,) node from which shortest paths are measured
    feature: Numbers  # (count, n)
    protocol: str

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        return self.graphs.astype(np.float64)

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        return np.asarray(self.graphs.sum(2))

    @cached_property
    def distance(self) -> NDArray[np.int16]:
        """Lengths of shortest paths, (count, n, n), −1 where there is none."""
        return shortest_paths(self.graphs)

    @cached_property
    def is_connected(self) -> NDArray[np.bool_]:
        return np.asarray((self.distance[:, 0] >= 0).all(1))

    @cached_property
    def is_bipartite(self) -> NDArray[np.bool_]:
        """No edge joins two nodes that are as far, in parity, from the first node that reaches
        them."""
        root = (self.distance >= 0).argmax(2)
        parity = np.take_along_axis(self.distance, root[:, :, None], 2)[..., 0] % 2
        return ~(self.graphs & (parity[:, :, None] == parity[:, None])).any((1, 2))


def shortest_paths(graphs: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Of all pairs in all graphs, one step at a time: whom a node reaches is kept as a row of
    bits, and in each step joined with the rows of its neighbours."""
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


def sssp(given: Labelled) -> Numbers:
    """Length of the shortest path from the source; 0 where there is none."""
    rows = given.distance[np.arange(len(given.source)), given.source]
    return np.maximum(rows, 0).astype(np.float64)


def eccentricity(given: Labelled) -> Numbers:
    """Largest distance to a node that can be reached."""
    return given.distance.max(2).astype(np.float64)


def laplacian(given: Labelled) -> Numbers:
    """(D − A) x"""
    around = np.matmul(given.matrix, given.feature[:, :, None])[..., 0]
    return given.degree * given.feature - around


def connected(given: Labelled) -> Numbers:
    """1 where all nodes can be reached; as published, 0 for bipartite graphs all the same."""
    if given.protocol == "published":
        return (given.is_connected & ~given.is_bipartite).astype(np.float64)
    return given.is_connected.astype(np.float64)


def diameter(given: Labelled) -> Numbers:
    """Largest distance between nodes that reach each other."""
    return given.distance.max((1, 2)).astype(np.float64)


def spectral_radius(given: Labelled) -> Numbers:
    """Largest eigenvalue of the adjacency matrix."""
    return np.linalg.eigvalsh(given.matrix)[:, -1]


def degree(given: Labelled) -> Numbers:
    return given.degree.astype(np.float64)


def pagerank(given: Labelled) -> Numbers:
    """The stationary share of a walk that starts anew with probability 0.15."""
    count, n, _ = given.graphs.shape
    walk = given.matrix / np.maximum(given.degree, 1)[:, None]  # a step from column to row
    system = np.eye(n) - 0.85 * walk
    return np.linalg.solve(system, np.full((count, n, 1), 0.15 / n))[..., 0]


def triangles(given: Labelled) -> Numbers:
    """How many triangles a node is part of."""
    return np.einsum("bij,bij->bi", np.matmul(given.matrix, given.matrix), given.matrix) / 2


def clustering(given: Labelled) -> Numbers:
    """Share of the pairs of neighbours that are joined; 0 where there is no pair."""
    pairs = given.degree * (given.degree - 1) / 2
    return triangles(given) / np.maximum(pairs, 1)


def bipartite(given: Labelled) -> Numbers:
    return given.is_bipartite.astype(np.float64)


@dataclass(frozen=True)
class Task:
    """A target: of every node, (count, n), or of the graph, (count,)."""

    name: str
    level: str  # "node" or "graph"
    label: Callable[[Labelled], Numbers]

    def __post_init__(self) -> None:
        if not self.name or self.level not in ("node", "graph") or not callable(self.label):
            raise ValueError(
                f"got the task {self.name!r} of level {self.level!r}, expected a name, the level "
                "'node' or 'graph', and a function for its labels"
            )


_TABLE = (
    Task("sssp", "node", sssp),
    Task("eccentricity", "node", eccentricity),
    Task("laplacian", "node", laplacian),
    Task("connected", "graph", connected),
    Task("diameter", "graph", diameter),
    Task("spectral_radius", "graph", spectral_radius),
    Task("degree", "node", degree),
    Task("pagerank", "node", pagerank),
    Task("triangles", "node", triangles),
    Task("clustering", "node", clustering),
    Task("bipartite", "graph", bipartite),
)
TASKS: dict[str, Task] = {}
for _task in _TABLE:
    if TASKS.setdefault(_task.name, _task) is not _task:
        raise ValueError(f"got two tasks called {_task.name!r}, expected one")

#: Those of the paper.
SIX = ("sssp", "eccentricity", "laplacian", "connected", "diameter", "spectral_radius")
