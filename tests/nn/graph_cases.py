"""Batches for the tests of whole models."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.diameter import diameters
from pna.data.graphset import GraphSet

#: A path with a triangle at its end, a node alone, two nodes apart, a star with a node of degree
#: 0, a ring: sizes of 5, 1, 2, 6 and 8, degrees of 0 to 4.
EDGES = [
    [(0, 1), (1, 2), (2, 3), (3, 4), (2, 4)],
    [],
    [],
    [(0, 1), (0, 2), (0, 3), (0, 4)],
    [(i, (i + 1) % 8) for i in range(8)],
]
SIZES = [5, 1, 2, 6, 8]


@cache
def graphs(edge_columns: int = 0, *, whole: bool = False, columns: int = 2) -> GraphSet:
    """The graphs above, both ways, with features of nodes and of edges."""
    rng = np.random.default_rng(3)
    edges = [[*part, *[(b, a) for a, b in part]] for part in EDGES]
    flat = np.array([e for part in edges for e in part]).T

    def features(rows: int, width: int) -> np.ndarray:
        return rng.integers(0, 3, (rows, width)) if whole else rng.standard_normal((rows, width))

    return GraphSet.from_arrays(
        SIZES, flat, [len(part) for part in edges],
        x=features(sum(SIZES), columns),
        edge_attr=features(flat.shape[1], edge_columns) if edge_columns else None,
        y_node=rng.random((sum(SIZES), 3)), y_graph=rng.random((len(SIZES), 3)),
    )  # fmt: skip


_diameters = cache(diameters)


def batch_of(made: GraphSet, indices: list[int] | None = None) -> Batch:
    """With diameters."""
    batch = made.batch(indices)
    return replace(batch, diameter=_diameters(made)[batch.graph_ids])


def rows_of(batch: Batch, tensor: Tensor) -> list[Tensor]:
    """What belongs to the nodes of each graph."""
    return list(torch.split(tensor, batch.sizes.tolist()))
