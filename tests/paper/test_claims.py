import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pna.data.multitask.labels import SIX
from pna.paper.claims import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Decide,
    Verdict,
    best,
    best_everywhere,
    difference,
    everywhere,
    gains_most,
    least_among,
    less,
    measured_as,
    none_gains,
    on_average,
    on_task,
    order_kept,
    rises_with,
    steadier,
)
from pna.paper.models import LABELS
from pna.paper.scores import Estimate, Member, ScoredPopulation, Scores
from pna.paper.synthetic import SINGLE_TASK
from pna.paper.thresholds import within


def population(*errors: tuple[float, float]) -> ScoredPopulation:
    """Members whose log10 errors of two tasks are given."""
    members = tuple(Member(k, k, 0.003, 0.0, 0.1 * k, 1) for k in range(len(errors)))
    return ScoredPopulation(members, {"test": 10.0 ** np.array(errors)})


def around(a: float, b: float, spread: float = 0.01) -> ScoredPopulation:
    return population(*((a + d * spread, b + d * spread) for d in (-2, -1, 0, 1, 2)))


def scores(**populations: ScoredPopulation) -> Scores:
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


def test_gains_of_what_overflows_in_both_are_open() -> None:
    broken = around(-3, math.inf)
    found = scores(gat=broken, gat_standard=broken, pna=around(-4, -4), pna_standard=around(-3, -3))
    claim = gains_most(("gat",), ("pna",), ("", "standard"), on_average())
    assert claim(found).outcome == OPEN


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ((-2.0, -3.0, -3.5, -2.5), HOLDS),
        ((-2.0, -2.1, -2.2, -3.0), FAILS),  # the more the better
        ((-2.0, -3.0, -3.5, -3.5), OPEN),
    ],
)
def test_the_least_of_some(errors: tuple[float, ...], outcome: str) -> None:
    named = {f"m{k}": around(error, error) for k, error in enumerate(errors, 1)}
    claim = least_among(["m2", "m3"], ["m1", "m4"], on_average())
    assert claim(scores(**named)).outcome == outcome
    del named["m4"]
    verdict = claim(scores(**named))
    assert (verdict.outcome, verdict.because) == (NOT_RUN, "without m4")


def test_who_is_steadier() -> None:
    found = scores(
        pna=around(-3, -3), wide=around(-4, -4, 0.3), alike=around(-3, -3, 0.011),
        broken=population(*[(-4, -4)] * 4, (-4, math.inf)), one=population((-3, -3)),
    )  # fmt: skip

    def outcome(name: str, *others: str) -> str:
        return steadier(name, others, on_average(top=None))(found).outcome

    assert outcome("pna", "wide", "broken") == HOLDS
    assert outcome("wide", "pna") == outcome("broken", "pna") == FAILS
    assert outcome("pna", "wide", "alike") == OPEN
    assert outcome("pna", "one") == outcome("one", "pna") == OPEN
    assert outcome("pna", "gin") == NOT_RUN
    words = steadier("pna", ["wide"], on_average())(found).because
    assert words == "standard deviations: pna 0.016, wide 0.474"


def test_spreads_are_compared_by_brown_and_forsythe() -> None:
    """Ten members; how far apart two spreads must be is what scipy says."""
    generator = np.random.default_rng(0)
    errors = generator.normal(size=(2, 10))
    for factor in (1.5, 2.0, 3.0, 5.0):
        one, other = errors[0], factor * errors[1]
        p = stats.levene(one, other, center="median").pvalue
        found = scores(one=population(*((v, v) for v in one)),
                       other=population(*((v, v) for v in other)))  # fmt: skip
        verdict = steadier("one", ["other"], on_average(top=None))(found)
        assert verdict.outcome == (HOLDS if p <= 0.05 else OPEN)


