"""What the paper says of an experiment, and whether measured scores bear it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import kendalltau, levene, spearmanr
from scipy.stats import t as student

from pna.paper.scores import TOP, Estimate, Scores
from pna.train.metrics import BETTER

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable at this sample size"
NOT_RUN = "not run"

_SHARES = ("accuracy", "roc_auc")


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
        return self.with_digits(2)

    def with_digits(self, digits: int) -> str:
        mean = round(self.mean, digits) + 0.0 if math.isfinite(self.mean) else self.mean  # no −0
        half = "∞" if math.isinf(self.half) else f"{self.half:.{digits}f}"  # of single runs
        return f"{mean:+.{digits}f} ± {half}".replace("-", "−")


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
Decide = Callable[[Scores], Verdict]


def on_average(split: str = "test", top: int | None = TOP, ratio: bool = False) -> Measured:
    """The mean of the tasks' logarithms, as `Scores.average`."""
    return lambda scores, name: scores.average(name, split, top, ratio)


def overall(split: str = "test", top: int | None = TOP, ratio: bool = False) -> Measured:
    """The logarithm of the tasks' mean error, as `Scores.overall`."""
    return lambda scores, name: scores.overall(name, split, top, ratio)


def on_task(task: str, split: str = "test", top: int | None = TOP) -> Measured:
    return lambda scores, name: scores.of_task(name, task, split, top)


def measured_as(metric: str, split: str) -> Measured:
    """The mean of a metric over all members, turned so that less is better."""
    return lambda scores, name: scores.mean(name, split, BETTER[metric])


def not_run(scores: Scores, *names: str) -> Verdict | None:
    """The verdict on a claim about populations some of which are missing."""
    missing = [name for name in names if name not in scores.populations]
    return Verdict(NOT_RUN, f"without {', '.join(missing)}") if missing else None


def best(name: str, others: Sequence[str], measured: Measured) -> Decide:
    """Whether a population has less error than every other that was run."""

    def decide(scores: Scores) -> Verdict:
        rivals = [other for other in others if other != name]
        present = [other for other in rivals if other in scores.populations]
        if name not in scores.populations or not present:
            return Verdict(NOT_RUN, "the models it is about were not all run")
        ours = measured(scores, name)
        gaps = {other: difference(ours, measured(scores, other)) for other in present}
        closest = max(gaps, key=lambda other: gaps[other].mean)
        gap = _as_told(gaps[closest], scores.metric)
        shown = gap.with_digits(3 if max(abs(gap.mean), gap.half) < 0.1 else 2)
        words = f"{name} against {closest}, the closest: {shown}"
        if len(present) < len(rivals):
            words += f"; of {len(rivals)} others {len(present)} were run"
        if any(gap.sign > 0 for gap in gaps.values()):
            return Verdict(FAILS, words)
        return Verdict(HOLDS if all(gap.sign < 0 for gap in gaps.values()) else OPEN, words)

    return decide


def _as_told(gap: Difference, metric: str) -> Difference:
    """As tables have it: not turned, and shares in per cent."""
    unit = 100 if metric in _SHARES else 1
    return Difference(BETTER[metric] * unit * gap.mean, unit * gap.half)


def best_everywhere(name: str, others: Sequence[str], places: dict[str, Measured]) -> Decide:
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


def less(one: str, other: str, measured: Measured) -> Decide:
    """Whether one population has less error than another."""
    return best(one, [other], measured)


def gains_most(
    rows: Sequence[str],
    least: Sequence[str],
    groups: tuple[str, str],
    measured: Measured,
) -> Decide:
    """Whether every one of `rows` gains more from the first group over the second than `least`."""

    def decide(scores: Scores) -> Verdict:
        gains = {}
        for row in (*rows, *least):
            names = [f"{row} {group}".strip() for group in groups]
            if any(name not in scores.populations for name in names):
                return Verdict(NOT_RUN, f"{row} was not run in both")
            gains[row] = difference(measured(scores, names[1]), measured(scores, names[0]))
        words = ", ".join(f"{row} {gain}" for row, gain in gains.items())
        if any(math.isnan(gain.mean) for gain in gains.values()):  # overflowed in both
            return Verdict(OPEN, f"gains: {words}")
        worst = min(rows, key=lambda row: gains[row].mean)
        rival = max(least, key=lambda row: gains[row].mean)
        gap = gains[worst].mean - gains[rival].mean
        half = math.hypot(gains[worst].half, gains[rival].half)
        if abs(gap) <= half:
            return Verdict(OPEN, f"gains: {words}")
        return Verdict(HOLDS if gap > 0 else FAILS, f"gains: {words}")

    return decide


