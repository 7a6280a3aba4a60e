"""Estimates how much memory a PNA layer will need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pna.adjacency import BYTES_PER_EDGE, BYTES_PER_NODE
from pna.nn.conv.fused import FEW_NODES, TO_KEEP
from pna.nn.conv.inputs import NARROW
from pna.nn.conv.small import is_small_size
from pna.nn.conv.wide_edges import blocks_of
from pna.ops.aggregate import one_pass
from pna.ops.aggregators import FUSED, shift_of
from pna.ops.blocks import BLOCK
from pna.ops.request import EDGE_WORKSPACE, LINEAR

if TYPE_CHECKING:
    from pna.nn.conv.pna import PNAConv

#: Bytes per edge that torch needs to sort the rows of a gradient it sums, as measured.
_SORTING = 10 * 8


def estimate(
    layer: PNAConv,
    num_nodes: int | tuple[int, int],
    num_edges: int,
    training: bool,
    dense: bool,
    called: bool,
) -> int:
    """Estimate the peak memory of a call in bytes; see `PNAConv.memory`.

    A layer for both directions needs twice as much: its first half is kept while the second one is
    computed. The tensors of senders are few: their part of M and, in training, two gradients.

    Args:
        layer: the layer.
        num_nodes: nodes of the graph, or senders and receivers.
        num_edges: edges of the graph.
        training: whether a backward pass follows.
        dense: whether edge features are wide and given for every edge, not as a table.
        called: whether parts of the layer are called as modules.
    """
    if isinstance(num_nodes, tuple):
        senders, receivers = num_nodes
        of_sender = layer.towers * layer.F_in + training * (layer.towers * layer.F_in)
        of_sender += training * layer._widths[0]
        at_receivers = _estimate(layer, receivers, num_edges, training, dense, called)
        return at_receivers + (senders - receivers) * of_sender * _size(layer)
    one = _estimate(layer, num_nodes, num_edges, training, dense, called)
    return one * len(layer._sides)


def estimate_kept(layer: PNAConv, num_nodes: int, num_edges: int, dense: bool) -> int:
    """Estimate the bytes that a layer keeps for its backward pass; see `PNAConv.kept_memory`."""
    size, width = _size(layer), layer.towers * layer.F_in
    messages = num_edges * width * size
    if layer._called_part() is not None:
        return len(layer._swapped) * (1 + len(layer.pre)) * messages
    products = 2 * (num_nodes * width <= TO_KEEP)  # of senders and of receivers
    results = (layer.neighbourhood.num_aggregators + products) * width * size
    outputs = layer.out_channels * (len(layer.post) + (layer.towers > 1) - 1) * size
    kept = (results + outputs + _saved_bytes(layer) * width) * num_nodes
    if len(layer.pre) > 1:
        kept += len(layer._swapped) * len(layer.pre) * messages
    if dense and not blocks_of(num_edges, width):
        kept += messages
    return kept * len(layer._sides)


def _estimate(
    layer: PNAConv, num_nodes: int, num_edges: int, training: bool, dense: bool, called: bool
) -> int:
    """Return the bytes of one direction of edges."""
    graph = BYTES_PER_EDGE * num_edges + BYTES_PER_NODE * num_nodes
    if called:
        return graph + _called(layer, num_nodes, num_edges, training, dense)
    size = _size(layer)
    in_place = size == 4 and num_nodes > FEW_NODES and bool(layer._plans)
    per_node = _training_bytes(layer, size, in_place) if training else _inference_bytes(layer, size)
    messages = num_edges * layer.towers * layer.F_in * size  # one row for each edge
    if len(layer.pre) > 1:
        block = _block(layer, num_edges, training, _count_made(layer, shifted=False))
        if training:  # saved for every view: the input of M, and the output of each of its layers
            kept = len(layer._swapped) * len(layer.pre) * messages
            return graph + per_node * num_nodes + kept + max(messages, block)
        # before the aggregation: the parts of senders, receivers and edges, and their sum
        nodes = (2 * layer.towers * layer.F_in + layer.out_channels) * size * num_nodes
        making = (3 + (layer.edge_dim is not None)) * messages
        return graph + nodes + max(making, messages + block + _positions(layer) * num_nodes)
    made = _count_made(layer, shifted=True)
    if layer._plans and layer._shares == 1 and is_small_size(layer._form, num_nodes, num_edges):
        return graph + _small(layer, num_nodes, num_edges, training, dense)
    workspace = _block(layer, num_edges, training, made) + _positions(layer) * num_nodes
    if dense:
        workspace += _of_wide_edges(layer, num_nodes, num_edges, training)
    elif training and layer.edge_dim is not None:
        workspace += min(EDGE_WORKSPACE, layer.towers * layer.F_in * 4 * num_edges)
    return graph + per_node * num_nodes + workspace


def _of_wide_edges(layer: PNAConv, num_nodes: int, num_edges: int, training: bool) -> int:
    """Return the bytes of C e, and in training of its gradient; of a block both are one tensor."""
    columns = layer.towers * layer.F_in
    blocks = blocks_of(num_edges, columns)
    if not blocks:
        return num_edges * columns * (2 if training else 1) * _size(layer)
    results = layer._form.aggregators * num_nodes if training else 0  # of a block, copied
    return (num_edges + results) * blocks[0].stop * _size(layer)


def _small(layer: PNAConv, num_nodes: int, num_edges: int, training: bool, dense: bool) -> int:
    """Return the bytes of `small_layer`: the inputs of U, and in training the gradients of these
    and of all messages."""
    size, width = _size(layer), layer.towers * layer.F_in
    form = layer._form
    inputs = layer.towers * (layer._own + form.scalers * form.aggregators * form.width)
    columns = inputs + 2 * width + 2 * layer.out_channels
    at_edges = width * dense
    if training:
        columns += inputs + 2 * width + layer.out_channels + layer._widths[1]
        at_edges += width
    return (columns * size + 5 * width * 4) * num_nodes + at_edges * size * num_edges


def _size(layer: PNAConv) -> int:
    return next(layer.parameters()).element_size()


def _count_made(layer: PNAConv, shifted: bool) -> int:
    """Count the aggregators that need messages, which are computed for a block of receivers at a
    time: those without a kernel and, with `shifted`, those whose shift is unknown."""
    aggregators = layer.neighbourhood.aggregators
    _, fused = one_pass(aggregators)
    return sum(
        i not in fused or (shifted and shift_of(aggregator) == "unknown")
        for i, aggregator in enumerate(aggregators)
    )


def _block(layer: PNAConv, num_edges: int, training: bool, count: int) -> int:
    """Return the bytes for the messages of one block, in float32 or float64, and for `count`
    aggregators of them. The factors are fitted to measurements."""
    numbers = min(num_edges * layer.towers * layer.F_in, BLOCK)
    times = (4.5 + 1.3 * (count - 1)) if training else 4
    return round(numbers * max(_size(layer), 4) * times) if count else 0


def _called(layer: PNAConv, num_nodes: int, num_edges: int, training: bool, dense: bool) -> int:
    """Return the bytes if parts are called as modules: M for every edge, U on all scaled results.

    The peak is at the scaled aggregates, at the call of U, at the computation of the messages (in
    training, of their gradient), or at aggregators without a kernel. In inference, the messages are
    freed before U is called. The bytes per node in training, except for the inputs of U, are fitted
    to measurements.
    """
    size, width, depth = _size(layer), layer.towers * layer.F_in, len(layer.pre)
    aggregators, views = layer.neighbourhood.num_aggregators, len(layer._swapped)
    scaled = layer.neighbourhood.num_scalers * aggregators
    made = _count_made(layer, shifted=False)
    block = _block(layer, num_edges, training, made)
    # bytes per edge: a message, the input of M, and edge features that are also stored
    message, inputs = width * size, layer.towers * layer._shapes[0][2] * size
    is_table = layer.edge_dim is not None and layer.edge_dim > NARROW and not dense
    looked_up = (layer.edge_dim or 0) * size if is_table else 0
    edge = looked_up if layer.edge_encoder is None else layer.F_in * size
    # features per node: aggregates, scaled aggregates, and copies of these by tower or in float32
    copies = 3 if size < 4 and not training else 1 + (layer.towers > 1)
    row = width * size * num_nodes  # the bytes of one feature vector for each node
    results = (2 * aggregators + 4 + 6 * made * training) * row
    if training:
        columns = 2 * aggregators + 2 + scaled * (1 + copies) + 6 * made
        columns = 5 * scaled + 4 * aggregators + 1 if size < 4 else columns
        outputs = layer.out_channels * (len(layer.post) + 1) * size * num_nodes
        at_nodes = columns * row + outputs
        kept = inputs + depth * message  # bytes per edge and view
        others = (views - 1) * kept + looked_up
        gradient = max(2 * inputs, kept) + message + _SORTING
        return max(
            (kept + others + edge) * num_edges + at_nodes,
            (gradient + others) * num_edges + results,
            (kept + others) * num_edges + block + results,
        )
    making = inputs + (2 + (depth > 1) + (views - 1)) * message
    return max(
        (message + edge) * num_edges + (1 + 2 * aggregators + scaled * copies) * row,
        (2 * scaled + 1) * row + layer.out_channels * size * num_nodes,  # the inputs of U, joined
        (making + edge) * num_edges + (views - 1) * aggregators * row,  # those of earlier views
        (message + edge) * num_edges + block + results,
    )


def _inference_bytes(layer: PNAConv, size: int) -> int:
    """Return the bytes per node: the senders' and receivers' parts, aggregates, and U's sums."""
    width = layer.towers * layer.F_in
    return size * ((layer.neighbourhood.num_aggregators + 2) * width + 2 * layer.out_channels)


