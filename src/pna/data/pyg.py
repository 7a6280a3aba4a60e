"""PyTorch Geometric: a transform for its loaders, and conversion of its lists of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from pna.adjacency import Adjacency
from pna.names import lookup

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet


class AttachAdjacency(BaseTransform):
    """Set ``data.adjacency`` to the `Adjacency` of ``data.edge_index``, of a graph or a batch.

    A PyG `DataLoader` collects them in a list, which layers accept. PyG does not know that the
    adjacency belongs to the edges. Put this last among transforms, and into the `transform` of a
    neighbour loader; otherwise sampled and changed graphs keep the old one.
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


def to_data_list(graphs: GraphSet) -> list[Data]:
    """One `Data` for each graph, as `GraphSet.to_pyg` returns them; no memory is shared."""
    sizes, edge_counts = graphs.sizes.tolist(), graphs.edge_counts.tolist()
    columns: dict[str, Sequence[Any]] = {"edge_index": graphs.edges.split(edge_counts, 1)}
    both = graphs.y_node is not None and graphs.y_graph is not None
    for name, tensor, counts in (
        ("x", graphs.x, sizes),
        ("edge_attr", _flat_kinds(graphs.edge_attr), edge_counts),
        ("x_graph", graphs.x_graph, [1] * len(graphs)),
        ("y_node" if both else "y", _flat(graphs.y_node), sizes),
        ("y_graph" if both else "y", _flat(graphs.y_graph), [1] * len(graphs)),
    ):
        if tensor is not None:
            columns[name] = _as_pyg(tensor).split(counts)
    if graphs.label_ends is not None and graphs.label_offsets is not None:
        counts = graphs.label_offsets.diff().tolist()
        columns["edge_label_index"] = _as_pyg(graphs.label_ends.t()).split(counts, 1)
        if graphs.y_edge is not None:
            columns["edge_label"] = _as_pyg(graphs.y_edge).split(counts)
    if graphs.x is None:
        columns["num_nodes"] = sizes
    if graphs.sample_weight is not None:
        columns["sample_weight"] = graphs.sample_weight.tolist()
    for name, tags, names in (
        ("split", graphs.split_of_graph, graphs.splits),
        ("type", graphs.type_of_graph, graphs.types),
    ):
        if tags is not None:
            columns[name] = [names[tag] for tag in tags.tolist()]
    return [
        Data(**{name: column[graph] for name, column in columns.items()})
        for graph in range(len(graphs))
    ]


def _as_pyg(tensor: Tensor) -> Tensor:
    """A copy with integers as int64, which embeddings and classification losses need."""
    is_integer = not (tensor.is_floating_point() or tensor.dtype == torch.bool)
    return tensor.to(torch.int64 if is_integer else tensor.dtype, copy=True)


def _flat(columns: Tensor | None) -> Tensor | None:
    """Without the axis of columns, if there is only one."""
    return columns if columns is None or columns.shape[1] != 1 else columns[:, 0]


def _flat_kinds(columns: Tensor | None) -> Tensor | None:
    """The same for categories only: layers take numbers as (edges, 1)."""
    return columns if columns is None or columns.is_floating_point() else _flat(columns)