def least_among(some: Sequence[str], others: Sequence[str], measured: Measured) -> Decide:
    """Whether the best of some populations has less error than every one of the others."""

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, *some, *others):
            return missing
        means = {name: measured(scores, name).mean for name in (*some, *others)}
        first, rival = (min(names, key=lambda name: means[name]) for names in (some, others))
        ahead = best(first, others, measured)(scores)
        if ahead.outcome == HOLDS:
            return ahead
        behind = best(rival, some, measured)(scores)
        return Verdict(FAILS if behind.outcome == HOLDS else OPEN, ahead.because)

    return decide


def steadier(name: str, others: Sequence[str], measured: Measured) -> Decide:
    """Whether the members of a population differ less than those of every other, by the test of
    Brown and Forsythe for each."""

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, name, *others):
            return missing
        values = {each: measured(scores, each).values for each in (name, *others)}
        spread = {each: _spread(of) for each, of in values.items()}
        words = "standard deviations: " + ", ".join(f"{n} {s:.3f}" for n, s in spread.items())
        signs = [_sign_of_spreads(values[name], values[other], spread[name] - spread[other])
                 for other in others]  # fmt: skip
        if any(sign > 0 for sign in signs):
            return Verdict(FAILS, words)
        return Verdict(HOLDS if all(sign < 0 for sign in signs) else OPEN, words)

    return decide


def _spread(values: Sequence[float]) -> float:
    """Their standard deviation: NaN of a single one, infinite where one is."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) if np.isfinite(values).all() else math.inf


def _sign_of_spreads(one: Sequence[float], other: Sequence[float], gap: float) -> int:
    """Of the gap between two spreads, 0 where chance could have made it."""
    if math.isinf(gap):
        return int(math.copysign(1, gap))  # members of one of them have overflowed
    if math.isnan(gap) or gap == 0 or levene(one, other, center="median").pvalue > 0.05:
        return 0
    return int(math.copysign(1, gap))


def order_kept(rows: Sequence[str], groups: tuple[str, str], measured: Measured) -> Decide:
    """Whether no two rows are the other way round in the second group. It is open where a pair
    that is clear in one group is tied in the other, with means the other way round."""

    def decide(scores: Scores) -> Verdict:
        names = [[f"{row} {group}".strip() for row in rows] for group in groups]
        if missing := not_run(scores, *names[0], *names[1]):
            return missing
        found = [[measured(scores, name) for name in of_group] for of_group in names]
        turned, unclear = [], []
        for i, j in combinations(range(len(rows)), 2):
            first, second = (difference(values[i], values[j]) for values in found)
            if first.sign * second.sign < 0:
                turned.append(f"{rows[i]} and {rows[j]}")
            elif first.mean * second.mean < 0 and first.sign != second.sign:
                unclear.append(f"{rows[i]} and {rows[j]}")
        tau = kendalltau(*([value.mean for value in values] for values in found)).statistic
        words = f"Kendall's τ {tau:.2f}".replace("-", "−")
        words += "; turned round: " + ", ".join(turned) if turned else ""
        words += "; perhaps turned round: " + ", ".join(unclear) if unclear else ""
        return Verdict(FAILS if turned else OPEN if unclear else HOLDS, words)

    return decide


def rises_with(name: str, places: Mapping[str, tuple[float, Measured]]) -> Decide:
    """Whether the error of a population rises, from place to place, with a number that each has,
    by Spearman's rank correlation."""

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, name):
            return missing
        errors = {place: measured(scores, name).mean for place, (_, measured) in places.items()}
        found = spearmanr([number for number, _ in places.values()], list(errors.values()))
        hardest = sorted(errors, key=lambda place: -errors[place])
        words = f"rank correlation {found.statistic:.2f}".replace("-", "−")
        words += f"; from the most error to the least: {', '.join(hardest)}"
        if not found.pvalue <= 0.05:
            return Verdict(OPEN, words)
        return Verdict(HOLDS if found.statistic > 0 else FAILS, words)

    return decide
