"""Random graphs of the size and shape of ZINC's molecules, for measuring alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pna.data.graphset import GraphSet

ATOMS, BONDS = 28, 4  # kinds of them, as in ZINC
_FEWEST, _MOST = 14, 32  # atoms of a molecule
_VALENCE = 4  # most bonds of an atom
_RING = 5  # a ring is closed between an atom and the one so many places later
_RINGS = 4  # places where a ring is tried


def molecules(count: int, seed: int = 0) -> GraphSet:
    """`count` trees with a few rings, about 23 nodes and 50 directed edges each, degrees up to 4.

    Nodes and edges have a kind each, graphs a number to predict, all of them random.
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(_FEWEST, _MOST + 1, count)
    ends = _bonds(sizes, random)  # (bonds, 3): graph and two atoms
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    bonds = np.repeat(_kinds(random, BONDS, len(ends)), 2)
    return GraphSet.from_arrays(
        sizes,
        np.stack([ends[:, [1, 2]].ravel(), ends[:, [2, 1]].ravel()]),
        2 * np.bincount(ends[:, 0], minlength=count),
        x=_kinds(random, ATOMS, int(sizes.sum())),
        edge_attr=bonds,
        y_graph=random.standard_normal(count).astype(np.float32),
    )


def _bonds(sizes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Each atom is bound to one of the three before it, then rings are closed."""
    count = len(sizes)
    graphs, degree = np.arange(count), np.zeros((count, _MOST), np.int64)
    found = []

    def bind(first: NDArray[np.int64], second: NDArray[np.int64], where: NDArray[np.bool_]) -> None:
        chosen = graphs[where]
        first, second = first[where], second[where]
        degree[chosen, first] += 1
        degree[chosen, second] += 1
        found.append(np.stack([chosen, first, second], 1))

    for atom in range(1, _MOST):
        before = atom - 1 - np.minimum(random.geometric(0.7, count) - 1, min(atom - 1, 2))
        full = degree[graphs, before] >= _VALENCE
        bind(np.where(full, atom - 1, before), np.full(count, atom), atom < sizes)
    for ring in range(_RINGS):
        first = random.integers(0, 3, count) + 8 * ring
        second = first + _RING
        inside = second < sizes
        first, second = np.where(inside, first, 0), np.where(inside, second, 0)
        free = np.maximum(degree[graphs, first], degree[graphs, second]) < _VALENCE
        bind(first, second, inside & free)
    return np.concatenate(found)


def _kinds(random: np.random.Generator, kinds: int, count: int) -> NDArray[np.int64]:
    """Kinds of which the first is the most frequent, each of them there."""
    drawn = np.minimum(random.geometric(0.5, count) - 1, kinds - 1)
    drawn[:kinds] = np.arange(kinds)[: len(drawn)]
    return drawn
