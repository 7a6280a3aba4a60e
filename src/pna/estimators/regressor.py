"""`PNARegressor`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from pna.data.molecule_table import check_resolution
from pna.estimators.base import PARAMETERS, GraphEstimator, check_length


class PNARegressor(RegressorMixin, GraphEstimator):
    __doc__ = f"""Predicts numbers of molecules or graphs with an ensemble of PNA models.

    `run_` is the `Run` of the last fit.

    {PARAMETERS}"""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PNARegressor:
        """Train on molecules X and their numbers y, (molecules,) or (molecules, targets).

        X is a list, array or Series of SMILES, a list of molecules of RDKit, a data frame with a
        column of SMILES, or a `GraphSet`, whose own targets, splits and weights are ignored. NaN in
        y is an unknown number. `sample_weight` (molecules,), at least 0, weights the losses of
        training and validation; a molecule with the weight 0 is left out.
        """
        graphs, targets = self._samples(X, _numbers(y), sample_weight)
        columns = targets.reshape(len(targets), -1)
        _, groups = np.unique(np.isnan(columns), axis=0, return_inverse=True)
        self._train(graphs, columns, groups.reshape(-1), "mse", {})
        self.is_column_ = targets.ndim == 1
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The mean prediction of the members, in the shape of y."""
        return self._in_shape(self._predicted(X)[0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² over the known numbers of y; with several targets, the mean over these."""
        predicted, targets = self.predict(X), _numbers(y)
        check_length(predicted, targets)
        scores = []
        for own, true in zip(_columns(predicted), _columns(targets), strict=True):
            known = ~np.isnan(true)
            weights = None if sample_weight is None else np.asarray(sample_weight)[known]
            scores.append(r2_score(true[known], own[known], sample_weight=weights))
        return float(np.mean(scores))

    def _in_shape(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        return columns[:, 0] if self.is_column_ else columns

    def _facts(self) -> dict[str, Any]:
        return {"is_column": self.is_column_}

    def _restore(self, content: Any) -> None:
        self.is_column_ = bool(content.get("is_column", True))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _columns(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return numbers.reshape(len(numbers), -1).T


def _numbers(y: Any) -> NDArray[np.float64]:
    """The targets as float64, (rows,) or (rows, targets)."""
    if y is None:
        raise ValueError(
            "PNARegressor requires y to be passed, but the target y is None; give the numbers to "
            "predict"
        )
    try:
        numbers = np.asarray(y, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"got y that is not numbers ({error}), expected numbers, and NaN for those that are "
            "unknown; use PNAClassifier for labels"
        ) from error
    if numbers.ndim not in (1, 2):
        raise ValueError(
            f"got y of shape {numbers.shape}, expected (molecules,) or (molecules, targets)"
        )
    large = np.abs(numbers) > np.finfo(np.float32).max
    if large.any():
        raise ValueError(
            f"got {numbers[large][0]:g} in y, expected finite numbers that float32 holds, or NaN "
            "for an unknown one; use another unit, or correct it"
        )
    for column in _columns(numbers) if len(numbers) else ():
        known = column[~np.isnan(column)]
        check_resolution(known, "numbers in y")
        if len(known) > 1 and np.ptp(known) == 0:
            warnings.warn(
                f"got y with one number only, {known[0]:g}: there is nothing to learn",
                stacklevel=4,
            )
    return numbers
