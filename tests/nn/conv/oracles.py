"""What the baseline convolutions are to equal: PyG's with the same weights, or their formulas.

Each function is given our layer, x, edge_index and edge_attr, and gives (nodes, out_channels).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.utils import degree


def gat(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    theirs = pyg.GATConv(
        layer.in_channels,
        layer.att_sender.shape[1],
        layer.heads,
        layer.concat,
        layer.negative_slope,
        add_self_loops=layer.add_self_loops,
        edge_dim=layer.edge_dim,
        bias=layer.bias is not None,
    )
    names = {"att_receiver": "att_dst", "att_sender": "att_src"}
    weights = {
        names.get(name, name): parameter[None] if name.startswith("att") else parameter
        for name, parameter in layer.named_parameters()
    }
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


def gcn(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: None) -> Tensor:
    theirs = pyg.GCNConv(layer.in_channels, layer.out_channels)
    weights = {"lin.weight": layer.lin.weight, "bias": layer.lin.bias}
    return functional_call(theirs, weights, (x, edge_index))


def gin(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    """`GINConv`, or `GINEConv`, with the same network inside."""
    hidden = layer.first.out_features
    inside = nn.Sequential(
        nn.Linear(layer.in_channels, hidden),
        nn.ReLU(),
        type(layer.norm)(hidden),
        nn.Linear(hidden, layer.out_channels),
        nn.ReLU(),
    ).to(x)
    names = {"first": "nn.0", "norm": "nn.2", "last": "nn.3", "edge_encoder": "lin"}
    weights = {"eps": layer.eps}
    for name, parameter in layer.named_parameters():
        module, _, kind = name.partition(".")
        if module in names:
            weights[f"{names[module]}.{kind}"] = parameter
    if edge_attr is None:
        return functional_call(pyg.GINConv(inside), weights, (x, edge_index))
    theirs = pyg.GINEConv(inside, edge_dim=layer.edge_dim)
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


def sage(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: None) -> Tensor:
    name = type(layer.aggregator).__name__.lower()
    theirs = pyg.SAGEConv(
        layer.in_channels, layer.out_channels, aggr=name, normalize=layer.normalise
    )
    return functional_call(theirs, dict(layer.named_parameters()), (x, edge_index))


def monet(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    kernels, dim = layer.mean.shape
    theirs = pyg.GMMConv(
        layer.in_channels, layer.out_channels, dim, kernels, aggr="add", root_weight=False
    )
    theirs.root = None  # which it then forgets to set
    if edge_attr is None:
        senders, receivers = edge_index
        scale = (degree(receivers, x.shape[0], x.dtype) + 1) ** -0.5
        edge_attr = layer.project(torch.stack([scale[receivers], scale[senders]], 1)).tanh()
    weights = {
        "g": layer.lin.weight.t(),
        "mu": layer.mean,
        "sigma": 1 / layer.inverse_sigma,
        "bias": layer.bias,
    }
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


def gated_gcn(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    """By its formula, since PyG's does not divide by the sum of the gates."""
    return gated_gcn_states(layer, x, edge_index, edge_attr)[0]


def gated_gcn_states(
    layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x' and e', in the order in which edges are given."""
    senders, receivers = edge_index
    parts = zip(layer.nodes.weight.chunk(4), layer.nodes.bias.chunk(4), strict=True)
    a, b, u, v = (F.linear(x, *part) for part in parts)
    state = a[receivers] + b[senders]
    if edge_attr is not None:
        state = state + layer.edges(edge_attr)
    gate = state.sigmoid()
    nothing = torch.zeros_like(u)
    total = nothing.index_add(0, receivers, gate * v[senders])
    if layer.normalise:
        total = total / (nothing.index_add(0, receivers, gate) + 1e-6)
    return u + total, state


def gated_sums(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
    """`ResGatedGraphConv` has one bias for A, B and C, and edge features in V too, which are given
    no weight."""
    width, edge_dim = layer.out_channels, layer.edge_dim
    theirs = pyg.ResGatedGraphConv(layer.in_channels, width, edge_dim=edge_dim)
    a, b, u, v = layer.nodes.weight.chunk(4)
    at_a, at_b, at_u, at_v = layer.nodes.bias.chunk(4)
    if edge_dim is not None:
        nothing = x.new_zeros((width, edge_dim))
        a, b, v = (
            torch.cat([a, layer.edges.weight], 1),
            torch.cat([b, nothing], 1),
            torch.cat([v, nothing], 1),
        )
        at_a = at_a + layer.edges.bias
    weights = {
        "lin_key.weight": a,
        "lin_key.bias": at_a,
        "lin_query.weight": b,
        "lin_query.bias": at_b,
        "lin_value.weight": v,
        "lin_value.bias": at_v,
        "lin_skip.weight": u,
        "bias": at_u,
    }
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


def mlp(layer: Any, x: Tensor, edge_index: Tensor, edge_attr: None) -> Tensor:
    return F.linear(x, layer.lin.weight, layer.lin.bias)
