"""Estimators in the manner of scikit-learn: molecules or graphs in, numbers or classes out."""

from importlib.util import find_spec as _find_spec

if _find_spec("sklearn") is None:
    raise ModuleNotFoundError(
        "got no scikit-learn, needed for PNARegressor and PNAClassifier; pip install 'pna[sklearn]'"
    )

from pna.estimators.classifier import PNAClassifier as PNAClassifier
from pna.estimators.regressor import PNARegressor as PNARegressor
