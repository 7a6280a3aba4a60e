"""Theorem 1, running: fewer than n continuous aggregators confuse two multisets of n reals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import least_squares

from pna.ops.aggregators import resolve
from pna.theory.stars import AnyAggregator, braces, is_ours, name_of, statistics

#: Least distance of two multisets that count as different: the Euclidean distance of their
#: values in ascending order, where neighbouring values are about 1 apart.
CLEAR = 0.5
_RADIUS = 0.5  # of the sphere, in least gaps of its centre; below 1/sqrt(2) order is kept
_ROUNDING = 8 * float(np.finfo(np.float64).eps)  # what a sum of a few terms may be off by


@dataclass(frozen=True)
class Collision:
    """Two multisets on which all aggregators agree, and the numbers that prove it.

    What the aggregators give, and how far it differs, is computed from the two when asked for.
    """

    aggregators: tuple[AnyAggregator, ...]
    left: tuple[float, ...]  # ascending
    right: tuple[float, ...]  # ascending

    @cached_property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Statistics of the left and of the right multiset."""
        both = statistics(
            self.aggregators, torch.tensor([self.left, self.right], dtype=torch.float64)
        )
        left, right = both.tolist()
        return tuple(left), tuple(right)

    @property
    def disagreement(self) -> float:
        """The largest difference that any aggregator sees."""
        return float(np.abs(np.subtract(*self.statistics)).max())

    @property
    def distance(self) -> float:
        """Euclidean distance of the values in ascending order."""
        return math.dist(self.left, self.right)

    def __str__(self) -> str:
        lines = [f"{braces(self.left)} and {braces(self.right)}, {self.distance:.3g} apart:"]
        for aggregator, a, b in zip(self.aggregators, *self.statistics, strict=True):
            lines.append(f"  {name_of(aggregator)}: {a:.12g} and {b:.12g}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Search:
    """Outcome of a search; true if it found a collision."""

    collision: Collision | None
    starts: int  # how many times it began somewhere else
    evaluations: int  # how many multisets were aggregated
    closest: float  # least disagreement of the clearly different pairs that starts ended at
    exists: bool = False  # by Theorem 1, if the aggregators are continuous

    def __bool__(self) -> bool:
        return self.collision is not None

    def __str__(self) -> str:
        starts = "1 start" if self.starts == 1 else f"{self.starts} starts"
        effort = f"{starts}, {self.evaluations:,} multisets aggregated"
        if self.collision is not None:
            return f"{self.collision}\n  found after {effort}"
        if math.isinf(self.closest):
            closest = "no clearly different pair came close"
        else:
            closest = (
                "of the clearly different pairs it ended at, the closest still differ by "
                f"{self.closest:.2g} in some aggregator"
            )
        hint = (
            "\nfewer than n always have one if they are continuous: check that, or raise starts"
            if self.exists
            else ""
        )
        return f"no collision found: {effort}; {closest}{hint}"


def find_collision(
    aggregators: Sequence[AnyAggregator],
    n: int,
    *,
    tolerance: float = 1e-9,
    starts: int = 16,
    seed: int = 0,
) -> Search:
    """Search for two clearly different multisets of n reals on which all aggregators agree.

    Fewer than n continuous aggregators always have one, by Theorem 1, and on every sphere:
    it is sought among points opposite to each other about the centre, where the Borsuk-Ulam
    theorem puts it. From n aggregators on it may or may not exist, and is sought among
    all pairs. A search that finds nothing proves nothing, and says how far it went.

    Args:
        aggregators: names, aggregators of `pna`, or functions of one multiset, a float64
            tensor (n,) in ascending order (an array if a tensor is a TypeError, as to NumPy's
            functions), that give a number and are continuous.
        n: how many values a multiset has.
        tolerance: how far aggregates may differ and still agree; for an aggregator that varies
            by less than 1 among typical multisets, in units of that.
        starts: how often to begin somewhere else before giving up.
        seed: where to begin.
    """
    _check(aggregators, n, starts)
    random = np.random.default_rng(seed)
    problem = _Problem(tuple(aggregators), n)
    closest = math.inf
    for start in range(1, starts + 1):
        if len(aggregators) < n:
            pair = _opposite_points(problem, random, regular=start == 1)
        else:
            pair = _any_pair(problem, random)
        left, right = (tuple(np.sort(one).tolist()) for one in pair)
        found = Collision(problem.aggregators, left, right)
        if found.distance < CLEAR:
            continue
        closest = min(closest, found.disagreement)
        if problem.agree(found, tolerance):
            return Search(found, start, problem.evaluations, closest)
    return Search(None, starts, problem.evaluations, closest, exists=len(aggregators) < n)


class _Problem:
    """The aggregators as one function of pairs, each in units in which it typically varies."""

    def __init__(self, aggregators: tuple[AnyAggregator, ...], n: int) -> None:
        self.aggregators, self.n, self.evaluations = aggregators, n, 0
        random = np.random.default_rng(0)
        typical = random.normal(size=(64, n)) * n / 2
        found = self._aggregate(typical)
        nudged = self._aggregate(typical * (1 + random.uniform(-1, 1, (64, n)) * _ROUNDING))
        noise, spread = np.abs(found - nudged).max(axis=0), found.std(axis=0)
        is_constant = spread <= 100 * noise  # such as moment_3 of two values
        self.unit = np.where(is_constant, 1.0, spread)
        self._rounding = np.maximum(noise, _ROUNDING * np.abs(found).max(axis=0))

    def agree(self, found: Collision, tolerance: float) -> bool:
        """Whether aggregators agree to `tolerance`, in units of each below 1, up to rounding."""
        allowed = np.minimum(tolerance, np.maximum(tolerance * self.unit, self._rounding))
        return bool((np.abs(np.subtract(*found.statistics)) <= allowed).all())

    def difference(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """(pairs, n) each, to (pairs, aggregators)."""
        both = self._aggregate(np.concatenate([left, right]))
        return (both[: len(left)] - both[len(left) :]) / self.unit

    def _aggregate(self, multisets: np.ndarray) -> np.ndarray:
        self.evaluations += len(multisets)
        found = statistics(self.aggregators, torch.from_numpy(multisets)).numpy()
        if not np.isfinite(found).all():
            row, column = np.argwhere(~np.isfinite(found))[0]
            raise ValueError(
                f"got {found[row, column]} from {name_of(self.aggregators[column])} on "
                f"{braces(multisets[row])}, expected a finite number; give it a function that is "
                "continuous on all reals"
            )
        return found


def _opposite_points(
    problem: _Problem, random: np.random.Generator, regular: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of a diameter on which aggregators differ least, near a random one.

    The sphere lies where values ascend, so different points are different multisets.
    """
    n = problem.n
    gaps = np.ones(n - 1) if regular else random.uniform(1, 2, n - 1)
    centre = np.concatenate([[0.0], gaps.cumsum()])
    centre -= centre.mean()
    radius = _RADIUS * gaps.min(initial=1.0)

    def ends(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        step = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        return centre + step, centre - step

    direction = _solve(lambda rows: problem.difference(*ends(rows)), random.normal(size=n))
    left, right = ends(direction[None])
    return left[0], right[0]


def _any_pair(problem: _Problem, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two multisets a given way apart on which aggregators differ least, near a random pair.

    Each is a first value and the logarithms of its gaps, so that values ascend. Gaps are kept
    below e², so that a distance of 1 is clear and softmax is not the maximum but for rounding.
    """
    n = problem.n

    def ends(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, gaps = rows[:, (0, n), None], np.exp(rows.reshape(-1, 2, n)[:, :, 1:])
        both = np.concatenate([first, first + gaps.cumsum(axis=2)], axis=2)
        return both[:, 0], both[:, 1]

    def residual(rows: np.ndarray) -> np.ndarray:
        left, right = ends(rows)
        apart = np.linalg.norm(left - right, axis=1, keepdims=True) / (2 * _RADIUS)
        return np.concatenate([problem.difference(left, right), 10 * (apart - 1)], axis=1)

    start = np.concatenate([random.uniform(-n, 0, (2, 1)), random.uniform(-2, 1, (2, n - 1))], 1)
    low = np.concatenate([[-n - 1.0], np.full(n - 1, -6.0)])
    high = np.concatenate([[n + 1.0], np.full(n - 1, 2.0)])
    found = _solve(residual, start.ravel(), np.tile(low, 2), np.tile(high, 2))
    left, right = ends(found[None])
    return left[0], right[0]


def _solve(
    function: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    low: np.ndarray | float = -np.inf,
    high: np.ndarray | float = np.inf,
) -> np.ndarray:
    """Least squares of a function of rows, (rows, unknowns) to (rows, equations)."""
    step = 1e-6 * np.eye(len(start))

    def slope(at: np.ndarray) -> np.ndarray:
        moved = function(np.concatenate([at + step, at - step]))
        return ((moved[: len(at)] - moved[len(at) :]) / 2e-6).T

    at: np.ndarray = least_squares(
        lambda at: function(at[None])[0], start, slope, bounds=(low, high),
        xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60,
    ).x  # fmt: skip
    for _ in range(3):  # Newton's steps, for what is left where the gradient is as good as 0
        moved = at - np.linalg.lstsq(slope(at), function(at[None])[0], rcond=None)[0]
        if (moved < low).any() or (moved > high).any():
            break
        before, after = np.linalg.norm(function(np.stack([at, moved])), axis=1)
        if after >= before:
            break
        at = moved
    return at


def _check(aggregators: Sequence[AnyAggregator], n: int, starts: int) -> None:
    if isinstance(aggregators, str) or not isinstance(aggregators, Sequence):
        raise TypeError(f"got aggregators {aggregators!r}, expected a list of names or functions")
    if len(aggregators) == 0:
        raise ValueError("got no aggregators, expected at least one")
    ours = [aggregator for aggregator in aggregators if is_ours(aggregator)]
    if ours:
        resolve(ours)  # type: ignore[arg-type]
    if n < 1 or starts < 1:
        raise ValueError(f"got n={n} and starts={starts}, expected at least 1 of each")
