"""The paper's model without recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pna.data.batch import Batch, SampledLayer
from pna.nn.architectures.base import (
    Architecture,
    Outputs,
    Prediction,
    Readout,
    check_layers,
    edge_features_of,
    ends_of,
    features_of,
    label_features_of,
    paper_head,
    register,
)
from pna.nn.batch_context import batch_context
from pna.nn.convolution import Convolution
from pna.nn.dropout import Dropout


class Standard(Architecture):
    """The paper's model without recurrence: a stack of convolutions, each with its own weights.

    The heads see the input and the output of every convolution (skip connections).

    Args:
        convolution: name of the convolution, one of `pna.nn.registry.CONVOLUTIONS`.
        in_channels: features of a node.
        hidden: features of a node after each convolution.
        node_targets: numbers to predict for each node; 0 for none.
        graph_targets: numbers to predict for each graph; 0 for none.
        layers: number of convolutions.
        readout: "sum", "mean" or "max" over the nodes of a graph, or "set2set".
        dropout: probability of dropping a feature before each convolution but the first.
        final: activation of the predictions; "none" for none.
        clusters: clusters per graph, for "diffpool" only. Default: 8.
        edge_targets: numbers to predict for each labelled edge; 0 for none.
        symmetric: whether predictions for edges ignore the order of their ends.
        **arguments: arguments of `Convolution`: deg, towers, edge_dim, …

    Shapes:
        - **batch**: a `pna.data.batch.Batch` with x (nodes, in_channels)
        - **output**: a `Prediction`: node (nodes, node_targets), graph (graphs, graph_targets),
          edge (labelled edges, edge_targets)
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
        readout: Readout = "mean",
        dropout: float = 0.0,
        final: str = "leaky_relu",
        clusters: int | None = None,
        edge_targets: int = 0,
        symmetric: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__()
        check_layers(layers)
        first = Convolution(convolution, in_channels, hidden, **arguments)
        others = (
            Convolution(convolution, hidden, hidden, divide_input=True, **arguments)
            for _ in range(layers - 1)
        )
        self.convolutions = nn.ModuleList([first, *others])
        self.dropout = Dropout(dropout)
        width, edge_dim = in_channels + layers * hidden, arguments.get("edge_dim") or 0
        targets = Outputs(node_targets, graph_targets, edge_targets, edge_dim, symmetric)
        self._add_heads(convolution, width, targets, readout, clusters, paper_head(final))

    def forward(self, batch: Batch) -> Prediction:
        with batch_context(batch):
            self.dropout.advance()
            states = [features_of(batch, self.convolutions[0])]
            if batch.layers:
                of_labels = self._label_features(batch)
                return self._of_sample(states[0], batch, of_labels)
            edges = edge_features_of(batch, self.convolutions[0])
            for i, convolution in enumerate(self.convolutions):
                x = states[-1] if i == 0 else self.dropout(states[-1], i)
                states.append(convolution(x, batch.adjacency, edges))
            of_labels = self._label_features(batch)
            return self._predict(torch.cat(states, 1), batch, of_labels)

    @property
    def kept_rows(self) -> float:
        return 3.0 + (self.dropout.p > 0)  # inputs of activation and head, and all states joined

    def _label_features(self, batch: Batch) -> Tensor | None:
        return label_features_of(batch, self.convolutions[0])

    def num_layers(self, nodes: int) -> int:
        return len(self.convolutions)

    def encode(self, x: Tensor) -> Tensor:
        return x.to(next(self.parameters()).dtype)

    def layer(self, number: int, state: Tensor, batch: Batch | SampledLayer) -> Tensor:
        """The output of a convolution, after the inputs and outputs of those before it."""
        convolution: Any = self.convolutions[number]
        x = state[:, -convolution.conv.in_channels :]
        x = ends_of(x if number == 0 else self.dropout(x, number), batch.adjacency)
        result = convolution(x, batch.adjacency, edge_features_of(batch, convolution))
        return torch.cat([state[: result.shape[0]], result], 1)


register("standard", Standard, hidden=16, towers=4)
