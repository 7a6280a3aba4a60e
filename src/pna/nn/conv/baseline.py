"""What the baseline convolutions share: checks of their sizes and of what they are given."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pna.adjacency import Adjacency, as_adjacency
from pna.nn.conv.inputs import EdgeFeatures, check_edges, check_features, check_graph

Edges = Tensor | Adjacency | Sequence[Adjacency]


def refuse_edge_features(layer: str, edge_dim: int | None) -> None:
    if edge_dim is not None:
        raise ValueError(
            f"got edge_dim={edge_dim}, expected None: {layer} has no place for edge features; "
            "leave it out, or take GATConv, GINConv, MoNetConv or GatedGCNConv"
        )


def checked(
    x: Tensor,
    edge_index: Edges,
    edge_attr: EdgeFeatures,
    channels: int,
    edge_dim: int | None,
    weight: Tensor,
) -> Adjacency:
    """The Adjacency that is meant, once all inputs of a layer have been checked.

    `weight` is one of its parameters, whose type the features must have.
    """
    check_features(x, channels, weight)
    adjacency = as_adjacency(edge_index, x.shape[0])
    check_graph(x, adjacency)
    check_edges(edge_attr, adjacency, edge_dim, weight)
    return adjacency
