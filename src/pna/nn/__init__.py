"""Layers and models."""

from pna.nn.conv.pna import PNAConv as PNAConv
from pna.nn.conv.simple import PNASimpleConv as PNASimpleConv
from pna.nn.models import PNA as PNA
