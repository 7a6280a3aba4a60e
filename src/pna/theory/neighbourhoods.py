"""Distinct neighbourhoods of a graph set, on a grid, and how many of them statistics merge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import Aggregator, Moment, Std
from pna.theory.stars import star_edges

Hashes: TypeAlias = np.ndarray  # uint64; all sums of them wrap around

_CATEGORIES = 64  # a column of whole numbers with more values than this holds numbers
_CHUNK = 2**22  # numbers of messages at a time
_EPSILON = 1e-5  # of std and the moments
# Values halfway between two steps are common; rounding errors must not decide about them.
_HALF = 0.5 + 1e-6


@dataclass(frozen=True)
class _Column:
    """A feature of the messages, of nodes or of edges, as the numbers of its different values.

    `steps` is what each value is in steps of the grid, or, of a category, what a one is: every
    category is a feature that is 0 or 1.
    """

    codes: np.ndarray  # (rows,) int64
    of_edges: bool
    steps: np.ndarray  # (values,)
    is_category: bool = False

    @property
    def width(self) -> int:
        return len(self.steps) if self.is_category else 1

    def values(self, codes: np.ndarray) -> np.ndarray:
        """(messages, width), in steps of the grid."""
        if not self.is_category:
            return self.steps[codes][:, None]
        return np.where(codes[:, None] == np.arange(len(self.steps)), self.steps, 0.0)


@dataclass(frozen=True)
class DistinctNeighbourhoods:
    """Every distinct neighbourhood of a graph set once.

    Two neighbourhoods are the same if their messages (features of sender and edge) are the same
    multiset after rounding. They are compared by 64-bit hashes: a million
    neighbourhoods are counted wrongly with a probability below 1e-7.
    """

    total: int  # receivers of at least one message
    degree: np.ndarray  # (distinct,)
    grid: float
    columns: tuple[_Column, ...]
    _edges: np.ndarray  # (messages,) which edges of the set, neighbourhood by neighbourhood
    _senders: np.ndarray  # (messages,) which nodes of the set

    @property
    def distinct(self) -> int:
        return len(self.degree)

    @classmethod
    def of(cls, graphs: GraphSet, grid: float) -> DistinctNeighbourhoods:
        """`grid` is in standard deviations of each feature."""
        adjacency = graphs.batch().adjacency
        senders = adjacency.senders.numpy().astype(np.int64)
        indptr = adjacency.indptr.numpy().astype(np.int64)
        columns = _columns(graphs, grid)
        messages = np.zeros(len(senders), dtype=np.uint64)
        for at, column in enumerate(columns):
            coded = mix(column.codes, at)
            messages += coded if column.of_edges else coded[senders]
        receivers = np.flatnonzero(np.diff(indptr))
        ends = np.zeros(len(senders) + 1, dtype=np.uint64)
        np.cumsum(mix(messages, -1), out=ends[1:])
        hashes = ends[indptr[receivers + 1]] - ends[indptr[receivers]]
        first = np.unique(hashes, return_index=True)[1]
        chosen = receivers[np.sort(first)]
        degree = np.diff(indptr)[chosen]
        starts = np.cumsum(degree) - degree
        edges = np.arange(degree.sum()) + np.repeat(indptr[chosen] - starts, degree)
        return cls(len(receivers), degree, grid, columns, edges, senders[edges])

    def separately(self) -> Hashes:
        """Hashes of each neighbourhood by the multiset of every single feature."""
        known = np.zeros(self.distinct, dtype=np.uint64)
        for rows, messages in self._chunks(1):
            starts = np.cumsum(self.degree[rows]) - self.degree[rows]
            for at, column in enumerate(self.columns):
                coded = mix(self._codes(column, messages), at)
                known[rows] += mix(np.add.reduceat(coded, starts), at)
        return known

    def statistics(self, aggregators: Sequence[str]) -> tuple[Hashes, Hashes]:
        """Hashes of the statistics, (aggregators, distinct) each: without and with scalers.

        Statistics are those of `pna.aggregate` on features divided by their deviation, rounded
        to the grid. Beside the identity an injective scaler adds the degree where a statistic is
        not 0, and nothing where it is.
        """
        alone = np.zeros((len(aggregators), self.distinct), dtype=np.uint64)
        scaled = np.zeros_like(alone)
        width = sum(column.width for column in self.columns)
        for rows, messages in self._chunks(width):
            degree = self.degree[rows]
            values = [column.values(self._codes(column, messages)) for column in self.columns]
            x = torch.from_numpy(np.concatenate(values, axis=1))
            for a, found in enumerate(_aggregates(x, degree, aggregators, self.grid)):
                rounded = (found + _HALF).floor().to(torch.int64).numpy()
                part = np.zeros(len(degree), dtype=np.uint64)
                for c in range(width):
                    part += mix(rounded[:, c], c)
                nonzero = rounded.any(axis=1)
                alone[a, rows] = mix(part, a)
                scaled[a, rows] = mix(part + mix(np.where(nonzero, degree, 0), -2), a)
        return alone, scaled

    def _codes(self, column: _Column, messages: slice) -> np.ndarray:
        return column.codes[(self._edges if column.of_edges else self._senders)[messages]]

    def _chunks(self, width: int) -> Iterator[tuple[slice, slice]]:
        """Slices of neighbourhoods and of their messages, small enough for the memory."""
        ends = np.cumsum(self.degree)
        begin, sent = 0, 0
        while begin < self.distinct:
            end = int(np.searchsorted(ends, sent + max(_CHUNK // width, 1), side="right"))
            end = max(end, begin + 1)
            yield slice(begin, end), slice(sent, int(ends[end - 1]))
            begin, sent = end, int(ends[end - 1])


def count(hashes: Hashes) -> int:
    """Number of distinct hashes."""
    ordered = np.sort(hashes)
    return int((ordered[1:] != ordered[:-1]).sum()) + min(len(hashes), 1)


def mix(values: np.ndarray, salt: int) -> Hashes:
    """A pseudo-random 64-bit number for each value: the finaliser of SplitMix64."""
    z = values.astype(np.uint64)  # a copy
    z += np.uint64((salt + 3) * 0x9E3779B97F4A7C15 % 2**64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _columns(graphs: GraphSet, grid: float) -> tuple[_Column, ...]:
    """All features of nodes and edges; a constant where there are none."""
    columns = []
    for features, names, of_edges in (
        (graphs.x, graphs.node_features, False),
        (graphs.edge_attr, graphs.edge_features, True),
    ):
        if features is not None:
            for name, values in zip(names, features.T, strict=True):
                columns.append(_column(name, values, of_edges, grid))
    return tuple(columns) or (_Column(np.zeros(graphs.num_nodes, np.int64), False, np.ones(1)),)


def _column(name: str, values: Tensor, of_edges: bool, grid: float) -> _Column:
    if not values.is_floating_point():
        known, codes = np.unique(values.numpy(), return_inverse=True)
        if len(known) <= _CATEGORIES:
            share = np.bincount(codes) / len(codes)
            spreads = np.sqrt(share * (1 - share))
            steps = 1 / (grid * np.where(spreads > 0, spreads, 1))
            return _Column(codes, of_edges, steps, is_category=True)
    numbers = values.double().numpy()
    spread = float(numbers.std())
    if not np.isfinite(spread):
        raise ValueError(
            f"got a feature {name!r} with values that are not finite, expected numbers; fill in "
            "what is missing"
        )
    in_steps = numbers / (grid * (spread or 1.0))
    if np.abs(in_steps).max(initial=0) >= 2**52:
        raise ValueError(
            f"got a grid of {grid:g}, too fine for the feature {name!r}; take a larger one"
        )
    # Values that share a cell all count as the first of them, not as the middle of the cell, so
    # that values which are evenly spaced stay so and their means still coincide.
    cells = np.floor(in_steps + _HALF)
    _, first, codes = np.unique(cells, return_index=True, return_inverse=True)
    return _Column(codes, of_edges, in_steps[first])


def _aggregates(
    x: Tensor, degree: np.ndarray, aggregators: Sequence[str], grid: float
) -> list[Tensor]:
    """Statistics (neighbourhoods, features) of every aggregator, in steps of the grid."""
    chosen: list[str | Aggregator] = []
    for name in aggregators:
        order = moment_order(name)
        epsilon = _EPSILON / grid**order
        own = Std(epsilon) if order == 2 else Moment(order, epsilon) if order else name
        chosen.append(own)
    return list(aggregate(x, star_edges(torch.from_numpy(degree)), chosen).unbind(1))


def moment_order(aggregator: str) -> int:
    """The order of a central moment; 0 for other aggregators."""
    if aggregator == "std":
        return 2
    return int(aggregator.removeprefix("moment_")) if aggregator.startswith("moment_") else 0
