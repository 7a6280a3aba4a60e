"""Principal Neighbourhood Aggregation: the operation, the layer, the paper's benchmarks."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from pna import aggregators as aggregators
from pna import testing as testing
from pna.adjacency import Adjacency as Adjacency
from pna.data.graphset import GraphSet as GraphSet
from pna.degree import DegreeStats as DegreeStats
from pna.degree import scale as scale
from pna.edge_checks import check as check
from pna.ops.aggregate import aggregate as aggregate
from pna.ops.backend import backend as backend
from pna.patch import patch_pyg as patch_pyg
from pna.train.run import load as load

if _TYPE_CHECKING:
    from pna.estimators import PNAClassifier as PNAClassifier
    from pna.estimators import PNARegressor as PNARegressor


def __getattr__(name: str) -> _Any:
    """The estimators, imported when they are first used: they need scikit-learn."""
    if name in ("PNAClassifier", "PNARegressor"):
        from pna import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
