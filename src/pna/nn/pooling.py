"""Differentiable pooling of Ying and others, for graphs of any sizes side by side."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency, as_adjacency, values_visible
from pna.nn.conv.baseline import Edges
from pna.nn.conv.inputs import EdgeFeatures, check_graph
from pna.ops.aggregate import aggregate
from pna.ops.edges import Slots, from_senders, sum_to_receivers, weighted_sum


class Pooled(NamedTuple):
    """Graphs of clusters, dense, and two losses to be added to that of the task."""

    x: Tensor  # (graphs, clusters, features)
    adjacency: Tensor  # (graphs, clusters, clusters): the row receives from the column
    link_loss: Tensor  # how far nodes of one cluster are from being neighbours
    entropy_loss: Tensor  # how far nodes are from being in one cluster each


class DiffPool(nn.Module):
    """Clusters in place of nodes: Sᵀ Z and Sᵀ A S in every graph, with Z = embed(x, A) and
    S = softmax(assign(x, A)).

    Args:
        embed: a convolution, or a model of the same signature, that gives Z (nodes, features).
        assign: one that gives (nodes, clusters).
    """

    def __init__(self, embed: nn.Module, assign: nn.Module) -> None:
        super().__init__()
        self.embed, self.assign = embed, assign

    def forward(
        self,
        x: Tensor,
        edge_index: Edges,
        graph_of_node: Tensor,
        num_graphs: int,
        edge_attr: EdgeFeatures = None,
        mask: Tensor | None = None,
    ) -> Pooled:
        """x (nodes, …) of graphs side by side, graph_of_node (nodes,), to dense graphs; `mask`
        (nodes,) says which nodes are no padding."""
        adjacency = as_adjacency(edge_index, x.shape[0])
        z = self.embed(x, adjacency, edge_attr)
        logits = self.assign(x, adjacency, edge_attr)
        return diff_pool(z, logits, adjacency, graph_of_node, num_graphs, mask)


def diff_pool(
    z: Tensor,
    logits: Tensor,
    adjacency: Adjacency,
    graph_of_node: Tensor,
    num_graphs: int,
    mask: Tensor | None = None,
) -> Pooled:
    """Sᵀ Z and Sᵀ A S in every graph for z (nodes, features), S = softmax(logits) (nodes,
    clusters), and graph_of_node (nodes,) in any order. A graph without nodes is all zeros, and
    nodes that are false in `mask` (nodes,) are as if they were not there.

    The losses are ‖A − S Sᵀ‖ over all graphs, divided by their number of pairs of nodes, and the
    mean entropy of a row of S: those of PyG's `dense_diff_pool`, which also counts the padding.
    No graph is made dense: A S is an aggregation, and ‖A − S Sᵀ‖² = ‖A‖² − 2 tr Sᵀ A S + ‖Sᵀ S‖².
    """
    _check(z, logits, adjacency, graph_of_node, num_graphs, mask)
    mask = torch.ones_like(graph_of_node, dtype=torch.bool) if mask is None else mask
    real = mask[:, None].to(z.dtype)
    log_s = F.log_softmax(logits, 1)
    s = log_s.exp().to(z.dtype) * real
    clusters, features = s.shape[1], z.shape[1]
    members = Slots.of(_members(graph_of_node, num_graphs))
    by_s = torch.cat([z, aggregate(s, adjacency, ["sum"])[:, 0], s], 1)
    sums = weighted_sum(by_s[:, None], from_senders(s, members), members)
    x, coarse, overlap = sums.split([features, clusters, clusters], 2)
    links = coarse.diagonal(dim1=1, dim2=2).sum()
    squared = _squared_norm(adjacency, mask).to(s.dtype) - 2 * links + overlap.square().sum()
    positive = squared > 0
    distance = torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)
    sizes = sum_to_receivers(from_senders(real, members), members)
    entropy = -(s * log_s).sum() / sizes.sum().clamp(min=1)
    return Pooled(x, coarse, distance / sizes.square().sum().clamp(min=1), entropy)


def _members(graph_of_node: Tensor, num_graphs: int) -> Adjacency:
    """An edge from every node to its graph."""
    graphs, nodes = torch.sort(graph_of_node, stable=True)
    numbers = torch.arange(num_graphs + 1, dtype=graphs.dtype, device=graphs.device)
    indptr = torch.searchsorted(graphs, numbers)
    return Adjacency.from_csr(indptr, nodes, graph_of_node.shape[0])


def _squared_norm(adjacency: Adjacency, mask: Tensor) -> Tensor:
    """‖A‖², where the entry of A for an edge is how often it is repeated."""
    receivers, senders = adjacency.receivers.long(), adjacency.senders
    real = mask[receivers] & mask[senders.long()]
    edge, order = (receivers * adjacency.num_senders + senders).sort()
    repeated = torch.searchsorted(edge, edge, right=True) - torch.searchsorted(edge, edge)
    return (repeated * real[order]).sum()


def _check(
    z: Tensor,
    logits: Tensor,
    adjacency: Adjacency,
    graph_of_node: Tensor,
    num_graphs: int,
    mask: Tensor | None,
) -> None:
    check_graph(z, adjacency)
    nodes = z.shape[0]
    if z.dim() != 2 or logits.dim() != 2 or logits.shape[0] != nodes or logits.shape[1] < 1:
        raise ValueError(
            f"got z of shape {tuple(z.shape)} and logits of shape {tuple(logits.shape)}, expected "
            "(nodes, features) and (nodes, clusters), of as many nodes and one cluster at least"
        )
    if graph_of_node.shape != (nodes,) or graph_of_node.is_floating_point():
        raise ValueError(
            f"got graph_of_node of dtype {graph_of_node.dtype} and shape "
            f"{tuple(graph_of_node.shape)}, expected whole numbers ({nodes},): the graph of each "
            "node, counted from 0"
        )
    if mask is not None and (mask.shape != (nodes,) or mask.dtype != torch.bool):
        raise ValueError(
            f"got a mask of dtype {mask.dtype} and shape {tuple(mask.shape)}, expected torch.bool "
            f"({nodes},): false for the nodes of padding"
        )
    if num_graphs < 0:
        raise ValueError(f"got num_graphs={num_graphs}, expected a count of at least 0")
    if nodes > 0 and graph_of_node.device.type == "cpu" and values_visible():
        low, high = (int(bound) for bound in torch.aminmax(graph_of_node))
        if low < 0 or high >= num_graphs:
            raise ValueError(
                f"got graphs {low} to {high} in graph_of_node, expected 0 to {num_graphs - 1}: "
                f"num_graphs is {num_graphs}"
            )
