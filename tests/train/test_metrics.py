"""Metrics by literal arithmetic, with targets missing, and against scikit-learn."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from pna.train.metrics import METRICS, PREDICTIONS, Metric, is_defined, measure

NAN = math.nan
OF_CLASSES = [name for name in METRICS if "classes" in METRICS[name].takes]
OF_RANKS = [name for name in METRICS if "logit" in METRICS[name].takes]


@pytest.mark.parametrize(
    "name, predictions, targets, expected",
    [
        ("mse", [1, 2, 9], [0, 4, NAN], 2.5),
        ("mae", [1, 2, 9], [0, 4, NAN], 1.5),
        ("rmse", [3, 2, 9], [0, -2, NAN], math.sqrt(12.5)),
        ("r2", [1, 2, 6, 9], [0, 3, 6, NAN], 1 - 2 / 18),
        ("r2", [3, 3, 3], [0, 3, 6], 0),
        ("r2", [1, 2], [5, 5], NAN),
        ("spearman", [1, 9, 100, 3], [-2, 0, 7, NAN], 1),
        ("spearman", [3, 2, 1], [0, 1, 5], -1),
        ("spearman", [1, 2, 3], [1, 1, 2], math.sqrt(3) / 2),  # ranks 1.5, 1.5, 3
        ("spearman", [4, 4, 4], [0, 1, 5], 0),
        ("spearman", [1, 2], [5, 5], NAN),
        ("log10_mse", [0.1, 0.1], [0, 0], -2),
        ("log10_mse", [1, 2], [1, 2], -math.inf),
        ("accuracy", [0.5, 0.4, 0.9, 0.1], [1, 1, NAN, 0], 2 / 3),
        ("accuracy", [[0.2, 0.5, 0.3], [0.9, 0.1, 0]], [1, 2], 0.5),
        ("accuracy", [[0.2, 0.8], [NAN, NAN]], [1, 0], NAN),
        ("accuracy", [0.9, NAN], [1, 0], NAN),
        ("balanced_accuracy", [0.5, 0.4, 0.9, 0.1], [1, 1, NAN, 0], 0.75),
        # class 0: 1 of 2, class 1: 1 of 1; class 2 is predicted, but no target
        ("balanced_accuracy", [[0.9, 0, 0], [0, 0, 0.9], [0, 0.9, 0]], [0, 0, 1], 0.75),
        ("f1", [0.5, 0.9, 0.4, 0.1, 0.9], [1, 0, 1, 0, NAN], 0.5),
        ("f1", [0.1, 0.2], [1, 1], 0),
        ("f1", [0.1, 0.2], [0, 0], NAN),  # class 1 occurs nowhere
        # class 0: 2·1 / (1 + 2), class 1: 1, class 2: 0; class 3 occurs nowhere
        ("f1", [[0.9, 0, 0, 0], [0, 0, 0.9, 0], [0, 0.9, 0, 0]], [0, 0, 1], 5 / 9),
        # 3 hits and 1 miss of class 1, 2 hits and 2 misses of class 0: (3·2 − 2·1) / √(5·4·4·3)
        ("mcc", [1, 1, 1, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0], 4 / math.sqrt(240)),
        ("mcc", [0.9, 0.8], [1, 0], 0),  # one class is predicted
        ("mcc", [0.9, 0.2], [1, 1], NAN),
        ("roc_auc", [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ("roc_auc", [0.5, 0.5, 0.5, 9], [0, 1, 1, NAN], 0.5),  # ties
        ("roc_auc", [3, 1, 2], [1, 0, 0], 1),
        # class 0: 1, class 1: 1/2; class 2 is no target
        ("roc_auc", [[0.8, 0.1, 0.1], [0.7, 0.3, 0], [0.6, 0.2, 0.2]], [0, 0, 1], 0.75),
        ("average_precision", [4, 3, 2, 1], [1, 0, 1, 0], (1 + 2 / 3) / 2),
        ("average_precision", [0.5, 0.5, 0.5, 9], [0, 1, 1, NAN], 2 / 3),  # ties
        ("average_precision", [math.inf, math.inf, 0], [1, 0, 0], 0.5),
        # class 0: 1, class 1: 1/2; class 2 is no target
        ("average_precision", [[0.8, 0.1, 0.1], [0.7, 0.3, 0], [0.6, 0.2, 0.2]], [0, 0, 1], 0.75),
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


def test_average_precision_is_the_mean_precision_at_the_ones():
    """The threshold is the score of each target of class 1 in turn."""
    rng = np.random.default_rng(1)
    scores, ones = rng.integers(0, 8, 50) / 8, rng.integers(0, 2, 50)
    precisions = [ones[scores >= threshold].mean() for threshold in scores[ones == 1]]
    assert measure("average_precision", scores, ones) == pytest.approx(np.mean(precisions))


def predicted(count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with ties, and classes."""
    rng = np.random.default_rng(5)
    return rng.integers(0, 20, (count, classes)) / 20, rng.integers(0, classes, count)


