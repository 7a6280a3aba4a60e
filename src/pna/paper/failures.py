"""Neighbourhoods that some aggregators cannot tell apart (the paper's first figure).

A layer that is to tell two neighbourhoods apart must give their receivers different statistics.
Every pair here has exactly one of mean, std, max and min that does so, except the last, whose
neighbourhoods differ in their degree alone: only a scaler, or the sum, sees that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.degree import DegreeStats, scale
from pna.ops.aggregate import aggregate

Neighbourhood = tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """Two multisets of neighbours' values, and what sets them apart."""

    difference: str
    left: Neighbourhood
    right: Neighbourhood


PAIRS = (
    Pair("the mean differs", (0, 0, 4), (0, 4, 4)),
    Pair("the spread differs", (0, 2, 2, 4), (0, 0, 4, 4)),
    Pair("the largest differs", (0, 0, 3, 3), (0, 1, 1, 4)),
    Pair("the smallest differs", (1, 1, 4, 4), (0, 3, 3, 4)),
    Pair("the degree differs", (1, 2), (1, 1, 2, 2)),
)


@dataclass(frozen=True)
class Method:
    """What a layer computes from a neighbourhood: each aggregator times each scaler."""

    name: str
    aggregators: tuple[str, ...]
    scalers: tuple[str, ...] = ("identity",)


FOUR = ("mean", "std", "max", "min")
METHODS = (
    *(Method(name, (name,)) for name in (*FOUR, "sum")),
    Method(", ".join(FOUR), FOUR),
    Method("PNA: those, scaled", FOUR, ("identity", "amplification", "attenuation")),
)


@dataclass(frozen=True)
class Failures:
    """What every method makes of every pair.

    `statistics[m]` is (pairs, 2, scalers × aggregators) of method m; `told_apart[p][m]` says
    whether any of its statistics differs between the two neighbourhoods of pair p.
    """

    pairs: tuple[Pair, ...]
    methods: tuple[Method, ...]
    statistics: tuple[Tensor, ...]
    told_apart: tuple[tuple[bool, ...], ...]


def failures(
    pairs: tuple[Pair, ...] = PAIRS, methods: tuple[Method, ...] = METHODS, tolerance: float = 1e-9
) -> Failures:
    """Aggregate both neighbourhoods of every pair and compare, in float64."""
    values, adj = stars([side for pair in pairs for side in (pair.left, pair.right)])
    stats = DegreeStats.from_degrees(adj.degree)

    statistics = []
    for method in methods:
        out = aggregate(values, adj, method.aggregators)
        out = scale(out, adj.degree, method.scalers, stats)
        statistics.append(out.reshape(len(pairs), 2, -1))

    differ = [((s[:, 0] - s[:, 1]).abs() > tolerance).any(dim=1).tolist() for s in statistics]
    return Failures(pairs, methods, tuple(statistics), tuple(zip(*differ, strict=True)))


def stars(neighbourhoods: Sequence[Neighbourhood]) -> tuple[Tensor, Adjacency]:
    """Values of all leaves (leaves, 1), and who sends to which of the centres."""
    values = torch.tensor([value for side in neighbourhoods for value in side], dtype=torch.float64)
    sizes = torch.tensor([len(side) for side in neighbourhoods])
    edge_index = torch.stack(
        [torch.arange(len(values)), torch.arange(len(sizes)).repeat_interleave(sizes)]
    )
    adj = Adjacency.from_edge_index(edge_index, (len(values), len(sizes)))
    return values.unsqueeze(1), adj


def braces(neighbourhood: Neighbourhood) -> str:
    """As a multiset is written: {0, 0, 4}."""
    return "{" + ", ".join(f"{value:g}" for value in neighbourhood) + "}"
