import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pna.paper.scores import BASELINE, Estimate, Member, ScoredPopulation, Scores


def member(number: int, validation: float) -> Member:
    return Member(number, 7 + number, 0.003, 1e-6, validation, 10 * number)


def scores() -> Scores:
    """Three members of one model, and four of another that learn one task each."""
    both = ScoredPopulation(
        (member(0, 0.3), member(1, 0.1), member(2, 0.2)),
        {"test": np.array([[1e-1, 1e-3], [1e-2, 1e-2], [1e-4, 1e-2]])},
    )
    alone = ScoredPopulation(
        (member(0, 0.4), member(1, 0.3), member(2, 0.2), member(3, 0.1)),
        {"test": np.array([[1e-1, np.nan], [np.nan, 1e-2], [1e-3, np.nan], [np.nan, 1e-4]])},
    )
    baseline = {"test": np.array([1e-1, 1e-1])}
    return Scores(("a", "b"), ("test",), {"both": both, "alone": alone}, baseline)


def test_the_best_by_validation_are_kept() -> None:
    assert scores().populations["both"].kept(2) == [1, 2]
    assert scores().populations["both"].kept(None) == [1, 2, 0]


def test_as_many_are_kept_for_every_task() -> None:
    assert scores().populations["alone"].kept(1) == [3, 2]


def test_a_member_that_was_never_validated_is_not_kept() -> None:
    held = ScoredPopulation((member(0, math.inf), member(1, 0.1)), {"test": np.ones((2, 2))})
    assert held.kept(None) == [1]


@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
def test_members_of_one_setting_are_taken_together(setting: str) -> None:
    members = [
        replace(Member(k, k, 0.0, 0.0, validation, 1), **{setting: value})
        for k, (value, validation) in enumerate([(0.2, 1e-1), (0.1, 1e-2), (0.2, 1e-3)])
    ]
    held = ScoredPopulation(tuple(members), {"test": np.ones((3, 1))})
    scores = Scores(("a",), ("test",), {"one": held}, {"test": np.ones(1)})
    found = scores.by_setting("one", setting)
    assert list(found) == [0.1, 0.2]
    assert [value.mean for value in found.values()] == pytest.approx([-2, -2])
    assert found[0.2].values == pytest.approx((-1, -3))


def test_the_two_statistics() -> None:
    found = scores()
    assert found.average("both", "test", top=1).mean == pytest.approx(-2)
    assert found.overall("both", "test", top=1).mean == pytest.approx(-2)
    assert found.average("both", "test", top=2).mean == pytest.approx((-2 - 3) / 2)
    second = np.log10((1e-4 + 1e-2) / 2)
    assert found.overall("both", "test", top=2).mean == pytest.approx((-2 + second) / 2)
    assert found.average("both", "test", top=1, ratio=True).mean == pytest.approx(-1)
    assert found.overall("both", "test", top=1, ratio=True).mean == pytest.approx(-1)


def test_tasks_learned_alone_are_put_together_by_rank() -> None:
    found = scores()
    assert found.of_task("alone", "a", "test", top=1).values == (pytest.approx(-3),)
    assert found.average("alone", "test", top=1).values == (pytest.approx((-3 - 4) / 2),)
    assert found.average("alone", "test", None).values == pytest.approx(
        ((-3 - 4) / 2, (-1 - 2) / 2)
    )


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=10, unique=True))
def test_intervals_are_those_of_scipy(values: list[float]) -> None:
    found = Estimate.of(values)
    if np.std(values) == 0:
        return
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
    )
    assert found.mean - found.half == pytest.approx(low, abs=1e-9)
    assert found.mean + found.half == pytest.approx(high, abs=1e-9)


def test_of_one_there_is_no_interval() -> None:
    assert math.isnan(Estimate.of([1.0]).half)
    assert math.isnan(Estimate.of([]).mean)


def test_a_file_holds_them_all(tmp_path) -> None:
    path = tmp_path / "scores.csv"
    scores().save(path)
    found = Scores.load(path)
    assert found.tasks == ("a", "b") and found.splits == ("test",)
    for name, population in scores().populations.items():
        assert found.populations[name].members == population.members
        np.testing.assert_array_equal(
            found.populations[name].errors["test"], population.errors["test"]
        )
    np.testing.assert_array_equal(found.baseline["test"], scores().baseline["test"])


def test_a_broken_file_is_named_with_its_line(tmp_path) -> None:
    path = tmp_path / "scores.csv"
    scores().save(path)
    path.write_text(path.read_text().replace(",0.1,10,test,a", ",what,10,test,a"))
    with pytest.raises(ValueError, match=r"scores.csv, line \d+, which is no score"):
        Scores.load(path)
    path.write_text("population,mse\nx,1\n")
    with pytest.raises(ValueError, match="without the columns"):
        Scores.load(path)


def test_the_baseline_is_a_row_of_its_own(tmp_path) -> None:
    path = tmp_path / "scores.csv"
    scores().save(path)
    assert path.read_text().count(BASELINE) == 2


def test_selected_members_are_resampled_and_selected_again() -> None:
    """Against a bootstrap written as a loop, with other random numbers."""
    values = [-3.0, -2.0, -2.9, -2.5, -2.8, -1.0]  # in the order of validation
    random = np.random.default_rng(7)
    means = []
    for _ in range(20_000):
        resample = sorted(random.integers(6, size=6).tolist())
        means.append(np.mean([values[rank] for rank in resample[:2]]))
    expected = np.std(means) * math.sqrt(6 / 5)
    found = Estimate.of_selected(np.array(values), top=2)
    assert found.mean == -2.5 and found.values == (-3.0, -2.0)
    assert found.error == pytest.approx(expected, rel=0.03)
    assert found.half == pytest.approx(stats.t.ppf(0.975, 5) * found.error)


def test_without_a_selection_the_bootstrap_is_the_usual_interval() -> None:
    values = [0.5, 0.1, 0.7, 0.2]
    selected, usual = Estimate.of_selected(np.array(values), top=4), Estimate.of(values)
    assert selected.half == pytest.approx(usual.half)
    assert usual.half == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(values))


def test_scores_are_resampled_where_members_are_selected() -> None:
    usual = scores()
    found = replace(usual, resampled=True)
    # in the order of validation: means of logs −2, −3 and −2
    expected = Estimate.of_selected(np.array([-2.0, -3.0, -2.0]), top=1)
    assert found.average("both", "test", top=1).half == pytest.approx(expected.half)
    assert math.isnan(usual.average("both", "test", top=1).half)
    for top in (3, 5, None):  # all of them
        one, other = (s.average("both", "test", top).half for s in (found, usual))
        assert one == pytest.approx(other)


def test_a_task_is_compared_with_predicting_its_mean() -> None:
    found = scores()
    errors = found.of_task("both", "b", "test", top=None).values
    ratios = found.of_task("both", "b", "test", top=None, ratio=True).values
    assert ratios == pytest.approx([error + 1 for error in errors])  # the baseline is 0.1
