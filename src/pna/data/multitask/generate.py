"""The multi-task benchmark as a GraphSet: its splits, sizes and counts."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from pna.data.graphset import GraphSet
from pna.data.multitask.draw import PROTOCOLS, draw, types_of
from pna.data.multitask.families import FAMILIES
from pna.data.multitask.labels import LABELS, SIX, LabelInputs
from pna.data.multitask.stream import Stream
from pna.data.pool import ordered_map
from pna.data.progress import Progress, reporting
from pna.names import lookup

#: Version of the generator. It changes whenever a seed gives other graphs or labels.
VERSION = 1

#: Graphs of each size in a split.
COUNTS = {"train": 512, "validation": 128, "test": 256}

SIZES = range(15, 25)
#: First sizes of the extrapolation tests, which have five sizes each.
BEYOND = (20, 25, 30, 35, 40, 45, 60, 75, 95)

_LABELLED = 500_000  # pairs of nodes whose labels are computed at a time
_BLOCK = 256  # graphs made at a time, by one worker, from their own random stream


@dataclass(frozen=True)
class MultitaskSettings:
    """Everything that determines the graphs of a benchmark. `multitask` explains the fields."""

    seed: int = 0
    protocol: str = "paper"
    extrapolation: bool = False
    types: bool = False
    sizes: Sequence[int] = SIZES
    counts: Mapping[str, int] | None = None
    tasks: Sequence[str] = SIX
    mixture: Mapping[str, int] | None = None
    draws: int = 1

    def __post_init__(self) -> None:
        operator.index(self.seed)
        lookup("protocol", self.protocol, PROTOCOLS)
        for name in self.tasks:
            lookup("task", name, LABELS)
        if len(self.tasks) == 0:
            raise ValueError(f"got no tasks, expected some of {', '.join(LABELS)}")
        if len(self.sizes) == 0:
            raise ValueError("got no sizes, expected at least one, such as 15-24")
        for name in ("tasks", "sizes"):
            repeated = [value for value, n in Counter(getattr(self, name)).items() if n > 1]
            if repeated:
                raise ValueError(f"got {name} {repeated} more than once, expected each once")
        for size in self.sizes:
            if not 4 <= size <= 120:
                raise ValueError(
                    f"got a size of {size} nodes, expected 4 to 120: hardly one in 100,000 larger "
                    "stars has no isolated node"
                )
        for split, count in self.all_counts.items():
            lookup("split", split, COUNTS)
            if count < 0:
                raise ValueError(f"got {count} graphs to {split}, expected 0 or more")
        if self.all_counts["train"] == 0:
            raise ValueError("got 0 graphs to train, expected some: targets are scaled by theirs")
        if self.draws < 1:
            raise ValueError(f"got draws={self.draws}, expected at least 1")
        for name, share in self.shares.items():
            lookup("type of graph", name, {family.name: family for family in FAMILIES})
            if not isinstance(share, int) or share < 0:
                raise ValueError(
                    f"got a share of {share!r} for {name}, expected a whole number from 0"
                )
        if not 0 < sum(self.shares.values()) < 2**31:
            raise ValueError(f"got the shares {self.shares}, expected some of them above 0")

    @property
    def all_counts(self) -> dict[str, int]:
        """Graphs of each size in every split."""
        return COUNTS | dict(self.counts or {})

    @property
    def shares(self) -> dict[str, int]:
        """The share of every type of graph in the mixture."""
        if self.mixture is None:
            return {family.name: family.share for family in FAMILIES}
        return {family.name: 0 for family in FAMILIES} | dict(self.mixture)

    def names(self, level: str) -> list[str]:
        """The tasks of a level, "node" or "graph"."""
        return [name for name in self.tasks if LABELS[name].level == level]

    def parts(self) -> list[Part]:
        """The graphs of the benchmark, by split and size."""
        counts = self.all_counts
        spans = dict.fromkeys(COUNTS, self.sizes)
        if self.extrapolation:
            del spans["test"]
            spans["validation"] = range(25, 30)
            spans |= {f"test {first}-{first + 4}": range(first, first + 5) for first in BEYOND}
        parts = [
            Part(split, size, counts[split.split()[0]])
            for split, span in spans.items()
            for size in span
        ]
        if self.types:
            parts += [
                Part(f"test {family.name}", size, counts["test"], i)
                for i, family in enumerate(FAMILIES)
                for size in self.sizes
            ]
        return parts

    def blocks(self, parts: Sequence[Part] | None = None) -> list[Block]:
        """The blocks of all parts, or of these. Workers may make them in any order."""
        return [
            Block(part, number, min(_BLOCK, part.count - first), self, turn)
            for turn in range(self.draws)
            for part in (self.parts() if parts is None else parts)
            if turn == 0 or part.split == "train"
            for number, first in enumerate(range(0, part.count, _BLOCK))
        ]


@dataclass(frozen=True)
class Part:
    """Graphs of one size in a split; of one type if `family` is given."""

    split: str
    size: int
    count: int
    family: int | None = None


@dataclass(frozen=True)
class Block:
    """Some graphs of a part, made by one worker."""

    part: Part
    number: int
    count: int
    benchmark: MultitaskSettings
    draw: int = 0  # later draws have the same graphs with other sources and features


@dataclass(frozen=True)
class GeneratedGraphs:
    """The graphs of a block, as flat arrays."""

    edges: NDArray[np.int16]  # (2, edges): sender and receiver, numbered within their graph
    edge_counts: NDArray[np.int64]
    types: NDArray[np.int64]
    x: NDArray[np.float32]  # (nodes, 2)
    y_node: NDArray[np.float32]  # (nodes, tasks)
    y_graph: NDArray[np.float32]  # (graphs, tasks)


def multitask(
    seed: int = 0,
    protocol: str = "paper",
    *,
    workers: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> GraphSet:
    """Make the multi-task benchmark. The result does not depend on the number of workers.

    Args:
        seed: seed of all graphs and inputs.
        protocol: "paper", or "published": the toggling of edges and the wrong connectivity labels
            of the authors' code.
        workers: number of processes.
        progress: called with the number of graphs made, and the number of all graphs.
        extrapolation: validate on sizes 25 to 29 and test on 20 to 24, 25 to 29, … 95 to 99, each
            in a split of its own. Default: False.
        types: add a test split for each type of graph. Default: False.
        sizes: numbers of nodes. Default: 15 to 24.
        counts: graphs of each size in a split. Default: 512 to train, 128 to validate, 256 to test.
        tasks: names of labels. Default: the six of the paper.
        mixture: share of each type of graph, a whole number; 0 for types that are not named.
            Default: the paper's.
        draws: how often each training graph occurs. The later draws stand at the end, with new
            sources, features and targets. Default: 1.
    """
    benchmark = MultitaskSettings(seed, protocol, **options)
    blocks = benchmark.blocks()
    total = sum(block.count for block in blocks)
    results = ordered_map(make_block, blocks, workers)
    made = list(reporting(results, total, progress, lambda found: len(found.types)))
    graphs = _collect(blocks, made)
    if benchmark.draws == 1:
        return graphs
    # all draws have the scales of the first, so that errors are comparable
    once = sum(block.draw == 0 for block in blocks)
    first = _collect(blocks[:once], made[:once])
    return replace(graphs, node_scale=first.node_scale, graph_scale=first.graph_scale)


@threadpool_limits.wrap(limits=1, user_api="blas")  # matrices are small, blocks share the cores
def make_block(block: Block) -> GeneratedGraphs:
    """Make the graphs of a block with their features and targets, on one core."""
    part, n, benchmark = block.part, block.part.size, block.benchmark
    names = (VERSION, benchmark.seed, benchmark.protocol, part.split, n, block.number)
    kinds = np.full(block.count, part.family)
    if part.family is None:
        shares = list(benchmark.shares.values())
        kinds = types_of(Stream(*names, "types"), shares, block.count)
    graphs = np.zeros((block.count, n, n), bool)
    for i, family in enumerate(FAMILIES):
        which = np.flatnonzero(kinds == i)
        stream = Stream(*names, family.name)
        graphs[which] = draw(stream, family, len(which), n, benchmark.protocol)
    stream = Stream(*names, "features", *([block.draw] if block.draw else []))
    source = stream.below(n, block.count)
    feature = (stream.bits(block.count, n) >> np.uint32(8)) * 2.0**-24  # exact in float32
    step = max(1, _LABELLED // n**2)
    pieces = [
        LabelInputs(
            graphs[i : i + step], source[i : i + step], feature[i : i + step], benchmark.protocol
        )
        for i in range(0, block.count, step)
    ]

    def labels(level: str, rows: int) -> NDArray[np.float32]:
        columns = [
            np.concatenate([LABELS[name].compute(piece) for piece in pieces]).reshape(rows, 1)
            for name in benchmark.names(level)
        ]
        return np.concatenate([np.zeros((rows, 0)), *columns], 1).astype(np.float32)

    _, receiver, sender = np.nonzero(graphs)
    is_source = np.arange(n) == source[:, None]
    return GeneratedGraphs(
        edges=np.stack([sender, receiver]).astype(np.int16),
        edge_counts=graphs.sum((1, 2)),
        types=kinds.astype(np.int64),
        x=np.stack([is_source, feature], 2).reshape(-1, 2).astype(np.float32),
        y_node=labels("node", block.count * n),
        y_graph=labels("graph", block.count),
    )


def _collect(blocks: Sequence[Block], made: Sequence[GeneratedGraphs]) -> GraphSet:
    benchmark = blocks[0].benchmark
    splits = list(dict.fromkeys(block.part.split for block in blocks))
    counts = [block.count for block in blocks]
    draws = blocks[-1].draw + 1

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
        node_targets=benchmark.names("node"),
        graph_targets=benchmark.names("graph"),
        splits=splits,
        types=[family.name for family in FAMILIES],
        metadata={
            "benchmark": "multitask",
            "protocol": benchmark.protocol,
            "seed": operator.index(benchmark.seed),
            "generator": VERSION,
            **({"draws": draws} if draws > 1 else {}),
            "mixture": benchmark.shares,
        },
    )
