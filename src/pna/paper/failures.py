"""Neighbourhoods that some aggregators cannot tell apart (the paper's first figure).

A layer that is to tell two neighbourhoods apart must give their receivers different statistics.
Every pair here is the smallest that exactly one of mean, std, max and min tells apart, except the
last, whose neighbourhoods differ in their degree alone: only a scaler, or the sum, sees that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from pna.degree import DegreeStats, scale
from pna.ops.aggregate import aggregate
from pna.theory.pairs import smallest_pair
from pna.theory.stars import braces as braces
from pna.theory.stars import stars

Neighbourhood = tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """Two multisets of neighbours' values, and what sets them apart."""

    difference: str
    left: Neighbourhood
    right: Neighbourhood


FOUR = ("mean", "std", "max", "min")

#: The difference within each pair, by the only aggregator of FOUR that detects it.
DIFFERENCES = {
    "mean": "the mean differs",
    "std": "the spread differs",
    "max": "the largest differs",
    "min": "the smallest differs",
    "sum": "the degree differs",
}


@cache
def pairs() -> tuple[Pair, ...]:
    """The smallest pair of whole-numbered neighbourhoods for each difference."""
    found = []
    for differ, words in DIFFERENCES.items():
        agree = [name for name in FOUR if name != differ]
        left, right = smallest_pair(agree, differ, same_size=differ in FOUR)
        found.append(Pair(words, left, right))
    return tuple(found)


@dataclass(frozen=True)
class Method:
    """Statistics that a layer computes of a neighbourhood: each aggregator times each scaler."""

    name: str
    aggregators: tuple[str, ...]
    scalers: tuple[str, ...] = ("identity",)


METHODS = (
    *(Method(name, (name,)) for name in (*FOUR, "sum")),
    Method(", ".join(FOUR), FOUR),
    Method("PNA: those, scaled", FOUR, ("identity", "amplification", "attenuation")),
)


@dataclass(frozen=True)
class Failures:
    """Statistics of every method for every pair.

    `statistics[m]` is (pairs, 2, scalers × aggregators) of method m; `told_apart[p][m]` says
    whether any of its statistics differs between the two neighbourhoods of pair p.
    """

    pairs: tuple[Pair, ...]
    methods: tuple[Method, ...]
    statistics: tuple[Tensor, ...]
    told_apart: tuple[tuple[bool, ...], ...]


def failures(
    pairs_to_tell: Sequence[Pair] | None = None,
    methods: tuple[Method, ...] = METHODS,
    tolerance: float = 1e-9,
) -> Failures:
    """Aggregate both neighbourhoods of every pair and compare, in float64."""
    compared = pairs() if pairs_to_tell is None else tuple(pairs_to_tell)
    values, adj = stars([side for pair in compared for side in (pair.left, pair.right)])
    stats = DegreeStats.from_degrees(adj.degree)

    statistics = []
    for method in methods:
        out = aggregate(values, adj, method.aggregators)
        out = scale(out, adj.degree, method.scalers, stats)
        statistics.append(out.reshape(len(compared), 2, -1))

    differ = [((s[:, 0] - s[:, 1]).abs() > tolerance).any(dim=1).tolist() for s in statistics]
    return Failures(compared, methods, tuple(statistics), tuple(zip(*differ, strict=True)))
