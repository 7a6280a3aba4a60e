"""`NodeGraph`: one graph whose nodes or edges are to be predicted, with a split inside it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pna.data import tensor_file
from pna.data.attributes import as_json
from pna.data.columns import Where
from pna.data.edge_labels import DEGREES, UNDIRECTED
from pna.data.elements import (
    PARTS,
    ElementColumns,
    GraphElements,
    GraphTarget,
    make_elements,
    with_numbers,
)
from pna.data.encoding import ENCODING, encoded_as, encoding_of
from pna.data.progress import Progress
from pna.data.texts import Texts
from pna.names import unique
from pna.stored import check

if TYPE_CHECKING:
    from pna.data.graphset import GraphSet

KIND, VERSION = "pna.NodeGraph", 1
#: In the metadata of a set with all splits: their number by level. Column c has split c % number.
SPLITS_OF_TARGETS = "splits of targets"

_INT32 = 2**31 - 1
_FACTS = {"directed": bool, "metadata": dict, "nodes": dict, "edges": dict}
_ELEMENT_FACTS = {
    "count": int,
    "features": list[str],
    "categories": dict[str, list[str]],
    "targets": list[dict],
}


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """One graph whose nodes or edges have targets, and a split of them. Immutable, on the CPU.

    An edge is a row of the table of edges. `edge_index` has the directions in which edges send: one
    of a directed edge or a self-loop, two of any other edge. `edges` has one row for each edge, so
    the features of the directions are ``graph.edges.x[graph.edge_row]``.
    """

    edge_index: Tensor  # (2, directions) int64: sender and receiver
    edge_row: Tensor  # (directions,) int64: the row of the edge
    is_reverse: Tensor  # (directions,) bool: whether the row has sender and receiver exchanged
    nodes: GraphElements
    edges: GraphElements
    directed: bool
    metadata: dict[str, Any] = field(default_factory=dict)  # values of JSON: title, source, notes

    @classmethod
    def from_tables(
        cls,
        edges: str | Path,
        nodes: str | Path | None = None,
        *,
        directed: bool = False,
        random_split: tuple[float, float, float] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
        **columns: Any,
    ) -> NodeGraph:
        """Build from CSV tables with a row for each edge, and a row for each node.

        Without a table of nodes, nodes are those that edges name. Columns that have no other use
        are features. Tables are read in blocks: only the graph must fit into memory.

        Args:
            edges: table of edges. Its first two columns name the sender and the receiver.
            nodes: table of nodes. Its first column has their names.
            directed: keep the direction of edges. By default each edge sends in both directions.
            random_split: fractions of training, validation and test, such as (0.6, 0.2, 0.2), drawn
                within every class.
            seed: random seed of the random split.
            progress: called with the bytes read, and in all.
            columns: fields of `GraphColumns`, such as ``targets=["label"], split="part"``.
        """
        from pna.data.graph_tables import GraphColumns, read_tables

        return read_tables(
            Path(edges),
            None if nodes is None else Path(nodes),
            GraphColumns(**columns),
            directed=directed,
            random_split=random_split,
            seed=seed,
            progress=progress,
        )

    @classmethod
    def from_npz(cls, path: str | Path, *, directed: bool = False) -> NodeGraph:
        """Build from an npz file of the heterophilous graph benchmark, without running its code.

        Its arrays are ``node_features`` (nodes, features), ``node_labels`` (nodes,), ``edges``
        (edges, 2), and ``train_masks``, ``val_masks`` and ``test_masks`` (splits, nodes). An edge
        is listed once; it sends in both directions unless `directed`. A label of -1 is missing.
        """
        from pna.data.graph_arrays import from_npz

        return from_npz(Path(path), directed)

    @classmethod
    def from_pyg(cls, data: Any, *, title: str = "") -> NodeGraph:
        """Build from PyG's `Data`, or `HeteroData` with one type of nodes.

        It has x, edge_index, edge_attr, y, and train_mask, val_mask and test_mask, (nodes,) or
        (nodes, splits). Whole numbers in x and edge_attr are categories. A y of whole numbers is a
        class, and missing if negative; other numbers are missing if NaN. Each column of y is a
        target. `edge_label` (edges,) is a target of edges, with masks called edge_train_mask,
        edge_val_mask and edge_test_mask. The edge types of `HeteroData` become a categorical column
        "edge type". Each type may have its own edge_attr, edge_label, train_mask and so on.

        If every edge has its reverse with the same features and labels, the graph is undirected.
        """
        from pna.data.graph_arrays import from_pyg

        return from_pyg(data, title)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        target: str | Sequence[str] = (),
        edge_target: str | Sequence[str] = (),
        split: str = "",
        edge_split: str = "",
        random_split: tuple[float, float, float] | None = None,
        seed: int = 0,
    ) -> NodeGraph:
        """Build from a NetworkX graph, whose attributes are read as cells of a table.

        `target` and `split` are attributes of nodes, `edge_target` and `edge_split` of edges. All
        other attributes are features. A missing attribute, or None, is a missing value. A list of k
        values becomes the columns ``name_0`` to ``name_{k-1}``. Names of nodes are their `str`.
        """
        from pna.data.graph_tables import GraphColumns, read_networkx

        columns = GraphColumns(
            targets=(target,) if isinstance(target, str) else tuple(target),
            edge_targets=(edge_target,) if isinstance(edge_target, str) else tuple(edge_target),
            split=split,
            edge_split=edge_split,
        )
        return read_networkx(graph, columns, random_split=random_split, seed=seed)

    @classmethod
    def load(cls, path: str | Path) -> NodeGraph:
        """Read a file of `save` into memory. Its checksum and all of its contents are checked."""
        path = Path(path)
        tensors, facts = tensor_file.read(path, kind=KIND, version=VERSION)
        try:
            return _checked(tensors, facts)
        except (ValueError, TypeError, KeyError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"got {path} with contents that do not fit: {what}; copy or make it again"
            ) from error

    @staticmethod
    def verify(path: str | Path, progress: Progress | None = None) -> bool:
        """Check the checksum of a file of `save`, as `GraphSet.verify`."""
        return tensor_file.verify(Path(path), kind=KIND, version=VERSION, progress=progress)

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write one safetensors file, completely or not at all. Only `force` overwrites a file."""
        small = max(self.num_nodes, self.num_edges) <= _INT32
        numbers = torch.int32 if small else torch.int64
        tensors = {
            "edge_index": self.edge_index.to(numbers),
            "edge_row": self.edge_row.to(numbers),
            "is_reverse": self.is_reverse,
        }
        facts: dict[str, Any] = {"directed": self.directed, "metadata": self.metadata}
        for what in ("nodes", "edges"):
            part, facts[what] = _packed(getattr(self, what))
            tensors |= {f"{what}.{name}": tensor for name, tensor in part.items()}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        tensor_file.write(Path(path), tensors, facts, kind=KIND, version=VERSION, force=force)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.nodes.count

    @property
    def num_edges(self) -> int:
        """Number of edges. An edge counts once, also if it sends in both directions."""
        return self.edges.count

    def encoded_as(self, encoding: Mapping[str, Any], split: int = 0) -> NodeGraph:
        """The same graph with the columns of the graph that a model was trained with.

        `encoding` is ``graphs.metadata["encoding"]`` of its `graph_set`. Columns are found by their
        names; means, standard deviations and the numbers of categories are those of training.
        """
        nodes, edges = (
            encoded_as(elements, what, encoding[what], split) if what in encoding else elements
            for what, elements in (("node", self.nodes), ("edge", self.edges))
        )
        return replace(self, nodes=nodes, edges=edges)

    def graph_set(self, split: int | None = 0, levels: Collection[str] | None = None) -> GraphSet:
        """The graph as a set of one graph, to train on, with one of its splits.

        Categories come first among the columns of features; numbers are standardised by the mean
        and standard deviation of the training rows. Targets of nodes are columns of `y_node`, and
        targets of edges of `y_edge`: numbers of classes, or numbers. A node or an edge without a
        part in the split has no targets.

        If `split` is None, every target has a column for each split, "label of split 3", and
        numbers are standardised as in the first split. The members of a population can then train
        with a split each: ``Settings(members=10, task_weights=numpy.eye(10))``.

        `levels` are "node" and "edge", for a model that predicts these. Default: those that have
        targets.
        """
        from pna.data.graphset import GraphSet

        both = {"node": self.nodes, "edge": self.edges}
        if levels is None:
            levels = [level for level, elements in both.items() if elements.targets]
            if not levels:
                raise ValueError(
                    f"got {self!r}, expected targets of nodes or edges to train on; make the graph "
                    "with --target COLUMN or --edge-target COLUMN"
                )
        of_nodes, of_edges = (
            _trained(elements if level in levels else None, split)
            for level, elements in both.items()
        )
        shared = {name for name, _ in of_nodes.targets} & {name for name, _ in of_edges.targets}
        losses: dict[str, str] = {}
        classes: dict[str, list[str]] = {}
        for level, trained in (("node", of_nodes), ("edge", of_edges)):
            for name, target in trained.targets:
                own = f"{level}.{name}" if name in shared else name
                losses[own] = target.loss
                classes |= {own: list(target.classes)} if target.classes else {}
        x, node_values = self.nodes.columns(split or 0)
        edge_attr, edge_values = self.edges.columns(split or 0)
        has_features = edge_attr.shape[1] > 0
        metadata: dict[str, Any] = {
            "graph": self.metadata.get("title", ""), "losses": losses, "classes": classes,
            ENCODING: {what: encoding_of(of, split or 0) for what, of in both.items()},
        }  # fmt: skip
        metadata |= {"node_values": node_values} if any(node_values) else {}
        metadata |= {"edge_values": edge_values} if any(edge_values) else {}
        if split is None:
            splits = {level: _num_splits(elements) for level, elements in both.items()}
            metadata[SPLITS_OF_TARGETS] = {level: splits[level] for level in levels}
        metadata |= {DEGREES: True} if self.metadata.get(DEGREES) else {}
        metadata |= {UNDIRECTED: True} if not self.directed and "edge" in levels else {}
        made = GraphSet.from_arrays(
            [self.num_nodes], self.edge_index, [self.edge_index.shape[1]], x=x,
            edge_attr=edge_attr[self.edge_row] if has_features else None, y_node=of_nodes.y,
            node_features=[*self.nodes.categories, *self.nodes.features],
            edge_features=[*self.edges.categories, *self.edges.features] or None,
            node_targets=[name for name, _ in of_nodes.targets], metadata=metadata,
        )  # fmt: skip
        if "edge" in levels:
            sends = None  # splits of edges that differ between targets say nothing about messages
            if of_edges.tags is not None and of_edges.tags.dim() == 1:
                sends = of_edges.tags[self.edge_row][self.edge_index[1].argsort(stable=True)]
            made = replace(
                made,
                label_offsets=torch.tensor([0, self.num_edges]),
                label_ends=self.ends.t().to(torch.int32).contiguous(),
                label_attr=edge_attr if has_features else None,
                y_edge=of_edges.y,
                edge_targets=tuple(name for name, _ in of_edges.targets),
                split_of_edge=of_edges.tags,
                split_of_message=sends,
            )
        if of_nodes.tags is not None or of_edges.tags is not None:
            made = replace(made, split_of_node=of_nodes.tags, splits=PARTS[1:])
        sizes = {
            name: y.abs() for name in ("y_node", "y_edge") if (y := getattr(made, name)) is not None
        }
        scaled = replace(made, **sizes).with_scales()
        return replace(made, node_scale=scaled.node_scale, edge_scale=scaled.edge_scale)

    @property
    def ends(self) -> Tensor:
        """Sender and receiver of every edge as its row gives them, (2, edges)."""
        found = torch.empty((2, self.num_edges), dtype=torch.int64)
        found[:, self.edge_row[~self.is_reverse]] = self.edge_index[:, ~self.is_reverse]
        return found

    def summary(self) -> Iterator[str]:
        """Lines about the graph, as `pna data describe` prints them."""
        if title := self.metadata.get("title"):
            yield str(title)
        stored = self.edge_index.shape[1]
        sends = "directed" if self.directed else f"undirected, stored as {stored:,} directions"
        yield f"{self.num_nodes:,} nodes, {self.num_edges:,} edges, {sends}"
        degree = torch.bincount(self.edge_index[1], minlength=self.num_nodes)
        mean = stored / max(self.num_nodes, 1)
        yield (
            f"in-degree: mean {mean:.4g}, largest {int(degree.max()) if len(degree) else 0:,}; "
            f"nodes without incoming edges: {int((degree == 0).sum()):,}"
        )
        yield from self.nodes.summary("node")
        yield from self.edges.summary("edge")
        for note in self.metadata.get("notes", []):
            yield f"note: {note}"
        if not self.nodes.targets and not self.edges.targets:
            yield "nothing to train: no columns to predict were named (--target, --edge-target)"

    def __repr__(self) -> str:
        targets = [target.name for target in (*self.nodes.targets, *self.edges.targets)]
        return f"NodeGraph({self.num_nodes} nodes, {self.num_edges} edges, targets {targets})"


