import math

import pytest

from pna.paper.claims import FAILS, HOLDS, NOT_RUN, OPEN, Verdict, on_average, on_task
from pna.paper.scores import Member, ScoredPopulation
from pna.paper.thresholds import explodes, learns_every_task, median_within, within
from tests.paper.test_claims import around, population, scores


@pytest.mark.parametrize(
    ("linear", "logarithmic", "spread", "outcome"),
    [
        (4.0, -0.5, 0.01, HOLDS),  # log10 of errors; the mean is at −1
        (math.inf, -0.5, 0.01, HOLDS),
        (-0.5, -0.5, 0.01, FAILS),
        (4.0, 3.0, 0.01, FAILS),
        (0.1, -0.5, 2.0, OPEN),
    ],
)
def test_what_explodes(linear: float, logarithmic: float, spread: float, outcome: str) -> None:
    found = scores(linear=around(linear, linear, spread), pna=around(logarithmic, logarithmic))
    claim = explodes("linear", "pna", on_average(ratio=True))
    assert claim(found).outcome == outcome
    assert claim(scores(pna=around(-1, -1))).outcome == NOT_RUN


def test_a_bar_is_met_or_missed_by_the_whole_interval() -> None:
    """Five values, 0.1 apart: the standard error is 0.1/√2 and half of the interval 2.776 times
    that, 0.196."""
    found = scores(pna=around(-3, -2, 0.1))

    def outcome(*bars: float) -> str:
        tests = dict(zip("ab", zip(bars, map(on_task, "ab"), strict=True), strict=True))
        return within("pna", tests)(found).outcome

    assert outcome(-2.80, -1.80) == HOLDS
    assert outcome(-2.81, -1.80) == OPEN  # the mean is below, a part of the interval is not
    assert outcome(-3.0, -2.0) == OPEN
    assert outcome(-3.19, -1.80) == OPEN  # the mean is above, a part of the interval is not
    assert outcome(-3.20, -1.80) == outcome(-3.20, -2.0) == FAILS
    verdict = within("pna", {"a": (-2.9, on_task("a"))})(found)
    assert verdict.because == "a: −3.00 ± 0.20 against −2.90"
    assert within("gin", {"a": (-2.9, on_task("a"))})(found).outcome == NOT_RUN
    one = scores(pna=population((-3, -3)))
    assert within("pna", {"a": (-3.1, on_task("a"))})(one).outcome == OPEN
    assert within("pna", {"a": (-2.9, on_task("a"))})(one).outcome == OPEN  # a single run


def median(values: list[float], bar: float) -> Verdict:
    found = scores(pna=population(*((value, value) for value in values)))
    return median_within("pna", bar, on_average(top=None))(found)


def test_the_median_of_all_members() -> None:
    errors = [-3.0] * 9 + [0.0]
    words = "−3.00, the worst 0.00, against −3.00, which 9 of 10 meet"
    assert median(errors, -3.0) == Verdict(HOLDS, words)
    assert median(errors, -3.1).outcome == FAILS  # none of ten
    missing = median_within("gin", 0, on_average())(scores(pna=around(-1, -1)))
    assert missing.outcome == NOT_RUN


@pytest.mark.parametrize(
    ("met", "outcome"), [(10, HOLDS), (9, HOLDS), (8, OPEN), (5, OPEN), (2, OPEN), (1, FAILS)]
)
def test_a_median_is_below_or_above_by_the_sign_test(met: int, outcome: str) -> None:
    """Of ten, one or none on one side is too few for chance: p is 22/1024, and 112/1024 for two."""
    verdict = median([-3.0] * met + [-1.0] * (10 - met), -2.0)
    assert verdict.outcome == outcome
    assert verdict.because.endswith(f"which {met} of 10 meet")


def test_members_that_are_stuck() -> None:
    learned = [(-3.0, -2.0), (-2.0, -3.0), (-1.5, -1.2)]
    claim = learns_every_task("pna")
    verdict = claim(scores(pna=population(*learned)))
    assert verdict.outcome == HOLDS
    assert verdict.because == "0.63 of predicting the mean at worst, on b"
    stuck = claim(scores(pna=population(*learned, (-3.0, -1.05), (-3.0, -0.9))))
    assert (stuck.outcome, stuck.because) == (FAILS, "members of 5 that are stuck: b 2")
    assert claim(scores(gin=population(*learned))).outcome == NOT_RUN


def test_a_member_that_broke_is_stuck_on_everything() -> None:
    held = population((-3, -3), (-3, -3))
    broken = Member(1, 1, 0.003, 0.0, math.inf, 0)
    verdict = learns_every_task("pna")(
        scores(pna=ScoredPopulation((held.members[0], broken), held.errors))
    )
    assert (verdict.outcome, verdict.because) == (FAILS, "members of 2 that are stuck: a 1, b 1")
