"""Images as graphs of superpixels: MNIST and CIFAR10 as in the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pna.data.graphset import GraphSet
from pna.data.images import images
from pna.data.progress import Progress, reporting
from pna.data.slic import CUTS, check_images, cut_all
from pna.data.sources import FROM_PUBLIC, SOURCES, Arrays, chosen, facts, read, unpack

NEIGHBOURS = 8

#: Pixels on a side of the images. Positions are divided by it.
SIDES = {"mnist": 28, "cifar10": 32}

SPLITS = ("train", "validation", "test")

_FEATURES = {1: ("intensity",), 3: ("red", "green", "blue")}
_ARRAYS = (
    *("num_nodes", "label", "split", "npix", "row_q", "row_r", "col_q", "col_r"),
    *("val_q", "val_r"),
)
_PART = 4096  # graphs whose edges are sorted at a time
_PAIRS = 1 << 19  # pairs of nodes that are compared at a time; they fit in a cache


@dataclass(frozen=True)
class Neighbours:
    """The edges from every node of many graphs to similar nodes."""

    edge_index: NDArray[np.int64]  # (2, edges), by sender, the most similar receiver first
    edge_counts: NDArray[np.int64]  # (graphs,)
    similarity: NDArray[np.float32]  # (edges,)


def mnist(
    where: str | Path | None = None, *, workers: int = 1, progress: Progress | None = None
) -> GraphSet:
    """70,000 digits of at most 75 superpixels; 55,000 to train on, 5,000 to validate.

    Nodes have their intensity and position, row and column over the side of the image; edges how
    similar their ends are; graphs the digit to predict. `where` is the data folder or its address,
    PNA_DATA if not given; or "public": then images are fetched from where they are published and
    cut by so many `workers`, which takes minutes and ``pna[images]``. `progress` is told how many
    graphs are made, and of how many.
    """
    return _graphs("mnist", where, workers, progress)


def cifar10(
    where: str | Path | None = None, *, workers: int = 1, progress: Progress | None = None
) -> GraphSet:
    """60,000 images of at most 150 superpixels; 45,000 to train on, 5,000 to validate.

    Nodes have three colours instead of the intensity, graphs a class from 0 to 9; all else is as
    for `mnist`.
    """
    return _graphs("cifar10", where, workers, progress)


def _graphs(
    benchmark: str, where: str | Path | None, workers: int, progress: Progress | None
) -> GraphSet:
    blocks: Iterable[Arrays]
    if chosen(where) == FROM_PUBLIC:
        check_images()
        found = images(benchmark)
        total, blocks = len(found.label), cut_all(found, CUTS[benchmark], workers)
    else:
        files = SOURCES[benchmark].files
        blocks = [unpack(file.name, read(file, where), _ARRAYS) for file in files]
        total = sum(len(arrays["label"]) for arrays in blocks)
    parts = (part for arrays in blocks for part in from_arrays(arrays, benchmark))
    return GraphSet.concat(list(reporting(parts, total, progress, len)))


def from_arrays(arrays: Arrays, benchmark: str) -> Iterator[GraphSet]:
    """Yield graphs in the order of the arrays, some thousands at a time.

    Means over a superpixel are the quotient and remainder of integer sums, so nothing is rounded.
    """
    sizes = arrays["num_nodes"].astype(np.int64)
    ends = np.cumsum(sizes)
    for first in range(0, len(sizes), _PART):
        graphs = slice(first, first + _PART)
        nodes = slice(ends[first] - sizes[first], ends[graphs][-1])
        position = np.stack([_mean(arrays, name, nodes) for name in ("row", "col")], 1)
        position /= SIDES[benchmark]
        values = _mean(arrays, "val", nodes).T / 255
        found = neighbours(position, sizes[graphs])
        yield GraphSet.from_arrays(
            sizes[graphs],
            found.edge_index,
            found.edge_counts,
            x=np.concatenate([values, position], 1).astype(np.float32),
            edge_attr=found.similarity,
            y_graph=arrays["label"][graphs],
            split=arrays["split"][graphs],
            splits=SPLITS,
            node_features=[*_FEATURES[values.shape[1]], "row", "column"],
            edge_features=["similarity"],
            graph_targets=["class"],
            metadata=facts(benchmark) | {"neighbours": NEIGHBOURS},
        )


def _mean(arrays: Arrays, name: str, nodes: slice) -> NDArray[np.float64]:
    pixels = arrays["npix"][nodes].astype(np.float64)
    mean: NDArray[np.float64] = arrays[f"{name}_r"][..., nodes] / pixels
    return mean + arrays[f"{name}_q"][..., nodes]


def neighbours(position: NDArray[np.float64], sizes: NDArray[np.int64]) -> Neighbours:
    """The 8 most similar nodes of every node, or all others if there are fewer.

    With d the distance of two nodes and s_i the mean distance of node i from its 8 nearest, the
    similarity is (exp(−(d/s_i)²) + exp(−(d/s_j)²)) / 2. Nodes of equal
    similarity in float32 are in their order. `position` (nodes, 2) has the concatenated graphs.
    """
    counts = np.minimum(sizes - 1, NEIGHBOURS).clip(0)  # of each node, by graph
    receivers = np.zeros((len(position), NEIGHBOURS), np.int64)
    similarity = np.zeros((len(position), NEIGHBOURS), np.float32)
    starts = np.cumsum(sizes) - sizes
    for some in _alike(sizes):
        node = np.arange(sizes[some].max())
        there = node < sizes[some][:, None]
        nodes = np.where(there, starts[some][:, None] + node, 0)
        most, how_much = _most_similar(position[nodes], there)
        receivers[nodes[there]], similarity[nodes[there]] = most[there], how_much[there]
    of_node = np.repeat(counts, sizes)
    kept = np.arange(NEIGHBOURS) < of_node[:, None]
    senders = np.arange(len(position)) - np.repeat(starts, sizes)
    return Neighbours(
        edge_index=np.stack([np.repeat(senders, of_node), receivers[kept]]),
        edge_counts=counts * sizes,
        similarity=similarity[kept],
    )


def _alike(sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield batches of graphs of similar size with about _PAIRS pairs of nodes each."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    first = 0
    while first < len(order):
        size = sizes[order[first]]
        last = min(first + max(1, _PAIRS // int(size) ** 2), len(order))
        yield order[first:last]
        first = last


def _most_similar(
    position: NDArray[np.float64], there: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Padded positions (graphs, nodes, 2), and which are nodes, to (graphs, nodes, 8) twice.

    Entries after the last neighbour in a small graph have no meaning.
    """
    graphs, width = there.shape
    if width <= NEIGHBOURS:  # so that there are enough columns
        more = NEIGHBOURS + 1 - width
        position = np.pad(position, ((0, 0), (0, more), (0, 0)))
        there = np.pad(there, ((0, 0), (0, more)))
    itself = np.eye(there.shape[1], dtype=bool)
    square = np.zeros((graphs, *itself.shape))
    for axis in range(2):
        square += np.square(position[:, :, None, axis] - position[:, None, :, axis])
    no_pair = itself | ~there[:, None, :] | ~there[:, :, None]
    square[no_pair] = np.inf
    nearest = np.sqrt(np.sort(np.partition(square, NEIGHBOURS - 1)[..., :NEIGHBOURS]))
    known = np.isfinite(nearest)
    spread = np.where(known, nearest, 0).sum(-1) / known.sum(-1).clip(1) + 1e-8
    one_way = np.exp(-square / np.square(spread)[..., None])
    similarity = ((one_way + one_way.swapaxes(1, 2)) / 2).astype(np.float32)
    similarity[no_pair] = -1
    rows = similarity.reshape(-1, similarity.shape[-1])
    every = np.arange(len(rows))
    most = np.empty((len(rows), NEIGHBOURS), np.int64)
    how_much = np.empty((len(rows), NEIGHBOURS), np.float32)
    for rank in range(NEIGHBOURS):  # faster than sorting; of equal ones, the first
        most[:, rank] = rows.argmax(1)
        how_much[:, rank] = rows[every, most[:, rank]]
        rows[every, most[:, rank]] = -1
    shape = (graphs, similarity.shape[1], NEIGHBOURS)
    return most.reshape(shape)[:, :width], how_much.reshape(shape)[:, :width]
