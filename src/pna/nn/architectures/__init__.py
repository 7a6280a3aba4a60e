"""Whole models, a file each: from a batch of graphs to predictions for its nodes and graphs."""

from torch import nn

from pna.nn.architectures.parts import Prediction as Prediction
from pna.nn.architectures.recurrent import Recurrent as Recurrent
from pna.nn.architectures.stacked import Stacked as Stacked
from pna.nn.architectures.standard import Standard as Standard

ARCHITECTURES: dict[str, type[nn.Module]] = {
    "recurrent": Recurrent,
    "standard": Standard,
    "stacked": Stacked,
}