def _positions(layer: PNAConv) -> int:
    """Return the bytes per node for an extremum in a custom aggregator (`hood.min`): positions in
    int64 before and after they are found, the extremum, and that of an earlier call."""
    if all(shift_of(aggregator) != "unknown" for aggregator in layer.neighbourhood.aggregators):
        return 0
    return layer.towers * layer.F_in * (2 * 8 + 2 * max(_size(layer), 4))


def _training_bytes(layer: PNAConv, size: int, in_place: bool) -> int:
    """Return the bytes per node while the gradient of the messages is computed: messages,
    aggregates and their gradients, tensors saved by the kernels, the output, and the gradient of
    x."""
    width, aggregators = layer.towers * layer.F_in, layer.neighbourhood.aggregators
    kinds = {FUSED.get(type(aggregator)) for aggregator in aggregators}
    spread, extrema = bool(kinds & {"std", "var"}), bool(kinds & {"max", "min"})
    rows = 1 + spread + ("normalised_mean" in kinds)
    if in_place and rows <= len(kinds & set(LINEAR)) and "normalised_mean" not in kinds:
        rows = 1  # they replace gradients of aggregates, and the peak is at those of U
    kept = 4 * rows + 2 * extrema
    outputs = layer.out_channels * (len(layer.post) + (layer.towers > 1 or len(layer.post) > 1))
    tensors = (2 * len(aggregators) + 2) * width + outputs + layer._widths[1]
    return size * tensors + kept * width


def _saved_bytes(layer: PNAConv) -> int:
    """Return the bytes for each feature of a node that kernels save beside the aggregates: the mean
    and the places of the extrema."""
    kinds = {FUSED.get(type(aggregator)) for aggregator in layer.neighbourhood.aggregators}
    spread, extrema = bool(kinds & {"std", "var"}), bool(kinds & {"max", "min"})
    return 4 * spread + 2 * extrema
