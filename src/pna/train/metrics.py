"""Metrics by name: errors, accuracy, the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from pna.names import lookup


def mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean squared error."""
    return float(np.square(predictions - targets).mean())


def mae(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.abs(predictions - targets).mean())


def log10_mse(predictions: np.ndarray, targets: np.ndarray) -> float:
    """log10 of the mean squared error, the paper's metric; −∞ if the error is 0."""
    error = mse(predictions, targets)
    return float(np.log10(error)) if error > 0 else -np.inf


def accuracy(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Share of correct classes, from probabilities (rows, classes), or (rows,) of class 1; NaN if
    any of them is NaN."""
    if np.isnan(predictions).any():
        return np.nan
    chosen = predictions.argmax(1) if predictions.ndim == 2 else predictions >= 0.5
    return float((chosen == targets).mean())


def roc_auc(predictions: np.ndarray, targets: np.ndarray) -> float:
    """Area under the ROC curve; NaN if there is only one class."""
    from scipy.stats import rankdata  # takes a second to import

    ones = targets > 0.5
    positive, negative = int(ones.sum()), int((~ones).sum())
    if positive == 0 or negative == 0 or np.isnan(predictions).any():
        return np.nan
    above = rankdata(predictions)[ones].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


#: Functions of predictions and targets; there is at least one target, and none is missing.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mse": mse,
    "mae": mae,
    "log10_mse": log10_mse,
    "accuracy": accuracy,
    "roc_auc": roc_auc,
}


#: Factor of each metric that makes lower values better.
BETTER = {"mse": 1, "mae": 1, "log10_mse": 1, "accuracy": -1, "roc_auc": -1}


def measure(name: str, predictions: Any, targets: Any) -> float:
    """A metric over the targets that are not NaN; NaN if there are none.

    Predictions are (rows,), or probabilities (rows, classes); both are arrays or tensors.
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
