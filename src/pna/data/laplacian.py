"""Laplacian encodings: eigenvectors as features of nodes, heat kernels as features of edges.

Eigenvectors tell where in the graph a node is. The heat kernel tells how much of what starts at one
end of an edge is at the other end after some time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.data.pairs import (
    append_columns,
    count_columns,
    edge_counts,
    edge_positions,
    in_order,
)

VECTOR, HEAT = "laplacian", "heat"  # names of columns, before a number


def with_laplacian(graphs: GraphSet, vectors: int = 8, edge_times: int = 0) -> GraphSet:
    """Append `laplacian_eigenvectors` to the node features, and, if `edge_times`, append
    `heat_kernels` to the edge features.

    Models of `pna train` flip the signs of the eigenvectors at random in training.
    """
    if vectors == edge_times == 0:
        raise ValueError(
            "got a Laplacian without eigenvectors and times, expected some; pass vectors"
        )
    if vectors:
        columns = laplacian_eigenvectors(graphs, vectors)
        graphs = append_columns(graphs, "node", VECTOR, columns)
    if edge_times:
        graphs = append_columns(graphs, "edge", HEAT, heat_kernels(graphs, edge_times))
    return graphs


def is_vector(feature: str) -> bool:
    """Whether a node feature of this name is an eigenvector that `with_laplacian` has added."""
    return feature.startswith(f"{VECTOR} ")


def laplacian_of(graphs: GraphSet) -> tuple[int, int]:
    """The `vectors` and `edge_times` of `with_laplacian` that graphs have."""
    return count_columns(graphs.node_features, VECTOR), count_columns(graphs.edge_features, HEAT)


def laplacian_eigenvectors(graphs: GraphSet, vectors: int) -> Tensor:
    """Eigenvectors of the normalised Laplacian with the smallest eigenvalues, but for the first,
    (nodes, vectors) float32.

    L = I − D^(−½) A D^(−½), where A is the mean of the numbers of edges in both directions. A node
    without edges has a row of zeros. A graph of n nodes has n − 1 such vectors; further columns are
    0. A vector has length 1, and its first entry of the largest size is positive. Vectors of equal
    eigenvalues are not unique, as in symmetric molecules.
    """
    _check("vectors", vectors)
    parts = []
    for some, _, found in _eigen(graphs):
        chosen, nodes = found[:, :, 1 : vectors + 1], found.shape[1]
        # of entries that are the same but for rounding, the first
        falling = 1 - 1e-6 * torch.linspace(0, 1, nodes, dtype=found.dtype, device=found.device)
        largest = chosen.gather(1, (chosen.abs() * falling[:, None]).argmax(1, keepdim=True))
        chosen = torch.where(largest < 0, -chosen, chosen)
        wide = chosen.new_zeros(len(some), nodes, vectors)
        wide[:, :, : chosen.shape[2]] = chosen
        parts.append(wide.flatten(0, 1).float())
    return in_order(parts, graphs, graphs.node_offsets, vectors)


def heat_kernels(graphs: GraphSet, times: int) -> Tensor:
    """The heat kernel exp(−tL)_ij of every edge from i to j at the times t = 1, 2, 4, …,
    (edges, times) float32; L is that of `laplacian_eigenvectors`."""
    _check("times", times)
    parts = []
    for some, values, vectors in _eigen(graphs):
        graph, sender, receiver = edge_positions(some)
        both = vectors[graph, sender] * vectors[graph, receiver]
        at = [(both * (-(2.0**k) * values[graph]).exp()).sum(1) for k in range(times)]
        parts.append(torch.stack(at, 1).float())
    return in_order(parts, graphs, graphs.edge_offsets, times)


def _eigen(graphs: GraphSet) -> Iterator[tuple[GraphSet, Tensor, Tensor]]:
    """Batches of graphs, and the eigenvalues and eigenvectors of L, in ascending order.

    Padding could change the eigenvectors of equal eigenvalues, so graphs of one size are computed
    together: a graph has the same vectors whatever else is in the set.
    """
    for some, count in edge_counts(graphs, "Laplacians", torch.float64, padded=False):
        weights = (count + count.mT) / 2
        degree = weights.sum(2)
        scale = torch.where(degree > 0, torch.where(degree > 0, degree, 1).rsqrt(), 0)
        laplacian = torch.diag_embed((degree > 0).to(degree))
        laplacian -= scale[:, :, None] * weights * scale[:, None, :]
        yield some, *torch.linalg.eigh(laplacian)


def _check(what: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"got a Laplacian with {what}={number}, expected at least 1")
