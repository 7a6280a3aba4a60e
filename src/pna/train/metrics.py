"""Metrics by name: of numbers, and of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from pna.names import lookup

#: What predictions can be: numbers (rows,), probabilities of class 1 (rows,), their logits (rows,),
#: or probabilities of classes (rows, classes).
PREDICTIONS = ("number", "probability", "logit", "classes")


@dataclass(frozen=True)
class Metric:
    """A metric, and all that depends on it. No field has a default, so that none is forgotten."""

    function: Callable[[np.ndarray, np.ndarray], float]  # predictions without NaN, and targets
    sign: int  # 1 if lower is better, −1 if higher is better
    takes: tuple[str, ...]  # of `PREDICTIONS`; with "logit", any score of class 1 gives the same
    title: str  # in tables
    scaled: bool  # whether numbers are divided by the scale of their target; else in its units

    def __post_init__(self) -> None:
        if self.sign not in (1, -1):
            raise ValueError(f"got a metric with the sign {self.sign!r}, expected 1 or -1")
        if not self.takes or (odd := [kind for kind in self.takes if kind not in PREDICTIONS]):
            raise ValueError(
                f"got a metric of {', '.join(odd) if self.takes else 'no predictions'}, expected "
                f"some of {', '.join(PREDICTIONS)}"
            )
        if not self.title:
            raise ValueError("got a metric without a title, expected one for tables")

    def suits(self, outputs: str) -> bool:
        """Whether it measures outputs of this kind: "number", "probability" or "classes"."""
        return outputs in self.takes or (outputs == "probability" and "logit" in self.takes)


def mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error."""
    return float(np.square(predictions - targets).mean())


def mae(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.abs(predictions - targets).mean())


def rmse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(mse(predictions, targets)))


