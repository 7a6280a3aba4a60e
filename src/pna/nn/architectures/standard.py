"""The paper's model without recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pna.data.batch import Batch
from pna.names import lookup
from pna.nn.architectures.parts import (
    READOUTS,
    Prediction,
    Reduction,
    cluster_readout,
    edge_features_of,
    features_of,
    gate,
    graph_head,
    node_head,
    with_clusters,
)
from pna.nn.batch_context import batch_context
from pna.nn.dropout import Dropout
from pna.nn.family import Convolution


class Standard(nn.Module):
    """The paper's model without recurrence: convolutions of their own weights, and skip
    connections from the input and from each of them to the heads, of mean readout.

    Args:
        layers: how many convolutions.
        Others as for `Recurrent`.
    """

    def __init__(
        self,
        convolution: str,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        *,
        layers: int = 8,
        readout: Reduction = "mean",
        dropout: float = 0.0,
        final: str = "leaky_relu",
        clusters: int | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"got layers={layers}, expected at least 1")
        first = Convolution(convolution, in_channels, hidden, **arguments)
        others = (
            Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
            for _ in range(layers - 1)
        )
        self.convolutions = nn.ModuleList([first, *others])
        self.dropout = Dropout(dropout)
        self.readout = lookup("readout", readout, READOUTS)
        width = in_channels + layers * hidden
        self.gate = gate(convolution, width)
        self.node_head = node_head(width, node_targets, final) if node_targets else None
        self.clusters = cluster_readout(convolution, width, clusters, graph_targets)
        read = width if self.clusters is None else 2 * width
        self.graph_head = graph_head(read, width, graph_targets, final)

    def forward(self, batch: Batch) -> Prediction:
        with batch_context(batch):
            self.dropout.advance()
            states = [features_of(batch, self.convolutions[0])]
            edges = edge_features_of(batch, self.convolutions[0])
            for i, convolution in enumerate(self.convolutions):
                x = states[-1] if i == 0 else self.dropout(states[-1], i)
                states.append(convolution(x, batch.adjacency, edges))
            seen = self.gate(torch.cat(states, 1))
            node = None if self.node_head is None else self.node_head(seen)
            if self.graph_head is None:
                return Prediction(node, None)
            read = self.readout(seen, batch.sizes, batch.starts)
            read, own_loss = with_clusters(read, self.clusters, seen, batch)
            return Prediction(node, self.graph_head(read), own_loss)
