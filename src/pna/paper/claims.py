"""Claims of the paper about an experiment, and tests of whether measured scores support them.

A test below takes scores and returns a `Verdict`. Called without the scores, as experiments do, it
returns the `Decide` of a claim: ``best("pna", others, on_average())(scores)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Concatenate, ParamSpec

import numpy as np

from pna.paper.scores import TOP, Estimate, Scores, quantile
from pna.train.metrics import METRICS

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decidable"
NOT_RUN = "not run"

_ROUNDING = 1e-12  # of 1 − 0.95
_SHARES = ("accuracy", "roc_auc")

P = ParamSpec("P")


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers that decide it."""

    outcome: str  # HOLDS, FAILS, OPEN or NOT_RUN
    because: str
    comparisons: int = 1  # of means, or other tests at the level of the scores, that decided it


Decide = Callable[[Scores], Verdict]
Measured = Callable[[Scores, str], Estimate]  # of a population, by its name


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the test that decides it."""

    text: str
    decide: Decide


def decides(test: Callable[Concatenate[Scores, P], Verdict]) -> Callable[P, Decide]:
    """Turn a test of scores into a function of its other arguments, which returns a `Decide`."""

    def with_arguments(*args: P.args, **kwargs: P.kwargs) -> Decide:
        return lambda scores: test(scores, *args, **kwargs)

    return with_arguments


@dataclass(frozen=True)
class Difference:
    """Difference of two means, and half the width of its confidence interval (Welch's)."""

    mean: float
    half: float

    @property
    def sign(self) -> int:
        """−1 or 1 if the interval does not contain 0, else 0."""
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
    if math.isinf(mean):
        return Difference(mean, 0.0)  # one of them overflowed: the difference is certain
    squares = one.error**2, other.error**2
    if math.isnan(mean) or any(map(math.isnan, squares)):
        return Difference(mean, math.inf)
    if not any(squares):  # no variance, so no degrees of freedom
        return Difference(mean, 0.0)
    # Not scipy.stats.ttest_ind, which takes milliseconds: a report has thousands of differences.
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / one.freedom + squares[1] ** 2 / other.freedom)
    return Difference(mean, quantile(freedom, one.level) * math.sqrt(sum(squares)))


def outcome(signs: Iterable[int]) -> str:
    """HOLDS if all signs are negative, FAILS if any is positive, else OPEN."""
    signs = list(signs)
    return FAILS if max(signs) > 0 else HOLDS if max(signs) < 0 else OPEN


def on_average(split: str = "test", top: int | None = TOP, ratio: bool = False) -> Measured:
    """The mean of the tasks' logarithms, as `Scores.average`."""
    return lambda scores, name: scores.average(name, split, top, ratio)


def overall(split: str = "test", top: int | None = TOP, ratio: bool = False) -> Measured:
    """The logarithm of the tasks' mean error, as `Scores.overall`."""
    return lambda scores, name: scores.overall(name, split, top, ratio)


def on_task(task: str, split: str = "test", top: int | None = TOP, ratio: bool = False) -> Measured:
    return lambda scores, name: scores.of_task(name, task, split, top, ratio)


def measured_as(metric: str, split: str) -> Measured:
    """The mean of a metric over all members, with the sign that makes less better."""
    return lambda scores, name: scores.mean(name, split, METRICS[metric].sign)


def not_run(scores: Scores, *names: str) -> Verdict | None:
    """The verdict on a claim if some of its populations are missing, else None."""
    missing = [name for name in names if name not in scores.populations]
    return Verdict(NOT_RUN, f"without {', '.join(missing)}") if missing else None


def gaps(
    scores: Scores, name: str, others: Sequence[str], measured: Measured
) -> dict[str, Difference]:
    """A population minus every other that was run: first the one with the least error."""
    if name not in scores.populations:
        return {}
    ours = measured(scores, name)
    found = {
        other: difference(ours, measured(scores, other))
        for other in others
        if other != name and other in scores.populations
    }
    return dict(sorted(found.items(), key=lambda gap: -gap[1].mean))