class _Trained(NamedTuple):
    """What a graph set has of nodes or edges that are predicted."""

    targets: list[tuple[str, GraphTarget]]  # with the names of its columns
    y: Tensor | None  # (rows, columns) float32, NaN if missing; None without targets
    tags: Tensor | None  # (rows,) or (rows, columns) uint8, index in `GraphSet.splits`


def _trained(elements: GraphElements | None, split: int | None) -> _Trained:
    if elements is None or not elements.targets:
        return _Trained([], None, None)
    targets, parts = [(target.name, target) for target in elements.targets], elements.split
    if parts is not None:
        elements.part("train", split or 0)  # raises if there is no such split
        parts = parts if split is None else parts[:, split : split + 1].expand(-1, len(targets))
    if parts is not None and split is None:
        count = parts.shape[1]
        targets = [(f"{t.name} of split {k}", t) for t in elements.targets for k in range(count)]
        parts = parts.repeat(1, len(elements.targets))
    y = torch.stack([torch.where(t.known, t.values.float(), torch.nan) for _, t in targets], 1)
    if parts is None:
        return _Trained(targets, y, None)
    tags = (parts - 1).clamp(min=0).to(torch.uint8)
    tags = tags if split is None else tags[:, 0]
    return _Trained(targets, torch.where(parts > 0, y, torch.nan), tags.contiguous())


