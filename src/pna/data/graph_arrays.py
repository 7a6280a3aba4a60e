"""Arrays of an npz file, and `Data` and `HeteroData` of PyG, as a `NodeGraph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pna.data.columns import MOST_DECLARED, Categories, Numbers, Where, check_finite
from pna.data.elements import ElementColumns
from pna.data.node_graph import Directions, NodeGraph, assemble, directions
from pna.data.unpacking import load_npz
from pna.files import check_readable

_NPZ = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")
_MASKS = ("train_mask", "val_mask", "test_mask")
EDGE_TYPE = "edge type"


def from_npz(path: Path, directed: bool = False) -> NodeGraph:
    """The graph in an npz file; see `NodeGraph.from_npz`."""
    check_readable(path)
    return graph_of_npz(path, path.read_bytes(), directed)


def graph_of_npz(path: Path, content: bytes, directed: bool = False) -> NodeGraph:
    """The graph in the content of an npz file."""
    arrays = load_npz(str(path), content)
    if missing := [name for name in _NPZ if name not in arrays]:
        raise ValueError(
            f"got {path} with the arrays {', '.join(arrays) or 'none'}, expected also "
            f"{', '.join(missing)}; convert the graph with pna.data.NodeGraph.from_pyg, or write "
            "tables of nodes and edges"
        )

    def where(row: int) -> str:
        return f"row {row} of {path}"

    x, y, edges = (arrays[name] for name in _NPZ[:3])
    count = len(y) if y.ndim else 0
    ends = _ends(f"edges of {path}", edges.T, count)
    columns = ElementColumns(
        "node",
        count,
        where,
        features_of("feature", x, count, where),
        targets_of("label", y, count, where),
        parts_of_masks({name: arrays[name].T for name in _NPZ[3:]}, count, where),
    )
    of_edges = ElementColumns("edge", ends.shape[1], where, {}, {})
    sends = directions(ends, directed, lambda row: f"row {row} of edges")
    return assemble(columns, of_edges, sends, {"title": path.stem, "source": [path.name]})


def from_pyg(data: Any, title: str = "") -> NodeGraph:
    """The graph of PyG; see `NodeGraph.from_pyg`."""
    nodes, stores = _stores(data)
    count = int(nodes.num_nodes or 0)

    def where(row: int) -> str:
        return f"node {row}"

    of_nodes = ElementColumns(
        "node",
        count,
        where,
        features_of("x", _read(nodes, "x"), count, where),
        targets_of("y", _read(nodes, "y"), count, where),
        _split({name: _read(nodes, name) for name in _MASKS}, count, where),
    )
    ends, columns = _edges_of(stores, count)
    sends, rows = _paired(ends, columns)
    return assemble(of_nodes, _taken(columns, rows), sends, {"title": title, "source": ["PyG"]})


def _stores(data: Any) -> tuple[Any, dict[str, Any]]:
    """The attributes of the nodes, and those of the edges by edge type."""
    if hasattr(data, "edge_types"):
        if len(data.node_types) != 1:
            raise ValueError(
                f"got HeteroData with the node types {', '.join(data.node_types)}, expected one; "
                "join them with data.to_homogeneous(), or use a sampled graph and pna.nn.PNAConv "
                "for each edge type"
            )
        return data[data.node_types[0]], {"/".join(kind): data[kind] for kind in data.edge_types}
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes"):
        raise TypeError(
            f"got {type(data).__name__}, expected torch_geometric.data.Data or HeteroData; for "
            "many graphs use pna.GraphSet.from_pyg"
        )
    if getattr(data, "batch", None) is not None and int(data.batch.max()) > 0:
        raise ValueError(
            "got a batch of several graphs, expected one graph; use pna.GraphSet.from_pyg for many"
        )
    return data, {"": data}


def _read(store: Any, name: str) -> NDArray[Any] | None:
    value = getattr(store, name, None)
    if value is None:
        return None
    tensor = torch.as_tensor(value).detach().cpu()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    wide = tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64)
    found: NDArray[Any] = (tensor.float() if wide else tensor).numpy()
    return found


def _edges_of(
    stores: Mapping[str, Any], num_nodes: int
) -> tuple[NDArray[np.int64], ElementColumns]:
    """The ends of all edges, and their features, labels and split, edge type after edge type."""
    ends = []
    for kind, store in stores.items():
        found = _read(store, "edge_index")
        if found is None or "edge_label_index" in store:
            odd = "no edge_index" if found is None else "edge_label_index, pairs of any nodes,"
            raise ValueError(
                f"got {odd} {f'of {kind}' if kind else ''}, expected edge_index (2, edges) and "
                "labels of these edges, edge_label (edges,); set them, and remove edge_label_index"
            )
        ends.append(_ends(f"edge_index {kind}".strip(), found, num_nodes))
    joined, counts = np.concatenate(ends, 1), [part.shape[1] for part in ends]

    def where(row: int) -> str:
        return f"edge {row}"

    def read(name: str) -> NDArray[Any] | None:
        return _joined(name, {kind: _read(store, name) for kind, store in stores.items()}, counts)

    features = features_of("edge_attr", read("edge_attr"), len(joined.T), where)
    if len(stores) > 1:
        codes = np.repeat(np.arange(len(stores), dtype=np.int32), counts)
        features[EDGE_TYPE] = Categories(codes, tuple(stores))
    masks = [f"edge_{name}" for name in _MASKS] if "" in stores else _MASKS
    split = _split({name: read(name) for name in masks}, len(joined.T), where)
    labels = targets_of("edge_label", read("edge_label"), len(joined.T), where)
    return joined, ElementColumns("edge", len(joined.T), where, features, labels, split)


def _joined(
    name: str, given: Mapping[str, NDArray[Any] | None], counts: Sequence[int]
) -> NDArray[Any] | None:
    """An attribute of the edges of all types; missing for a type that does not have it."""
    some = next((part for part in given.values() if part is not None), None)
    if some is None:
        return None
    blank: Any = False if some.dtype == bool else -1 if some.dtype.kind in "iu" else np.nan
    parts = []
    for (kind, part), count in zip(given.items(), counts, strict=True):
        shape = (count, *some.shape[1:])
        parts.append(np.full(shape, blank, some.dtype) if part is None else part)
        if parts[-1].shape != shape:
            raise ValueError(
                f"got {name} {kind} of shape {parts[-1].shape}, expected {shape}: a row for each "
                "edge, as wide for every edge type"
            )
    return np.concatenate(parts)


def _paired(ends: NDArray[np.int64], columns: ElementColumns) -> tuple[Directions, Any]:
    """The directions, and the edges that are rows: of two that are each other's reverse, the one
    from the lower to the higher node. If one has no reverse, or another value, all of them."""
    every = np.arange(ends.shape[1])
    as_given = Directions(ends, every, np.zeros(len(every), bool), True)
    up, down = np.flatnonzero(ends[0] < ends[1]), np.flatnonzero(ends[0] > ends[1])
    up = up[np.lexsort((ends[1, up], ends[0, up]))]  # stable: repeated edges keep their order
    down = down[np.lexsort((ends[0, down], ends[1, down]))]
    if len(up) != len(down) or len(up) == 0 or not np.array_equal(ends[:, up], ends[::-1, down]):
        return as_given, every
    values = [column[0] for part in (columns.features, columns.targets) for column in part.values()]
    values += [] if columns.split is None else [*columns.split.T]
    if not all(np.array_equal(v[up], v[down], equal_nan=v.dtype.kind == "f") for v in values):
        return as_given, every
    is_reverse = ends[0] > ends[1]
    rows = np.flatnonzero(~is_reverse)
    row_of = np.cumsum(~is_reverse) - 1
    edge_row = row_of.copy()
    edge_row[down] = row_of[up]
    return Directions(ends, edge_row, is_reverse, False), rows


def _taken(columns: ElementColumns, rows: Any) -> ElementColumns:
    """Some of the edges."""

    def take(part: Mapping[str, Numbers | Categories]) -> dict[str, Numbers | Categories]:
        return {name: c._replace(**{c._fields[0]: c[0][rows]}) for name, c in part.items()}

    split = None if columns.split is None else columns.split[rows]
    return replace(
        columns,
        count=len(rows),
        where=lambda row: columns.where(int(rows[row])),
        features=take(columns.features),
        targets=take(columns.targets),
        split=split,
    )


def _ends(name: str, given: NDArray[Any], num_nodes: int) -> NDArray[np.int64]:
    """Both ends of every edge, (2, edges)."""
    if given.ndim != 2 or len(given) != 2 or given.dtype.kind not in "iu":
        raise ValueError(
            f"got {name} with {' × '.join(map(str, given.shape))} numbers of type {given.dtype}, "
            "expected two whole numbers for each edge"
        )
    wrong = (given < 0) | (given >= num_nodes)
    if wrong.any():
        edge = int(wrong.any(0).argmax())
        raise ValueError(
            f"got an edge from {given[0, edge]} to {given[1, edge]}, number {edge} of {name}, "
            f"expected nodes of 0 to {num_nodes - 1}; correct it, or set num_nodes"
        )
    return np.ascontiguousarray(given, np.int64)


def features_of(
    name: str, given: NDArray[Any] | None, count: int, where: Where
) -> dict[str, Numbers | Categories]:
    """The columns of an array (count,) or (count, columns): whole numbers are categories."""
    if given is None:
        return {}
    columns = given[:, None] if given.ndim == 1 else given
    if columns.ndim != 2 or len(columns) != count or columns.dtype.kind not in "biuf":
        raise ValueError(
            f"got {name} of shape {given.shape} and type {given.dtype}, expected numbers, "
            f"({count}, columns)"
        )
    return {
        f"{name} {index}": _column(f"{name} {index}", column, where)
        for index, column in enumerate(columns.T)
    }


def _column(name: str, values: NDArray[Any], where: Where) -> Numbers | Categories:
    if values.dtype.kind in "bf":
        check_finite(name, values.astype(np.float64), where)
        return Numbers(values.astype(np.float32))
    found, codes = np.unique(values, return_inverse=True)
    if len(found) > MOST_DECLARED:
        raise ValueError(
            f"got {name} with {len(found):,} different whole numbers, which would be as many "
            f"categories, expected at most {MOST_DECLARED:,}; if they are quantities, convert them "
            "with .float()"
        )
    return Categories(codes.reshape(-1).astype(np.int32), tuple(map(str, found.tolist())))


def targets_of(
    name: str, given: NDArray[Any] | None, count: int, where: Where
) -> dict[str, Numbers | Categories]:
    """A target for each column of an array: whole numbers are classes, missing if negative."""
    if given is None:
        return {}
    columns = given[:, None] if given.ndim == 1 else given
    if columns.ndim != 2 or len(columns) != count or columns.dtype.kind not in "biuf":
        raise ValueError(
            f"got {name} of shape {given.shape} and type {given.dtype}, expected ({count},), or "
            f"({count}, targets): a row for each"
        )
    found: dict[str, Numbers | Categories] = {}
    for index, values in enumerate(columns.T):
        title = name if columns.shape[1] == 1 else f"{name} {index}"
        whole = values.astype(np.int64) if values.dtype.kind == "b" else values
        column = _column(title, whole, where)
        if isinstance(column, Categories):
            missing = sum(value.startswith("-") for value in column.values)
            codes = np.maximum(column.codes - missing, -1).astype(np.int32)
            column = Categories(codes, column.values[missing:])
        found[title] = column
    return found


def _split(
    masks: Mapping[str, NDArray[Any] | None], count: int, where: Where
) -> NDArray[np.int8] | None:
    """The parts that three masks describe; None without masks."""
    given = {name: mask for name, mask in masks.items() if mask is not None}
    if given and len(given) < len(masks):
        raise ValueError(
            f"got {' and '.join(given)} alone, expected {', '.join(masks)}; an empty part has a "
            "mask of False"
        )
    return parts_of_masks(given, count, where) if given else None


def parts_of_masks(masks: Mapping[str, NDArray[Any]], count: int, where: Where) -> NDArray[np.int8]:
    """Parts (count, splits) of masks of train, validation and test, (count,) or (count, splits)."""
    splits = max([1, *(mask.shape[1] for mask in masks.values() if mask.ndim == 2)])
    parts = np.zeros((count, splits), np.int8)
    names = ["", *masks]
    for code, (name, mask) in enumerate(masks.items(), 1):
        columns = mask[:, None] if mask.ndim == 1 else mask
        if (
            columns.ndim != 2
            or columns.dtype != bool
            or columns.shape not in ((count, splits), (count, 1))
        ):
            raise ValueError(
                f"got {name} of shape {mask.shape} and type {mask.dtype}, expected true or false, "
                f"({count},) or ({count}, {splits}): one for each row and split"
            )
        both = (parts > 0) & columns
        if both.any():
            row, split = (int(index[0]) for index in both.nonzero())
            raise ValueError(
                f"got {where(row)} in {names[parts[row, split]]} and in {name}"
                f"{f', split {split}' if splits > 1 else ''}; {int(both.any(1).sum()):,} rows are, "
                "expected masks that do not overlap; correct them"
            )
        parts[np.broadcast_to(columns, parts.shape)] = code
    return parts
