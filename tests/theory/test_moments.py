import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pna
from pna.aggregators import Moment
from pna.degree import Power
from pna.theory import multiset_from_moments, size_from_scaled
from pna.theory.stars import stars, statistics


def moments(values: list[float]) -> list[float]:
    names = ["mean", "std", *(f"moment_{k}" for k in range(3, len(values) + 1))][: len(values)]
    return statistics(names, torch.tensor([values], dtype=torch.float64))[0].tolist()


@st.composite
def well_separated(draw: st.DrawFn) -> list[float]:
    gaps = draw(st.lists(st.floats(0.5, 1.5), max_size=7))
    return np.cumsum([draw(st.floats(-5, 5)), *gaps]).tolist()


@given(well_separated())
def test_well_separated_values_come_back(values: list[float]) -> None:
    found = multiset_from_moments(moments(values))
    assert np.abs(np.array(found.values) - values).max() <= 1e-6
    assert found.error <= 1e-6
    assert found.size == len(values)


@settings(max_examples=100)
@given(
    st.lists(st.one_of(st.floats(-10, 10), st.integers(-3, 3)), min_size=1, max_size=12),
    st.floats(-3, 3),
    st.floats(-100, 100),
)
def test_the_error_is_no_larger_than_it_says(
    values: list[float], magnitude: float, shift: float
) -> None:
    """Repeated values, tiny and large ones, far from 0: worse, but never worse than said."""
    values = [10**magnitude * value + shift for value in values]
    found = multiset_from_moments(moments(values))
    assert np.abs(np.array(found.values) - np.sort(values)).max() <= found.error


def test_it_is_vieta_by_hand() -> None:
    # {0, 1, 5}: mean 2, central moments 14/3 and 6.
    epsilon = 1e-5
    given = [2, math.sqrt(14 / 3 + epsilon), (6 + epsilon) ** (1 / 3) - epsilon ** (1 / 3)]
    assert multiset_from_moments(given).values == pytest.approx((0, 1, 5), abs=1e-12)


@pytest.mark.parametrize("order", [4, 6])
@pytest.mark.parametrize("length", [0.1, 1.0, 1000.0])
def test_moments_of_what_is_evenly_spread_are_as_long_as_it_is(order: int, length: float) -> None:
    """On [0, L] raw ones are L^n/(n + 1), standardised ones 3^(n/2)/(n + 1), ours in between."""
    values = torch.linspace(0, length, 10_001, dtype=torch.float64)
    raw = (values**order).mean().item()
    standardised = ((values - values.mean()) / values.std(correction=0)).pow(order).mean().item()
    ours = statistics([Moment(order, epsilon=1e-30)], values[None]).item()
    assert raw == pytest.approx(length**order / (order + 1), rel=1e-3)
    assert standardised == pytest.approx(3 ** (order / 2) / (order + 1), rel=1e-3)
    assert ours == pytest.approx(length / 2 * (order + 1) ** (-1 / order), rel=1e-3)


def test_repeated_values_are_less_certain() -> None:
    twice, apart = (multiset_from_moments(moments(v)) for v in ([1.0, 1.0, 2.0], [0.0, 1.0, 2.0]))
    assert twice.values == pytest.approx((1, 1, 2), abs=1e-6)
    assert twice.error > 1e4 * apart.error
    assert twice.condition > 1e4 * apart.condition


def test_more_moments_than_values() -> None:
    x = torch.tensor([[0.0, 1.0, 5.0]], dtype=torch.float64)
    given = statistics(["mean", "std", "moment_3", "moment_4"], x)[0].tolist()
    assert multiset_from_moments(given, size=3).values == pytest.approx((0, 1, 5), abs=1e-12)


def test_what_no_real_numbers_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no 3 real numbers"):
        multiset_from_moments([0.0, 1.0, 10.0])
    with pytest.raises(ValueError, match="no 2 real numbers"):
        multiset_from_moments([0.0, -1.0])  # no deviation is negative
    for not_a_list in ([], 3.0, [[1.0, 2.0]]):
        with pytest.raises(ValueError, match="mean, std, moment_3"):
            multiset_from_moments(not_a_list)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got moments in float32, expected float64"):
        multiset_from_moments(torch.tensor(moments([0.0, 1.0, 5.0])))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        multiset_from_moments([float("nan")])
    with pytest.raises(ValueError, match="epsilon"):
        multiset_from_moments([1.0], epsilon=0)


def scaled(values: list[float], name: str) -> tuple[float, float]:
    x, adj = stars([values])
    out = pna.scale(pna.aggregate(x, adj, [name]), adj.degree, ["identity", Power(1.0, 1.5)])
    plain, amplified = out.flatten().tolist()
    return plain, amplified


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_a_scaled_deviation_reveals_the_size(values: list[float]) -> None:
    assert size_from_scaled(*scaled(values, "std"), Power(1.0, 1.5)) == len(values)


def test_a_scaled_mean_does_not_where_it_is_zero() -> None:
    two, four = [-1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]
    assert scaled(two, "mean") == scaled(four, "mean") == (0, 0)
    with pytest.raises(ValueError, match="take one that is never 0: std"):
        size_from_scaled(*scaled(two, "mean"), Power(1.0, 1.5))
    assert scaled(two, "std") != scaled(four, "std")
    assert size_from_scaled(*scaled([3.0, 4.0], "mean"), Power(1.0, 1.5)) == 2


def test_a_scaler_must_tell_sizes_apart() -> None:
    with pytest.raises(ValueError, match="at 1000 sizes"):
        size_from_scaled(2.0, 2.0, "identity")
    with pytest.raises(ValueError, match="at 0 sizes"):
        size_from_scaled(2.0, 3.0, "linear")
