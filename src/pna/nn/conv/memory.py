"""How much memory a layer will need, before it needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pna.ops.aggregators import FUSED
from pna.ops.blocks import BLOCK
from pna.ops.request import EDGE_WORKSPACE

if TYPE_CHECKING:
    from pna.nn.conv.pna import PNAConv

#: Bytes of an Adjacency for each edge and for each node.
_PER_EDGE, _PER_NODE = 4 * 4, 7 * 4


def estimate(
    layer: PNAConv, num_nodes: int, num_edges: int, training: bool, materialised: bool
) -> int:
    """Bytes at the peak of a call; see `PNAConv.memory`. `materialised`: edge features are wide,
    and their part in the messages is made for every edge."""
    size = next(layer.parameters()).element_size()
    graph = _PER_EDGE * num_edges + _PER_NODE * num_nodes
    per_node = _training_bytes(layer, size) if training else _inference_bytes(layer, size)
    messages = num_edges * layer.towers * layer.F_in * size  # one row for each edge
    if len(layer.pre) > 1:
        if training:  # what comes in, and what each layer of M makes of it
            return graph + per_node * num_nodes + (len(layer.pre) + 1) * messages
        # before the aggregates: parts of senders, receivers and edges, and their sum
        nodes = (2 * layer.towers * layer.F_in + layer.out_channels) * size * num_nodes
        return graph + nodes + (3 + (layer.edge_dim is not None)) * messages
    workspace = 0.0
    if materialised:
        workspace = messages * (2 if training else 1)
    elif training and layer.edge_dim is not None:
        workspace = min(EDGE_WORKSPACE, layer.towers * layer.F_in * 4 * num_edges)
    if any(type(aggregator) not in FUSED for aggregator in layer.neighbourhood.aggregators):
        workspace += min(messages, BLOCK * size) * (4.5 if training else 4)
    return graph + per_node * num_nodes + round(workspace)


def _inference_bytes(layer: PNAConv, size: int) -> int:
    """For each node: what senders and receivers contribute, the aggregates, and U before and
    after them."""
    width = layer.towers * layer.F_in
    return size * ((layer.neighbourhood.num_aggregators + 2) * width + 2 * layer.out_channels)


def _training_bytes(layer: PNAConv, size: int) -> int:
    """For each node, when the gradient of the messages is made: messages, aggregates and their
    gradients, what the kernels keep of them, results, and the gradient of x."""
    width, aggregators = layer.towers * layer.F_in, layer.neighbourhood.aggregators
    kinds = {FUSED.get(type(aggregator)) for aggregator in aggregators}
    spread, extrema = bool(kinds & {"std", "var"}), bool(kinds & {"max", "min"})
    kept = 4 * (1 + spread + ("normalised_mean" in kinds)) + 2 * extrema
    outputs = layer.out_channels * (len(layer.post) + (layer.towers > 1 or len(layer.post) > 1))
    tensors = (2 * len(aggregators) + 2) * width + outputs + layer.in_channels
    return size * tensors + kept * width
