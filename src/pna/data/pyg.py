"""PyTorch Geometric's loaders, with each graph's edges sorted once instead of in every layer."""

from __future__ import annotations

from typing import Any

from torch_geometric.transforms import BaseTransform

from pna.adjacency import Adjacency


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
