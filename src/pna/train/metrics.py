"""What is told of predictions, by name: errors, accuracy, the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from pna.names import lookup


def mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean of the squared errors."""
    return float(np.square(predictions - targets).mean())


def mae(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean of the absolute errors."""
    return float(np.abs(predictions - targets).mean())


def log10_mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """The paper's measure of a task; −∞ where there is no error at all."""
    error = mse(predictions, targets)
    return float(np.log10(error)) if error > 0 else -np.inf


def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Share of right classes; of probabilities (rows, classes), or (rows,) of class 1. NaN if one
    of them is."""
    if np.isnan(predictions).any():
        return np.nan
    chosen = predictions.argmax(1) if predictions.ndim == 2 else predictions >= 0.5
    return float((chosen == targets).mean())


def roc_auc(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Chance that a 1 is predicted above a 0, a tie being a half; NaN of a single class."""
    from scipy.stats import rankdata  # takes a second to import

    ones = targets > 0.5
    positive, negative = int(ones.sum()), int((~ones).sum())
    if positive == 0 or negative == 0 or np.isnan(predictions).any():
        return np.nan
    above = rankdata(predictions)[ones].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


#: Each makes a number of predictions and targets, none of them missing and at least one.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mse": mse,
    "mae": mae,
    "log10_mse": log10_mse,
    "accuracy": accuracy,
    "roc_auc": roc_auc,
}


#: What a metric is multiplied by, so that less is better.
BETTER = {"mse": 1, "mae": 1, "log10_mse": 1, "accuracy": -1, "roc_auc": -1}


def measure(name: str, predictions: Any, targets: Any) -> float:
    """A metric over the targets there are, that is, those not NaN; NaN where there are none.

    Predictions are (rows,), or (rows, classes) for the probabilities of classes; both are arrays
    or tensors.
    """
    metric = lookup("metric", name, METRICS)
    given, wanted = _as_numbers(predictions), _as_numbers(targets)
    if wanted.ndim != 1 or given.shape[:1] != wanted.shape:
        raise ValueError(
            f"got predictions of shape {given.shape} for targets of shape {wanted.shape}, "
            "expected (rows,) or (rows, classes) for (rows,)"
        )
    known = ~np.isnan(wanted)
    return metric(given[known], wanted[known]) if known.any() else float("nan")


def _as_numbers(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, np.float64)
