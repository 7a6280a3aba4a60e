"""The diameter of every graph: the number of steps that a message needs to reach all nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.data.multitask.labels import shortest_paths

_DENSE = 128  # largest size of graphs that are processed together, as dense matrices
_TOGETHER = 2**22  # entries of such matrices at a time


def diameters(graphs: GraphSet) -> Tensor:
    """(graphs,) int64: the longest shortest path along edges, without unreachable pairs."""
    graphs = graphs.to("cpu")
    sizes, found = graphs.sizes.numpy(), np.zeros(len(graphs), np.int64)
    for size in np.unique(sizes):
        indices = np.nonzero(sizes == size)[0]
        step = max(1, _TOGETHER // max(int(size) ** 2, 1)) if size <= _DENSE else 1
        for start in range(0, len(indices), step):
            some = indices[start : start + step]
            found[some] = _of_one_size(graphs[torch.from_numpy(some)], int(size))
    return torch.from_numpy(found)


def _of_one_size(graphs: GraphSet, size: int) -> np.ndarray:
    if size == 0:
        return np.zeros(len(graphs), np.int64)
    graph = np.repeat(np.arange(len(graphs)), graphs.edge_counts.numpy())
    senders, receivers = graphs.edges.numpy()
    if size <= _DENSE:
        dense = np.zeros((len(graphs), size, size), bool)
        dense[graph, senders, receivers] = True
        return np.asarray(shortest_paths(dense).max((1, 2)))
    from scipy.sparse import csr_array  # takes half a second to import
    from scipy.sparse.csgraph import shortest_path

    ones = np.ones(len(senders), np.int8)
    matrix = csr_array((ones, (senders, receivers)), shape=(size, size))
    distance = shortest_path(matrix, unweighted=True)
    return np.array([distance[np.isfinite(distance)].max()], np.int64)
