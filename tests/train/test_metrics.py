"""Metrics by literal arithmetic, with targets missing."""

import math

import numpy as np
import pytest
import torch

from pna.train.metrics import BETTER, METRICS, measure

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
        ("accuracy", [[0.2, 0.8], [NAN, NAN]], [1, 0], NAN),
        ("accuracy", [0.9, NAN], [1, 0], NAN),
        ("roc_auc", [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ("roc_auc", [0.5, 0.5, 0.5, 9], [0, 1, 1, NAN], 0.5),  # ties
        ("roc_auc", [3, 1, 2], [1, 0, 0], 1),
    ],
)
def test_numbers(name, predictions, targets, expected):
    wanted = pytest.approx(expected, nan_ok=True)
    assert measure(name, predictions, targets) == wanted
    assert measure(name, torch.tensor(predictions), torch.tensor(targets)) == wanted


def test_area_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    scores, ones = rng.integers(0, 8, 50) / 8, rng.integers(0, 2, 50)
    above, below = scores[ones == 1][:, None], scores[ones == 0]
    pairs = ((above > below) + 0.5 * (above == below)).mean()
    assert measure("roc_auc", scores, ones) == pytest.approx(pairs)


def predicted(count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.integers(0, 20, (count, classes)) / 20, rng.integers(0, classes, count)


def test_the_area_is_that_of_ogb():
    """Whose evaluator the field computes MolHIV with."""
    evaluate = pytest.importorskip("ogb.graphproppred")
    scores, classes = predicted(400, 2)
    given = {"y_true": classes[:, None], "y_pred": scores[:, :1]}
    expected = evaluate.Evaluator("ogbg-molhiv").eval(given)["rocauc"]
    assert measure("roc_auc", scores[:, 0], classes) == pytest.approx(expected, rel=1e-12)


def test_numbers_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    scores, classes = predicted(400, 10)
    shown = np.take_along_axis(scores, classes[:, None], 1)[:, 0]
    expected = sklearn.accuracy_score(classes, scores.argmax(1))
    assert measure("accuracy", scores, classes) == pytest.approx(expected, rel=1e-12)
    expected = sklearn.mean_absolute_error(classes, shown)
    assert measure("mae", shown, classes) == pytest.approx(expected, rel=1e-12)


def test_every_metric_has_a_better_end():
    """A right prediction is better than a wrong one, whatever it is measured by."""
    assert set(BETTER) == set(METRICS)
    for name, sign in BETTER.items():
        right, wrong = (
            measure(name, p, [1.0, 0.0, 1.0]) for p in ([0.9, 0.1, 0.8], [0.2, 0.9, 0.1])
        )
        assert sign * right < sign * wrong


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


def test_every_metric_says_which_way_is_better():
    assert BETTER.keys() == METRICS.keys() and {*BETTER.values()} <= {1, -1}
