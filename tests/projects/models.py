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
from torch_geometric.utils import degree, scatter, to_dense_batch

import pna

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


class _Relational(nn.Module):
    """ULTRA's and NBFNet's layer: DistMult messages, and the state of the query as one more."""

    def __init__(self, relations: int, width: int) -> None:
        super().__init__()
        self.relation = nn.Embedding(relations, width)
        self.linear = nn.Linear(13 * width, width)

    def forward(self, x: Tensor, boundary: Tensor, edge_index: Tensor, types: Tensor) -> Tensor:
        """x and boundary (queries, nodes, width)."""
        queries, nodes, width = x.shape
        table = self.relation.weight[:, None].expand(-1, queries, -1).flatten(1)
        flat, own = (part.transpose(0, 1).flatten(1) for part in (x, boundary))
        found, degree = self.statistics(flat, own, table, edge_index, types)
        scale = degree.to(x.dtype).log()[:, None]
        scale = scale / scale.mean()
        scales = torch.cat([torch.ones_like(scale), scale, 1 / scale.clamp(min=1e-2)], 1)
        features = (found.transpose(1, 2)[..., None] * scales[:, None, None]).flatten(2)
        features = features.view(nodes, queries, 12 * width).transpose(0, 1)
        return F.relu(self.linear(torch.cat([x, features], -1)))

    def statistics(
        self, x: Tensor, own: Tensor, table: Tensor, edge_index: Tensor, types: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean, max, min and std of x_j ⊙ r and of own_i, (nodes, 4, features), and degrees."""
        raise NotImplementedError


class RelationalByPyG(_Relational):
    """With materialised messages, as `message` and `aggregate` of ULTRA have them."""

    def statistics(
        self, x: Tensor, own: Tensor, table: Tensor, edge_index: Tensor, types: Tensor
    ) -> tuple[Tensor, Tensor]:
        nodes = len(x)
        index = torch.cat([edge_index[1], torch.arange(nodes)])
        messages = torch.cat([x[edge_index[0]] * table[types], own])
        mean, square = (scatter(m, index, 0, nodes, "mean") for m in (messages, messages**2))
        largest, smallest = (scatter(messages, index, 0, nodes, r) for r in ("max", "min"))
        std = (square - mean**2).clamp(min=1e-6).sqrt()
        return torch.stack([mean, largest, smallest, std], 1), degree(index, nodes)


class RelationalByPNA(_Relational):
    """With `pna.aggregate`: nodes send twice, along the edges and, as `own`, to themselves."""

    def statistics(
        self, x: Tensor, own: Tensor, table: Tensor, edge_index: Tensor, types: Tensor
    ) -> tuple[Tensor, Tensor]:
        nodes, relations = len(x), len(table)
        each = torch.arange(nodes)
        edges = torch.cat([edge_index, torch.stack([nodes + each, each])], 1)
        kinds = torch.cat([types, types.new_full((nodes,), relations)])
        table = torch.cat([table, table.new_ones(1, table.shape[1])])
        adjacency = pna.Adjacency.from_edge_index(edges, (2 * nodes, nodes))
        found = pna.aggregate(
            torch.cat([x, own]), adjacency, ["mean", "max", "min", "var"], (table, kinds),
            combine="mul",
        )  # fmt: skip
        std = found[:, 3:].clamp(min=1e-6).sqrt()
        return torch.cat([found[:, :3], std], 1), adjacency.degree


class ULTRA(nn.Module):
    """Two relational layers, which answer several queries at once."""

    def __init__(self, layer: Any, deg: Tensor, width: int = 4, relations: int = 3) -> None:
        super().__init__()
        self.query = nn.Embedding(relations, width)
        self.convs = nn.ModuleList(layer(relations, width) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        types, heads = edge_attr.argmax(1) % 3, torch.tensor([0, 8, 17])
        query = self.query(torch.arange(3))
        boundary = torch.zeros(3, len(x), query.shape[1], dtype=query.dtype)
        boundary = boundary.index_put((torch.arange(3), heads), query)
        state = boundary
        for conv in self.convs:
            state = state + conv(state, boundary, edge_index, types)
        return state.mean((1, 2))