def test_an_order_is_kept() -> None:
    def outcome(*errors: float, spread: float = 0.01) -> str:
        """Errors of three models in one group, then in the other."""
        names = ("a", "b", "c", "a_standard", "b_standard", "c_standard")
        wide = {"c_standard": spread}
        made = {n: around(e, e, wide.get(n, 0.01)) for n, e in zip(names, errors, strict=True)}
        verdict = order_kept(("a", "b", "c"), ("", "standard"), on_average())(scores(**made))
        assert "τ" in verdict.because
        return verdict.outcome

    assert outcome(-3, -2, -1, -4, -3.5, -3) == HOLDS
    assert outcome(-3, -2, -1, -4, -3, -3.5) == FAILS
    assert outcome(-3, -2, -1, -4, -3, -3.1, spread=0.5) == OPEN  # b and c may be the other way
    assert outcome(-3, -2.001, -2, -4, -3, -3.001, spread=0.1) == HOLDS  # tied in both
    kept = order_kept(("a", "b"), ("", "standard"), on_average())
    assert kept(scores(a=around(-3, -3), b=around(-2, -2))).outcome == NOT_RUN


def test_which_were_turned_round() -> None:
    found = scores(a=around(-3, -3), b=around(-2, -2), a_x=around(-2, -2), b_x=around(-3, -3))
    verdict = order_kept(("a", "b"), ("", "x"), on_average())(found)
    assert verdict.because == "Kendall's τ −1.00; turned round: a and b"


@pytest.mark.parametrize(
    ("order", "outcome"),
    [((0, 1, 2, 3, 5, 4), HOLDS), ((5, 4, 3, 2, 0, 1), FAILS), ((3, 0, 5, 1, 4, 2), OPEN)],
)
def test_errors_that_rise_with_a_number(order: tuple[int, ...], outcome: str) -> None:
    splits = [f"test {k}" for k in range(6)]
    errors = {
        split: np.full((5, 2), 10.0 ** (k - 6)) for split, k in zip(splits, order, strict=True)
    }
    members = around(0, 0).members
    found = Scores(("a", "b"), tuple(splits), {"pna": ScoredPopulation(members, errors)}, {})
    places = {f"place {k}": (float(k), on_average(split)) for k, split in enumerate(splits)}
    verdict = rises_with("pna", places)(found)
    assert verdict.outcome == outcome
    assert f"from the most error to the least: place {order.index(5)}, " in verdict.because
    assert rises_with("gin", places)(found).outcome == NOT_RUN


def test_no_row_gains_from_another_group() -> None:
    """More features may help, hurt or do neither; the first decides the claim."""
    found = scores(
        gat=around(-3, -3), gat_20=around(-3.5, -3.5), gcn=around(-3, -3), gcn_20=around(-2, -2),
        gin=around(-3, -3, 0.5), gin_20=around(-3.1, -3.1, 0.5),
    )  # fmt: skip

    def verdict(*rows: str) -> Verdict:
        return none_gains(rows, ("", "20"), on_average())(found)

    assert verdict("gcn").outcome == HOLDS
    assert verdict("gcn", "gin").outcome == OPEN
    assert verdict("gcn", "gin", "gat").outcome == FAILS
    assert verdict("gat").because == "gains: gat +0.50 ± 0.02"
    assert verdict("sage").outcome == NOT_RUN


def test_several_tests_in_one_claim() -> None:
    found = scores(pna=around(-3, -3), gin=around(-2, -2), gat=around(-4, -4))

    def ahead(other: str) -> Decide:
        return less("pna", other, on_average())

    tests = {"this": ahead("gin"), "that": ahead("gat"), "the other": ahead("pna")}
    verdict = everywhere(tests, ("so", "open", "not"))(found)
    assert verdict.outcome == NOT_RUN  # nobody is compared with itself
    del tests["the other"]
    verdict = everywhere(tests, ("so", "open", "not"))(found)
    assert (verdict.outcome, verdict.because) == (FAILS, "so on this; not on that")


def test_tasks_are_learned_together_by_models_that_count_or_do_not() -> None:
    """The models with neither scalers nor the sum gain 0.5, the others 0.1: the claim holds. Of the
    models without scalers MPNN (sum) and GIN gain as little as PNA."""
    few = {"pna": 0.1, "mpnn-sum": 0.1, "gin": 0.1}
    populations = {}
    for name in LABELS:
        gain = few.get(name, 0.5)
        populations |= {name: around(-3, -3), f"{name} alone": around(-3 + gain, -3 + gain)}
    errors = {
        name: ScoredPopulation(held.members, {"test": held.errors["test"][:, [0] * len(SIX)]})
        for name, held in populations.items()
    }
    found = Scores(SIX, ("test",), errors, {"test": np.full(len(SIX), 0.1)})
    without, neither, by_task = (c.decide(found) for c in SINGLE_TASK.claims)
    assert (without.outcome, neither.outcome, by_task.outcome) == (OPEN, HOLDS, HOLDS)
    assert by_task.because == f"so on {', '.join(SIX)}"
    assert (neither.comparisons, by_task.comparisons) == (4 * 3, 6 * 4 * 3)


