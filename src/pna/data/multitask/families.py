"""The ten types of graphs, before edges are toggled and nodes shuffled.

Each function makes `count` graphs of n nodes at once, as (count, n, n) symmetric booleans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pna.data.multitask.stream import Stream

Graphs = NDArray[np.bool_]


def from_pairs(joined: NDArray[np.bool_], n: int) -> Graphs:
    """The upper triangles of graphs from their pairs i < j in order, (count, n(n − 1)/2)."""
    graphs = np.zeros((len(joined), n, n), bool)
    first = 0
    for i in range(n - 1):
        graphs[:, i, i + 1 :] = joined[:, first : first + n - 1 - i]
        first += n - 1 - i
    return graphs


def to_pairs(graphs: Graphs) -> NDArray[np.bool_]:
    """The inverse of `from_pairs`."""
    return np.concatenate([graphs[:, i, i + 1 :] for i in range(graphs.shape[1])], axis=1)


def erdos_renyi(stream: Stream, count: int, n: int) -> Graphs:
    """Every pair is joined with probability p, uniform on [0, 1) for each graph."""
    limit = np.rint(stream.unit(count, 1) * 2.0**32).astype(np.uint64)
    graphs = from_pairs(stream.bits(count, n * (n - 1) // 2) < limit, n)
    return graphs | graphs.transpose(0, 2, 1)


def barabasi_albert(stream: Stream, count: int, n: int) -> Graphs:
    """From a star of k + 1 nodes, every other node joins k different nodes, drawn one by one in
    proportion to their degrees; k is uniform on 1 … n − 1.

    Every end of an edge is a ticket. The first k nodes in a random order of the tickets have the
    same distribution as nodes drawn one by one.
    """
    k = 1 + stream.below(n - 1, count)
    graphs = np.zeros((count, n, n), bool)
    number = np.arange(n)
    graphs[:, 0] = (number >= 1) & (number <= k[:, None])
    graphs |= graphs.transpose(0, 2, 1)
    for new in range(2, n):
        growing = np.flatnonzero(k < new)  # the others' node is part of the star
        tickets = stream.words(len(growing), new, new)
        tickets[~graphs[growing, :new, :new]] = np.iinfo(np.uint64).max
        rank = np.argsort(np.argsort(tickets.min(2), axis=1, kind="stable"), axis=1)
        joined = rank < k[growing, None]
        graphs[growing, new, :new] = joined
        graphs[growing, :new, new] = joined
    return graphs


def grid(stream: Stream, count: int, n: int) -> Graphs:
    """m × k, as square as n allows; a line if n is prime."""
    k = n // _smaller_factor(n)
    number = np.arange(n)
    down = number[:, None] + k == number
    right = (number[:, None] + 1 == number) & (number % k != 0)
    return _repeat(down | right, count)


def caveman(stream: Stream, count: int, n: int) -> Graphs:
    """m separate cliques of k nodes, m and k as close as n allows; one clique if n is prime."""
    cave = np.arange(n) // (n // _smaller_factor(n))
    return _repeat((cave[:, None] == cave) & ~np.eye(n, dtype=bool), count)


def power_law_tree(stream: Stream, count: int, n: int) -> Graphs:
    """A tree whose degrees follow a power law of exponent 3.

    Degrees are drawn, and then redrawn one at a time until they sum to those of a tree. Nodes of
    degree above 1 form a path; its ends and sides are leaves.
    """
    degree = _pareto(stream, count, n)
    while True:
        wrong = np.flatnonzero(degree.sum(1) != 2 * (n - 1))
        if len(wrong) == 0:
            break
        which = stream.below(n, len(wrong))
        degree[wrong, which] = _pareto(stream, len(wrong), 1, at_most=n)[:, 0]
    inner = -np.sort(-degree, axis=1)
    spine = (inner > 1).sum(1)
    number = np.arange(n)
    # the path: a leaf, the inner nodes, a leaf; then each inner node's other leaves in turn
    graphs = (number[:, None] + 1 == number) & (number <= spine[:, None, None] + 1)
    spare = np.where(inner > 1, inner - 2, 0)
    ends = spine[:, None] + 2 + spare.cumsum(1)
    leaves = (number >= (ends - spare)[:, :, None]) & (number < ends[:, :, None])
    graphs[:, 1:] |= leaves[:, :-1]
    return graphs | graphs.transpose(0, 2, 1)


def _pareto(stream: Stream, count: int, n: int, at_most: int | None = None) -> NDArray[np.int64]:
    """u^(−1/2), rounded, and at most the number of nodes."""
    drawn = 1.0 / np.sqrt(1.0 - stream.unit(count, n))
    return np.minimum(np.rint(drawn), n if at_most is None else at_most).astype(np.int64)


def ladder(stream: Stream, count: int, n: int) -> Graphs:
    """Two lines joined rung by rung; if n is odd, the first has one more node."""
    half, number = n // 2, np.arange(n)
    pairs = number[:, None] < number
    rails = (number[:, None] + 1 == number) & (number != half) & (number < 2 * half)
    rungs = (number[:, None] + half == number) & (number < 2 * half)
    more = (number[:, None] == 0) & (number == 2 * half)
    return _repeat(pairs & (rails | rungs | more), count)


def line(stream: Stream, count: int, n: int) -> Graphs:
    number = np.arange(n)
    return _repeat(number[:, None] + 1 == number, count)


def star(stream: Stream, count: int, n: int) -> Graphs:
    number = np.arange(n)
    return _repeat((number[:, None] == 0) & (number > 0), count)


def caterpillar(stream: Stream, count: int, n: int) -> Graphs:
    """A line of b nodes, uniform on 1 … n − 1; all other nodes are attached to it."""
    backbone = 1 + stream.below(n - 1, count)
    return _attach(stream, backbone, np.full(count, n), n)


def lobster(stream: Stream, count: int, n: int) -> Graphs:
    """A line of b nodes, uniform on 1 … n − 1; p nodes, uniform on 1 … n − b, are attached to it;
    all other nodes are attached to those."""
    backbone = 1 + stream.below(n - 1, count)
    hung = 1 + stream.below(n - backbone, count)
    return _attach(stream, backbone, backbone + hung, n)


def _attach(stream: Stream, backbone: NDArray[np.int64], legs: NDArray[np.int64], n: int) -> Graphs:
    """Nodes up to `backbone` form a line; those up to `legs` are attached to it, others to legs."""
    count, number = len(backbone), np.arange(n)
    on_line = number < backbone[:, None]
    on_backbone = ~on_line & (number < legs[:, None])
    choices = np.where(on_backbone, backbone[:, None], np.maximum(legs - backbone, 1)[:, None])
    parent = stream.below(choices, count, n) + np.where(on_backbone, 0, backbone[:, None])
    parent = np.where(on_line, np.maximum(number - 1, 0), parent)
    graphs = np.zeros((count, n, n), bool)
    graphs[np.arange(count)[:, None], number[1:], parent[:, 1:]] = True
    return graphs | graphs.transpose(0, 2, 1)


def _smaller_factor(n: int) -> int:
    return max(m for m in range(1, math.isqrt(n) + 1) if n % m == 0)


def _repeat(graph: NDArray[np.bool_], count: int) -> Graphs:
    return np.broadcast_to(graph | graph.T, (count, *graph.shape)).copy()


@dataclass(frozen=True)
class Family:
    """A type of graph, and its percentage of the mixture."""

    name: str
    share: int
    make: Callable[[Stream, int, int], Graphs]


FAMILIES = (
    Family("erdos_renyi", 20, erdos_renyi),
    Family("barabasi_albert", 20, barabasi_albert),
    Family("grid", 5, grid),
    Family("caveman", 5, caveman),
    Family("power_law_tree", 15, power_law_tree),
    Family("ladder", 5, ladder),
    Family("line", 5, line),
    Family("star", 5, star),
    Family("caterpillar", 10, caterpillar),
    Family("lobster", 10, lobster),
)
