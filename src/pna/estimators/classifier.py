"""`PNAClassifier`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from pna.estimators.base import PARAMETERS, GraphEstimator
from pna.stored import check


class PNAClassifier(ClassifierMixin, GraphEstimator):
    __doc__ = f"""Predicts classes of molecules or graphs with an ensemble of PNA models.

    `classes_` are the labels in order, and `run_` is the `Run` of the last fit.

    {PARAMETERS}"""

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PNAClassifier:
        """Train on molecules X, as for `PNARegressor`, and their labels y (molecules,).

        Labels are texts, whole numbers or booleans, of two or more classes. `sample_weight` is as
        for `PNARegressor`.
        """
        graphs, labels = self._samples(X, _labels(y), sample_weight)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"got one class only, {classes[0]!r}, expected at least 2; give molecules of "
                "another class too"
            )
        names = [str(name) for name in classes.tolist()]
        loss = "bce" if len(names) == 2 else "cross_entropy"
        columns = codes.reshape(-1, 1).astype(np.float64)
        self._train(graphs, columns, codes.reshape(-1), loss, {"classes": {"y": names}})
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every molecule."""
        likeliest = self.predict_proba(X).argmax(1)  # raises before fit
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (molecules, classes), in the order of `classes_`: means over members."""
        return self._in_shape(self._predicted(X)[0])

    def _predicted(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, std = super()._predicted(X)
        if mean.shape[1] == 1:  # the probability of the second class
            return np.concatenate([1 - mean, mean], 1), np.concatenate([std, std], 1)
        return mean, std

    def _facts(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "type": self.classes_.dtype.str}

    def _restore(self, content: Mapping[str, Any]) -> None:
        check(dict(content), {"classes": list[Any], "type": str})
        if content["type"][1:2] not in "biufUO":
            raise ValueError(f"its classes have type {content['type']!r}")
        self.classes_ = np.array(content["classes"], dtype=content["type"])


def _labels(y: Any) -> NDArray[Any]:
    """The labels, (rows,); raises if one is unknown."""
    if y is None:
        raise ValueError(
            "PNAClassifier requires y to be passed, but the target y is None; give the labels"
        )
    labels = column_or_1d(y, warn=True)
    unknown = [i for i, label in enumerate(labels.tolist()) if label is None or label != label]
    if unknown:
        raise ValueError(
            f"got an unknown label, NaN or None, at index {unknown[0]} of y, expected a class for "
            "every molecule; leave such molecules out"
        )
    check_classification_targets(labels)
    return labels
