"""Edges of graphs of NetworkX, SciPy and DGL. None of these is imported: methods are enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FROM_EDGE_INDEX = "pna.Adjacency.from_edge_index"

#: What to do with an object that is no edge_index, by the package that its class comes from.
_REMEDIES = {
    "networkx": "convert it with pna.Adjacency.from_networkx(graph)",
    "scipy": "convert it with pna.Adjacency.from_scipy(matrix)",
    "dgl": "convert it with pna.Adjacency.from_dgl(graph)",
    "torch_geometric": f"pass {_FROM_EDGE_INDEX}(data.edge_index, data.num_nodes)",
    "torch_sparse": "convert it with matrix.to_torch_sparse_csr_tensor()",
    "torch": f"convert it with {_FROM_EDGE_INDEX}(edge_index, num_nodes)",
    "pna": "pass batch.adjacency; make a batch of a GraphSet with graphs.batch()",
    "builtins": "convert it with torch.as_tensor, a pair of tensors with torch.stack",
}


def remedy(value: Any) -> str:
    """What to do with an object that was given in place of an ``edge_index`` or `Adjacency`."""
    if hasattr(value, "edge_types"):
        return f"pass {_FROM_EDGE_INDEX}(data[edge_type].edge_index, …) of one edge type"
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    return next(_REMEDIES[package] for package in packages if package in _REMEDIES)


def networkx_edges(graph: Any, nodes: Iterable[Any] | None = None) -> tuple[Tensor, list[Any]]:
    """The edge_index (2, edges) of a NetworkX graph, and the attributes of every edge.

    For `nodes` and the order of edges see `Adjacency.from_networkx`.
    """
    if not callable(getattr(graph, "adjacency", None)) or not hasattr(graph, "is_multigraph"):
        raise TypeError(
            f"got {type(graph).__name__}, expected a networkx graph, such as networkx.Graph"
        )
    row_of = _numbered(graph, nodes)
    several = graph.is_multigraph()
    ends: list[tuple[int, int]] = []
    attributes: list[Any] = []
    for sender, neighbours in graph.adjacency():
        for receiver, found in neighbours.items():
            edges = list(found.values()) if several else [found]
            ends += [(row_of[sender], row_of[receiver])] * len(edges)
            attributes += edges
    return torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t().contiguous(), attributes


def _numbered(graph: Any, nodes: Iterable[Any] | None) -> dict[Any, int]:
    """The row of every node."""
    names = list(graph.nodes if nodes is None else nodes)
    row_of = {name: row for row, name in enumerate(names)}
    if len(row_of) < len(names):
        twice = next(name for row, name in enumerate(names) if row_of[name] != row)
        raise ValueError(f"got node {twice!r} twice in nodes, expected every node once")
    known = set(graph.nodes)
    for name in row_of:
        if name not in known:
            raise ValueError(f"got {name!r} in nodes, which is no node of the graph; leave it out")
    missing = [name for name in graph.nodes if name not in row_of]
    if missing:
        raise ValueError(
            f"got nodes without {missing[0]!r}, expected all {len(known)} nodes of the graph; for "
            "a part of it pass graph.subgraph(nodes)"
        )
    return row_of


def scipy_edges(matrix: Any) -> Tensor:
    """The edge_index (2, edges) of a SciPy sparse matrix: row receives from column."""
    if not hasattr(matrix, "tocoo") or len(matrix.shape) != 2:
        raise TypeError(
            f"got {type(matrix).__name__} of shape {tuple(getattr(matrix, 'shape', ()))}, expected "
            "a scipy.sparse matrix or array with two axes; make one with scipy.sparse.csr_array"
        )
    entries = matrix.tocoo()
    ends = np.stack([entries.col, entries.row])
    if matrix.format == "bsr":  # its blocks are filled up with zeros
        ends = ends[:, entries.data != 0]
    return torch.from_numpy(ends)


def dgl_edges(graph: Any) -> tuple[Tensor, int | tuple[int, int]]:
    """The edge_index (2, edges) of a DGL graph or block, and its `num_nodes`."""
    if not hasattr(graph, "num_nodes") or not hasattr(graph, "canonical_etypes"):
        raise TypeError(
            f"got {type(graph).__name__}, expected a dgl.DGLGraph; "
            "pass the items (graph, label) of a data set as two lists"
        )
    is_block = getattr(graph, "is_block", False)
    if len(graph.canonical_etypes) != 1 or not (is_block or graph.is_homogeneous):
        raise ValueError(
            f"got a DGL graph with node types {graph.ntypes} and edge types {graph.etypes}, "
            "expected one type of each; pass graph[edge_type] if it joins nodes of one type, or "
            "convert it with dgl.to_homogeneous(graph)"
        )
    edge_index = torch.stack(graph.edges(order="eid"))
    if is_block:
        return edge_index, (graph.num_src_nodes(), graph.num_dst_nodes())
    return edge_index, graph.num_nodes()