def r2(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Share of the variance of the targets that is explained; NaN if all targets are equal."""
    variance = targets.var()
    return float(1 - mse(predictions, targets) / variance) if np.ptp(targets) > 0 else np.nan


def spearman(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Spearman's rank correlation: 0 if all predictions are equal, NaN if all targets are."""
    if np.ptp(targets) == 0:
        return np.nan
    if (predictions == predictions[0]).all():
        return 0.0
    return float(np.corrcoef(_ranks(predictions), _ranks(targets))[0, 1])


def log10_mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """log10 of the mean squared error, the paper's metric; −∞ if the error is 0."""
    error = mse(predictions, targets)
    return float(np.log10(error)) if error > 0 else -np.inf


def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Share of correct classes: the most likely one, or class 1 from a probability of 0.5 on."""
    return float((_chosen(predictions) == targets).mean())


def balanced_accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean over the classes that occur in the targets: the share of each that is found."""
    _, hits, _, actual = _counts(predictions, targets)
    return float((hits[actual > 0] / actual[actual > 0]).mean())


def f1(predictions: np.ndarray, targets: np.ndarray) -> float:
    """F1 = 2·hits / (predicted + actual) of class 1; of classes, the mean over all that occur in
    predictions or targets. NaN if class 1 occurs in neither."""
    labels, hits, predicted, actual = _counts(predictions, targets)
    scores = 2 * hits / (predicted + actual)
    scores = scores if predictions.ndim == 2 else scores[labels == 1]
    return float(scores.mean()) if len(scores) else np.nan


def mcc(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Matthews' correlation of predicted classes and targets: 0 if one class is predicted
    everywhere, NaN if all targets have one class."""
    _, hits, predicted, actual = _counts(predictions, targets)
    rows = actual.sum()
    spread, wanted = (rows**2 - (counts**2).sum() for counts in (predicted, actual))
    if wanted == 0:
        return np.nan
    shared = hits.sum() * rows - (predicted * actual).sum()
    return float(shared / (np.sqrt(spread) * np.sqrt(wanted))) if spread > 0 else 0.0


def roc_auc(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Area under the ROC curve of class 1; of classes, the mean of each against the rest.

    A class that no target has, or all have, is left out; NaN if no other is left.
    """
    return _one_against_rest(_area, predictions, targets)


def average_precision(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean precision at the scores of the targets of class 1; of classes, the mean of each against
    the rest.

    A class that no target has, or all have, is left out; NaN if no other is left.
    """
    return _one_against_rest(_precision, predictions, targets)


def by_class(scores: np.ndarray, chosen: np.ndarray, targets: np.ndarray) -> dict[str, list[float]]:
    """Metrics of every class against the rest, from scores (rows, classes) and chosen classes.

    "accuracy" is the share of the targets of a class that is found, "rows" their number. A metric
    is NaN if it is not defined.
    """
    found: dict[str, list[float]] = {name: [] for name in (*BY_CLASS, "rows")}
    for label, column in enumerate(scores.T):
        ones, predicted = targets == label, chosen == label
        hits, actual = int((ones & predicted).sum()), int(ones.sum())
        either = actual + int(predicted.sum())
        found["f1"].append(2 * hits / either if either else np.nan)
        found["average_precision"].append(average_precision(column, ones.astype(np.float64)))
        found["roc_auc"].append(roc_auc(column, ones.astype(np.float64)))
        found["accuracy"].append(hits / actual if actual else np.nan)
        found["rows"].append(actual)
    return found


def _chosen(predictions: np.ndarray) -> np.ndarray:
    return predictions.argmax(1) if predictions.ndim == 2 else predictions >= 0.5


def _counts(
    predictions: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The classes that occur; how often each is found, predicted, and a target."""
    wanted = targets if predictions.ndim == 2 else targets > 0.5
    both = np.stack([_chosen(predictions), wanted])
    labels, index = np.unique(both, return_inverse=True)
    predicted, actual = index.reshape(both.shape)
    of = (actual[predicted == actual], predicted, actual)
    hits, predicted, actual = (np.bincount(rows, minlength=len(labels)) for rows in of)
    return labels, hits, predicted, actual


def _one_against_rest(
    measured: Callable[[np.ndarray, np.ndarray], float],
    predictions: np.ndarray,
    targets: np.ndarray,
) -> float:
    """The mean of a metric of two classes over the columns for which it is defined."""
    if predictions.ndim == 1:
        pairs = [(predictions, targets > 0.5)]
    else:
        pairs = [(column, targets == c) for c, column in enumerate(predictions.T)]
    found = [measured(scores, ones) for scores, ones in pairs if ones.any() and not ones.all()]
    return float(np.mean(found)) if found else np.nan


def _area(scores: np.ndarray, ones: np.ndarray) -> float:
    positive, negative = int(ones.sum()), int((~ones).sum())
    above = _ranks(scores)[ones].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, of ties their mean. scipy's rankdata takes a second to import."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (counts.cumsum() - (counts - 1) / 2)[index]
    return ranks


def _precision(scores: np.ndarray, ones: np.ndarray) -> float:
    order = np.argsort(-scores)
    ranked = scores[order]
    # equal scores have one threshold, after the last of them
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    hits = ones[order].cumsum()[ends]
    return float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / hits[-1])


#: Metrics that are shown of each kind of outputs, the most important first. JSON has all of them.
SHOWN = {
    "number": ("rmse", "mae", "r2", "spearman"),
    "probability": ("roc_auc", "average_precision", "f1", "mcc", "accuracy"),
    "classes": ("accuracy", "balanced_accuracy", "f1", "mcc"),
}
#: Metrics of single classes.
BY_CLASS = ("f1", "average_precision", "roc_auc", "accuracy")

_OF_NUMBERS = ("number",)
_OF_CHOICES = ("probability", "classes")
_OF_RANKS = ("logit", "classes")

#: All metrics; there is at least one target, and none is missing.
METRICS = {
    "rmse": Metric(rmse, 1, _OF_NUMBERS, "RMSE", scaled=False),
    "mae": Metric(mae, 1, _OF_NUMBERS, "MAE", scaled=False),
    "r2": Metric(r2, -1, _OF_NUMBERS, "R²", scaled=False),
    "spearman": Metric(spearman, -1, _OF_NUMBERS, "Spearman", scaled=False),
    "mse": Metric(mse, 1, _OF_NUMBERS, "MSE", scaled=False),
    "log10_mse": Metric(log10_mse, 1, _OF_NUMBERS, "log10 MSE", scaled=True),
    "roc_auc": Metric(roc_auc, -1, _OF_RANKS, "ROC AUC", scaled=False),
    "average_precision": Metric(
        average_precision, -1, _OF_RANKS, "average precision", scaled=False
    ),
    "f1": Metric(f1, -1, _OF_CHOICES, "F1", scaled=False),
    "mcc": Metric(mcc, -1, _OF_CHOICES, "MCC", scaled=False),
    "accuracy": Metric(accuracy, -1, _OF_CHOICES, "accuracy", scaled=False),
    "balanced_accuracy": Metric(
        balanced_accuracy, -1, _OF_CHOICES, "balanced accuracy", scaled=False
    ),
}


def measure(name: str, predictions: Any, targets: Any) -> float:
    """A metric over the targets that are not NaN; NaN if there are none, or if a prediction of
    these is NaN.

    Predictions are (rows,), or probabilities (rows, classes); both are arrays or tensors.
    """
    metric = lookup("metric", name, METRICS)
    given, wanted = _as_numbers(predictions), _as_numbers(targets)
    shapes = "(rows,) or (rows, classes)" if "classes" in metric.takes else "(rows,)"
    fits = given.ndim == 1 or (given.ndim == 2 and "classes" in metric.takes)
    if wanted.ndim != 1 or not fits or given.shape[:1] != wanted.shape:
        raise ValueError(
            f"got predictions of shape {given.shape} for targets of shape {wanted.shape}, "
            f"expected {shapes} for (rows,) to compute {name}"
        )
    known = ~np.isnan(wanted)
    given, wanted = given[known], wanted[known]
    if len(wanted) == 0 or np.isnan(given).any():
        return float("nan")
    return metric.function(given, wanted)


def is_defined(name: str, targets: np.ndarray, classes: int = 0) -> bool:
    """Whether a metric of these targets (rows,) has a value: ROC AUC of one class has none.

    `classes` is their number if predictions are probabilities of classes. A metric that is not
    defined is one that even the right predictions do not have.
    """
    known = targets[~np.isnan(targets)]
    right = np.eye(classes)[known.astype(int)] if classes else known
    return not np.isnan(measure(name, right, known))


def _as_numbers(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, np.float64)
