"""Speed of making the multi-task benchmark, compared with labels by NetworkX."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pna.bench.measure import Log
from pna.data.multitask.draw import draw
from pna.data.multitask.families import FAMILIES
from pna.data.multitask.generate import COUNTS, SIZES, MultitaskSettings, Part, make_block
from pna.data.multitask.labels import LABELS, SIX, LabelInputs
from pna.data.multitask.stream import Stream

#: Types of which few draws have an isolated node, also where graphs are large.
OFTEN_WHOLE = ("erdos_renyi", "barabasi_albert", "grid", "caveman", "ladder")


@dataclass(frozen=True)
class GenerationResult:
    """One row: graphs with all six labels, the time that they took, and memory beyond the start."""

    case: str
    contender: str
    graphs: int
    seconds: float
    mib: float | None = None

    @property
    def per_second(self) -> float:
        return self.graphs / self.seconds


def measure(small: bool = False, status: Log = print) -> Iterator[GenerationResult]:
    """All rows, on one core."""
    share = 16 if small else 1
    default = [
        Part(split, size, count // share) for split, count in COUNTS.items() for size in SIZES
    ]
    status("the default set")
    yield _made("default set", default)
    status("a quarter of it")
    yield _made("a quarter", [Part(part.split, part.size, part.count // 4) for part in default])
    status("labels alone, and NetworkX's")
    yield labels_alone(10 if small else 100)
    yield _by_networkx(2 if small else 10)
    if small:
        return
    for i, family in enumerate(FAMILIES):
        if family.name in OFTEN_WHOLE:
            status(f"{family.name}, 95 to 99 nodes")
            parts = [Part("test", size, 256, i) for size in range(95, 100)]
            yield _made(f"{family.name}, 95-99", parts)
    status("the whole test of 95 to 99 nodes")
    yield _made("test 95-99", [Part("test 95-99", size, 256) for size in range(95, 100)])


def _made(case: str, parts: list[Part]) -> GenerationResult:
    """Make graphs in a process of their own, to measure its memory."""
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
    with context.Pool(1) as pool:
        return pool.apply(_make, (case, parts))


def _make(case: str, parts: list[Part]) -> GenerationResult:
    before, start, graphs = _resident(), time.perf_counter(), 0
    for block in MultitaskSettings().blocks(parts):
        make_block(block)
        graphs += block.count
    seconds = time.perf_counter() - start
    return GenerationResult(case, "pna", graphs, seconds, (_peak() - before) / 2**20)


def _by_networkx(per_type: int) -> GenerationResult:
    """NetworkX's labels for graphs that we made."""
    import networkx as nx

    samples, feature = _samples(per_type), np.linspace(0, 1, 20)
    start = time.perf_counter()
    for matrix in samples:
        graph = nx.from_numpy_array(matrix)
        paths = dict(nx.all_pairs_shortest_path_length(graph))
        _ = [max(lengths.values()) for lengths in paths.values()]
        _ = nx.laplacian_matrix(graph) @ feature
        _ = nx.is_connected(graph)
        _ = max(nx.adjacency_spectrum(graph).real)
    return GenerationResult(
        "labels, 20 nodes", "NetworkX", len(samples), time.perf_counter() - start
    )


def labels_alone(per_type: int = 100) -> GenerationResult:
    """Our labels, for the same graphs as NetworkX's."""
    graphs = _samples(per_type)
    start = time.perf_counter()
    source = np.zeros(len(graphs), np.int64)
    given = LabelInputs(graphs, source, np.tile(np.linspace(0, 1, 20), (len(graphs), 1)), "paper")
    for name in SIX:
        LABELS[name].compute(given)
    return GenerationResult("labels, 20 nodes", "pna", len(graphs), time.perf_counter() - start)


def _samples(per_type: int) -> NDArray[np.bool_]:
    """Graphs of 20 nodes of every type."""
    return np.concatenate(
        [draw(Stream("bench", family.name), family, per_type, 20, "paper") for family in FAMILIES]
    )


def _resident() -> int:
    """Bytes of memory that this process has now; its peak, where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return _peak()


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
