"""Metrics by literal arithmetic, with targets missing."""

import math

import numpy as np
import pytest
import torch

from pna.train.metrics import METRICS, measure

NAN = math.nan


@pytest.mark.parametrize(
    "name, predictions, targets, expected",
    [
        ("mse", [1, 2, 9], [0, 4, NAN], 2.5),
        ("mae", [1, 2, 9], [0, 4, NAN], 1.5),
        ("log10_mse", [0.1, 0.1], [0, 0], -2),
        ("log10_mse", [1, 2], [1, 2], -math.inf),
        ("accuracy", [0.5, 0.4, 0.9, 0.1], [1, 1, NAN, 0], 2 / 3),
        ("accuracy", [[0.2, 0.5, 0.3], [0.9, 0.1, 0]], [1, 2], 0.5),
        ("roc_auc", [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ("roc_auc", [0.5, 0.5, 0.5, 9], [0, 1, 1, NAN], 0.5),  # ties
        ("roc_auc", [3, 1, 2], [1, 0, 0], 1),
    ],
)
def test_numbers(name, predictions, targets, expected):
    assert measure(name, predictions, targets) == pytest.approx(expected)
    assert measure(name, torch.tensor(predictions), torch.tensor(targets)) == pytest.approx(
        expected
    )


def test_area_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    scores, ones = rng.integers(0, 8, 50) / 8, rng.integers(0, 2, 50)
    above, below = scores[ones == 1][:, None], scores[ones == 0]
    pairs = ((above > below) + 0.5 * (above == below)).mean()
    assert measure("roc_auc", scores, ones) == pytest.approx(pairs)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_known(name):
    assert math.isnan(measure(name, [1.0, 2.0], [NAN, NAN]))


def test_one_class_and_broken_predictions_have_no_area():
    assert math.isnan(measure("roc_auc", [0.1, 0.2], [1, 1]))
    assert math.isnan(measure("roc_auc", [0.1, NAN], [1, 0]))


def test_refuses():
    with pytest.raises(ValueError, match="unknown metric 'mes'; did you mean 'mse'"):
        measure("mes", [1], [1])
    with pytest.raises(ValueError, match=r"shape \(2,\) for targets of shape \(3,\)"):
        measure("mse", [1, 2], [1, 2, 3])
