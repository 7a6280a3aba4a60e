"""How other projects use PNA: their arguments and shapes, written down in short.

A model takes the class of the layer, PyG's or ours, and is otherwise the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, Sequential, global_mean_pool
from torch_geometric.nn.models.dimenet import BesselBasisLayer
from torch_geometric.utils import to_dense_batch

AGGREGATORS = ["mean", "min", "max", "std"]
SCALERS = ["identity", "amplification", "attenuation"]


class HydraGNN(nn.Module):
    """HydraGNN's `PNAStack`: four scalers, a histogram of floats, layers inside PyG's `Sequential`.

    Edge features are lengths of edges, so that forces are the negative gradient of the energy.
    """

    def __init__(self, layer: Any, deg: Tensor, hidden: int = 8, layers: int = 2) -> None:
        super().__init__()
        arguments = dict(
            aggregators=AGGREGATORS,
            scalers=[*SCALERS, "linear"],
            deg=deg.float(),
            edge_dim=1,
            pre_layers=1,
            post_layers=1,
            divide_input=False,
        )
        widths = [1, *[hidden] * layers]
        self.convs = nn.ModuleList(
            Sequential(
                "h, pos, edge_index, edge_attr",
                [
                    (layer(widths[i], widths[i + 1], **arguments), "h, edge_index, edge_attr -> h"),
                    (lambda h, pos: [h, pos], "h, pos -> h, pos"),
                ],
            )
            for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        senders, receivers = edge_index
        length = (pos[senders] - pos[receivers]).norm(dim=1, keepdim=True)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, _ = conv(x, pos, edge_index, length)
            x = torch.tanh(norm(x))
        return self.head(global_mean_pool(x, batch))[:, 0]


class _PlusConv(MessagePassing):
    """HydraGNN's own PNA with radial functions: messages are multiplied by them."""

    def __init__(self, aggr: nn.Module, width: int, radial: int) -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.pre = nn.Linear(3 * width, width)
        self.radial, self.factor = nn.Linear(radial, width), nn.Linear(radial, width, bias=False)
        self.post = nn.Linear(17 * width, width)

    def forward(self, x: Tensor, edge_index: Tensor, rbf: Tensor) -> Tensor:
        found = self.propagate(edge_index, x=x[:, None], rbf=rbf)
        return self.post(torch.cat([x, found[:, 0]], 1))

    def message(self, x_i: Tensor, x_j: Tensor, rbf: Tensor) -> Tensor:
        radial = F.relu(self.radial(rbf))[:, None]
        return self.pre(torch.cat([x_i, x_j, radial], -1)) * self.factor(rbf)[:, None]


class HydraGNNPlus(nn.Module):
    """HydraGNN's `PNAPlusStack`: a `MessagePassing` of its own, with the aggregation of PNA."""

    def __init__(self, aggregation: Any, deg: Tensor, hidden: int = 6, radial: int = 5) -> None:
        super().__init__()
        self.basis = BesselBasisLayer(radial, 4.0, 5)
        self.embed = nn.Linear(1, hidden)
        self.convs = nn.ModuleList(
            _PlusConv(
                aggregation(AGGREGATORS, [*SCALERS, "linear"], deg.float(), False), hidden, radial
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        senders, receivers = edge_index
        rbf = self.basis((pos[senders] - pos[receivers]).norm(dim=1))
        x = self.embed(x)
        for conv in self.convs:
            x = torch.tanh(conv(x, edge_index, rbf))
        return global_mean_pool(x, batch).sum(1)


class MultiGNN(nn.Module):
    """Multi-GNN: five towers, edges as wide as nodes, edge updates, and a class for each edge."""

    def __init__(self, layer: Any, deg: Tensor, hidden: int = 20, layers: int = 2) -> None:
        super().__init__()
        self.hidden = hidden
        self.node_emb, self.edge_emb = nn.Linear(1, hidden), nn.Linear(4, hidden)
        self.convs = nn.ModuleList(
            layer(
                in_channels=hidden, out_channels=hidden, aggregators=AGGREGATORS, scalers=SCALERS,
                deg=deg, edge_dim=hidden, towers=5, pre_layers=1, post_layers=1,
                divide_input=False,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Linear(3 * hidden, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        senders, receivers = edge_index
        x, edge_attr = self.node_emb(x), self.edge_emb(edge_attr)
        for conv, norm, update in zip(self.convs, self.norms, self.updates, strict=True):
            x = (x + F.relu(norm(conv(x, edge_index, edge_attr)))) / 2
            ends = torch.cat([x[senders], x[receivers], edge_attr], 1)
            edge_attr = edge_attr + update(ends) / 2
        ends = x[edge_index.T].reshape(-1, 2 * self.hidden).relu()
        return self.head(torch.cat([ends, edge_attr], 1))


class MultiGNNNodes(nn.Module):
    """The part of Multi-GNN that `to_hetero` copies for both directions of the transfers."""

    def __init__(self, layer: Any, deg: Tensor, hidden: int = 20, layers: int = 2) -> None:
        super().__init__()
        self.node_emb, self.edge_emb = nn.Linear(1, hidden), nn.Linear(4, hidden)
        self.convs = nn.ModuleList(
            layer(hidden, hidden, AGGREGATORS, SCALERS, deg, edge_dim=hidden, towers=5)
            for _ in range(layers)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, edge_attr = self.node_emb(x), self.edge_emb(edge_attr)
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index, edge_attr))
        return x


class GraphGPS(nn.Module):
    """GraphGPS: PNA with three aggregators and no scaler beside attention over each graph."""

    def __init__(self, layer: Any, deg: Tensor, hidden: int = 24, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.embed_edges = nn.Linear(1, hidden), nn.Linear(4, min(128, hidden))
        self.locals = nn.ModuleList(
            layer(
                hidden, hidden, aggregators=["mean", "max", "sum"], scalers=["identity"], deg=deg,
                edge_dim=min(128, hidden), towers=1, pre_layers=1, post_layers=1,
                divide_input=False,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(hidden, 4, batch_first=True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x, edge_attr = self.embed(x), self.embed_edges(edge_attr)
        for local, attention, norm in zip(self.locals, self.attention, self.norms, strict=True):
            dense, real = to_dense_batch(x, batch)
            seen, _ = attention(dense, dense, dense, key_padding_mask=~real, need_weights=False)
            x = norm(x + local(x, edge_index, edge_attr) + seen[real])
        return self.head(global_mean_pool(x, batch))[:, 0]
