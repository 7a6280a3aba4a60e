"""Prediction intervals by split conformal prediction, from the errors of calibration rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_LEAST = 1e-6  # smallest τ² relative to the mean squared error


@dataclass(frozen=True)
class Interval:
    """mean ± factor · sqrt(std² + τ²), from the mean and deviation of the members' predictions."""

    tau: float
    factor: float  # quantile of the normalised errors of the calibration rows

    def around(self, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, (rows,) each."""
        half = self.factor * np.sqrt(std**2 + self.tau**2)
        return mean - half, mean + half


def fitted_interval(
    targets: np.ndarray, mean: np.ndarray, std: np.ndarray, level: float, name: str
) -> Interval:
    """The interval that covers a share `level` of new rows, from calibration rows (rows,) each.

    The score of a row is its error |y - mean| / sqrt(std² + τ²). Rows without a target are left
    out. `name` is that of the target, for errors. With one member std is 0, and the guarantee of
    split conformal prediction is exact: new rows that are exchangeable with the calibration rows
    are covered with a probability of at least `level`. With more members, τ is estimated from the
    same rows, which changes the coverage by a term that vanishes as 1/rows.
    """
    known = ~np.isnan(targets)
    errors, std = np.abs(targets - mean)[known], std[known]
    tau = between_rows(errors, std)
    # with a tiny number, rows without any error have the score 0
    scores = errors / np.maximum(np.sqrt(std**2 + tau**2), np.finfo(float).tiny)
    return Interval(tau, conformal_quantile(scores, level, name))


def between_rows(errors: np.ndarray, std: np.ndarray) -> float:
    """τ by the method of moments: the mean of error² is that of std² + τ².

    τ is what the disagreement of the members does not explain. It is a small number above 0 if they
    explain all of it.
    """
    if len(errors) == 0:
        return 0.0
    squares = float(np.mean(errors**2))
    return math.sqrt(max(squares - float(np.mean(std**2)), _LEAST * squares))


def conformal_quantile(scores: np.ndarray, level: float, name: str) -> float:
    """The ceil((n + 1) · level)-th smallest of n scores."""
    check_level(level)
    rank = math.ceil((len(scores) + 1) * level - 1e-9)  # 0.9 is a little more than nine tenths
    if rank > len(scores):
        least = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"got {len(scores)} calibration rows with a known {name} for intervals of level "
            f"{level:g}, expected at least {least}; train with a larger --calibration, or choose a "
            "lower --interval"
        )
    return float(np.partition(scores, rank - 1)[rank - 1])


def check_level(level: float) -> None:
    """Raise unless a level is a share of rows."""
    if not 0 < level < 1:
        raise ValueError(
            f"got --interval {level:g}, expected a share of the rows above 0 and below 1, such as "
            "0.9"
        )