@decides
def best(scores: Scores, name: str, others: Sequence[str], measured: Measured) -> Verdict:
    """Whether a population has less error than every other that was run."""
    rivals = [other for other in others if other != name]
    found = gaps(scores, name, rivals, measured)
    if not found:
        return Verdict(NOT_RUN, "the models it is about were not all run")
    closest = next(iter(found))
    gap = _as_shown(found[closest], scores.metric)
    shown = gap.with_digits(3 if max(abs(gap.mean), gap.half) < 0.1 else 2)
    words = f"{name} against {closest}, the closest: {shown}"
    if len(found) < len(rivals):
        words += f"; of {len(rivals)} others {len(found)} were run"
    return Verdict(outcome(gap.sign for gap in found.values()), words, len(found))


def _as_shown(gap: Difference, metric: str) -> Difference:
    """As in the tables: with the metric's own sign, and shares in per cent."""
    unit = 100 if metric in _SHARES else 1
    return Difference(METRICS[metric].sign * unit * gap.mean, unit * gap.half)


@decides
def best_everywhere(
    scores: Scores, name: str, others: Sequence[str], tests: Mapping[str, Measured]
) -> Verdict:
    """Whether a population is the best in each of several tests; OPEN if it is tied in some."""
    return everywhere({test: best(name, others, how) for test, how in tests.items()})(scores)


@decides
def everywhere(
    scores: Scores, tests: Mapping[str, Decide], words: Sequence[str] = ("best", "tied", "behind")
) -> Verdict:
    """Whether each of several tests HOLDS; OPEN if some are open and none fails. `words` are for
    tests that hold, are open and fail."""
    verdicts = {test: decide(scores) for test, decide in tests.items()}
    found = {
        outcome: [test for test, verdict in verdicts.items() if verdict.outcome == outcome]
        for outcome in (HOLDS, OPEN, FAILS, NOT_RUN)
    }
    if found[NOT_RUN]:
        return verdicts[found[NOT_RUN][0]]
    because = "; ".join(
        f"{what} on {', '.join(found[outcome])}"
        for outcome, what in zip((HOLDS, OPEN, FAILS), words, strict=True)
        if found[outcome]
    )
    return Verdict(
        FAILS if found[FAILS] else OPEN if found[OPEN] else HOLDS,
        because,
        sum(verdict.comparisons for verdict in verdicts.values()),
    )


def less(one: str, other: str, measured: Measured) -> Decide:
    """Whether one population has less error than another."""
    return best(one, [other], measured)


@decides
def gains_most(
    scores: Scores,
    rows: Sequence[str],
    least: Sequence[str],
    groups: tuple[str, str],
    measured: Measured,
) -> Verdict:
    """Whether every one of `rows` gains more from the first group over the second than `least`."""
    gains = {}
    for row in (*rows, *least):
        names = [f"{row} {group}".strip() for group in groups]
        if not_run(scores, *names):
            return Verdict(NOT_RUN, f"{row} was not run in both")
        gains[row] = difference(measured(scores, names[1]), measured(scores, names[0]))
    words = "gains: " + ", ".join(f"{row} {gain}" for row, gain in gains.items())
    if any(math.isnan(gain.mean) for gain in gains.values()):  # overflowed in both
        return Verdict(OPEN, words, len(rows) * len(least))
    worst = gains[min(rows, key=lambda row: gains[row].mean)]
    rival = gains[max(least, key=lambda row: gains[row].mean)]
    gap = Difference(rival.mean - worst.mean, math.hypot(worst.half, rival.half))
    return Verdict(outcome([gap.sign]), words, len(rows) * len(least))


