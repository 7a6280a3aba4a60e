"""`GraphSet`: many graphs as flat tensors, stored in one file, and batched without sorting."""

from __future__ import annotations

import operator
import reprlib
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.data import tensor_file
from pna.data.attributes import (
    as_columns,
    as_json,
    as_tags,
    as_weights,
    column_names,
    computable,
    has_tag,
    maxima,
)
from pna.data.batch import Batch
from pna.data.edge_labels import check_labels
from pna.data.header import check_header
from pna.data.progress import Progress
from pna.data.structure import SMALL, Structure, check_structure, offsets, sort_edges
from pna.degree import DegreeStats
from pna.files import check_readable
from pna.rows import SEGMENT

Array = Tensor | np.ndarray | Sequence[Any]

_KIND, _VERSION = "pna.GraphSet", 1

#: The tensors with a row for each node, edge, labelled edge and graph. All but graphs have offsets.
_NODE = ("degree", "out_degree", "x", "y_node", "split_of_node")
_EDGE = ("senders", "receivers", "out_ranks", "edge_attr", "split_of_message")
_LABEL = ("label_ends", "label_attr", "y_edge", "split_of_edge")
_GRAPH = ("x_graph", "y_graph", "sample_weight", "split_of_graph", "type_of_graph")
_RAGGED = {"node_offsets": _NODE, "edge_offsets": _EDGE, "label_offsets": _LABEL}
_TENSORS = (*_RAGGED, *_NODE, *_EDGE, *_LABEL, *_GRAPH)

#: The tensors with columns, and those of tags; each with the field that has their names.
_COLUMNS = {
    "x": "node_features",
    "edge_attr": "edge_features",
    "x_graph": "graph_features",
    "y_node": "node_targets",
    "y_graph": "graph_targets",
    "y_edge": "edge_targets",
}
_TAGS = {"split_of_graph": "splits", "type_of_graph": "types"}

#: The scales of targets, and the fields with the names of the targets.
_SCALES = {
    "node_scale": "node_targets", "graph_scale": "graph_targets", "edge_scale": "edge_targets",
}  # fmt: skip

#: The tags of nodes and edges inside a graph, with the columns that they may have one each for.
_INSIDE = {"split_of_node": "node_targets", "split_of_edge": "edge_targets"}

#: Entries that files without labelled edges or graph features do not have, and their values then.
_LATER: dict[str, Any] = {"edge_targets": [], "edge_scale": [], "graph_features": []}

