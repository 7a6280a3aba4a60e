"""Claims that compare a population with given numbers: published ones, or predicting the mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pna.paper.claims import FAILS, HOLDS, OPEN, Measured, Verdict, decides, not_run, outcome
from pna.paper.scores import Estimate, Scores

STUCK = 0.8  # a task counts as not learned above this share of the error of predicting the mean
EXPLODED = 1.0  # a model has exploded above this log10 of the ratio to predicting the mean


@decides
def explodes(scores: Scores, one: str, other: str, measured: Measured) -> Verdict:
    """Whether one population is above `EXPLODED` and the other below, by their intervals."""
    if missing := not_run(scores, one, other):
        return missing
    values = {name: measured(scores, name) for name in (one, other)}
    words = ", ".join(f"{name} {_shown(value)}" for name, value in values.items())
    return Verdict(outcome([-_side(values[one], EXPLODED), _side(values[other], EXPLODED)]), words)


@decides
def within(scores: Scores, name: str, limits: Mapping[str, tuple[float, Measured]]) -> Verdict:
    """Whether the mean of a population is at or below every one of some numbers.

    The claim fails if the whole interval is above one of them, and is OPEN if only the mean is.
    """
    if missing := not_run(scores, name):
        return missing
    found = {test: measured(scores, name) for test, (_, measured) in limits.items()}
    words = "; ".join(
        f"{test}: {_shown(value)} against {_minus(limits[test][0])}"
        for test, value in found.items()
    )
    above = [test for test, value in found.items() if not value.mean <= limits[test][0]]
    if any(_side(found[test], limits[test][0]) > 0 for test in above):
        return Verdict(FAILS, words)
    return Verdict(OPEN if above else HOLDS, words)


@decides
def reaches(scores: Scores, name: str, least: float, split: str) -> Verdict:
    """Whether the mean over the members of a share, in per cent, is at or above a number.

    The claim fails if the whole interval is below, and is OPEN if only the mean is.
    """
    if missing := not_run(scores, name):
        return missing
    found = scores.mean(name, split, 100)
    words = f"{_shown(found)} against {least:.2f}"
    if found.mean >= least:
        return Verdict(HOLDS, words)
    return Verdict(FAILS if _side(found, least) < 0 else OPEN, words)


@decides
def median_within(scores: Scores, name: str, limit: float, measured: Measured) -> Verdict:
    """Whether the median of a population's members is at or below a number.

    The claim fails if the median is significantly above it by the sign test, else it is OPEN.
    """
    if missing := not_run(scores, name):
        return missing
    values = measured(scores, name).values
    if not values:
        return Verdict(FAILS, "no member was ever validated")
    median, met = float(np.median(values)), sum(value <= limit for value in values)
    words = f"{_minus(median)}, the worst {_minus(max(values))}, against {_minus(limit)}"
    if median <= limit:
        return Verdict(HOLDS, words)
    from scipy.stats import binomtest  # takes a second to import

    is_clear = binomtest(met, len(values)).pvalue <= 0.05
    return Verdict(FAILS if is_clear else OPEN, f"{words}, which {met} of {len(values)} meet")


@decides
def learns_every_task(scores: Scores, name: str, split: str = "test") -> Verdict:
    """Whether every member of a population learned every task (see `STUCK`) and none broke."""
    if missing := not_run(scores, name):
        return missing
    population = scores.populations[name]
    broken = ~np.isfinite([member.validation for member in population.members])
    shares = population.errors[split] / scores.baseline[split]
    stuck = (shares > STUCK) | broken[:, None]
    if stuck.any():
        counts = dict(zip(scores.tasks, stuck.sum(0).tolist(), strict=True))
        words = ", ".join(f"{task} {count}" for task, count in counts.items() if count)
        return Verdict(FAILS, f"members of {len(stuck)} that are stuck: {words}")
    worst = np.unravel_index(shares.argmax(), shares.shape)
    words = f"{shares[worst]:.2f} of predicting the mean at worst, on {scores.tasks[worst[1]]}"
    return Verdict(HOLDS, words)


def _side(value: Estimate, limit: float) -> int:
    """1 or −1 if the interval is above or below a number, else 0."""
    gap = value.mean - limit
    if not math.isinf(gap) and not abs(gap) > value.half:  # the half is NaN of a single member
        return 0
    return int(math.copysign(1, gap))


def _shown(value: Estimate) -> str:
    half = "" if math.isnan(value.half) else f" ± {value.half:.2f}"
    return f"{_minus(value.mean)}{half}"


def _minus(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