def from_data_list(given: Iterable[Any], level: str | None = None) -> dict[str, Any]:
    """Arguments of `GraphSet.from_arrays` for these graphs; for `level` see `GraphSet.from_pyg`."""
    if level is not None:
        lookup("level", level, {"node": None, "graph": None})
    graphs: list[Any] = []
    for one in [given] if isinstance(given, Data) else given:
        graphs += one.to_data_list() if isinstance(one, Batch) else [one]
    for index, graph in enumerate(graphs):
        if getattr(graph, "train_mask", None) is not None:
            raise ValueError(
                f"got graph {index} with a train_mask, a split of its nodes, expected graphs that "
                "are in one split each; use pna.data.NodeGraph.from_pyg for one graph with a split "
                "inside it, or remove the masks to ignore them"
            )
    edge_index, sizes = _edges(graphs)
    edge_counts, ones = [edges.shape[1] for edges in edge_index], [1] * len(graphs)
    y_node, y_graph = _values(graphs, "y_node"), _values(graphs, "y_graph")
    y = _values(graphs, "y")
    if y is not None and y_node is None and y_graph is None:
        if (level or _level(y, sizes)) == "node":
            y_node = y
        else:
            y_graph = y
    arrays = {
        "x": _joined("x", _values(graphs, "x"), sizes, "node"),
        "edge_attr": _joined("edge_attr", _values(graphs, "edge_attr"), edge_counts, "edge"),
        "x_graph": _joined("x_graph", _rows(_values(graphs, "x_graph")), ones, "graph"),
        "y_node": _joined("y_node", y_node, sizes, "node"),
        "y_graph": _joined("y_graph", y_graph, ones, "graph"),
        "sample_weight": _values(graphs, "sample_weight"),
        "split": _names(graphs, "split"),
        "type": _names(graphs, "type"),
    }
    edges = torch.cat([torch.zeros(2, 0, dtype=torch.int64), *edge_index], 1)
    return {"sizes": sizes, "edge_index": edges, "edge_counts": edge_counts, **arrays}


def _edges(graphs: Sequence[Any]) -> tuple[list[Tensor], list[int]]:
    """Edges and number of nodes of every graph."""
    edges, sizes = [], []
    for index, graph in enumerate(graphs):
        edge_index = getattr(graph, "edge_index", None)
        if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or len(edge_index) != 2:
            raise ValueError(
                f"got graph {index}, {graph!r}, without an edge_index (2, edges), expected a "
                "PyG Data; a graph without edges has one of shape (2, 0)"
            )
        plain = edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index
        edges.append(plain.cpu())
        sizes.append(graph.num_nodes)
    return edges, sizes


def _values(graphs: Sequence[Any], name: str) -> list[Tensor] | None:
    """An attribute that all graphs or none have."""
    values = [getattr(graph, name, None) for graph in graphs]
    missing = [index for index, value in enumerate(values) if value is None]
    if len(missing) == len(graphs):
        return None
    if missing:
        raise ValueError(
            f"got graph {missing[0]} without {name}, which others have, expected it in all or none"
        )
    return [torch.as_tensor(value).cpu() for value in values]


def _rows(values: list[Tensor] | None) -> list[Tensor] | None:
    """Features of a graph as one row, also if they were given as (features,)."""
    return None if values is None else [v.reshape(1, -1) if v.dim() < 2 else v for v in values]


def _names(graphs: Sequence[Any], tag: str) -> list[str] | None:
    """A tag of every graph; None if it is missing, or not a text, in some graph."""
    names: list[Any] = [getattr(graph, tag, None) for graph in graphs]
    return names if names and all(isinstance(name, str) for name in names) else None


def _level(y: list[Tensor], sizes: list[int]) -> str:
    """The level of targets, "node" or "graph", by their rows."""
    of_graph = all(rows.dim() == 0 or rows.shape[0] == 1 for rows in y)
    of_node = all(rows.dim() > 0 and len(rows) == n for rows, n in zip(y, sizes, strict=True))
    if of_graph and of_node:
        raise ValueError(
            "got y with one row in graphs of one node, which may be of the node or the graph; pass "
            "level='node' or level='graph'"
        )
    if not of_graph and not of_node:
        raise ValueError(
            "got y with neither one row in every graph nor a row for every node, expected either; "
            "give a graph its targets as y of shape (1, targets)"
        )
    return "graph" if of_graph else "node"


def _joined(name: str, values: list[Tensor] | None, counts: list[int], level: str) -> Tensor | None:
    if values is None:
        return None
    rows = [value.reshape(-1, 1) if value.dim() < 2 else value for value in values]
    for index, (value, count) in enumerate(zip(rows, counts, strict=True)):
        if value.shape != (count, rows[0].shape[-1]):
            raise ValueError(
                f"got {name} of shape {tuple(values[index].shape)} in graph {index}, expected "
                f"({count}, {rows[0].shape[-1]}): a row for each {level}, as wide as in graph 0"
            )
    return torch.cat(rows)