#: Always on the CPU, so that choosing graphs never waits for a device.
_ON_HOST = (*_RAGGED, *_TAGS)


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with their features and targets, as flat tensors and offsets. Immutable.

    Nodes are numbered within their graph. Edges are sorted by receiver, in their given order within
    a receiver, as in an `Adjacency`, so that no edge is sorted to make a batch. Node numbers,
    degrees and ranks are uint8, int16 or int32, the smallest type that holds them. Repeated edges
    and self-loops are allowed, and graphs may have no edges or no nodes. ``len(gs)`` is the number
    of graphs. ``gs[i]``, ``gs[2:5]``, ``gs[[4, 1]]`` and ``gs[mask]`` are graph sets, which share
    memory with this one if the graphs are consecutive.
    """

    node_offsets: Tensor  # (graphs + 1,) int64, always on the CPU: first node of every graph
    edge_offsets: Tensor  # (graphs + 1,) int64, always on the CPU: first edge of every graph
    degree: Tensor  # (nodes,) in-degree
    senders: Tensor  # (edges,) by receiver
    out_degree: Tensor  # (nodes,) out-degree
    receivers: Tensor  # (edges,) by sender
    out_ranks: Tensor  # (edges,) by sender: index among the edges of the receiver
    x: Tensor | None = None  # (nodes, features)
    edge_attr: Tensor | None = None  # (edges, features) by receiver
    y_node: Tensor | None = None  # (nodes, targets), NaN if unknown
    y_graph: Tensor | None = None  # (graphs, targets), NaN if unknown
    split_of_graph: Tensor | None = None  # (graphs,) index in `splits`, always on the CPU
    type_of_graph: Tensor | None = None  # (graphs,) index in `types`, always on the CPU
    node_features: tuple[str, ...] = ()
    edge_features: tuple[str, ...] = ()
    node_targets: tuple[str, ...] = ()
    graph_targets: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    node_scale: tuple[float, ...] = ()  # training divides each target by its scale: the maximum
    graph_scale: tuple[float, ...] = ()  # over the split "train", also in other splits and subsets
    metadata: dict[str, Any] = field(default_factory=dict)  # values of JSON: protocol, seed
    watch: tensor_file.Watch | None = None  # of the file from which tensors are mapped, if any
    #: (nodes,) index in `splits`, or (nodes, targets) if targets are split differently. If it is
    #: given, `split` keeps all graphs, and the targets of its own nodes.
    split_of_node: Tensor | None = None
    #: Edges to be predicted. They are a list of their own, in any order: not all of them need send
    #: messages, and an undirected edge is listed once. All tensors are None without them.
    label_offsets: Tensor | None = None  # (graphs + 1,) int64, on the CPU: first of every graph
    label_ends: Tensor | None = None  # (labelled, 2) int32, sender and receiver in the graph
    label_attr: Tensor | None = None  # (labelled, features), as edge_attr
    y_edge: Tensor | None = None  # (labelled, targets), NaN if unknown
    split_of_edge: Tensor | None = None  # as split_of_node, of labelled edges
    #: (edges,) by receiver: index in `splits` of the edge's label; 0 for edges that always send.
    split_of_message: Tensor | None = None
    edge_targets: tuple[str, ...] = ()
    edge_scale: tuple[float, ...] = ()
    x_graph: Tensor | None = None  # (graphs, features), NaN if unknown
    graph_features: tuple[str, ...] = ()
    sample_weight: Tensor | None = None  # (graphs,) float32, in the loss; None: 1 each

    @classmethod
    def from_arrays(
        cls,
        sizes: Array,
        edge_index: Array,
        edge_counts: Array,
        *,
        x: Array | None = None,
        edge_attr: Array | None = None,
        x_graph: Array | None = None,
        y_node: Array | None = None,
        y_graph: Array | None = None,
        sample_weight: Array | None = None,
        split: Array | None = None,
        type: Array | None = None,
        node_features: Sequence[str] | None = None,
        edge_features: Sequence[str] | None = None,
        graph_features: Sequence[str] | None = None,
        node_targets: Sequence[str] | None = None,
        graph_targets: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> GraphSet:
        """Build from concatenated graphs: NumPy arrays, tensors or lists, which are copied.

        `sizes` and `edge_counts` (graphs,) are the numbers of nodes and edges. ``edge_index`` (2,
        edges) has the sender and receiver of every edge, numbered from 0 within its graph, in any
        order; `edge_attr` has the same order. Features and targets have a row for each node, edge
        or graph, and a name for each column, by default its number; without columns they are None.
        `sample_weight` (graphs,) are the weights of graphs in the loss, at least 0.
        `split` and `type` (graphs,) are names, or indices in `splits` and `types`.

        The scale of a target is its maximum over the graphs of the split "train", over all graphs
        if there are none, and 1 if the maximum is not positive.
        """
        structure, edge_ids = sort_edges(sizes, edge_index, edge_counts)
        num_graphs = len(structure.node_offsets) - 1
        num_nodes, num_edges = len(structure.degree), len(structure.senders)
        x = as_columns("x", x, num_nodes, "node")
        edge_attr = as_columns("edge_attr", edge_attr, num_edges, "edge")
        x_graph = as_columns("x_graph", x_graph, num_graphs, "graph")
        y_node = as_columns("y_node", y_node, num_nodes, "node")
        y_graph = as_columns("y_graph", y_graph, num_graphs, "graph")
        split_of_graph, splits = as_tags("split", split, splits, num_graphs)
        type_of_graph, types = as_tags("type", type, types, num_graphs)
        return cls(
            **vars(structure),
            x=x,
            edge_attr=None if edge_attr is None else edge_attr[edge_ids],
            x_graph=x_graph,
            y_node=y_node,
            y_graph=y_graph,
            sample_weight=as_weights(sample_weight, num_graphs),
            split_of_graph=split_of_graph,
            type_of_graph=type_of_graph,
            node_features=column_names("node_features", node_features, x),
            edge_features=column_names("edge_features", edge_features, edge_attr),
            graph_features=column_names("graph_features", graph_features, x_graph),
            node_targets=column_names("node_targets", node_targets, y_node),
            graph_targets=column_names("graph_targets", graph_targets, y_graph),
            splits=splits,
            types=types,
            metadata=as_json(metadata),
        ).with_scales()

    @classmethod
    def from_pyg(cls, graphs: Iterable[Any], *, level: str | None = None, **facts: Any) -> GraphSet:
        """Build from PyG's `Data`: x, edge_index, edge_attr, x_graph, y or y_node and y_graph,
        num_nodes, sample_weight. ``x_graph`` has one row, the features of the whole graph.

        `graphs` is a list, a data set, a loader, a batch or one graph. Batches are taken apart.
        Targets ``y`` with a row for each node are node targets; with one row they are targets of
        the graph. If every graph has one node, `level` ("node" or "graph") decides. ``split`` and
        ``type`` are names, used if all graphs have them. `facts` are arguments of `from_arrays`.
        """
        from pna.data.pyg import from_data_list

        return cls.from_arrays(**(from_data_list(graphs, level) | facts))

    @classmethod
    def from_networkx(
        cls,
        graphs: Iterable[Any],
        *,
        node_features: Sequence[str] | None = None,
        edge_features: Sequence[str] | None = None,
        graph_features: Sequence[str] | None = None,
        node_targets: Sequence[str] | None = None,
        graph_targets: Sequence[str] | None = None,
        **facts: Any,
    ) -> GraphSet:
        """Build from NetworkX graphs, with nodes and edges as in `Adjacency.from_networkx`.

        Features and targets are attributes of nodes, edges and graphs (``graph.graph``), given by
        name. An attribute is a number, or a list of k numbers, which becomes the columns ``name_0``
        to ``name_{k-1}``. Both directions of an undirected edge have its attributes. Floats become
        torch's default type. `facts` are arguments of `from_arrays`.
        """
        from pna.data.converters import from_networkx

        names = {
            "node_features": node_features,
            "edge_features": edge_features,
            "graph_features": graph_features,
            "node_targets": node_targets,
            "graph_targets": graph_targets,
        }
        return cls.from_arrays(**(from_networkx(_listed_graphs(graphs), names) | facts))

    @classmethod
    def from_dgl(
        cls,
        graphs: Any,
        *,
        node_features: Sequence[str] | None = None,
        edge_features: Sequence[str] | None = None,
        node_targets: Sequence[str] | None = None,
        **facts: Any,
    ) -> GraphSet:
        """Build from DGL graphs with one type of nodes and edges, or from a batch of them.

        Features and targets are entries of ``ndata`` and ``edata``, given by name. An entry with k
        columns becomes ``name_0`` to ``name_{k-1}``. `facts` are arguments of `from_arrays`, such
        as `y_graph`: DGL keeps targets of graphs in lists of their own.
        """
        from pna.data.converters import from_dgl

        names = {
            "node_features": node_features,
            "edge_features": edge_features,
            "node_targets": node_targets,
        }
        return cls.from_arrays(**(from_dgl(_listed_graphs(graphs), names) | facts))

    @classmethod
    def concat(cls, parts: Sequence[GraphSet]) -> GraphSet:
        """One set from many, which must have features and targets of the same names.

        The result has the splits and types of all parts. Scales that differ between parts are
        computed again; metadata that differ are left out.
        """
        if len(parts) == 0:
            raise ValueError("got an empty list, expected at least one GraphSet to join")
        first = parts[0]
        for index, part in enumerate(parts):
            _check_joinable(first, part, index)
            part.check_unchanged()
        joined: dict[str, Any] = {
            name: offsets(torch.cat([getattr(part, name).diff() for part in parts]))
            for name in first._held(_RAGGED)
        }
        for name in first._held((*_NODE, *_EDGE, *_LABEL, "x_graph", "y_graph", "sample_weight")):
            joined[name] = torch.cat([getattr(part, name) for part in parts])
        for name, where in _TAGS.items():
            names = list(dict.fromkeys(tag for part in parts for tag in getattr(part, where)))
            words = None
            if getattr(first, name) is not None:
                words = [getattr(p, where)[tag] for p in parts for tag in getattr(p, name).tolist()]
            total = sum(map(len, parts))
            joined[name], joined[where] = as_tags(where[:-1], words, names, total)
        known = [part.metadata for part in parts]
        agreed = {k: v for k, v in known[0].items() if all(k in m and m[k] == v for m in known)}
        if any({"means", "losses"} & {*m} - {*agreed} for m in known):
            warnings.warn(
                "joined graphs whose targets have different means or losses: the result has none; "
                "pna.data.molecule_table.standardised computes them",
                stacklevel=2,
            )
        combined = replace(first, **joined, metadata=agreed, watch=None)
        scales = {(part.node_scale, part.graph_scale, part.edge_scale) for part in parts}
        return combined if len(scales) == 1 else combined.with_scales()

    @classmethod
    def load(cls, path: str | Path) -> GraphSet:
        """Read a file of `save`, or of a `NodeGraph`, whose first split is taken.

        Its structure is checked; features and targets are not.

        Files of up to 256 MiB are copied into memory and compared with their checksum, which files
        of older versions may not have. Later changes of the file have no effect. Larger files are
        memory-mapped without a check of the checksum, which `verify` does. They must not be
        truncated or written to while the set is in use: see `check_unchanged`.
        """
        path = Path(path)
        check_readable(path)
        if tensor_file.kind_of(path) == "pna.NodeGraph":
            from pna.data.node_graph import NodeGraph

            return NodeGraph.load(path).graph_set()
        watch = tensor_file.Watch.of(path)
        tensors, facts = tensor_file.read(
            path, kind=_KIND, version=_VERSION, check_up_to=tensor_file.IN_MEMORY
        )
        facts = _LATER | facts
        try:
            _check_contents(tensors, facts)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"got {path} with contents that do not fit: {error}; copy or make it again"
            ) from error
        named: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()
        }
        tensors |= {name: computable(tensors[name]) for name in _COLUMNS if name in tensors}
        return cls(**(tensors | named), watch=watch)

    @staticmethod
    def verify(path: str | Path, progress: Progress | None = None) -> bool:
        """Check the checksum of a file of `save`, of any size; False if it has none.

        A damaged file raises an error. `progress` is called with the bytes read, and in all.
        """
        return tensor_file.verify(Path(path), kind=_KIND, version=_VERSION, progress=progress)

    def save(self, path: str | Path, force: bool = False) -> None:
        """Write one safetensors file, completely or not at all. Only `force` overwrites a file.

        It has a checksum (SHA-256) of its tensors, names and metadata.
        """
        self.check_unchanged()
        tensors = {name: getattr(self, name).cpu().contiguous() for name in self._held(_TENSORS)}
        facts = {name: getattr(self, name) for name in _FACTS}
        facts = {name: value for name, value in facts.items() if name not in _LATER or value}
        where = Path(path)
        tensor_file.write(where, tensors, facts, kind=_KIND, version=_VERSION, force=force)

    def check_unchanged(self) -> None:
        """Raise if the file from which the set is mapped was truncated or written to.

        Its graphs are then no longer those that were loaded, and reading them may end the process.
        All methods that read graphs call it first: `batch`, ``gs[…]``, `select`, `split`, `to`,
        `to_pyg`, `concat` and `save`; training calls it before each epoch. It costs one system
        call for a mapped set, and nothing for others.
        """
        if self.watch is not None:
            self.watch.check()

    def to_pyg(self) -> list[Any]:
        """One `Data` of PyG for each graph, in the shapes of PyG's datasets. Integers are int64.

        - ``x`` is (nodes, features), ``edge_index`` (2, edges), sorted by receiver.
        - ``edge_attr`` is (edges, features), or (edges,) if it is one column of integers.
        - ``x_graph`` is (1, features).
        - ``y`` of graphs is (1,), or (1, targets) if there are several; ``y`` of nodes is (nodes,),
          or (nodes, targets). If a set has both, they are ``y_graph`` and ``y_node``.
        - ``edge_label_index`` (2, labelled edges) and ``edge_label`` (labelled edges, targets).
        - ``sample_weight`` is a number, the weight of the graph in the loss.
        - ``split`` and ``type`` are names. Without x there is ``num_nodes``, for isolated nodes.
        """
        from pna.data.pyg import to_data_list

        self.check_unchanged()
        return to_data_list(self)

    def batch(self, indices: Any = None) -> Batch:
        """A batch of all graphs, or of those of these indices, on the device of the set.

        Indices are those of ``gs[indices]``, in any order; they may repeat. The call waits for the
        device only if the indices are there: pass a list or a tensor on the CPU. Features and
        targets of consecutive graphs are not copied: do not write to them.
        """
        graph_ids = _chosen(slice(None) if indices is None else indices, len(self))
        chosen = self if indices is None else self[graph_ids]
        return replace(chosen._joined(), graph_ids=graph_ids.to(self.device, non_blocking=True))

    @property
    def has_splits(self) -> bool:
        """Whether graphs, or the nodes or edges inside them, have splits."""
        return self.split_of_graph is not None or self.splits_inside

    @property
    def splits_inside(self) -> bool:
        """Whether nodes or edges have splits, so that every split has all graphs."""
        return self.split_of_node is not None or self.split_of_edge is not None

    @property
    def num_labels(self) -> int:
        """Number of labelled edges of all graphs."""
        return 0 if self.label_ends is None else self.label_ends.shape[0]

    def split(self, name: str) -> GraphSet:
        """The graphs of one split. If nodes or edges have splits: all graphs, with the targets of
        the nodes of this one, all others are missing; and with the labelled edges of this one."""
        return self.select(split=name)

    def select(
        self,
        *,
        split: str | Collection[str] | None = None,
        type: str | Collection[str] | None = None,
        size: int | Collection[int] | None = None,
    ) -> GraphSet:
        """The graphs of these splits, types and sizes, such as ``range(15, 25)`` nodes."""
        self.check_unchanged()  # splits and types are mapped too
        chosen = torch.ones(len(self), dtype=torch.bool)
        if split is not None and self.splits_inside:
            return self._inside(split).select(type=type, size=size)
        if split is not None:
            chosen &= has_tag("split", split, self.split_of_graph, self.splits)
        if type is not None:
            chosen &= has_tag("type", type, self.type_of_graph, self.types)
        if size is not None:
            wanted = list(size) if isinstance(size, Collection) else [operator.index(size)]
            chosen &= torch.isin(self.sizes, torch.tensor(wanted, dtype=torch.int64))
        return self[chosen]

    def _inside(self, split: str | Collection[str]) -> GraphSet:
        """The same graphs, with the targets of the nodes of these splits, and with the labelled
        edges of these splits. Targets without a split are in none."""

        def hidden(y: Tensor, tags: Tensor | None) -> Tensor:
            if tags is None:
                return torch.full_like(y, torch.nan, dtype=torch.float32)
            own = has_tag("split", split, tags, self.splits).view(len(y), -1)
            return torch.where(own, y if y.is_floating_point() else y.float(), torch.nan)

        found = self
        if self.y_node is not None:
            found = replace(found, y_node=hidden(self.y_node, self.split_of_node))
        if self.y_edge is not None:
            y = hidden(self.y_edge, self.split_of_edge)
            found = replace(found, y_edge=y)._with_labels(~y.isnan().all(1))
        return found

    def _with_labels(self, chosen: Tensor) -> GraphSet:
        """The same graphs with these of the labelled edges, (labelled,) bool."""
        assert self.label_offsets is not None
        before = offsets(chosen.cpu().long())
        parts: dict[str, Any] = {name: getattr(self, name)[chosen] for name in self._held(_LABEL)}
        return replace(self, **parts, label_offsets=before[self.label_offsets])

    def __len__(self) -> int:
        return self.node_offsets.shape[0] - 1

    def __getitem__(self, key: Any) -> GraphSet:
        if isinstance(key, str):
            raise TypeError(f"got graphs[{key!r}], expected numbers; write graphs.split({key!r})")
        self.check_unchanged()
        chosen = _chosen(key, len(self))
        first = int(chosen[0]) if len(chosen) else 0
        if torch.equal(chosen, torch.arange(first, first + len(chosen))):
            return self._slice(first, first + len(chosen))
        return self._gather(chosen)

    @property
    def sizes(self) -> Tensor:
        """Number of nodes of each graph, (graphs,), on the CPU."""
        return self.node_offsets.diff()

    @property
    def edge_counts(self) -> Tensor:
        """Number of edges of each graph, (graphs,), on the CPU."""
        return self.edge_offsets.diff()

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return self.degree.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs, including repeated ones and self-loops."""
        return self.senders.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of all tensors except offsets, splits and types."""
        return self.senders.device

    def degree_stats(self) -> DegreeStats:
        """Degree statistics of all nodes, for δ: ``gs.split("train").degree_stats()``."""
        return DegreeStats.from_degrees(self.degree)

    def to(self, device: torch.device | str | int) -> GraphSet:
        """A copy on another device; itself if it is already there."""
        if torch.device(device) == self.device:
            return self
        self.check_unchanged()
        names = [name for name in self._held(_TENSORS) if name not in _ON_HOST]
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def __repr__(self) -> str:
        return (
            f"GraphSet({len(self)} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{self.device})"
        )

    @property
    def edges(self) -> Tensor:
        """Sender and receiver of every edge, numbered within its graph, by receiver: (2, edges)."""
        starts, sizes = self._on_device(self.node_offsets[:-1], self.sizes)
        nodes = torch.arange(self.num_nodes, device=self.device)
        nodes = nodes - torch.repeat_interleave(starts, sizes, output_size=self.num_nodes)
        degree = self.degree.long()
        receivers = torch.repeat_interleave(nodes, degree, output_size=self.num_edges)
        return torch.stack([self.senders.long(), receivers])

    def _on_device(self, *numbers: Tensor) -> Tensor:
        """Numbers of graphs, sent to the device in one transfer and without waiting."""
        return torch.stack(numbers).to(self.device, non_blocking=True)

    def _slice(self, first: int, end: int) -> GraphSet:
        """Consecutive graphs, in the same memory."""
        parts: dict[str, Any] = {}
        parts |= {name: getattr(self, name)[first:end] for name in self._held(_GRAPH)}
        for where, names in self._ragged():
            starts = getattr(self, where)[first : end + 1]
            begin, stop = starts[0].item(), starts[-1].item()
            parts[where] = starts - begin
            parts |= {name: getattr(self, name)[begin:stop] for name in self._held(names)}
        return replace(self, **parts)

    def _gather(self, chosen: Tensor) -> GraphSet:
        """A copy of any graphs in any order."""
        parts: dict[str, Any] = {}
        for name in self._held(_GRAPH):
            tensor: Tensor = getattr(self, name)
            parts[name] = tensor[chosen.to(tensor.device, non_blocking=True)]
        for where, names in self._ragged():
            old: Tensor = getattr(self, where)
            counts = old[chosen + 1] - old[chosen]
            new = offsets(counts)
            total = int(new[-1])
            shifts, counts = self._on_device(old[chosen] - new[:-1], counts)
            rows = torch.repeat_interleave(shifts, counts, output_size=total)
            rows += torch.arange(total, device=self.device)
            parts[where] = new
            parts |= {name: getattr(self, name).index_select(0, rows) for name in self._held(names)}
        return replace(self, **parts, watch=None)

    def _held(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def _ragged(self) -> list[tuple[str, tuple[str, ...]]]:
        """The offsets of the set, and the tensors that each is for."""
        return [(where, _RAGGED[where]) for where in self._held(_RAGGED)]

    def _joined(self) -> Batch:
        """All graphs as one batch, with consecutive node numbers."""
        self.check_unchanged()
        numbers = self._on_device(self.sizes, self.edge_counts, self.node_offsets[:-1])
        sizes, edge_counts, before = numbers
        graphs = torch.arange(len(self), device=self.device)
        before = torch.repeat_interleave(before, edge_counts, output_size=self.num_edges)
        short = self.degree.dtype == self.out_degree.dtype == torch.uint8
        adjacency = Adjacency.from_csr(
            offsets(self.degree),
            self.senders + before,
            max_degree=SEGMENT if short else -1,
            transpose=(offsets(self.out_degree), self.receivers + before, self.out_ranks),
        )
        return Batch(
            adjacency=adjacency,
            graph_of_node=torch.repeat_interleave(graphs, sizes, output_size=self.num_nodes),
            sizes=sizes,
            x=self.x,
            edge_attr=self.edge_attr,
            x_graph=self.x_graph,
            y_node=self.y_node,
            y_graph=self.y_graph,
            sample_weight=self.sample_weight,
            size_range=(int(self.sizes.min()), int(self.sizes.max())) if len(self) else (0, 0),
            labels=self._joined_labels(),
            label_attr=self.label_attr,
            y_edge=self.y_edge,
        )

    def _joined_labels(self) -> Adjacency | None:
        """The labelled edges of all graphs, with consecutive node numbers."""
        if self.label_ends is None or self.label_offsets is None:
            return None
        before, counts = self._on_device(self.node_offsets[:-1], self.label_offsets.diff())
        before = torch.repeat_interleave(before, counts, output_size=self.num_labels)
        return Adjacency.from_edge_index(self.label_ends.t() + before, self.num_nodes)

    def with_scales(self) -> GraphSet:
        """A copy with the scales of the targets of these graphs."""
        training = torch.ones(len(self), dtype=torch.bool)
        if self.split_of_graph is not None and "train" in self.splits:
            is_train = self.split_of_graph == self.splits.index("train")
            training = is_train if is_train.any() else training
        of_nodes = torch.repeat_interleave(training, self.sizes)
        inside = self.splits_inside and "train" in self.splits
        known = self._inside("train") if inside else self
        of_labels = training[:0]
        if known.label_offsets is not None:
            of_labels = torch.repeat_interleave(training, known.label_offsets.diff())
        return replace(
            self,
            node_scale=maxima(known.y_node, of_nodes),
            graph_scale=maxima(self.y_graph, training),
            edge_scale=maxima(known.y_edge, of_labels),
        )


#: The entries of a file in addition to its tensors.
_FACTS = tuple(f.name for f in fields(GraphSet) if f.name not in (*_TENSORS, "watch"))


def _listed_graphs(graphs: Any) -> list[Any]:
    """The graphs of an iterable, or the one graph: those of NetworkX are iterables of nodes."""
    return [graphs] if hasattr(graphs, "number_of_nodes") else list(graphs)


def _chosen(key: Any, num_graphs: int) -> Tensor:
    """The graph numbers of an index, a slice, a list or a mask, int64 on the CPU."""
    if isinstance(key, slice):
        span = range(num_graphs)[key]
        return torch.arange(len(span)) * span.step + span.start
    if hasattr(key, "__index__") and getattr(key, "ndim", 0) == 0:
        key = [operator.index(key)]
    indices = torch.as_tensor(key).cpu()
    if indices.dim() != 1 or (indices.dtype.is_floating_point and len(indices)):
        raise TypeError(
            f"got an index of shape {tuple(indices.shape)} and type {indices.dtype}, expected a "
            "whole number, a slice, a list of numbers, or a mask (graphs,)"
        )
    if indices.dtype == torch.bool:
        if len(indices) != num_graphs:
            raise IndexError(f"got a mask of {len(indices)} for {num_graphs} graphs")
        return indices.nonzero()[:, 0]
    indices = indices.long()
    wrong = (indices < -num_graphs) | (indices >= num_graphs)
    if wrong.any():
        raise IndexError(f"got graph {int(indices[wrong][0])} of a set of {num_graphs}")
    return indices % max(num_graphs, 1)


def _check_joinable(first: GraphSet, part: GraphSet, index: int) -> None:
    for name in _COLUMNS.values():
        expected, got = getattr(first, name), getattr(part, name)
        if got != expected:
            raise ValueError(
                f"got {name} {', '.join(got) or 'none'} in part {index}, expected "
                f"{', '.join(expected) or 'none'} as in part 0; make the parts alike"
            )
    for name in (*_INSIDE, "label_offsets"):
        held = [getattr(each, name) is not None for each in (first, part)]
        what = "edges" if "edge" in name else "nodes"
        if any(held) and (first.splits != part.splits or not all(held)):
            raise ValueError(
                f"got {what} with other splits in the parts 0 and {index}, expected the same in all"
            )
    for name, where in {**_TAGS, "sample_weight": "weights"}.items():
        if (getattr(first, name) is None) != (getattr(part, name) is None):
            raise ValueError(
                f"got {where} in one of the parts 0 and {index}, expected them in all or none"
            )


def _check_contents(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Raise a ValueError unless these are consistent fields of a GraphSet."""
    required = {f.name for f in fields(Structure)}
    if not required <= set(tensors) <= set(_TENSORS) or set(facts) != set(_FACTS):
        odd = (required - set(tensors)) | (set(tensors) - set(_TENSORS)) | (set(facts) ^ {*_FACTS})
        raise ValueError(f"it lacks, or has but should not: {_listed(sorted(odd))}")
    check_header(facts, (*_COLUMNS.values(), *_TAGS.values()), _SCALES)
    check_structure(Structure(**{name: tensors[name] for name in required}))
    rows = dict.fromkeys(_NODE, len(tensors["degree"]))
    rows |= dict.fromkeys(_EDGE, len(tensors["senders"]))
    rows |= dict.fromkeys(_LABEL, check_labels(tensors))
    rows |= dict.fromkeys(_GRAPH, len(tensors["node_offsets"]) - 1)
    for name, where in _COLUMNS.items():
        width = len(facts[where])
        shape = tuple(tensors[name].shape) if name in tensors else (rows[name], 0)
        if shape != (rows[name], width):
            raise ValueError(f"{name} has shape {shape}, expected {(rows[name], width)}")
        if name in tensors:
            tensor = tensors[name]
            is_float8 = tensor.is_floating_point() and tensor.element_size() == 1
            if tensor.is_complex() or is_float8:
                raise ValueError(f"{name} has type {tensor.dtype}, expected real numbers")
    if "sample_weight" in tensors:
        as_weights(tensors["sample_weight"], rows["sample_weight"])
    for name, where in {**_TAGS, **dict.fromkeys((*_INSIDE, "split_of_message"), "splits")}.items():
        tags = tensors.get(name, torch.zeros(rows[name], dtype=torch.uint8))
        limit = len(facts[where]) if name in tensors else 1
        shapes: list[tuple[int, ...]] = [(rows[name],)]
        if name in _INSIDE:
            shapes.append((rows[name], len(facts[_INSIDE[name]])))
        if (
            tags.shape not in shapes
            or tags.dtype not in (*SMALL, torch.int64)
            or bool(((tags < 0) | (tags >= limit)).any())
        ):
            raise ValueError(f"{name} are not {rows[name]} indices in {where}")


def _listed(names: Sequence[str]) -> str:
    """The first names on one line, shortened."""
    shown = ", ".join(reprlib.repr(name).strip("'") for name in names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
