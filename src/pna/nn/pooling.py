"""Differentiable pooling (DiffPool, Ying et al., 2018), for batches of graphs of any size."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency, as_adjacency
from pna.data.batch import Batch
from pna.nn.conv.base import Edges
from pna.nn.conv.inputs import EdgeFeatures, check_graph, check_sizes
from pna.nn.conv.sage import SAGEConv
from pna.nn.linear import Linear
from pna.ops.aggregate import aggregate
from pna.ops.edges import Slots, from_senders, sum_to_receivers, weighted_sum
from pna.ops.request import wide_type
from pna.visible import values_visible


class Pooled(NamedTuple):
    """Dense graphs of clusters, and two losses per graph to add to the loss of the task."""

    x: Tensor  # (graphs, clusters, features)
    adjacency: Tensor  # (graphs, clusters, clusters): the row receives from the column
    link_loss: Tensor  # (graphs,) 0 if nodes share a cluster exactly if they are neighbours
    entropy_loss: Tensor  # (graphs,) 0 if every node is in one cluster only


class DiffPool(nn.Module):
    """Pools nodes to clusters: Sᵀ Z and Sᵀ A S in every graph, with Z = embed(x, A) and
    S = softmax(assign(x, A)).

    Args:
        embed: a convolution, or a model with the same signature, that returns Z (nodes, features).
        assign: likewise, that returns (nodes, clusters).

    Shapes:
        - **x**: (nodes, …), **graph_of_node**: (nodes,) int64
        - **mask**: (nodes,) bool, False for padding; optional
        - **output**: a `Pooled`: x (graphs, clusters, features), adjacency (graphs, clusters,
          clusters), link_loss and entropy_loss (graphs,)
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
        adjacency = as_adjacency(edge_index, x.shape[0])
        z = self.embed(x, adjacency, edge_attr)
        logits = self.assign(x, adjacency, edge_attr)
        return diff_pool(z, logits, adjacency, graph_of_node, num_graphs, mask)


class ClusterReadout(nn.Module):
    """A readout through clusters.

    `DiffPool` with GraphSAGE layers pools the nodes once. Then the clusters exchange messages,
    X ← X + relu(W_l D⁻¹ A X + W_r X + b), with A their adjacency and D the sums of its rows, and
    are summed.

    Args:
        width: features of a node, and of a cluster.
        clusters: number of clusters per graph.
        layers: layers of message passing between clusters; 3 as in Dwivedi et al.'s benchmark.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (graphs, width), and the sum of both losses, (graphs,)
    """

    def __init__(self, width: int, clusters: int, layers: int = 3) -> None:
        super().__init__()
        check_sizes(width=width, clusters=clusters)
        self.pool = DiffPool(SAGEConv(width, width), SAGEConv(width, clusters))
        self.layers = nn.ModuleList(Linear(2 * width, width) for _ in range(layers))

    def forward(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        pooled = self.pool(
            x, batch.adjacency, batch.graph_of_node, batch.num_graphs, mask=batch.real_nodes
        )
        states, links = pooled.x, pooled.adjacency
        mean = links / links.sum(2, keepdim=True).clamp(min=1e-6)
        for layer in self.layers:
            seen = torch.cat([mean @ states, states], 2).flatten(0, 1)
            states = states + torch.relu(layer(seen)).unflatten(0, states.shape[:2])
        return states.sum(1), pooled.link_loss + pooled.entropy_loss


def diff_pool(
    z: Tensor,
    logits: Tensor,
    adjacency: Adjacency,
    graph_of_node: Tensor,
    num_graphs: int,
    mask: Tensor | None = None,
) -> Pooled:
    """Sᵀ Z and Sᵀ A S in every graph, with S = softmax(logits).

    The losses of a graph are those of PyG's `dense_diff_pool` for the graph alone: ‖A − S Sᵀ‖
    divided by its number of pairs of nodes, and the mean entropy of a row of S. No graph is made
    dense: A S is an aggregation, and ‖A − S Sᵀ‖² = ‖A‖² − 2 tr Sᵀ A S + ‖Sᵀ S‖².

    Args:
        z: (nodes, features).
        logits: (nodes, clusters).
        adjacency: the edges of all graphs.
        graph_of_node: (nodes,) graph of each node, in any order.
        num_graphs: number of graphs; a graph without nodes gets zeros.
        mask: (nodes,) bool; nodes that are False are ignored. Default: all are True.
    """
    _check(z, logits, adjacency, graph_of_node, num_graphs, mask)
    mask = torch.ones_like(graph_of_node, dtype=torch.bool) if mask is None else mask
    wide = wide_type(z.dtype)  # the norm is a small difference of large numbers
    real = mask[:, None].to(wide)
    log_s = F.log_softmax(logits.to(wide), 1)
    s = log_s.exp() * real
    clusters, features = s.shape[1], z.shape[1]
    members = Slots.of(_members(graph_of_node, num_graphs))
    by_s = torch.cat([z.to(wide), aggregate(s, adjacency, ["sum"])[:, 0], s], 1)
    sums = weighted_sum(by_s[:, None], from_senders(s, members), members)
    x, coarse, overlap = sums.split([features, clusters, clusters], 2)
    entropy = -(s * log_s).sum(1, keepdim=True)
    of_nodes = torch.cat([real, entropy, _squared_norms(adjacency, mask, wide)], 1)
    nodes, entropy, norm = sum_to_receivers(from_senders(of_nodes, members), members).unbind(1)
    links = coarse.diagonal(dim1=1, dim2=2).sum(1)
    squared = norm - 2 * links + overlap.square().sum((1, 2))
    positive = squared > 4 * torch.finfo(wide).eps * norm  # else it is rounding error
    distance = torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)
    return Pooled(
        x.to(z.dtype),
        coarse.to(z.dtype),
        distance / nodes.square().clamp(min=1),
        entropy / nodes.clamp(min=1),
    )


def _members(graph_of_node: Tensor, num_graphs: int) -> Adjacency:
    """An adjacency with an edge from every node to its graph."""
    graphs, nodes = torch.sort(graph_of_node, stable=True)
    numbers = torch.arange(num_graphs + 1, dtype=graphs.dtype, device=graphs.device)
    indptr = torch.searchsorted(graphs, numbers)
    return Adjacency.from_csr(indptr, nodes, graph_of_node.shape[0])


def _squared_norms(adjacency: Adjacency, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """‖A_i‖² of every row of A, (nodes, 1); A counts repeated edges."""
    receivers, senders = adjacency.receivers.long(), adjacency.senders.long()
    real = mask[receivers] & mask[senders]
    edge, order = (receivers * adjacency.num_senders + senders).sort()
    repeated = torch.searchsorted(edge, edge, right=True) - torch.searchsorted(edge, edge)
    # sorted by receiver, as slots are
    return sum_to_receivers((repeated * real[order]).to(dtype)[:, None], adjacency)


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
