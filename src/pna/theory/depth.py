"""Amplification of features by repeated layers, mean times a scaler, as graphs grow."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.degree import DegreeStats, Linear, Power, scale
from pna.ops.aggregate import aggregate


def growth(graphs: GraphSet, scaler: str | Power | Linear, stats: DegreeStats) -> Tensor:
    """log10 of the largest feature after N/2 layers x ← S(d)·mean(x) from x = 1, (graphs,).

    N/2 of a graph of N nodes is the paper's depth; `stats` are those of the training set, as
    δ is a constant of a trained model however large a graph it meets. The features themselves
    would overflow, so the largest is divided out after every layer.
    """
    batch = graphs.batch()
    depth = batch.sizes // 2
    x = torch.ones(batch.num_nodes, 1, dtype=torch.float64)
    grown = torch.zeros(len(graphs), dtype=torch.float64)
    for layer in range(1, int(depth.max()) + 1):
        mean = aggregate(x, batch.adjacency, ["mean"])
        x = scale(mean, batch.adjacency.degree, [scaler], stats).reshape(-1, 1)
        largest = torch.zeros_like(grown).scatter_reduce(
            0, batch.graph_of_node, x.abs()[:, 0], "amax"
        )
        x = x / torch.where(largest > 0, largest, 1)[batch.graph_of_node, None]
        grown = torch.where(depth >= layer, grown + largest.log10(), grown)
    return grown