@decides
def none_gains(
    scores: Scores, rows: Sequence[str], groups: tuple[str, str], measured: Measured
) -> Verdict:
    """Whether no row has less error in the second group than in the first. The claim fails if one
    clearly has; it holds if every row clearly has more."""
    gains = {}
    for row in rows:
        names = [f"{row} {group}".strip() for group in groups]
        if missing := not_run(scores, *names):
            return missing
        gains[row] = difference(measured(scores, names[0]), measured(scores, names[1]))
    words = "gains: " + ", ".join(f"{row} {gain}" for row, gain in gains.items())
    return Verdict(outcome(gain.sign for gain in gains.values()), words, len(gains))


@decides
def least_among(
    scores: Scores, some: Sequence[str], others: Sequence[str], measured: Measured
) -> Verdict:
    """Whether the best of some populations has less error than every one of the others."""
    if missing := not_run(scores, *some, *others):
        return missing
    means = {name: measured(scores, name).mean for name in (*some, *others)}
    first, rival = (min(names, key=means.__getitem__) for names in (some, others))
    ahead = best(first, others, measured)(scores)
    behind = best(rival, some, measured)(scores)
    count = ahead.comparisons + behind.comparisons
    if ahead.outcome == HOLDS:
        return replace(ahead, comparisons=count)
    return Verdict(FAILS if behind.outcome == HOLDS else OPEN, ahead.because, count)


@decides
def steadier(scores: Scores, name: str, others: Sequence[str], measured: Measured) -> Verdict:
    """Whether members of a population have less variance than those of every other, by the
    Brown–Forsythe test for each."""
    if missing := not_run(scores, name, *others):
        return missing
    values = {each: measured(scores, each).values for each in (name, *others)}
    spread = {each: _spread(of) for each, of in values.items()}
    words = "standard deviations: " + ", ".join(f"{n} {s:.3f}" for n, s in spread.items())
    signs = (_sign_of_spreads(values[name], values[other], spread[name] - spread[other],
                              1 - scores.level) for other in others)  # fmt: skip
    return Verdict(outcome(signs), words, len(others))


def _spread(values: Sequence[float]) -> float:
    """Standard deviation: NaN of a single value, infinite if any value is."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) if np.isfinite(values).all() else math.inf


def _sign_of_spreads(
    one: Sequence[float], other: Sequence[float], gap: float, significant: float
) -> int:
    """Sign of the gap between two standard deviations, 0 if its p-value is not `significant`."""
    from scipy.stats import levene  # takes a second to import

    if math.isnan(gap) or gap == 0:
        return 0
    # an infinite gap, where members of one population overflowed, is certain
    if math.isfinite(gap) and levene(one, other, center="median").pvalue > significant + _ROUNDING:
        return 0
    return int(math.copysign(1, gap))


@decides
def order_kept(
    scores: Scores, rows: Sequence[str], groups: tuple[str, str], measured: Measured
) -> Verdict:
    """Whether no two rows swap their order between two groups. OPEN where a pair that differs
    significantly in one group is tied in the other, with means in the opposite order."""
    from scipy.stats import kendalltau  # takes a second to import

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
    pairs = len(rows) * (len(rows) - 1) // 2
    return Verdict(FAILS if turned else OPEN if unclear else HOLDS, words, 2 * pairs)


@decides
def rises_with(scores: Scores, name: str, tests: Mapping[str, tuple[float, Measured]]) -> Verdict:
    """Whether the error of a population rises, from test to test, with a number that each test has,
    by Spearman's rank correlation."""
    from scipy.stats import spearmanr  # takes a second to import

    if missing := not_run(scores, name):
        return missing
    errors = {test: measured(scores, name).mean for test, (_, measured) in tests.items()}
    found = spearmanr([number for number, _ in tests.values()], list(errors.values()))
    hardest = sorted(errors, key=lambda test: -errors[test])
    words = f"rank correlation {found.statistic:.2f}".replace("-", "−")
    words += f"; from the most error to the least: {', '.join(hardest)}"
    if not found.pvalue <= 1 - scores.level + _ROUNDING:
        return Verdict(OPEN, words)
    return Verdict(HOLDS if found.statistic > 0 else FAILS, words)
