"""Layers and models."""

from typing import Any

from pna.names import warn_renamed
from pna.nn.architectures import Prediction as Prediction
from pna.nn.architectures import Recurrent as Recurrent
from pna.nn.architectures import Stacked as Stacked
from pna.nn.architectures import Standard as Standard
from pna.nn.augmentation import RandomFlip as RandomFlip
from pna.nn.augmentation import RandomRotate as RandomRotate
from pna.nn.augmentation import RandomScaleShift as RandomScaleShift
from pna.nn.augmentation import RandomSigns as RandomSigns
from pna.nn.conv.gat import GATConv as GATConv
from pna.nn.conv.gated_gcn import GatedGCNConv as GatedGCNConv
from pna.nn.conv.gcn import GCNConv as GCNConv
from pna.nn.conv.gin import GINConv as GINConv
from pna.nn.conv.mlp import Gate as Gate
from pna.nn.conv.mlp import MLPConv as MLPConv
from pna.nn.conv.monet import MoNetConv as MoNetConv
from pna.nn.conv.pna import PNAConv as PNAConv
from pna.nn.conv.sage import SAGEConv as SAGEConv
from pna.nn.conv.simple import PNASimpleConv as PNASimpleConv
from pna.nn.convolution import Convolution as Convolution
from pna.nn.models import PNA as PNA
from pna.nn.norm import BatchNorm as BatchNorm
from pna.nn.pooling import ClusterReadout as ClusterReadout
from pna.nn.pooling import DiffPool as DiffPool
from pna.nn.readout import Set2Set as Set2Set
from pna.nn.stochastic_depth import StochasticDepth as StochasticDepth
from pna.nn.virtual_node import VirtualNode as VirtualNode

_RENAMED = {"Mirror": RandomFlip, "Turn": RandomRotate, "Vary": RandomScaleShift}


def __getattr__(name: str) -> Any:
    """Names of earlier versions, and a class that needs PyG."""
    if name == "DegreeScalerAggregation":
        from pna.nn.conv.pyg import need_pyg

        need_pyg("pna.nn.DegreeScalerAggregation")
        from pna.nn.aggr import DegreeScalerAggregation

        return DegreeScalerAggregation
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    now = _RENAMED[name]
    warn_renamed(f"pna.nn.{name}", f"pna.nn.{now.__name__}", stacklevel=2)
    return now
