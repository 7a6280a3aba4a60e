"""Temperatures make probabilities fit the frequencies, and keep their order."""

import numpy as np
import pytest

from pna.train.temperature import best_temperature, calibration_error, log_loss, scaled


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_overconfidence_is_found(factor):
    """Logits that are too large by a factor have that temperature."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, 20_000)
    y = (rng.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(float)
    y[::5] = np.nan
    given = 1 / (1 + np.exp(-factor * logits))
    assert best_temperature(given, y) == pytest.approx(factor, rel=0.05)


def test_the_order_and_a_half_stay():
    given = np.array([0.0, 1e-9, 0.2, 0.5, 0.7, 1.0])
    found = scaled(given, 4.0)
    assert (np.diff(found) > 0).all() and found[3] == 0.5
    assert found[4] == pytest.approx(1 / (1 + (0.3 / 0.7) ** 0.25))
    assert scaled(given, 1.0) is given


def test_scores_of_probabilities_by_hand():
    given, y = np.array([0.25, 0.25, 0.9, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    assert log_loss(given, y) == pytest.approx(-np.log(0.75 * 0.25 * 0.9) / 4)
    # two bins: half of the first are 1, not a quarter; all of the last, not 0.95
    assert calibration_error(given, y) == pytest.approx((2 * 0.25 + 2 * 0.05) / 4)


def test_one_class_says_nothing():
    assert best_temperature(np.array([0.2, 0.9, 0.5]), np.array([1, 1, np.nan])) == 1.0
