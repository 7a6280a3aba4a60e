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


def test_a_bar_is_met_by_the_mean() -> None:
    found = scores(pna=around(-3, -2, 0.1))  # intervals are 0.2 to each side

    def outcome(*bars: float) -> str:
        places = dict(zip("ab", zip(bars, map(on_task, "ab"), strict=True), strict=True))
        return within("pna", places)(found).outcome

    assert outcome(-3.0, -2.0) == HOLDS
    assert outcome(-2.9, -1.9) == HOLDS
    assert outcome(-2.9, -2.1) == OPEN
    assert outcome(-3.5, -1.9) == outcome(-3.5, -2.1) == FAILS
    verdict = within("pna", {"a": (-2.9, on_task("a"))})(found)
    assert verdict.because == "a: −3.00 ± 0.20 against −2.90"
    assert within("gin", {"a": (-2.9, on_task("a"))})(found).outcome == NOT_RUN
    one = scores(pna=population((-3, -3)))
    assert within("pna", {"a": (-3.1, on_task("a"))})(one).outcome == OPEN


def test_the_median_of_all_members() -> None:
    errors = [-3.0] * 6 + [-2.0] + [0.0] * 3  # the best five are alike; the mean of all is −2
    found = scores(pna=population(*((error, error) for error in errors)))

    def verdict(bar: float) -> Verdict:
        return median_within("pna", bar, on_average(top=None))(found)

    assert verdict(-3.0) == Verdict(HOLDS, "−3.00, the worst 0.00, against −3.00")
    assert verdict(-3.1).outcome == FAILS  # none of ten
    assert median_within("gin", 0, on_average())(found).outcome == NOT_RUN


@pytest.mark.parametrize(("met", "outcome"), [(6, HOLDS), (4, OPEN), (2, OPEN), (1, FAILS)])
def test_a_median_is_above_by_the_sign_test(met: int, outcome: str) -> None:
    """Of ten, one or none is too few for chance."""
    errors = [-3.0] * met + [-1.0] * (10 - met)
    found = scores(pna=population(*((error, error) for error in errors)))
    verdict = median_within("pna", -2.0, on_average(top=None))(found)
    assert verdict.outcome == outcome
    if outcome != HOLDS:
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
