"""What the paper says of an experiment, and whether measured scores bear it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from pna.paper.scores import Estimate, Scores
from pna.train.metrics import BETTER

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable at this sample size"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers that say so."""

    outcome: str  # HOLDS, FAILS, OPEN or NOT_RUN
    because: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what decides about it."""

    text: str
    decide: Callable[[Scores], Verdict]


@dataclass(frozen=True)
class Difference:
    """Of two means, with the interval that holds it with 95% confidence (Welch's)."""

    mean: float
    half: float

    @property
    def sign(self) -> int:
        """−1 or 1 where the interval leaves out 0, else 0."""
        return 0 if not abs(self.mean) > self.half else int(math.copysign(1, self.mean))

    def __str__(self) -> str:
        mean = round(self.mean, 2) + 0.0 if math.isfinite(self.mean) else self.mean  # no −0
        return f"{mean:+.2f} ± {self.half:.2f}".replace("-", "−")


def difference(one: Estimate, other: Estimate) -> Difference:
    """One mean minus the other."""
    mean = one.mean - other.mean
    sizes = len(one.values), len(other.values)
    if math.isinf(mean):
        return Difference(mean, 0.0)  # one of them has overflowed: no spread makes up for that
    if min(sizes) < 2 or math.isnan(mean):
        return Difference(mean, math.inf)
    parts = [float(np.var(e.values, ddof=1)) / len(e.values) for e in (one, other)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Difference(mean, 0.0)
    freedom = sum(parts) ** 2 / sum(p * p / (n - 1) for p, n in zip(parts, sizes, strict=True))
    return Difference(mean, float(student.ppf(0.975, freedom)) * error)


Measured = Callable[[Scores, str], Estimate]  # of a population, by its name


def on_average(split: str = "test") -> Measured:
    """The mean of the tasks' logarithms."""
    return lambda scores, name: scores.average(name, split)


def overall(split: str = "test") -> Measured:
    """The logarithm of the tasks' mean error."""
    return lambda scores, name: scores.overall(name, split)


def on_task(task: str, split: str = "test") -> Measured:
    return lambda scores, name: scores.of_task(name, task, split)


def measured_as(metric: str, split: str) -> Measured:
    """The mean of a metric over all members, turned so that less is better."""
    return lambda scores, name: scores.mean(name, split, BETTER[metric])


def best(name: str, others: Sequence[str], measured: Measured) -> Callable[[Scores], Verdict]:
    """Whether a population has less error than every other that was run."""

    def decide(scores: Scores) -> Verdict:
        present = [other for other in others if other in scores.populations and other != name]
        if name not in scores.populations or not present:
            return Verdict(NOT_RUN, "the models it is about were not all run")
        ours = measured(scores, name)
        gaps = {other: difference(ours, measured(scores, other)) for other in present}
        closest = max(gaps, key=lambda other: gaps[other].mean)
        words = f"{name} against {closest}, the closest: {gaps[closest]}"
        if any(gap.sign > 0 for gap in gaps.values()):
            return Verdict(FAILS, words)
        return Verdict(HOLDS if all(gap.sign < 0 for gap in gaps.values()) else OPEN, words)

    return decide


def best_everywhere(
    name: str, others: Sequence[str], places: dict[str, Measured]
) -> Callable[[Scores], Verdict]:
    """Whether a population is the best, or tied with it, in each of several places."""

    def decide(scores: Scores) -> Verdict:
        verdicts = {
            place: best(name, others, measured)(scores) for place, measured in places.items()
        }
        found = {
            outcome: [place for place, v in verdicts.items() if v.outcome == outcome]
            for outcome in (HOLDS, OPEN, FAILS, NOT_RUN)
        }
        if found[NOT_RUN]:
            return verdicts[found[NOT_RUN][0]]
        words = "; ".join(
            f"{what} {', '.join(found[outcome])}"
            for outcome, what in ((HOLDS, "best on"), (OPEN, "tied on"), (FAILS, "behind on"))
            if found[outcome]
        )
        if found[FAILS]:
            return Verdict(FAILS, words)
        return Verdict(HOLDS if not found[OPEN] else OPEN, words)

    return decide


def less(one: str, other: str, measured: Measured) -> Callable[[Scores], Verdict]:
    """Whether one population has less error than another."""
    return best(one, [other], measured)


def gains_most(
    rows: Sequence[str],
    least: Sequence[str],
    groups: tuple[str, str],
    measured: Measured,
) -> Callable[[Scores], Verdict]:
    """Whether every one of `rows` gains more from the first group over the second than `least`."""

    def decide(scores: Scores) -> Verdict:
        gains = {}
        for row in (*rows, *least):
            names = [f"{row} {group}".strip() for group in groups]
            if any(name not in scores.populations for name in names):
                return Verdict(NOT_RUN, f"{row} was not run in both")
            gains[row] = difference(measured(scores, names[1]), measured(scores, names[0]))
        words = ", ".join(f"{row} {gain}" for row, gain in gains.items())
        worst = min(rows, key=lambda row: gains[row].mean)
        rival = max(least, key=lambda row: gains[row].mean)
        gap = gains[worst].mean - gains[rival].mean
        half = math.hypot(gains[worst].half, gains[rival].half)
        if abs(gap) <= half:
            return Verdict(OPEN, f"gains: {words}")
        return Verdict(HOLDS if gap > 0 else FAILS, f"gains: {words}")

    return decide