@pytest.mark.parametrize(
    ("claim", "count"),
    [
        (best("a", ["b", "c", "d"], on_average()), 3),
        (best_everywhere("a", ["b", "c"], {"a": on_task("a"), "b": on_task("b")}), 4),
        (least_among(["a", "b"], ["c", "d"], on_average()), 4),
        (steadier("a", ["b", "c"], on_average()), 2),
        (order_kept(("a", "b"), ("", "x"), on_average()), 2),
        (within("a", {"a": (-1.0, on_task("a")), "b": (-1.0, on_task("b"))}), 2),
    ],
)
def test_comparisons_are_counted(claim: Decide, count: int) -> None:
    named = {name: around(-3 + k, -3 + k) for k, name in enumerate("abcd")}
    found = scores(**named, a_x=around(-3, -3), b_x=around(-2, -2))
    assert claim(found).comparisons == count


def test_a_higher_level_decides_less() -> None:
    found = scores(pna=around(-3, -3, 0.1), gin=around(-2.7, -2.7, 0.1))
    claim = less("pna", "gin", on_average())
    assert claim(found).outcome == HOLDS
    assert claim(replace(found, level=0.999)).outcome == OPEN
    one, other = ([error + d * 0.1 for d in (-2, -1, 0, 1, 2)] for error in (-3.0, -2.7))
    gap = difference(Estimate.of(one, 0.999), Estimate.of(other, 0.999))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.999)
    assert gap.mean + gap.half == pytest.approx(expected.high)


def test_what_overflows_is_behind() -> None:
    found = scores(pna=around(-3, -3), gin=around(-2, math.inf))
    assert best("pna", ["gin"], on_average())(found).outcome == HOLDS
    assert best("gin", ["pna"], on_average())(found).outcome == FAILS


def test_nothing_has_no_sign() -> None:
    assert str(difference(Estimate.of([1.0, 1.0]), Estimate.of([1.001, 1.001]))) == "+0.00 ± 0.00"


@pytest.mark.parametrize(("gin", "shown"), [(-2.98, "−0.020 ± "), (-2.8, "−0.20 ± ")])
def test_small_differences_are_told_with_a_digit_more(gin: float, shown: str) -> None:
    found = scores(pna=around(-3, -3), gin=around(gin, gin))
    assert f"the closest: {shown}" in best("pna", ["gin"], on_average())(found).because


def test_gaps_are_told_as_tables_have_them() -> None:
    """Shares in per cent, of which the better has more; the verdict is that of the error."""
    shares = {name: np.full((5, 2), share) for name, share in (("pna", 0.75), ("gin", 0.73))}
    members = around(0, 0).members[:5]
    named = {name: ScoredPopulation(members, {"test": held}) for name, held in shares.items()}
    found = Scores(("a", "b"), ("test",), named, {"test": np.array([0.1, 0.1])}, "accuracy")
    verdict = less("pna", "gin", measured_as("accuracy", "test"))(found)
    assert verdict.outcome == HOLDS and verdict.because.endswith("the closest: +2.00 ± 0.00")
    verdict = less("gin", "pna", measured_as("accuracy", "test"))(found)
    assert verdict.outcome == FAILS and verdict.because.endswith("the closest: −2.00 ± 0.00")


def test_a_claim_says_how_many_of_its_models_were_run() -> None:
    some = scores(pna=around(-3, -3), gin=around(-2, -2))
    verdict = best("pna", ["pna", "gin", "gcn"], on_average())(some)
    assert verdict.outcome == HOLDS and verdict.because.endswith("of 2 others 1 were run")
    assert "were run" not in best("pna", ["pna", "gin"], on_average())(some).because


def test_a_difference_in_words() -> None:
    shown = str(difference(Estimate.of([-1.0, -1.2]), Estimate.of([0.0, 0.2])))
    assert shown.startswith("−1.20 ± ")
    assert not math.isnan(float(shown.split(" ± ")[1]))
