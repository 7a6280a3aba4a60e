"""Graphs of a type for the benchmark: with toggled edges, shuffled nodes and no isolated node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pna.data.multitask.families import Family, Graphs, from_pairs, to_pairs
from pna.data.multitask.stream import Stream

#: The probability of toggling an edge by protocol: that of the paper, or that of the published
#: code, whose random numbers are sums of two.
PROTOCOLS = {"paper": lambda p: p, "published": lambda p: 2 * p * p}

#: Pairs of nodes drawn at once, and the number of draws without success that is an error.
_BULK, _PATIENCE = 2_000_000, 1_000_000


def draw(stream: Stream, family: Family, count: int, n: int, protocol: str) -> Graphs:
    """`count` graphs of n nodes; those with an isolated node are drawn again."""
    accepted = [np.zeros((0, n, n), bool)]
    have = tries = 0
    while have < count:
        rate = max(have, 0.5) / tries if tries else 1.0
        bulk = int(min(max((count - have) / rate * 1.1, 16), max(2 * _BULK // n**2, 16)))
        upper = from_pairs(toggle(stream, to_pairs(family.make(stream, bulk, n)), protocol), n)
        without_isolated = np.all(np.any(upper, 1) | np.any(upper, 2), axis=1)
        accepted.append(upper[without_isolated][: count - have])
        have, tries = have + len(accepted[-1]), tries + bulk
        if have == 0 and tries > _PATIENCE:
            raise ValueError(
                f"got {tries:,} graphs of type {family.name} with {n} nodes, all of them with an "
                f"isolated node, expected one without; leave out sizes of {n} and more"
            )
    graphs = np.concatenate(accepted)
    return shuffle(stream, graphs | graphs.transpose(0, 2, 1))


def toggle(stream: Stream, joined: NDArray[np.bool_], protocol: str) -> NDArray[np.bool_]:
    """Toggle pairs of nodes at random. With e edges and m missing edges, the probabilities are 0.1
    for an edge and 0.1·e/m for a missing one if e ≤ m, else 0.1·m/e and 0.1."""
    edges = np.count_nonzero(joined, axis=1)
    missing = joined.shape[1] - edges
    few = edges <= missing
    of_edges = np.where(few, 0.1, 0.1 * missing / np.maximum(edges, 1))
    of_missing = np.where(few, 0.1 * edges / np.maximum(missing, 1), 0.1)
    limits = [
        np.rint(PROTOCOLS[protocol](chance) * 2.0**32).astype(np.uint32)[:, None]
        for chance in (of_edges, of_missing)
    ]
    return joined ^ (stream.bits(*joined.shape) < np.where(joined, *limits))


def shuffle(stream: Stream, graphs: Graphs) -> Graphs:
    """Number the nodes of every graph at random."""
    count, n, _ = graphs.shape
    order = stream.order(count, n)
    return graphs[np.arange(count)[:, None, None], order[:, :, None], order[:, None, :]]


def types_of(stream: Stream, shares: Sequence[int], count: int) -> NDArray[np.int64]:
    """A random type for each of `count` graphs, by the shares of all types."""
    ends = np.cumsum(shares)
    return np.searchsorted(ends, stream.below(int(ends[-1]), count), side="right")
