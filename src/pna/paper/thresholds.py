"""Claims that compare a population with given numbers: published ones, or predicting the mean.

One rule decides them all. A number is met if the whole interval is on its good side or on it, and
missed if the whole interval is on the other side. Otherwise the claim is OPEN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pna.paper.claims import FAILS, HOLDS, Measured, Verdict, decides, not_run, outcome
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
    sides = [
        _side(EXPLODED - values[one].mean, values[one].half),
        _side(values[other].mean - EXPLODED, values[other].half),
    ]
    return Verdict(outcome(sides), words, 2)


@decides
def within(scores: Scores, name: str, limits: Mapping[str, tuple[float, Measured]]) -> Verdict:
    """Whether a population is at or below every one of some numbers. The claim fails if one is
    missed, and holds if all are met."""
    if missing := not_run(scores, name):
        return missing
    found = {test: measured(scores, name) for test, (_, measured) in limits.items()}
    words = "; ".join(
        f"{test}: {_shown(value)} against {_minus(limits[test][0])}"
        for test, value in found.items()
    )
    sides = [_side(value.mean - limits[test][0], value.half) for test, value in found.items()]
    return Verdict(outcome(sides), words, len(limits))


@decides
def reaches(scores: Scores, name: str, least: float, split: str) -> Verdict:
    """Whether the mean over the members of a share, in per cent, is at or above a number."""
    if missing := not_run(scores, name):
        return missing
    found = scores.mean(name, split, 100)
    words = f"{_shown(found)} against {least:.2f}"
    return Verdict(outcome([_side(least - found.mean, found.half)]), words)


@decides
def median_within(scores: Scores, name: str, limit: float, measured: Measured) -> Verdict:
    """Whether the median of a population's members is at or below a number: significantly below
    or above, by the sign test, else the claim is OPEN."""
    if missing := not_run(scores, name):
        return missing
    values = measured(scores, name).values
    if not values:
        return Verdict(FAILS, "no member was ever validated")
    median, met = float(np.median(values)), sum(value <= limit for value in values)
    words = (
        f"{_minus(median)}, the worst {_minus(max(values))}, against {_minus(limit)}, which "
        f"{met} of {len(values)} meet"
    )
    from scipy.stats import binomtest  # takes a second to import

    is_clear = binomtest(met, len(values)).pvalue <= 1 - scores.level
    return Verdict(outcome([0 if not is_clear else -1 if median <= limit else 1]), words)


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


def _side(gap: float, half: float) -> int:
    """−1 if a number is met, 1 if it is missed, else 0: from how far the mean is on the wrong side,
    and half of its interval."""
    if math.isinf(gap):
        return int(math.copysign(1, gap))
    if gap > half:  # never, if the half is NaN of a single member
        return 1
    return -1 if gap <= -half else 0


def _shown(value: Estimate) -> str:
    half = "" if math.isnan(value.half) else f" ± {value.half:.2f}"
    return f"{_minus(value.mean)}{half}"


def _minus(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
