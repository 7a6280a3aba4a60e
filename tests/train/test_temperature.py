"""Temperatures make probabilities fit the frequencies, and keep their order."""

import numpy as np
import pytest

from pna.train.temperature import best_temperature, scaled


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


def test_one_class_says_nothing():
    assert best_temperature(np.array([0.2, 0.9, 0.5]), np.array([1, 1, np.nan])) == 1.0
