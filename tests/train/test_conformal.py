"""Intervals cover the share of new rows that was asked for."""

import math

import numpy as np
import pytest

from pna.train.conformal import between_rows, conformal_quantile, fitted_interval


def drawn(rng, rows, members):
    """Targets whose noise has a part that the members' deviation tells, and a part that it does
    not; with one member there is no deviation."""
    std = rng.gamma(2.0, 0.5, rows) if members > 1 else np.zeros(rows)
    mean = rng.normal(size=rows)
    return mean + rng.standard_t(5, rows) * np.sqrt(std**2 + 0.5), mean, std


@pytest.mark.parametrize("members", [1, 5])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage(members, level):
    """Over repeated draws of calibration rows, and new rows of the same distribution."""
    rng, repeats, calibration, new = np.random.default_rng(members), 1000, 99, 50
    covered = []
    for _ in range(repeats):
        y, mean, std = drawn(rng, calibration + new, members)
        held = slice(calibration, None)
        interval = fitted_interval(
            y[:calibration], mean[:calibration], std[:calibration], level, "y"
        )
        low, high = interval.around(mean[held], std[held])
        covered.append(np.mean((low <= y[held]) & (y[held] <= high)))
    # the coverage of one draw of calibration rows varies as 1 / 100 does; new rows add theirs
    error = math.sqrt(level * (1 - level) * (1 / (calibration + 2) + 1 / new) / repeats)
    assert abs(np.mean(covered) - level) < 4 * error  # (99 + 1) · level is whole: no more either


def test_a_deviation_that_tells_the_error_makes_intervals_differ():
    rng = np.random.default_rng(0)
    y, mean, std = drawn(rng, 2000, 5)
    interval = fitted_interval(y, mean, std, 0.9, "y")
    low, high = interval.around(np.zeros(2), np.array([0.1, 3.0]))
    assert high[1] > 2 * high[0] and np.allclose(low, -high)


def test_rows_without_a_target_are_left_out():
    y = np.array([1.0, np.nan, 3.0, 6.0])
    found = fitted_interval(y, np.zeros(4), np.zeros(4), 0.5, "y")
    low, high = found.around(np.zeros(1), np.zeros(1))
    assert high == pytest.approx([3.0]) and low == pytest.approx([-3.0])  # the second of three


def test_moments():
    errors, std = np.array([3.0, 5.0]), np.array([1.0, 2.0])
    assert between_rows(errors, std) == pytest.approx(math.sqrt((9 + 25 - 1 - 4) / 2))
    assert 0 < between_rows(errors, 9 * std) < 0.01  # the deviation explains more than all
    exact = fitted_interval(np.ones(3), np.ones(3), np.zeros(3), 0.5, "y")
    assert [*exact.around(np.ones(1), np.zeros(1))] == [1.0, 1.0]


@pytest.mark.parametrize(
    "level, rows, rank", [(0.9, 9, 9), (0.9, 19, 18), (0.5, 4, 3), (0.8, 4, 4)]
)
def test_quantile(level, rows, rank):
    scores = np.random.default_rng(0).permutation(np.arange(1.0, rows + 1))
    assert conformal_quantile(scores, level, "y") == rank


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"got 8 calibration rows with a known logS .*at least 9"):
        conformal_quantile(np.ones(8), 0.9, "logS")
    for level in (0.0, 1.0, 90.0):
        with pytest.raises(ValueError, match="expected a share of the rows above 0 and below 1"):
            conformal_quantile(np.ones(8), level, "logS")
