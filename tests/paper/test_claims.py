import math

import numpy as np
import pytest
from scipy import stats

from pna.paper.claims import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    best,
    best_everywhere,
    difference,
    gains_most,
    on_average,
    on_task,
)
from pna.paper.scores import Estimate, Member, Population, Scores


def population(*errors: tuple[float, float]) -> Population:
    """Members whose log10 errors of two tasks are given."""
    members = tuple(Member(k, k, 0.003, 0.0, 0.1 * k, 1) for k in range(len(errors)))
    return Population(members, {"test": 10.0 ** np.array(errors)})


def around(a: float, b: float, spread: float = 0.01) -> Population:
    return population(*((a + d * spread, b + d * spread) for d in (-2, -1, 0, 1, 2)))


def scores(**populations: Population) -> Scores:
    named = {name.replace("_", " "): held for name, held in populations.items()}
    return Scores(("a", "b"), ("test",), named, {"test": np.array([0.1, 0.1])})


def test_a_difference_is_welchs() -> None:
    one, other = [1.0, 1.2, 0.9, 1.1], [0.5, 0.9, 0.1]
    found = difference(Estimate.of(one), Estimate.of(other))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert found.mean - found.half == pytest.approx(expected.low)
    assert found.mean + found.half == pytest.approx(expected.high)


def test_single_members_decide_nothing() -> None:
    assert difference(Estimate.of([1.0]), Estimate.of([2.0, 2.1])).sign == 0


def test_the_best_is_ahead_of_all() -> None:
    found = scores(pna=around(-3, -3), gin=around(-2, -2), gat=around(-2.5, -2.5))
    assert best("pna", ["pna", "gin", "gat"], on_average())(found).outcome == HOLDS
    verdict = best("gin", ["pna", "gat"], on_average())(found)
    assert verdict.outcome == FAILS
    assert "against pna, the closest" in verdict.because


def test_a_tie_is_open() -> None:
    found = scores(pna=around(-3, -3, 0.5), gin=around(-2.9, -2.9, 0.5))
    assert best("pna", ["gin"], on_average())(found).outcome == OPEN


def test_what_was_not_run_is_said_to_be() -> None:
    verdict = best("pna", ["gin"], on_average())(scores(gin=around(-1, -1)))
    assert verdict.outcome == NOT_RUN
    places = {"a": on_task("a"), "b": on_task("b")}
    assert best_everywhere("pna", ["gin"], places)(scores(gin=around(-1, -1))).outcome == NOT_RUN


def test_best_everywhere_says_where_it_is_not() -> None:
    found = scores(pna=around(-3, -2), gin=around(-2, -3))
    places = {"a": on_task("a"), "b": on_task("b")}
    verdict = best_everywhere("pna", ["gin"], places)(found)
    assert (verdict.outcome, verdict.because) == (FAILS, "best on a; behind on b")


def test_who_gains_most() -> None:
    found = scores(
        gat=around(-3, -3), gat_standard=around(-2, -2), pna=around(-4, -4),
        pna_standard=around(-3.9, -3.9),
    )  # fmt: skip
    claim = gains_most(("gat",), ("pna",), ("", "standard"), on_average())
    assert claim(found).outcome == HOLDS
    other = gains_most(("pna",), ("gat",), ("", "standard"), on_average())
    assert other(found).outcome == FAILS
    missing = gains_most(("gin",), ("pna",), ("", "standard"), on_average())
    assert missing(found).outcome == NOT_RUN


def test_what_overflows_is_behind() -> None:
    found = scores(pna=around(-3, -3), gin=around(-2, math.inf))
    assert best("pna", ["gin"], on_average())(found).outcome == HOLDS
    assert best("gin", ["pna"], on_average())(found).outcome == FAILS


def test_nothing_has_no_sign() -> None:
    assert str(difference(Estimate.of([1.0, 1.0]), Estimate.of([1.001, 1.001]))) == "+0.00 ± 0.00"


def test_a_difference_in_words() -> None:
    shown = str(difference(Estimate.of([-1.0, -1.2]), Estimate.of([0.0, 0.2])))
    assert shown.startswith("−1.20 ± ")
    assert not math.isnan(float(shown.split(" ± ")[1]))