def _num_splits(elements: GraphElements) -> int:
    return 1 if elements.split is None else elements.split.shape[1]


class Directions(NamedTuple):
    """The first three fields of a `NodeGraph`, and whether it is directed."""

    edge_index: NDArray[np.int64]
    edge_row: NDArray[np.int64]
    is_reverse: NDArray[np.bool_]
    directed: bool


def directions(ends: NDArray[np.int64], directed: bool, where: Where) -> Directions:
    """The directions of edges (2, edges): all as given, and then their reverses if undirected.

    Rows that join the same two nodes are kept. If the graph is undirected, a warning counts them.
    """
    rows = np.arange(ends.shape[1])
    if directed:
        return Directions(ends, rows, np.zeros(len(rows), bool), True)
    low, high = ends.min(0), ends.max(0)
    order = np.lexsort((high, low))
    again = (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0)
    if again.any():
        first = int(order[1:][again].min())
        warnings.warn(
            f"got {int(again.sum()):,} edges between two nodes that an earlier row joins too, the "
            f"first in {where(first)}; every row is kept as an edge of its own; if the edges are "
            "listed in both directions, use --directed",
            stacklevel=4,
        )
    turned = np.flatnonzero(low != high)
    return Directions(
        np.concatenate([ends, ends[::-1, turned]], 1),
        np.concatenate([rows, turned]),
        np.arange(len(rows) + len(turned)) >= len(rows),
        False,
    )


