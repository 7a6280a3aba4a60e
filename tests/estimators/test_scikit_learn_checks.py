"""scikit-learn's own checks of estimators.

They feed matrices of numbers, and estimators of molecules refuse these. The subclasses here make a
graph of every row of a matrix, so that the checks reach everything else.
"""

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

from pna import GraphSet, PNAClassifier, PNARegressor

#: Checks that cannot apply, and why.
CANNOT_APPLY: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "a sample that is repeated is in several "
    "batches, in an order of its own, and may be validated too; weights are of the loss only",
}
#: Checks that scikit-learn skips itself.
SKIPPED = {"check_array_api_input"}  # unless an environment variable asks for it
TINY: dict[str, Any] = {"members": 1, "epochs": 1, "hidden": 4, "layers": 1}


class Rows:
    """Takes matrices: each row becomes a graph of two connected nodes with its numbers."""

    def _graphs(self, X):
        return graphs_of(validate_data(self, X))

    def _graphs_to_predict(self, X):
        return graphs_of(validate_data(self, X, reset=False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        assert not tags.input_tags.two_d_array  # otherwise the checks would run on molecules
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        (tags.regressor_tags or tags.classifier_tags).poor_score = True  # of one epoch
        return tags


def graphs_of(X):
    two, ends = np.full(len(X), 2), np.tile([[0, 1], [1, 0]], len(X))
    return GraphSet.from_arrays(two, ends, two, x=np.repeat(np.asarray(X, np.float32), 2, 0))


class RowRegressor(Rows, PNARegressor):
    pass


class RowClassifier(Rows, PNAClassifier):
    pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [RowRegressor, RowClassifier])
def test_checks_of_scikit_learn(kind):
    """Slow: some fifty checks fit about a hundred estimators."""
    found = check_estimator(
        kind(**TINY), expected_failed_checks=CANNOT_APPLY, on_skip=None, on_fail="raise"
    )
    passed = {one["check_name"] for one in found if one["status"] == "passed"}
    assert len(passed) > 40
    assert {one["check_name"] for one in found} - passed == SKIPPED | {*CANNOT_APPLY}
