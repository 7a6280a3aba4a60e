"""Temperature scaling: probabilities that fit the frequencies of calibration rows."""

from __future__ import annotations

import numpy as np

_LIMITS = (0.05, 20.0)  # of a temperature
_EDGE = 1e-15  # probabilities are kept this far from 0 and 1


def scaled(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """sigmoid(logit(p) / temperature). It keeps the order of probabilities, and 0.5 as it is."""
    if temperature == 1.0:
        return probabilities
    from scipy.special import expit, logit  # takes a second to import

    clipped = np.clip(probabilities, _EDGE, 1 - _EDGE)
    found: np.ndarray = expit(logit(clipped) / temperature)
    return found


def log_loss(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Mean of -log of the probability of the target, from (rows,) each; targets are known."""
    p = np.clip(probabilities, _EDGE, 1 - _EDGE)
    return float(-(targets * np.log(p) + (1 - targets) * np.log1p(-p)).mean())


def calibration_error(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """How far probabilities are from frequencies, in ten bins of probabilities of equal width.

    It is the mean of |mean probability - mean target| of the bins, weighted by their rows.
    """
    bins = np.minimum((10 * probabilities).astype(int), 9)
    apart = np.bincount(bins, probabilities - targets, 10)
    return float(np.abs(apart).sum() / len(targets))


def best_temperature(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """The temperature of the lowest log loss, from (rows,) each, leaving out unknown targets.

    It is at least 0.05 and at most 20, and 1 if the targets are of one class.
    """
    known = ~np.isnan(targets)
    p, ones = probabilities[known], targets[known] > 0.5
    if ones.all() or not ones.any() or np.isnan(p).any():
        return 1.0
    from scipy.optimize import minimize_scalar
    from scipy.special import logit

    margins = np.where(ones, 1, -1) * logit(np.clip(p, _EDGE, 1 - _EDGE))

    def loss(log_temperature: float) -> float:
        return float(np.logaddexp(0, -margins / np.exp(log_temperature)).mean())

    found = minimize_scalar(loss, bounds=np.log(_LIMITS), method="bounded")
    return float(np.exp(found.x))
