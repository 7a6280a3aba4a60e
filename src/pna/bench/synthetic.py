"""Random graphs with the sizes, degrees and columns of the real-world benchmarks, for measuring
alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pna.bench.molecules import ATOMS, BONDS, molecules
from pna.data.graphset import GraphSet
from pna.data.superpixels import neighbours
from pna.names import lookup
from pna.paper.molhiv import ATOMS as OF_MOLHIV

_CLASSES = 10
_OF_BONDS = 3  # columns of a bond of MolHIV

#: Fewest and most nodes of a graph of superpixels, and how many columns a node has.
_SUPERPIXELS = {"mnist": (66, 75, 3), "cifar10": (85, 150, 5)}


def synthetic(benchmark: str, count: int, seed: int = 0) -> GraphSet:
    """`count` graphs like those of zinc, molhiv, mnist or cifar10; features and targets are random.

    Molecules are those of `molecules`. Superpixels lie anywhere, and send to the 8 nearest.
    """
    return lookup("benchmark", benchmark, _MADE)(benchmark, count, seed)


def _zinc(benchmark: str, count: int, seed: int) -> GraphSet:
    facts = {"benchmark": benchmark, "node_values": [ATOMS], "edge_values": [BONDS]}
    return replace(molecules(count, seed), metadata=facts)


def _molhiv(benchmark: str, count: int, seed: int) -> GraphSet:
    graphs, random = molecules(count, seed), np.random.default_rng(seed)
    return GraphSet.from_arrays(
        graphs.sizes,
        graphs.edges,
        graphs.edge_counts,
        x=np.stack([random.integers(0, values, graphs.num_nodes) for values in OF_MOLHIV], 1),
        edge_attr=random.integers(0, 2, (graphs.num_edges, _OF_BONDS)),
        y_graph=random.integers(0, 2, count).astype(np.float32),
        metadata={"benchmark": benchmark},
    )


def _superpixels(benchmark: str, count: int, seed: int) -> GraphSet:
    random = np.random.default_rng(seed)
    fewest, most, columns = _SUPERPIXELS[benchmark]
    sizes = random.integers(fewest, most + 1, count)
    x = random.random((int(sizes.sum()), columns))
    found = neighbours(x[:, -2:], sizes)
    return GraphSet.from_arrays(
        sizes,
        found.edge_index,
        found.edge_counts,
        x=x.astype(np.float32),
        edge_attr=found.similarity,
        y_graph=np.arange(count) % _CLASSES,
        metadata={"benchmark": benchmark},
    )


_MADE: dict[str, Callable[[str, int, int], GraphSet]] = {
    "zinc": _zinc,
    "molhiv": _molhiv,
    "mnist": _superpixels,
    "cifar10": _superpixels,
}
