"""Graphs on their way to a model: sets of them, batches, and bridges to other libraries."""

from pna.data.elements import GraphElements as GraphElements
from pna.data.elements import GraphTarget as GraphTarget
from pna.data.neighbours import NeighbourBatches as NeighbourBatches
from pna.data.node_graph import NodeGraph as NodeGraph
