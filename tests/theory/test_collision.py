import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pna.aggregators import KthSmallest, Mean, Std
from pna.theory import Collision, Search, find_collision
from pna.theory.stars import statistics

STANDARD = (
    "mean", "std", "max", "min", "moment_3", "softmax", "softmin", "moment_4", "moment_5", "sum",
    "var", "normalised_mean",
)  # fmt: skip


def by_hand(name: str, values: tuple[float, ...]) -> float:
    """In NumPy, from the formulas."""
    x = np.array(values)
    centred = x - x.mean()
    if name.startswith("moment_"):
        k = int(name[-1])
        c = (centred**k).mean()
        return float(np.sign(c) * ((abs(c) + 1e-5) ** (1 / k) - 1e-5 ** (1 / k)))
    return {
        "mean": x.mean(),
        "sum": x.sum(),
        "normalised_mean": x.sum() / math.sqrt(len(x)),
        "std": math.sqrt(x.var() + 1e-5),
        "var": x.var(),
        "max": x.max(),
        "min": x.min(),
        "softmax": (x * np.exp(x)).sum() / np.exp(x).sum(),
        "softmin": (x * np.exp(-x)).sum() / np.exp(-x).sum(),
    }[name]


def confirm(collision: Collision | None, names: tuple[str, ...], n: int) -> None:
    """What the certificate says, computed anew and by other code."""
    assert collision is not None
    assert len(collision.left) == len(collision.right) == n
    assert math.dist(collision.left, collision.right) >= 0.5
    for name in names:
        gap = by_hand(name, collision.left) - by_hand(name, collision.right)
        assert abs(gap) <= 1e-9, name
    assert collision.disagreement <= 1e-9


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_fewer_than_n_aggregators_have_a_collision(n: int) -> None:
    names = STANDARD[: n - 1]
    confirm(find_collision(names, n).collision, names, n)


@pytest.mark.slow
@settings(max_examples=5)
@given(st.data())
def test_whichever_they_are(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 8))
    size = data.draw(st.integers(1, n - 1))
    names = tuple(
        data.draw(st.lists(st.sampled_from(STANDARD), min_size=size, max_size=size, unique=True))
    )
    confirm(find_collision(names, n).collision, names, n)


def test_the_kth_smallest_values_suffice() -> None:
    search = find_collision([KthSmallest(k) for k in (1, 2, 3)], 3, starts=4)
    assert not search
    assert search.collision is None
    assert search.starts == 4
    assert search.evaluations > 100
    assert search.closest > 0.1
    assert str(search).startswith("no collision found: 4 starts, ")


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), st.randoms())
def test_they_are_the_multiset(values: list[float], random: object) -> None:
    """Which is why no search can find a collision of theirs."""
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    kth = [KthSmallest(k + 1) for k in range(len(values))]
    found = statistics(kth, torch.tensor([shuffled], dtype=torch.float64))[0].tolist()
    assert found == sorted(values)


def test_n_moments_have_none_but_n_unsuitable_ones_do() -> None:
    assert not find_collision(["mean", "std", "moment_3"], 3, starts=2)
    # With three values the fourth moment follows from the second.
    names = ("mean", "std", "moment_4")
    confirm(find_collision(names, 3).collision, names, 3)


def test_functions_of_ones_own() -> None:
    def middle(x: torch.Tensor) -> torch.Tensor:
        return x.median()

    search = find_collision([middle, lambda x: np.abs(np.asarray(x)).mean()], 3)
    assert search.collision is not None
    left, right = search.collision.left, search.collision.right
    assert abs(left[1] - right[1]) <= 1e-9
    assert abs(sum(map(abs, left)) - sum(map(abs, right))) <= 3e-9
    assert "middle: " in str(search)


