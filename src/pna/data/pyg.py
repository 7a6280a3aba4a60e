"""PyTorch Geometric's loaders, with each graph's edges sorted once instead of in every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from pna.adjacency import Adjacency, Rows


class AttachAdjacency(BaseTransform):
    """Set ``data.adjacency`` to the `Adjacency` of ``data.edge_index``, of a graph or a batch.

    A PyG `DataLoader` gathers those of its graphs in a list, which layers take as it is. PyG
    does not know that it belongs to the edges: put this last among transforms, and in the
    neighbour loader's own `transform`, or sampled and changed graphs keep the old one.
    """

    def forward(self, data: Any) -> Any:
        edge_index = getattr(data, "edge_index", None)
        if edge_index is None:
            raise ValueError(
                f"got {data!r}, expected a graph with an edge_index; "
                "for HeteroData make one Adjacency for each edge type"
            )
        data.adjacency = Adjacency.from_edge_index(edge_index, data.num_nodes)
        return data


def _to_arrays(record: Adjacency | Rows) -> tuple[Any, ...]:
    """How a loader's worker sends an Adjacency: by value.

    Shared memory, torch's way, costs a file descriptor a tensor, and a batch of a hundred
    graphs has more than a thousand: "too many open files".
    """
    values = [_to_array(getattr(record, field.name)) for field in fields(record)]
    return _from_arrays, (type(record), values)


def _to_array(value: Any) -> Any:
    in_memory = isinstance(value, Tensor) and value.device.type == "cpu"
    return value.numpy() if in_memory else value


def _from_arrays(kind: Callable[..., Any], values: list[Any]) -> Any:
    return kind(*[torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values])


ForkingPickler.register(Adjacency, _to_arrays)
ForkingPickler.register(Rows, _to_arrays)
