"""The benchmark as a GraphSet: which splits, which sizes, how many of each."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pna.data.graphset import GraphSet
from pna.data.multitask.draw import PROTOCOLS, draw, types_of
from pna.data.multitask.families import FAMILIES
from pna.data.multitask.stream import Stream
from pna.data.multitask.tasks import SIX, TASKS, Labelled, Numbers
from pna.data.pool import in_order
from pna.names import lookup

#: Changes with every change to the graphs or labels that a seed stands for.
VERSION = 1

#: Graphs of each size in a split.
COUNTS = {"train": 512, "validation": 128, "test": 256}

SIZES = range(15, 25)
#: What to extrapolate to: tests of five sizes each, beginning with these.
BEYOND = (20, 25, 30, 35, 40, 45, 60, 75, 95)

_LABELLED = 500_000  # pairs of nodes whose labels are taken at a time
_BLOCK = 256  # graphs made at a time, by one worker, from a stream of their own


@dataclass(frozen=True)
class Part:
    """Graphs of one size in a split, of one type if it is given."""

    split: str
    size: int
    count: int
    family: int | None = None


@dataclass(frozen=True)
class Block:
    """Some graphs of a part, and what decides about them."""

    part: Part
    number: int
    count: int
    seed: int
    protocol: str
    tasks: tuple[str, ...]
    shares: tuple[int, ...]  # of each type in the mixture
    draw: int = 0  # which of those of sources and features, of the same graphs


@dataclass(frozen=True)
class Made:
    """The graphs of a block, flat."""

    edges: NDArray[np.int16]  # (2, edges): sender and receiver, in the numbers of their graph
    edge_counts: NDArray[np.int64]
    types: NDArray[np.int64]
    x: NDArray[np.float32]  # (nodes, 2)
    y_node: NDArray[np.float32]  # (nodes, tasks)
    y_graph: NDArray[np.float32]  # (graphs, tasks)


def multitask(
    seed: int = 0,
    protocol: str = "paper",
    *,
    extrapolation: bool = False,
    types: bool = False,
    sizes: Sequence[int] = SIZES,
    counts: dict[str, int] | None = None,
    tasks: Sequence[str] = SIX,
    mixture: Mapping[str, int] | None = None,
    draws: int = 1,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> GraphSet:
    """Make the multi-task benchmark.

    512 graphs of each size to train, 128 to validate, 256 to test. With `extrapolation` it
    validates on sizes of 25 to 29 and tests on 20 to 24, 25 to 29, … 95 to 99, in splits named
    after them; with `types` there is a further test for each type of graph. The protocol `paper` is
    the paper's; `published` toggles as few edges, and calls bipartite graphs disconnected, as the
    published code did. `mixture` gives other shares to the types, in whole numbers; those it does
    not name have none. With several `draws` the graphs to train are repeated at the end, with
    sources and features drawn anew, and the targets that belong to these. What is made depends on
    all this, and not on the number of workers. `progress` is told how many graphs are made, and of
    how many.
    """
    seed = operator.index(seed)
    lookup("protocol", protocol, PROTOCOLS)
    _check_once("tasks", tasks)
    for name in tasks:
        lookup("task", name, TASKS)
    if len(tasks) == 0:
        raise ValueError(f"got no tasks, expected some of {', '.join(TASKS)}")
    for name, value in (("workers", workers), ("draws", draws)):
        if value < 1:
            raise ValueError(f"got {name}={value}, expected at least 1")
    parts = _parts(sizes, COUNTS | (counts or {}), extrapolation, types)
    blocks = cut(parts, seed, protocol, tasks, mixture, draws)
    total = sum(block.count for block in blocks)
    made, done = [], 0
    for block, result in zip(blocks, in_order(make_block, blocks, workers), strict=True):
        made.append(result)
        done += block.count
        if progress is not None:
            progress(done, total)
    graphs = _collect(blocks, made)
    if draws == 1:
        return graphs
    # scales stay those of the first draw, so that an error means the same
    once = sum(block.draw == 0 for block in blocks)
    first = _collect(blocks[:once], made[:once])
    return replace(graphs, node_scale=first.node_scale, graph_scale=first.graph_scale)


def _parts(
    sizes: Sequence[int], counts: dict[str, int], extrapolation: bool, types: bool
) -> list[Part]:
    _check(sizes, counts)
    spans = {"train": sizes, "validation": sizes, "test": sizes}
    if extrapolation:
        del spans["test"]
        spans["validation"] = range(25, 30)
        spans |= {f"test {first}-{first + 4}": range(first, first + 5) for first in BEYOND}
    parts = [
        Part(split, size, counts[split.split()[0]])
        for split, span in spans.items()
        for size in span
    ]
    if types:
        parts += [
            Part(f"test {family.name}", size, counts["test"], i)
            for i, family in enumerate(FAMILIES)
            for size in sizes
        ]
    return parts


def _check(sizes: Sequence[int], counts: dict[str, int]) -> None:
    if len(sizes) == 0:
        raise ValueError("got no sizes, expected at least one, such as 15-24")
    _check_once("sizes", sizes)
    for size in sizes:
        if not 4 <= size <= 120:
            raise ValueError(
                f"got a size of {size} nodes, expected 4 to 120: of larger stars hardly one in "
                "100,000 has no isolated node"
            )
    for split, count in counts.items():
        lookup("split", split, COUNTS)
        if count < 0:
            raise ValueError(f"got {count} graphs to {split}, expected 0 or more")
    if counts["train"] == 0:
        raise ValueError("got 0 graphs to train, expected some: targets are scaled by theirs")


def _check_once(name: str, values: Sequence[object]) -> None:
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        raise ValueError(f"got {name} {repeated} more than once, expected each once")


def cut(
    parts: Sequence[Part],
    seed: int = 0,
    protocol: str = "paper",
    tasks: Sequence[str] = SIX,
    mixture: Mapping[str, int] | None = None,
    draws: int = 1,
) -> list[Block]:
    """The blocks of these parts, which can be made in any order and by anyone."""
    given = seed, protocol, tuple(tasks), _shares(mixture)
    return [
        Block(part, number, min(_BLOCK, part.count - first), *given, turn)
        for turn in range(draws)
        for part in parts
        if turn == 0 or part.split == "train"
        for number, first in enumerate(range(0, part.count, _BLOCK))
    ]


def _shares(mixture: Mapping[str, int] | None) -> tuple[int, ...]:
    if mixture is None:
        return tuple(family.share for family in FAMILIES)
    known = {family.name: 0 for family in FAMILIES}
    for name, share in mixture.items():
        lookup("type of graph", name, known)
        if not isinstance(share, int) or share < 0:
            raise ValueError(f"got a share of {share!r} for {name}, expected a whole number from 0")
        known[name] = share
    if not 0 < sum(known.values()) < 2**31:
        raise ValueError(f"got shares {dict(mixture)}, expected some of them above 0")
    return tuple(known.values())


def make_block(block: Block) -> Made:
    """The graphs of a block with their features and targets, on one core."""
    with threadpool_limits(1, "blas"):  # matrices are small, and blocks share the cores
        return _make_block(block)


def _make_block(block: Block) -> Made:
    part, n = block.part, block.part.size
    names = (VERSION, block.seed, block.protocol, part.split, n, block.number)
    kinds = np.full(block.count, part.family)
    if part.family is None:
        kinds = types_of(Stream(*names, "types"), block.shares, block.count)
    graphs = np.zeros((block.count, n, n), bool)
    for i, family in enumerate(FAMILIES):
        which = np.flatnonzero(kinds == i)
        stream = Stream(*names, family.name)
        graphs[which] = draw(stream, family, len(which), n, block.protocol)
    stream = Stream(*names, "features", *([block.draw] if block.draw else []))
    source = stream.below(n, block.count)
    feature = (stream.bits(block.count, n) >> np.uint32(8)) * 2.0**-24  # as float32 keeps it
    few = max(1, _LABELLED // n**2)
    pieces = [
        Labelled(graphs[i : i + few], source[i : i + few], feature[i : i + few], block.protocol)
        for i in range(0, block.count, few)
    ]
    of_node, of_graph = (
        [
            np.concatenate([TASKS[name].label(piece) for piece in pieces])
            for name in block.tasks
            if TASKS[name].level == level
        ]
        for level in ("node", "graph")
    )
    is_source = np.arange(n) == source[:, None]
    return Made(
        edges=np.concatenate([_edges(piece.graphs) for piece in pieces], 1),
        edge_counts=graphs.sum((1, 2)),
        types=kinds.astype(np.int64),
        x=np.stack([is_source, feature], 2).reshape(-1, 2).astype(np.float32),
        y_node=_columns(of_node, block.count * n),
        y_graph=_columns(of_graph, block.count),
    )


def _edges(graphs: NDArray[np.bool_]) -> NDArray[np.int16]:
    """Sender and receiver of every edge, (2, edges), by receiver."""
    _, receiver, sender = np.nonzero(graphs)
    return np.stack([sender.astype(np.int16), receiver.astype(np.int16)])


def _columns(labels: list[Numbers], rows: int) -> NDArray[np.float32]:
    if not labels:
        return np.zeros((rows, 0), np.float32)
    return np.stack([label.reshape(rows) for label in labels], 1).astype(np.float32)


def _collect(blocks: Sequence[Block], made: Sequence[Made]) -> GraphSet:
    first = blocks[0]
    splits = list(dict.fromkeys(block.part.split for block in blocks))
    counts = [block.count for block in blocks]

    def joined(name: str, axis: int = 0) -> NDArray[np.generic]:
        return np.concatenate([getattr(part, name) for part in made], axis)

    return GraphSet.from_arrays(
        sizes=np.repeat([block.part.size for block in blocks], counts),
        edge_index=joined("edges", 1),
        edge_counts=joined("edge_counts"),
        x=joined("x"),
        y_node=joined("y_node"),
        y_graph=joined("y_graph"),
        split=np.repeat([splits.index(block.part.split) for block in blocks], counts),
        type=joined("types"),
        node_features=["source", "feature"],
        node_targets=[name for name in first.tasks if TASKS[name].level == "node"],
        graph_targets=[name for name in first.tasks if TASKS[name].level == "graph"],
        splits=splits,
        types=[family.name for family in FAMILIES],
        metadata={
            "benchmark": "multitask",
            "protocol": first.protocol,
            "seed": first.seed,
            "generator": VERSION,
            **({"draws": draws} if (draws := blocks[-1].draw + 1) > 1 else {}),
            "mixture": dict(zip((family.name for family in FAMILIES), first.shares, strict=True)),
        },
    )
