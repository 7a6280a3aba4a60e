"""Lists of NetworkX and DGL graphs as arguments of `GraphSet.from_arrays`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.converters import dgl_edges, networkx_edges

#: The names of attributes to read, by the argument of `from_arrays` that names the columns.
Names = Mapping[str, Sequence[str] | None]

#: The array of each of them.
_ARRAYS = {
    "node_features": "x",
    "edge_features": "edge_attr",
    "graph_features": "x_graph",
    "node_targets": "y_node",
    "graph_targets": "y_graph",
}


def from_networkx(graphs: Sequence[Any], names: Names) -> dict[str, Any]:
    """Arguments of `from_arrays` for NetworkX graphs; the attributes `names` become columns."""
    edges, nodes, links, whole = [], [], [], []
    for index, graph in enumerate(graphs):
        edge_index, attributes = networkx_edges(graph)
        edges.append(edge_index)
        nodes += [(f"node {name!r} of graph {index}", graph.nodes[name]) for name in graph.nodes]
        links += [(f"an edge of graph {index}", found) for found in attributes]
        whole.append((f"graph {index}", graph.graph))
    owners = dict(zip(_ARRAYS, (nodes, links, whole, nodes, whole), strict=True))

    def read(level: str, name: str) -> Tensor:
        return _numbers(name, owners[level])

    return {
        "sizes": [len(graph) for graph in graphs],
        "edge_index": torch.cat([torch.zeros(2, 0, dtype=torch.int64), *edges], 1),
        "edge_counts": [each.shape[1] for each in edges],
        **_columns(names, read),
    }


def from_dgl(graphs: Sequence[Any], names: Names) -> dict[str, Any]:
    """Arguments of `from_arrays` for DGL graphs, and for the graphs in batches of DGL."""
    sizes, counts, edges = [], [], []
    for graph in graphs:
        edge_index, num_nodes = dgl_edges(graph)
        if not isinstance(num_nodes, int):
            raise ValueError(
                "got a DGL block, expected a graph; pass the graph that it was sampled from"
            )
        nodes, links = graph.batch_num_nodes().cpu(), graph.batch_num_edges().cpu()
        first = torch.repeat_interleave(nodes.cumsum(0) - nodes, links)
        edges.append(edge_index.cpu().long() - first)
        sizes += nodes.tolist()
        counts += links.tolist()

    def read(level: str, name: str) -> Tensor:
        found = [graph.edata if level == "edge_features" else graph.ndata for graph in graphs]
        for index, frame in enumerate(found):
            if name not in frame:
                raise ValueError(_missing(name, f"graph {index}", frame))
        return torch.cat([frame[name].cpu() for frame in found])

    return {
        "sizes": sizes,
        "edge_index": torch.cat([torch.zeros(2, 0, dtype=torch.int64), *edges], 1),
        "edge_counts": counts,
        **_columns(names, read),
    }


def _columns(names: Names, read: Callable[[str, str], Tensor]) -> dict[str, Any]:
    """The arrays of attributes, and the names of their columns: ``a``, or ``a_0``, ``a_1``, …"""
    found: dict[str, Any] = {}
    for level, chosen in names.items():
        if chosen is None:
            continue
        if isinstance(chosen, str):
            raise TypeError(f"got {level}={chosen!r}, expected a list; write [{chosen!r}]")
        parts = {name: read(level, name) for name in chosen}
        parts = {name: part[:, None].flatten(1) for name, part in parts.items()}
        if parts:
            found[_ARRAYS[level]] = torch.cat([*parts.values()], 1)
            found[level] = [label for name, part in parts.items() for label in _labels(name, part)]
    return found


def _labels(name: str, part: Tensor) -> list[str]:
    width = part.shape[1]
    return [name] if width == 1 else [f"{name}_{i}" for i in range(width)]


def _numbers(name: str, owners: Sequence[tuple[str, Mapping[str, Any]]]) -> Tensor:
    """An attribute of all nodes, edges or graphs: (owners, …)."""
    rows: list[np.ndarray] = []
    for owner, attributes in owners:
        if name not in attributes:
            raise ValueError(_missing(name, owner, attributes))
        try:
            row = np.asarray(attributes[name])
        except ValueError:  # lists of different lengths
            row = np.asarray(None)
        first = rows[0] if rows else row
        is_numeric = row.dtype.kind in "biuf" and not np.ma.is_masked(attributes[name])
        if not is_numeric or row.shape != first.shape:
            raise ValueError(
                f"got {name} = {attributes[name]!r} of {owner}, expected a number, or a list of as "
                "many numbers at every place; encode other values as numbers"
            )
        rows.append(row)
    values = torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0)
    return values.to(torch.get_default_dtype()) if values.is_floating_point() else values


def _missing(name: str, owner: str, attributes: Mapping[str, Any]) -> str:
    known = ", ".join(map(str, attributes)) or "none"
    return f"got no attribute {name!r} of {owner}, expected it in all; it has: {known}"