def assemble(
    nodes: ElementColumns, edges: ElementColumns, sends: Directions, metadata: Mapping[str, Any]
) -> NodeGraph:
    """The graph of these nodes and edges. Nodes without features get their degree as one."""
    edge_index = torch.from_numpy(np.ascontiguousarray(sends.edge_index))
    of_nodes, notes = make_elements(nodes)
    of_edges, more = make_elements(edges)
    notes += more
    if not of_nodes.features and not of_nodes.categories:
        sides = {"in-degree": 1, "out-degree": 0} if sends.directed else {"degree": 1}
        degrees = {
            f"log(1 + {name})": torch.bincount(edge_index[side], minlength=nodes.count).log1p()
            for name, side in sides.items()
        }
        of_nodes = with_numbers(of_nodes, degrees)
        notes.append(f"nodes have no features; they get {' and '.join(degrees)}")
        metadata = {**metadata, DEGREES: True}
    return NodeGraph(
        edge_index,
        torch.from_numpy(sends.edge_row),
        torch.from_numpy(sends.is_reverse),
        of_nodes,
        of_edges,
        sends.directed,
        as_json({**metadata, "notes": notes}),
    )


def _packed(elements: GraphElements) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of nodes or edges in a file."""
    tensors = {name: getattr(elements, name) for name in ("x", "mean", "std", "codes")}
    if elements.split is not None:
        tensors["split"] = elements.split
    if elements.names is not None:
        tensors |= {"names.utf8": elements.names.utf8, "names.offsets": elements.names.offsets}
    for index, target in enumerate(elements.targets):
        tensors[f"targets.{index}"] = target.values
    return tensors, {
        "count": elements.count,
        "features": elements.features,
        "categories": elements.categories,
        "targets": [{"name": t.name, "classes": t.classes} for t in elements.targets],
    }


def _checked(tensors: dict[str, Tensor], facts: dict[str, Any]) -> NodeGraph:
    """The graph in a file, which may come from anyone. Tensors are copied."""
    check(facts, _FACTS, "the header")
    check({"notes": [], **facts["metadata"]}, {"notes": list[str]}, "metadata")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    nodes = _unpacked("nodes", tensors, facts["nodes"])
    edges = _unpacked("edges", tensors, facts["edges"])
    index, row, reverse = (tensors.pop(name) for name in ("edge_index", "edge_row", "is_reverse"))
    if tensors:
        raise ValueError(f"it has {', '.join(sorted(tensors)[:3])}, which is not known")
    size = row.shape[0] if row.dim() else -1
    whole = (torch.int32, torch.int64)
    if (
        (index.shape, row.shape, reverse.shape) != ((2, size), (size,), (size,))
        or index.dtype not in whole
        or row.dtype not in whole
        or reverse.dtype != torch.bool
    ):
        raise ValueError("edge_index, edge_row and is_reverse are not of the same edges")
    index, row = index.long(), row.long()
    for name, values, limit in (("edge_index", index, nodes.count), ("edge_row", row, edges.count)):
        _check_range(name, values, 0, limit)
    forward = torch.full((2, edges.count), -1)
    forward[:, row[~reverse]] = index[:, ~reverse]
    turned = torch.bincount(row[reverse], minlength=edges.count)
    if (
        int((~reverse).sum()) != edges.count
        or bool((forward < 0).any())
        or bool((turned > (not facts["directed"])).any())
        or not torch.equal(forward[:, row[reverse]].flip(0), index[:, reverse])
    ):
        raise ValueError("edge_index has not every edge once, and at most once reversed")
    return NodeGraph(index, row, reverse, nodes, edges, facts["directed"], facts["metadata"])


def _unpacked(what: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> GraphElements:
    """Nodes or edges of a file, whose tensors are removed from `tensors`."""
    check(facts, _ELEMENT_FACTS, what)

    def take(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = tensors.pop(f"{what}.{name}")
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(
                f"{what}.{name} has shape {tuple(tensor.shape)} and type {tensor.dtype}, expected "
                f"{shape} and {dtype}"
            )
        return tensor

    count, categories = facts["count"], facts["categories"]
    if count < 0:
        raise ValueError(f"{what} has a count of {count}")
    width = len(unique(f"{what} features", facts["features"]))
    split = tensors.pop(f"{what}.split", None)
    splits = 1
    if split is not None:
        splits = split.shape[1] if split.dim() == 2 else 0
        if split.shape != (count, splits) or splits == 0 or split.dtype != torch.int8:
            raise ValueError(f"{what}.split is not of {count} rows")
        _check_range(f"{what}.split", split, 0, len(PARTS))
    x = take("x", (count, width), torch.float32)
    mean, std = (take(name, (splits, width), torch.float32) for name in ("mean", "std"))
    if not all(bool(part.isfinite().all()) for part in (x, mean, std)) or bool((std <= 0).any()):
        raise ValueError(f"{what} has features, means or deviations that are not finite")
    codes = take("codes", (count, len(categories)), torch.int32)
    for column, (name, values) in enumerate(categories.items()):
        unique(name, values)
        _check_range(f"{what}.codes", codes[:, column], 0, len(values))
    targets = []
    for index, entry in enumerate(facts["targets"]):
        check(entry, {"name": str, "classes": list[str]}, f"a target of {what}")
        classes = unique("classes", entry["classes"])
        values = take(f"targets.{index}", (count,), torch.int64 if classes else torch.float32)
        if classes:
            _check_range(entry["name"], values, -1, len(classes))
        elif bool(values.isinf().any()):
            raise ValueError(f"the target {entry['name']} is not finite")
        targets.append(GraphTarget(entry["name"], values, classes))
    unique(f"targets of {what}", [target.name for target in targets])
    names = None
    if f"{what}.names.utf8" in tensors:
        names = Texts(tensors.pop(f"{what}.names.utf8"), tensors.pop(f"{what}.names.offsets"))
        names.check()
        if len(names) != count:
            raise ValueError(f"{what} has {len(names)} names for {count} rows")
    return GraphElements(
        count=count,
        x=x,
        mean=mean,
        std=std,
        codes=codes,
        features=tuple(facts["features"]),
        categories={name: tuple(values) for name, values in categories.items()},
        targets=tuple(targets),
        split=split,
        names=names,
    )


def _check_range(name: str, values: Tensor, low: int, limit: int) -> None:
    if values.numel() and not (low <= int(values.min()) and int(values.max()) < limit):
        raise ValueError(f"{name} has numbers that are not in {low} to {limit - 1}")
