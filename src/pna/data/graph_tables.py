"""Tables of nodes and edges, and NetworkX graphs, as a `NodeGraph`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pna.data.columns import TextColumn, Where
from pna.data.elements import PARTS, ElementColumns, random_parts
from pna.data.node_graph import NodeGraph, assemble, directions
from pna.data.progress import Progress
from pna.data.table import SPLIT_WORDS, RowBlock, opened
from pna.data.texts import TextRows, Texts
from pna.files import check_readable
from pna.names import lookup, unique

Fractions = tuple[float, float, float]

_PART_OF_WORD = {word: PARTS.index(part) for word, part in SPLIT_WORDS.items()}
_PART_OF_WORD |= {"": 0, "none": 0}


@dataclass(frozen=True)
class GraphColumns:
    """The columns of the tables of a graph, by their use. All others are features.

    A feature or target has numbers if every cell that is not empty is a number, and otherwise
    categories or classes, at most 1,000. A target with at most 100 different whole numbers has
    classes too. `numeric` and `categorical` name columns of either table to decide it, with up to
    100,000 categories; `ignore` names columns to leave out.
    """

    id: str = ""  # names of nodes; by default the first column
    source: str = ""  # sender of an edge; by default the first column
    dest: str = ""  # receiver of an edge; by default the second column
    targets: Sequence[str] = ()  # of the table of nodes
    edge_targets: Sequence[str] = ()  # of the table of edges
    split: str = ""  # column of nodes with train, validation or test; nothing: not used
    edge_split: str = ""  # the same of edges
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    ignore: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name in ("id", "source", "dest", "split", "edge_split"):
                if not isinstance(value, str):
                    raise TypeError(f"got {name}={value!r}, expected the name of a column")
            else:
                object.__setattr__(self, name, unique(name, value))
        if both := {*self.categorical} & {*self.numeric}:
            raise ValueError(
                f"got the column {min(both)!r} as categorical and as numeric, expected one of them"
            )

    def check_known(self, names: Sequence[str], headers: Sequence[Sequence[str]]) -> None:
        """Raise unless the columns that may be in any of these tables are in one of them."""
        known = dict.fromkeys(column for header in headers for column in header)
        for column in (*self.categorical, *self.numeric, *self.ignore):
            lookup(f"column of {' and '.join(names)}", column, known)


class _Reader:
    """Reads the features, targets and split of nodes or edges in blocks of rows."""

    def __init__(
        self,
        what: str,
        name: str,
        header: Sequence[str],
        keys: Sequence[int],
        columns: GraphColumns,
        where: Where | None = None,
    ) -> None:
        of_nodes = what == "node"
        self.what, self.header, self.keys = what, header, keys
        #: What to do if the columns `keys` are the wrong ones.
        self.remedy = ""
        if not of_nodes and keys and not (columns.source and columns.dest):
            self.remedy = (
                f"; the ends of an edge are read from {header[keys[0]]!r} and {header[keys[1]]!r}: "
                "if others have them, use --source COLUMN --dest COLUMN"
            )
        self.targets = [*(columns.targets if of_nodes else columns.edge_targets)]
        self.split = columns.split if of_nodes else columns.edge_split
        self._lines: list[NDArray[np.int64]] = []
        self.where: Where = where or (lambda row: f"line {self._line(row)} of {name}")
        for used in (*self.targets, *([self.split] if self.split else [])):
            lookup(f"column of {name}", used, dict.fromkeys(header))
        if len({*keys}) < len(keys):
            raise ValueError(
                f"got the column {header[keys[0]]!r} of {name} for both ends of an edge, expected "
                "two columns; name them with --source and --dest"
            )
        self.columns: dict[int, TextColumn] = {}
        for index, column in enumerate(header):
            uses = {
                "the name of a node": index in keys,
                "left out": column in columns.ignore,
                "a target": column in self.targets,
                "the split": column == self.split,
            }
            if sum(uses.values()) > 1:
                found = " and ".join(use for use, is_used in uses.items() if is_used)
                raise ValueError(
                    f"got the column {column!r} of {name} as {found}, expected one use of a "
                    "column; choose another"
                )
            if uses["the name of a node"] or uses["left out"]:
                continue
            if header.count(column) > 1:
                raise ValueError(
                    f"got two columns called {column!r} in {name}, expected different names; "
                    f"rename one, or leave both out with --ignore {column}"
                )
            if column == self.split:
                self._split_at = index
                continue
            kind = "categorical" if column in columns.categorical else ""
            kind = "numeric" if column in columns.numeric else kind
            self.columns[index] = TextColumn(column, self.where, kind, self.remedy)
        self._parts: list[NDArray[np.int8]] = []
        self.count = 0

    def _line(self, row: int) -> int:
        return int(np.concatenate(self._lines)[row])

    def names(self, block: RowBlock) -> list[list[str]]:
        """The cells of the columns `keys` of the next rows, which `add` then reads."""
        self._lines.append(block.lines)
        return [self._names(block, key) for key in self.keys]

    def add(self, block: RowBlock) -> None:
        """Read the other columns of these rows."""
        for index, column in self.columns.items():
            column.add(block.columns[index])
        if self.split:
            words = [cell.strip().lower() for cell in block.columns[self._split_at]]
            parts = np.array([_PART_OF_WORD.get(word, -1) for word in words], np.int8)
            if (parts < 0).any():
                row = int((parts < 0).argmax())
                raise ValueError(
                    f"got {words[row]!r} as {self.split} in {self.where(self.count + row)}, "
                    "expected train, validation or test, or nothing for rows that are not used; "
                    "correct it"
                )
            self._parts.append(parts)
        self.count += len(block.lines)

    def _names(self, block: RowBlock, key: int) -> list[str]:
        """The names of nodes in a column of the next rows; none may be empty."""
        found = [*map(str.strip, block.columns[key])]
        if "" in found:
            what = "a node without a name" if self.what == "node" else "an edge with a missing end"
            raise ValueError(
                f"got {what} in {self.where(self.count + found.index(''))} (the column "
                f"{self.header[key]!r} is empty), expected the name of a node; correct the line, "
                "or remove it"
            )
        return found

    def elements(
        self, random_split: Fractions | None, seed: int, names: Texts | None = None
    ) -> ElementColumns:
        """What was read, with a random split if there are targets and no column of splits."""
        columns = {column.name: column for column in self.columns.values()}
        targets = {name: columns.pop(name).target() for name in self.targets}
        split = np.concatenate(self._parts)[:, None] if self._parts else None
        if split is None and targets:
            assert random_split is not None
            split = random_parts([*targets.values()], random_split, seed)
        features = {name: column.result() for name, column in columns.items()}
        return ElementColumns(self.what, self.count, self.where, features, targets, split, names)


def read_tables(
    edges: Path,
    nodes: Path | None,
    columns: GraphColumns,
    *,
    directed: bool = False,
    random_split: Fractions | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> NodeGraph:
    """The graph of a table of edges, and of nodes; see `NodeGraph.from_tables`."""
    if nodes is None and (columns.targets or columns.split or columns.id):
        raise ValueError(
            "got a target, a split or the names of nodes without a table of nodes, expected one; "
            "pass --nodes, or name columns of the edges with --edge-target and --edge-split"
        )
    _check_splits(columns, random_split)
    paths = [edges] if nodes is None else [nodes, edges]
    for path in paths:
        check_readable(path)
    sizes = [path.stat().st_size for path in paths]

    def advance(before: int) -> Callable[[int], None]:
        return lambda done: progress and progress(before + done, sum(sizes))

    names: _NewNames | _GivenNames = _NewNames()
    with ExitStack() as stack:  # both are opened first, to find a wrong name before long work
        opened_tables = [stack.enter_context(opened(path)) for path in paths]
        headers = [header for header, _ in opened_tables]
        columns.check_known([*map(str, paths)], headers)
        keys = [
            _key(edges, headers[-1], columns.source, 0),
            _key(edges, headers[-1], columns.dest, 1),
        ]
        of_edges = _Reader("edge", str(edges), headers[-1], keys, columns)
        of_nodes = None
        if nodes is not None:
            key = _key(nodes, headers[0], columns.id, 0)
            of_nodes = _Reader("node", str(nodes), headers[0], [key], columns)
            names = _GivenNames(nodes, of_nodes, opened_tables[0][1], advance(0))
        ends = [np.zeros((2, 0), np.int64)]
        report = advance(sum(sizes[:-1]))
        for block in opened_tables[-1][1]:
            ends.append(names.rows(of_edges.names(block), of_edges))
            of_edges.add(block)
            report(block.position)
    if names.have([headers[-1][key] for key in keys]):
        first, second = (headers[-1][key] for key in keys)
        raise ValueError(
            f"got {first!r} and {second!r} as names of columns in the first line of {edges}, but "
            "they are names of nodes, so an edge would be lost; add a line with the names of the "
            "columns above it"
        )
    kept = names.texts()
    if of_nodes is None:
        assert kept is not None
        if len(kept) == 2 * of_edges.count > 2:
            warnings.warn(
                f"got {of_edges.count:,} edges, none of which shares a node with another, expected "
                f"a graph whose nodes have several edges{of_edges.remedy}",
                stacklevel=3,
            )
        given = ElementColumns("node", len(kept), kept.__getitem__, {}, {}, None, kept)
    else:
        given = of_nodes.elements(random_split, seed, kept)
    made_of = of_edges.elements(random_split, seed)
    sends = directions(np.concatenate(ends, 1), directed, of_edges.where)
    title = (nodes or edges).name
    return assemble(given, made_of, sends, {"title": title, "source": [p.name for p in paths]})


def _check_splits(columns: GraphColumns, random_split: Fractions | None) -> None:
    """Raise unless every target has a split, and a random split is of use."""
    if random_split is not None and not (
        len(random_split) == 3
        and all(fraction > 0 for fraction in random_split)
        and abs(sum(random_split) - 1) < 1e-6
    ):
        raise ValueError(
            f"got the random split {','.join(f'{f:g}' for f in random_split)}, expected three "
            "fractions above 0 that add up to 1, for training, validation and test: 0.6,0.2,0.2"
        )
    undecided = False
    for targets, split, option in (
        (columns.targets, columns.split, "--split"),
        (columns.edge_targets, columns.edge_split, "--edge-split"),
    ):
        undecided |= bool(targets) and not split
        if targets and not split and random_split is None:
            raise ValueError(
                f"got the target {targets[0]!r} without a split, expected to know what to train "
                f"on; name a column of train, validation and test with {option}, or use "
                "--random-split 0.6,0.2,0.2"
            )
    if random_split is not None and not undecided:
        raise ValueError(
            "got a random split, but nothing to split: every target has a column of splits, or "
            "there is no target; leave out --random-split, or name a target"
        )


def _key(path: Path, header: Sequence[str], name: str, position: int) -> int:
    """The index of a column that names nodes."""
    if name:
        lookup(f"column of {path}", name, dict.fromkeys(header))
        return header.index(name)
    if len(header) <= position:
        raise ValueError(
            f"got {path} with {len(header)} columns, expected at least {position + 1}, as the "
            "first columns name nodes; check the file and its separator"
        )
    return position


class _NewNames:
    """Nodes that only edges name, in the order in which they occur."""

    def __init__(self) -> None:
        self._row_of: dict[str, int] = {}

    def rows(self, ends: Sequence[list[str]], edges: _Reader) -> NDArray[np.int64]:
        """The rows (2, edges) of the nodes at both ends of the edges that were just read."""
        row_of = self._row_of
        for pair in zip(*ends, strict=True):
            for name in pair:
                if name not in row_of:
                    row_of[name] = len(row_of)
        return np.stack([np.fromiter(map(row_of.__getitem__, end), np.int64) for end in ends])

    def have(self, names: Sequence[str]) -> bool:
        """Whether all of these are names of nodes."""
        return all(name in self._row_of for name in names)

    def texts(self) -> Texts | None:
        """The names in the order of the rows; None if they are the numbers of the rows."""
        return Texts.of([[*self._row_of]])


class _GivenNames:
    """Nodes that a table describes, all of which it reads."""

    def __init__(
        self, path: Path, nodes: _Reader, blocks: Iterator[RowBlock], report: Callable[[int], None]
    ) -> None:
        self._path = path
        self._are_numbers = True
        hashes: list[NDArray[np.int64]] = []

        def read() -> Iterator[list[str]]:
            for block in blocks:
                first = nodes.count
                (names,) = nodes.names(block)
                nodes.add(block)
                self._are_numbers &= names == [*map(str, range(first, nodes.count))]
                hashes.append(TextRows.hashes(names))
                report(block.position)
                yield names

        self._texts = Texts.of(read())
        self._rows = TextRows(np.concatenate(hashes))
        if twice := self._rows.twice():
            first, second = (self._texts[row] for row in twice)
            if first != second:
                raise ValueError(
                    f"got the nodes {first!r} and {second!r} with the same hash, a coincidence "
                    "that depends on the process; run it again"
                )
            places = " and in ".join(map(nodes.where, twice))
            raise ValueError(
                f"got the node {first!r} twice, in {places}, expected one row for each node; "
                "remove one of them"
            )

    def rows(self, ends: Sequence[list[str]], edges: _Reader) -> NDArray[np.int64]:
        found = np.stack([self._rows.find(names) for names in ends])
        unknown = found < 0
        if unknown.any():
            row = int(unknown.any(0).argmax())
            side = int(unknown[:, row].argmax())
            name = ends[side][row]
            near = self._texts.nearest(name)
            raise ValueError(
                f"got {name!r} as {edges.header[edges.keys[side]]} in "
                f"{edges.where(edges.count + row)}, which no row of {self._path} "
                f"describes, expected the name of a node{f' such as {near!r}' if near else ''}; "
                f"correct the line, or add a row for the node{edges.remedy}"
            )
        return found

    def have(self, names: Sequence[str]) -> bool:
        return bool((self._rows.find(names) >= 0).all())

    def texts(self) -> Texts | None:
        return None if self._are_numbers else self._texts


def read_networkx(
    graph: Any, columns: GraphColumns, *, random_split: Fractions | None = None, seed: int = 0
) -> NodeGraph:
    """The graph of NetworkX; see `NodeGraph.from_networkx`."""
    if not hasattr(graph, "is_multigraph") or not hasattr(graph, "is_directed"):
        raise TypeError(
            f"got {type(graph).__name__}, expected a networkx graph, such as networkx.Graph"
        )
    _check_splits(columns, random_split)
    row_of = {node: row for row, node in enumerate(graph.nodes)}
    names = [*map(str, row_of)]
    rows = TextRows(TextRows.hashes(names))
    if twice := rows.twice():
        raise ValueError(
            f"got two nodes that are written {names[twice[0]]!r}, expected different names; rename "
            "one with networkx.relabel_nodes"
        )
    pairs = [(row_of[a], row_of[b]) for a, b in graph.edges()]
    ends = np.array(pairs, np.int64).reshape(-1, 2).T
    readers = []
    for what, owners, where in (
        ("node", [*graph.nodes.values()], lambda row: f"node {names[row]!r}"),
        (
            "edge",
            [data for *_, data in graph.edges(data=True)],
            lambda row: _edge(names, ends, row),
        ),
    ):
        cells = _attributes(owners, where)
        reader = _Reader(what, f"the attributes of {what}s", [*cells], [], columns, where)
        if owners:
            reader.add(RowBlock([*cells.values()], np.zeros(len(owners), np.int64), 0))
        readers.append(reader)
    texts = None if names == [*map(str, range(len(names)))] else Texts.of([names])
    nodes = readers[0].elements(random_split, seed, texts)
    edges = readers[1].elements(random_split, seed)
    sends = directions(ends, graph.is_directed(), readers[1].where)
    return assemble(nodes, edges, sends, {"title": str(graph.name), "source": ["networkx"]})


def _edge(names: Sequence[str], ends: NDArray[np.int64], row: int) -> str:
    return f"the edge from {names[ends[0, row]]!r} to {names[ends[1, row]]!r}"


def _attributes(owners: Sequence[Mapping[Any, Any]], where: Where) -> dict[str, tuple[str, ...]]:
    """The attributes of all nodes or edges as cells of a table; lists become several columns."""
    widths: dict[Any, int] = {}
    for row, owner in enumerate(owners):
        for name, value in owner.items():
            width = len(value) if _is_list(value) else 0
            if value is not None and widths.setdefault(name, width) != width:
                raise ValueError(
                    f"got {name} of {width or 1} values in {where(row)}, expected "
                    f"{widths[name] or 1} as in others; make them alike"
                )
    cells: dict[str, tuple[str, ...]] = {}
    for name, width in widths.items():
        values = [owner.get(name) for owner in owners]
        if width == 0:
            cells[str(name)] = tuple(map(_cell, values))
        for index in range(width):
            parts = (None if value is None else value[index] for value in values)
            cells[f"{name}_{index}"] = tuple(map(_cell, parts))
    return cells


def _cell(value: Any) -> str:
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    return "" if value is None else str(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
