"""Principal Neighbourhood Aggregation: the operation, the layer, the paper's benchmarks."""

from pna import aggregators as aggregators
from pna import testing as testing
from pna.adjacency import Adjacency as Adjacency
from pna.adjacency import check as check
from pna.data.graphset import GraphSet as GraphSet
from pna.degree import DegreeStats as DegreeStats
from pna.degree import scale as scale
from pna.ops.aggregate import aggregate as aggregate
from pna.ops.backend import backend as backend
from pna.patch import patch_pyg as patch_pyg
from pna.train.run import load as load
