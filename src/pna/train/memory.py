"""Estimates of the memory of a full batch of one graph, before a run allocates it."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from pna.adjacency import BYTES_PER_EDGE, BYTES_PER_NODE
from pna.data.graphset import GraphSet
from pna.machine import free_memory
from pna.nn.convolution import Convolution
from pna.train.defaults import SEEDS
from pna.train.models import count_parameters, outline
from pna.train.run import Config
from pna.train.settings import PRECISIONS, Settings
from pna.train.tasks import sampled_level

#: Copies of all weights: the weights, their gradient, two moments, the best epoch, and others that
#: exist for a moment.
_COPIES = 9

#: Bytes for each edge while the graph is prepared: its Adjacency and numbers of 64 bits.
_PREPARING = 40


#: Bytes for each node of a batch: its graph, its targets, and which of them are known.
_OF_BATCH = 32

#: Rows of features for each labelled edge, in its head.
_OF_LABEL = 3.5

#: A graph that is larger by this factor is not small.
_LARGE = 1000

#: What needs less memory.
REMEDIES = (
    "use a smaller --batch-size, --hidden or number of --layers, fewer --members, or --precision "
    "bfloat16"
)

#: Fan-outs of the layers that are sampled if a full batch does not fit; the last one is repeated.
_FAN_OUTS = (15, 10, 5)


def mode_of(config: Config, graphs: GraphSet, device: torch.device) -> str:
    """How a run takes the nodes of one graph, and why, in one line; "" for many graphs."""
    settings = config.settings
    if not _is_one_graph(graphs):
        return ""
    needs, free = full_batch_memory(config, graphs, device), free_memory(device)
    if settings.sample:
        fan_outs, level = ",".join(map(str, settings.sample)), config.tasks[0].level
        return (
            f"sampled neighbours ({fan_outs}), {settings.batch_size:,} {level}s a step: a full "
            f"batch would need about {in_words(needs)} of {in_words(free)} free"
        )
    return f"full batch: needs about {in_words(needs)} of {in_words(free)} free"


def with_mode(config: Config, graphs: GraphSet, device: torch.device) -> Config:
    """The configuration with sampled neighbours, if a full batch of one graph seems to need more
    memory than is free. Raises if its model cannot have them."""
    settings = config.settings
    if settings.sample or settings.full_batch or not _is_one_graph(graphs):
        return config
    needs, free = full_batch_memory(config, graphs, device), free_memory(device)
    if needs <= free:
        return config
    model: Any = outline(config.model, sys.maxsize)
    layers = model.num_layers(graphs.num_nodes)
    try:
        model.check_sample(layers)
        sampled_level(config.tasks)
    except ValueError as error:
        raise MemoryError(
            f"got {graphs.num_nodes:,} nodes and {graphs.num_edges:,} edges, a full batch of which "
            f"needs about {in_words(needs)}, expected at most the {in_words(free)} that are free "
            f"on {device}. Neighbours cannot be sampled instead: {error}; or {REMEDIES}; or try "
            "it all the same with full_batch (--full-batch)"
        ) from error
    sample = _FAN_OUTS[:layers] + _FAN_OUTS[-1:] * (layers - len(_FAN_OUTS))
    size = SEEDS if settings.batch_size == Settings.batch_size else settings.batch_size
    return replace(config, settings=replace(settings, sample=sample, batch_size=size))


def _is_one_graph(graphs: GraphSet) -> bool:
    return len(graphs) == 1 and graphs.splits_inside


def full_batch_memory(config: Config, graphs: GraphSet, device: torch.device) -> int:
    """About how many bytes training on one graph needs on a device at its peak.

    These are all that is allocated after the graph was read: a copy of the graph on a GPU, its
    adjacency, the weights with their optimiser, what all layers keep for the backward pass, and
    the tensors of the layer that needs most besides.
    """
    nodes, edges, settings = graphs.num_nodes, graphs.num_edges, config.settings
    precision = PRECISIONS[settings.precision]
    model: Any = outline(config.model, sys.maxsize).to(precision.autocast or precision.weights)
    labels = graphs.num_labels
    numbers = round(_OF_LABEL * config.model.hidden) * labels
    numbers += model.kept_by_edges * (edges + labels)
    size = next(model.parameters()).element_size()
    step = settings.members * (_step(model, nodes, edges) + numbers * size)
    weights = _COPIES * settings.members * count_parameters(model) * precision.weights.itemsize
    of_adjacency = BYTES_PER_EDGE * edges + (BYTES_PER_NODE + _OF_BATCH) * nodes
    of_graph = 0
    if graphs.device != device:
        tensors = (getattr(graphs, field.name) for field in fields(graphs))
        of_graph = sum(t.nbytes for t in tensors if isinstance(t, Tensor))
    return of_graph + weights + max(step + of_adjacency, _PREPARING * edges)


def _step(model: Any, nodes: int, edges: int) -> int:
    """Bytes of the tensors of one member in a step: those that layers keep, and the peak."""
    convolutions = [module for module in model.modules() if isinstance(module, Convolution)]
    size = next(model.parameters()).element_size()
    # a recurrent model applies its last convolution several times
    again = max(model.num_layers(nodes) - len(convolutions), 0)
    times = [1] * (len(convolutions) - 1) + [1 + again]
    kept, most = 0, 0
    for count, convolution in zip(times, convolutions, strict=True):
        conv: Any = convolution.conv
        own = conv.kept_memory(nodes, edges, table=False)
        kept += count * (own + round(model.kept_rows * conv.out_channels) * size * nodes)
        # by the kernels for large graphs; those for small ones are for a GPU and one member
        peak = conv.memory(_LARGE * nodes, _LARGE * edges, table=False) // _LARGE
        most = max(most, peak - own)
    most -= BYTES_PER_EDGE * edges + BYTES_PER_NODE * nodes  # which all members share
    width = convolutions[-1].conv.out_channels  # of the head
    return kept + most + width * size * nodes


def in_words(count: int) -> str:
    """Bytes for a reader: "3.2 GiB", "310 MiB"."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"
