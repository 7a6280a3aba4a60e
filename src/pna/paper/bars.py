"""Claims that hold a population against given numbers: published ones, or predicting the mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.stats import binomtest

from pna.paper.claims import FAILS, HOLDS, OPEN, Decide, Measured, Verdict, not_run
from pna.paper.scores import Estimate, Scores

STUCK = 0.8  # a task is not learned whose error is above this share of predicting the mean's
EXPLODED = 1.0  # log10 of the ratio to predicting the mean from which on a model has exploded


def explodes(one: str, other: str, measured: Measured) -> Decide:
    """Whether one population is beyond `EXPLODED`, and the other is not, by its interval."""

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, one, other):
            return missing
        sides = [_side(measured(scores, name), EXPLODED) for name in (one, other)]
        words = ", ".join(f"{name} {_shown(measured(scores, name))}" for name in (one, other))
        if sides[0] < 0 or sides[1] > 0:
            return Verdict(FAILS, words)
        return Verdict(HOLDS if sides == [1, -1] else OPEN, words)

    return decide


def within(name: str, bars: Mapping[str, tuple[float, Measured]]) -> Decide:
    """Whether a population is at or below every one of some numbers.

    Its mean decides: it does not hold where the whole interval is above one of them, and is open
    where the mean alone is.
    """

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, name):
            return missing
        found = {place: measured(scores, name) for place, (_, measured) in bars.items()}
        words = "; ".join(
            f"{place}: {_shown(value)} against {_minus(bars[place][0])}"
            for place, value in found.items()
        )
        above = [p for p, value in found.items() if not value.mean <= bars[p][0]]
        if any(_side(found[place], bars[place][0]) > 0 for place in above):
            return Verdict(FAILS, words)
        return Verdict(OPEN if above else HOLDS, words)

    return decide


def median_within(name: str, bar: float, measured: Measured) -> Decide:
    """Whether the median of a population's members is at or below a number.

    It does not hold where so few members are, that a median there is beyond doubt above (by the
    sign test), and is open where it alone is above.
    """

    def decide(scores: Scores) -> Verdict:
        if missing := not_run(scores, name):
            return missing
        values = measured(scores, name).values
        if not values:
            return Verdict(FAILS, "no member was ever validated")
        median, met = float(np.median(values)), sum(value <= bar for value in values)
        words = f"{_minus(median)}, the worst {_minus(max(values))}, against {_minus(bar)}"
        if median <= bar:
            return Verdict(HOLDS, words)
        is_clear = binomtest(met, len(values)).pvalue <= 0.05
        return Verdict(FAILS if is_clear else OPEN, f"{words}, which {met} of {len(values)} meet")

    return decide


def learns_every_task(name: str, split: str = "test") -> Decide:
    """Whether no member of a population is stuck on a task, see `STUCK`, and none broke."""

    def decide(scores: Scores) -> Verdict:
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

    return decide


def _side(value: Estimate, bar: float) -> int:
    """1 or −1 where an interval is above or below a number, else 0."""
    if math.isinf(value.mean):
        return int(math.copysign(1, value.mean))
    if not abs(value.mean - bar) > value.half:  # NaN of a single member
        return 0
    return int(math.copysign(1, value.mean - bar))


def _shown(value: Estimate) -> str:
    half = "" if math.isnan(value.half) else f" ± {value.half:.2f}"
    return f"{_minus(value.mean)}{half}"


def _minus(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
