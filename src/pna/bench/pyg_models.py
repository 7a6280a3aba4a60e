"""The models that we train, made of PyG's layers as its users would make them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, PNAConv, global_add_pool
from torch_geometric.nn.aggr import Set2Set

AGGREGATORS = ["mean", "std", "max", "min"]
SCALERS = ["identity", "amplification", "attenuation"]


class Recurrent(nn.Module):
    """The paper's model, as `pna.nn.architectures.Recurrent`, for batches of graphs of one size.

    Args:
        in_channels: features of a node.
        hidden: features of a node's state.
        node_targets: numbers to predict for each node.
        graph_targets: numbers to predict for each graph.
        deg: histogram of the training set's degrees.
        towers: of the convolutions.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        node_targets: int,
        graph_targets: int,
        deg: Tensor,
        towers: int = 4,
    ) -> None:
        super().__init__()
        shared = {"aggregators": AGGREGATORS, "scalers": SCALERS, "deg": deg, "towers": towers}
        self.first = PNAConv(in_channels, hidden, **shared)
        self.again = PNAConv(hidden, hidden, divide_input=True, **shared)
        self.gru = nn.GRUCell(hidden, hidden)
        self.set2set = Set2Set(hidden, processing_steps=1)
        self.node_head = _mlp([hidden, hidden, hidden, node_targets], nn.LeakyReLU, norm=False)
        self.graph_head = _mlp([2 * hidden, hidden, hidden, graph_targets], nn.ReLU, norm=True)

    def forward(self, batch: Any, size: int) -> tuple[Tensor, Tensor]:
        """Predictions for the nodes and the graphs of a PyG batch, of `size` nodes each."""
        x, edge_index = batch.x, batch.edge_index
        begin = F.pad(x, (0, self.gru.hidden_size - x.shape[1]))
        state = self.gru(F.leaky_relu(self.first(x, edge_index)), begin)
        for _ in range(1, size // 2):
            state = self.gru(F.leaky_relu(self.again(state, edge_index)), state)
        self.set2set.processing_steps = size
        whole = self.set2set(state, batch.batch, dim_size=batch.num_graphs)
        return self.node_head(state), self.graph_head(whole)


class Molecules(nn.Module):
    """The model of PyG's own example for ZINC, `examples/pna.py`.

    Args:
        atoms, bonds: kinds of them.
        deg: histogram of the training set's degrees.
        hidden: features of a node.
        edge_width: features of an edge.
        towers: of the convolutions, which each see all features.
        layers: how many convolutions.
        head: widths inside the head.
    """

    def __init__(
        self,
        atoms: int,
        bonds: int,
        deg: Tensor,
        hidden: int = 75,
        edge_width: int = 50,
        towers: int = 5,
        layers: int = 4,
        head: tuple[int, ...] = (50, 25),
    ) -> None:
        super().__init__()
        self.atoms = nn.Embedding(atoms, hidden)
        self.bonds = nn.Embedding(bonds, edge_width)
        self.convs = nn.ModuleList(
            PNAConv(
                hidden, hidden, aggregators=AGGREGATORS, scalers=SCALERS, deg=deg,
                edge_dim=edge_width, towers=towers, pre_layers=1, post_layers=1,
                divide_input=False,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.norms = nn.ModuleList(BatchNorm(hidden) for _ in range(layers))
        widths = [hidden, *head, 1]
        layers_of_head: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers_of_head += [nn.Linear(a, b), nn.ReLU()]
        self.head = nn.Sequential(*layers_of_head[:-1])

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, graphs: int
    ) -> Tensor:
        """A number for each graph, (graphs,)."""
        x = self.atoms(x.squeeze(1))
        edges = self.bonds(edge_attr.squeeze(1))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index, edges)))
        return self.head(global_add_pool(x, batch, graphs)).squeeze(1)


def _mlp(widths: list[int], act: type[nn.Module], norm: bool) -> nn.Sequential:
    """The heads of the authors: normalised, if at all, after the activation; a leaky end."""
    *inside, (a, b) = pairwise(widths)
    layers: list[nn.Module] = []
    for i, o in inside:
        layers += [nn.Linear(i, o), act()]
        if norm:
            layers.append(nn.BatchNorm1d(o))
    return nn.Sequential(*layers, nn.Linear(a, b), nn.LeakyReLU())