@pytest.mark.parametrize("functions", [[np.mean, np.std], [lambda x: np.max(x), np.median]])
def test_numpys_functions_too(functions: list[object]) -> None:
    found = find_collision(functions, 3).collision  # type: ignore[arg-type]
    assert found is not None
    for function in functions:
        left, right = (function(np.array(side)) for side in (found.left, found.right))  # type: ignore[operator]
        assert abs(left - right) <= 1e-9


def test_a_function_that_writes_to_its_multiset_spoils_none_of_the_others() -> None:
    found = find_collision([lambda x: x.mul_(0).sum(), lambda x: x.sum()], 3).collision
    assert found is not None
    assert abs(sum(found.left) - sum(found.right)) <= 1e-9


def test_small_units_are_no_agreement() -> None:
    """Two values in units of 1e-10 are told apart though all of them differ by less than 1e-9."""
    assert not find_collision([lambda x: 1e-10 * x[0], lambda x: 1e-10 * x[1]], 2, starts=4)
    # What is noise alone is constant: odd moments of two values, a norm that is 1.
    assert find_collision(["moment_7"], 2)
    assert find_collision([lambda x: (x / x.norm()).norm(), lambda x: x.mean()], 3)


def test_what_has_steps_may_have_none_and_is_told_so() -> None:
    search = find_collision([lambda x: x.sum().floor()], 2, starts=2)
    assert search.exists and not search
    assert str(search).endswith(
        "fewer than n always have one if they are continuous: check that, or raise starts"
    )
    assert not find_collision([lambda x: x[0], lambda x: x[1]], 2, starts=2).exists


def test_pairs_among_n_aggregators_have_moderate_gaps() -> None:
    """So that their distance is clear beside their spread."""
    found = find_collision(["mean", "std", "moment_4"], 3).collision
    assert found is not None
    assert found.distance > 0.1 * max(np.std(found.left), np.std(found.right))


KINKED = (
    lambda x: x.abs().sum(),
    lambda x: x.clamp(min=0).sum(),
    lambda x: x.diff().max(),
    lambda x: (x - 1).abs().min(),
    lambda x: x.quantile(0.3),
    lambda x: (x**6).sum(),
    lambda x: x.exp().sum(),
    lambda x: (3 * x).cos().sum(),
)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_functions_need_not_be_smooth_or_of_a_size(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    chosen = data.draw(
        st.lists(st.sampled_from(KINKED), min_size=n - 1, max_size=n - 1, unique=True)
    )
    found = find_collision(chosen, n).collision
    assert found is not None
    assert math.dist(found.left, found.right) >= 0.5
    left, right = (torch.tensor(side, dtype=torch.float64) for side in (found.left, found.right))
    assert all(abs(float(f(left) - f(right))) <= 1e-9 for f in chosen)


def test_objects_and_classes_count_as_names_do() -> None:
    assert find_collision([Mean, Std(epsilon=1e-3)], 3)


def test_a_search_that_met_no_pair_says_so() -> None:
    words = str(Search(None, starts=1, evaluations=1000, closest=math.inf))
    assert words == (
        "no collision found: 1 start, 1,000 multisets aggregated; no clearly different pair came "
        "close"
    )


def test_the_same_search_finds_the_same() -> None:
    one, two = (find_collision(["mean", "max"], 3, seed=3).collision for _ in range(2))
    assert one is not None and two is not None
    assert (one.left, one.right) == (two.left, two.right)


@pytest.mark.parametrize(
    ("aggregators", "n", "error", "words"),
    [
        ("mean", 2, TypeError, "expected a list"),
        ([], 2, ValueError, "at least one"),
        (["meen"], 2, ValueError, "did you mean 'mean'"),
        (["mean"], 0, ValueError, "n=0"),
        ([lambda x: x], 2, TypeError, "expected one number"),
        ([lambda x: x.log().sum()], 2, ValueError, "expected a finite number"),
        ([3], 2, TypeError, "expected a name"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    aggregators: object, n: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        find_collision(aggregators, n)  # type: ignore[arg-type]
