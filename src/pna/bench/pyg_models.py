"""The models that we train, made of PyG's layers as its users would make them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, MessagePassing, PNAConv, global_add_pool, global_mean_pool
from torch_geometric.nn.aggr import DegreeScalerAggregation, Set2Set

from pna.bench.layer_cases import AGGREGATORS, SCALERS
from pna.train.settings import ModelSettings

#: Arguments of `Stacked` that `Benchmarked` takes, with their defaults.
_STACKED: dict[str, Any] = {
    "layers": 4, "out_channels": None, "readout": "sum", "graph_norm": False, "dropout": 0.0,
    "towers": 1, "node_values": (), "edge_columns": 0, "edge_values": (), "edge_width": 50,
    "encode_edges": False, "divide_input": True, "norm_before_mixing": False,
}  # fmt: skip


class Recurrent(nn.Module):
    """The paper's model, as `pna.nn.architectures.Recurrent`, for batches of graphs of one size.

    Args:
        in_channels: features of a node.
        hidden: features of a node's state.
        node_targets: numbers to predict for each node.
        graph_targets: numbers to predict for each graph.
        deg: histogram of the training set's degrees.
    """

    def __init__(
        self, in_channels: int, hidden: int, node_targets: int, graph_targets: int, deg: Tensor
    ) -> None:
        super().__init__()
        shared = {"aggregators": AGGREGATORS, "scalers": SCALERS, "deg": deg, "towers": 4}
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
        pooled = self.set2set(state, batch.batch, dim_size=batch.num_graphs)
        return self.node_head(state), self.graph_head(pooled)


class Molecules(nn.Module):
    """The model of PyG's own example for ZINC, `examples/pna.py`.

    Args:
        atoms, bonds: kinds of them.
        deg: histogram of the training set's degrees.
    """

    def __init__(self, atoms: int, bonds: int, deg: Tensor) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(atoms, 75), nn.Embedding(bonds, 50)
        self.convs = nn.ModuleList(
            PNAConv(75, 75, AGGREGATORS, SCALERS, deg, edge_dim=50, towers=5) for _ in range(4)
        )
        self.norms = nn.ModuleList(BatchNorm(75) for _ in self.convs)
        self.head = nn.Sequential(
            nn.Linear(75, 50), nn.ReLU(), nn.Linear(50, 25), nn.ReLU(), nn.Linear(25, 1)
        )

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor,
        batch: Tensor,
        graphs: int | None = None,
    ) -> Tensor:
        """A number for each graph, (graphs,). Their number is read from `batch` if not given."""
        x = self.atoms(x.squeeze(1))
        edges = self.bonds(edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index, edges)))
        return self.head(global_add_pool(x, batch, graphs)).squeeze(1)


class Benchmarked(nn.Module):
    """The models of the real-world benchmarks, `pna.nn.architectures.Stacked`, where the layer is
    PNA in the authors' way or the simple one.

    Args:
        model: settings fitted to graphs. Their convolution is "pna" or "pna-simple"; arguments are
            those of `Stacked`, of which `divide_input`, `norm_before_mixing` and `encode_edges`
            must be as the authors have them.
    """

    def __init__(self, model: ModelSettings) -> None:
        super().__init__()
        given = _STACKED | {"out_channels": model.hidden} | dict(model.arguments)
        simple, columns = model.convolution == "pna-simple", given["edge_columns"]
        mixed = given["divide_input"] and given["norm_before_mixing"] != simple
        if given["encode_edges"] or not mixed or set(given) - set(_STACKED):
            raise ValueError(
                "got a layer that is neither the authors' nor the simple one, expected divided "
                "towers that are mixed after normalisation and see edges as they are, or none"
            )
        self.graph_norm, self.dropout = given["graph_norm"], given["dropout"]
        self.pool = {"sum": global_add_pool, "mean": global_mean_pool}[given["readout"]]
        self.embed = _encoder(given["node_values"], model.in_channels, model.hidden)
        self.embed_edges = None
        if columns:
            self.embed_edges = _encoder(given["edge_values"], columns, given["edge_width"])
        widths = [model.hidden] * given["layers"] + [given["out_channels"]]
        make: Any = SimpleConv
        if not simple:
            width = given["edge_width"] if columns else None
            make = partial(TowersConv, towers=given["towers"], edge_dim=width)
        deg = torch.tensor(model.degrees)
        self.convs = nn.ModuleList(make(a, b, deg) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths[1:])
        mixing = [] if simple else [nn.Linear(width, width) for width in widths[1:]]
        self.mixing = nn.ModuleList(mixing)
        width = widths[-1]
        self.head = nn.Sequential(
            nn.Linear(width, width // 2), nn.ReLU(),
            nn.Linear(width // 2, width // 4), nn.ReLU(),
            nn.Linear(width // 4, model.graph_targets),
        )  # fmt: skip

    def forward(self, batch: Any) -> Tensor:
        """(graphs, targets) of a PyG batch."""
        x = self.embed(batch.x)
        edges = None if self.embed_edges is None else self.embed_edges(batch.edge_attr)
        sizes = batch.ptr.diff()
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = conv(x, batch.edge_index, edges)
            if self.graph_norm:
                h = h * sizes.to(h.dtype).rsqrt()[batch.batch, None]
            h = norm(h)
            if self.mixing:
                h = F.leaky_relu(self.mixing[layer](F.dropout(h, self.dropout, self.training)))
                x = x + h if h.shape == x.shape else h
            else:
                h = F.relu(h)
                x = F.dropout(x + h if h.shape == x.shape else h, self.dropout, self.training)
        return self.head(self.pool(x, batch.batch, batch.num_graphs))


class TowersConv(PNAConv):
    """PyG's layer with divided towers as the authors' benchmark code has them: edge features go to
    M as they are, and what mixes the towers is left to the model."""

    def __init__(
        self, in_channels: int, out_channels: int, deg: Tensor, towers: int, edge_dim: int | None
    ) -> None:
        shared = {"towers": towers, "divide_input": True}
        super().__init__(in_channels, out_channels, AGGREGATORS, SCALERS, deg, **shared)
        self.lin = nn.Identity()
        inputs = 2 * self.F_in + (edge_dim or 0)
        self.pre_nns = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, self.F_in)) for _ in range(towers)
        )

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor | None) -> Tensor:
        parts = [x_i, x_j]
        if edge_attr is not None:
            parts.append(edge_attr[:, None].repeat(1, self.towers, 1))
        h = torch.cat(parts, -1)
        return torch.stack([pre(h[:, i]) for i, pre in enumerate(self.pre_nns)], 1)


class SimpleConv(MessagePassing):
    """The authors' simple layer, of PyG's aggregation."""

    def __init__(self, in_channels: int, out_channels: int, deg: Tensor) -> None:
        super().__init__(aggr=DegreeScalerAggregation(AGGREGATORS, SCALERS, deg))
        results = len(AGGREGATORS) * len(SCALERS)
        self.post = nn.Linear(results * in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: None = None) -> Tensor:
        return self.post(self.propagate(edge_index, x=x))

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class Embeddings(nn.Module):
    """A vector for every value of every column, summed, as OGB's encoders have them."""

    def __init__(self, values: Sequence[int], width: int) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(count, width) for count in values)

    def forward(self, given: Tensor) -> Tensor:
        every = given.long().reshape(len(given), len(self.columns)).unbind(1)
        return torch.stack([e(c) for e, c in zip(self.columns, every, strict=True)]).sum(0)


def _encoder(values: Sequence[int], columns: int, width: int) -> nn.Module:
    return Embeddings(values, width) if values else nn.Linear(columns, width)


def _mlp(widths: list[int], act: type[nn.Module], norm: bool) -> nn.Sequential:
    """The heads of the authors: normalised, if at all, after the activation; a leaky end."""
    *inside, (a, b) = pairwise(widths)
    layers: list[nn.Module] = []
    for i, o in inside:
        layers += [nn.Linear(i, o), act()]
        if norm:
            layers.append(nn.BatchNorm1d(o))
    return nn.Sequential(*layers, nn.Linear(a, b), nn.LeakyReLU())