@pytest.mark.parametrize(
    ("name", "dataset", "key"),
    [("roc_auc", "ogbg-molhiv", "rocauc"), ("average_precision", "ogbg-molpcba", "ap")],
)
def test_ranks_are_measured_as_by_ogb(name, dataset, key):
    """Whose evaluators the field computes MolHIV and MolPCBA with."""
    evaluate = pytest.importorskip("ogb.graphproppred")
    scores, classes = predicted(400, 2)
    given = {"y_true": classes[:, None], "y_pred": scores[:, :1]}
    if dataset == "ogbg-molpcba":  # the mean of 128 tasks
        given = {key: np.tile(values, 128) for key, values in given.items()}
    expected = evaluate.Evaluator(dataset).eval(given)[key]
    assert measure(name, scores[:, 0], classes) == pytest.approx(expected, rel=1e-12)


#: scikit-learn's functions of targets and predictions: of probabilities of class 1, and of classes.
IN_SCIKIT_LEARN = {
    "accuracy": (
        lambda sk, y, p: sk.accuracy_score(y, p >= 0.5),
        lambda sk, y, p: sk.accuracy_score(y, p.argmax(1)),
    ),
    "balanced_accuracy": (
        lambda sk, y, p: sk.balanced_accuracy_score(y, p >= 0.5),
        lambda sk, y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    ),
    "f1": (
        lambda sk, y, p: sk.f1_score(y, p >= 0.5),
        lambda sk, y, p: sk.f1_score(y, p.argmax(1), average="macro"),
    ),
    "mcc": (
        lambda sk, y, p: sk.matthews_corrcoef(y, p >= 0.5),
        lambda sk, y, p: sk.matthews_corrcoef(y, p.argmax(1)),
    ),
    "roc_auc": (
        lambda sk, y, p: sk.roc_auc_score(y, p),
        lambda sk, y, p: sk.roc_auc_score(y, p, multi_class="ovr"),
    ),
    "average_precision": (
        lambda sk, y, p: sk.average_precision_score(y, p),
        lambda sk, y, p: sk.average_precision_score(y, p),
    ),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_metrics_of_classes_are_those_of_scikit_learn(name):
    """A metric without a counterpart here fails."""
    sklearn = pytest.importorskip("sklearn.metrics")
    of_two, of_many = IN_SCIKIT_LEARN[name]
    scores, classes = predicted(400, 2)
    expected = of_two(sklearn, classes, scores[:, 1])
    assert measure(name, scores[:, 1], classes) == pytest.approx(expected, rel=1e-12)
    scores, classes = predicted(400, 10)
    scores = (scores + 0.01) / (scores + 0.01).sum(1, keepdims=True)
    expected = of_many(sklearn, classes, scores)
    assert measure(name, scores, classes) == pytest.approx(expected, rel=1e-12)


#: scikit-learn's and scipy's functions of targets and predictions that are numbers.
OF_NUMBERS = {
    "rmse": lambda sk, stats, y, p: sk.root_mean_squared_error(y, p),
    "mae": lambda sk, stats, y, p: sk.mean_absolute_error(y, p),
    "r2": lambda sk, stats, y, p: sk.r2_score(y, p),
    "spearman": lambda sk, stats, y, p: stats.spearmanr(y, p).statistic,
    "mse": lambda sk, stats, y, p: sk.mean_squared_error(y, p),
    "log10_mse": lambda sk, stats, y, p: 2 * math.log10(sk.root_mean_squared_error(y, p)),
}


@pytest.mark.parametrize("name", [name for name in METRICS if "number" in METRICS[name].takes])
def test_metrics_of_numbers_are_those_of_scikit_learn(name):
    """A metric without a counterpart here fails."""
    sklearn, stats = (pytest.importorskip(it) for it in ("sklearn.metrics", "scipy.stats"))
    scores, classes = predicted(400, 10)
    given = np.floor(scores[:, 0] * 9 + classes)  # with ties
    expected = OF_NUMBERS[name](sklearn, stats, classes, given)
    assert measure(name, given, classes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_whether_a_metric_is_defined_depends_on_the_targets(name):
    """Of different ones, all are. Of equal ones, those that compare classes, or need a variance."""
    y = np.array([0.0, 1, NAN, 1])
    assert is_defined(name, y) and not is_defined(name, np.full(3, NAN))
    of_equal = {"rmse", "mae", "mse", "log10_mse", "accuracy", "balanced_accuracy"}
    assert is_defined(name, np.array([0.0, 0, NAN])) == (name in of_equal)
    assert is_defined(name, np.array([1.0, 1, NAN])) == (name in of_equal | {"f1"})
    if name in OF_CLASSES:
        assert is_defined(name, np.array([2.0, 0, NAN, 1, 1]), 4)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_better_end(name):
    """A right prediction is better than a wrong one, whatever it is measured by."""
    sign, targets = METRICS[name].sign, [1.0, 0.0, 1.0]
    right, wrong = np.array([0.9, 0.1, 0.8]), np.array([0.2, 0.9, 0.1])
    assert sign * measure(name, right, targets) < sign * measure(name, wrong, targets)
    if name in OF_CLASSES:
        right, wrong = (np.stack([1 - p, p], 1) for p in (right, wrong))
        assert sign * measure(name, right, targets) < sign * measure(name, wrong, targets)


@pytest.mark.parametrize("name", METRICS)
def test_what_is_unknown_or_not_a_number(name):
    assert math.isnan(measure(name, [1.0, 2.0], [NAN, NAN]))
    assert math.isnan(measure(name, [0.9, NAN, 0.1], [1, 1, 0]))
    assert measure(name, [0.9, NAN, 0.1], [1, NAN, 0]) == measure(name, [0.9, 0.1], [1, 0])
    if name in OF_CLASSES:
        assert math.isnan(measure(name, [[0.9, 0.1], [0.5, NAN]], [0, 1]))


@pytest.mark.parametrize("name", OF_RANKS)
@pytest.mark.parametrize("predictions", [[0.1, 0.2], [[0.9, 0.1], [0.8, 0.2]]])
@pytest.mark.parametrize("targets", [[0, 0], [1, 1]])
def test_one_class_has_no_ranks(name, predictions, targets):
    assert math.isnan(measure(name, predictions, targets))


def test_ranks_do_not_change_with_monotone_transforms():
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    rows = st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=1, max_size=30)

    @hypothesis.settings(max_examples=50)
    @hypothesis.given(rows, st.randoms(use_true_random=False))
    def check(rows, random):
        shuffled = random.sample(rows, len(rows))
        for name in OF_RANKS:
            scores, ones = np.array(rows).T.astype(float)
            found = pytest.approx(measure(name, scores, ones), nan_ok=True)
            for transform in (np.exp, np.arctan, lambda x: 3 * x - 7, lambda x: x**3):
                assert measure(name, transform(scores), ones) == found
            assert measure(name, *np.array(shuffled).T) == found
            assert math.isnan(found.expected) or 0 <= found.expected <= 1

    check()


def test_refuses():
    with pytest.raises(ValueError, match="unknown metric 'mes'; did you mean 'mse'"):
        measure("mes", [1], [1])
    with pytest.raises(ValueError, match=r"shape \(2,\) for targets of shape \(3,\)"):
        measure("mse", [1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"\(2, 2\) .* expected \(rows,\) for \(rows,\) to .* mse"):
        measure("mse", [[1, 2], [3, 4]], [1, 2])
    with pytest.raises(ValueError, match=r"\(1, 1, 2\) .* expected \(rows,\) or \(rows, classes\)"):
        measure("f1", [[[1, 2]]], [1])


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"sign": 0}, "the sign 0, expected 1 or -1"),
        ({"takes": ()}, f"of no predictions, expected some of {', '.join(PREDICTIONS)}"),
        ({"takes": ("number", "ranks")}, "a metric of ranks, expected some of"),
        ({"title": ""}, "without a title"),
    ],
)
def test_a_metric_that_is_declared_wrongly_is_refused(said, wrong):
    with pytest.raises(ValueError, match=wrong):
        replace(METRICS["mse"], **said)


@pytest.mark.parametrize("left_out", [f.name for f in fields(Metric)])
def test_a_metric_that_does_not_say_everything_is_refused(left_out):
    said = {f.name: getattr(METRICS["mse"], f.name) for f in fields(Metric) if f.name != left_out}
    with pytest.raises(TypeError, match=f"missing .* argument: '{left_out}'"):
        Metric(**said)


def test_titles_differ():
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
