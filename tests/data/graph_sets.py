"""Graphs for the tests of GraphSet: drawn by hypothesis, and compared field by field."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from pna import GraphSet

SPLITS, TYPES = ("train", "validation", "test"), ("star", "path")

#: Features and targets of nodes, edges and graphs, splits, types, weights: each may be absent.
ALL = frozenset(
    {"x", "edge_attr", "x_graph", "y_node", "y_graph", "split", "type", "sample_weight"}
)


def make(
    sizes: list[int], edges: list[list[tuple[int, int]]], has: frozenset[str] = ALL
) -> GraphSet:
    """A set with these edges, where features and targets are all different numbers."""
    nodes, edge_count, graphs = sum(sizes), sum(map(len, edges)), len(sizes)
    flat = [edge for of_graph in edges for edge in of_graph]
    given: dict[str, Any] = {
        "x": np.arange(2 * nodes, dtype=np.float32).reshape(nodes, 2),
        "edge_attr": -np.arange(edge_count, dtype=np.float32)[:, None] - 1,
        "x_graph": np.arange(graphs * 3, dtype=np.uint8).reshape(graphs, 3) + 7,
        "y_node": np.arange(nodes * 3, dtype=np.int64).reshape(nodes, 3),
        "y_graph": torch.arange(graphs * 2, dtype=torch.float64).reshape(graphs, 2),
        "sample_weight": np.arange(graphs, dtype=np.float32) / 2,
        "split": [SPLITS[i % 3] for i in range(graphs)],
        "type": [i % 2 for i in range(graphs)],
    }
    given = {name: value for name, value in given.items() if name in has}
    if "split" in has:
        given["splits"] = SPLITS
    if "type" in has:
        given["types"] = TYPES
    edge_index = np.array(flat, dtype=np.int64).reshape(-1, 2).T
    return GraphSet.from_arrays(sizes, edge_index, [len(e) for e in edges], **given)


@st.composite
def graph_sets(draw: st.DrawFn, min_graphs: int = 0) -> GraphSet:
    """Few small graphs in any edge order, without nodes or edges too."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=min_graphs, max_size=5))
    edges = [
        draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=6)) if n else []
        for n in sizes
    ]
    return make(sizes, edges, draw(st.frozensets(st.sampled_from(sorted(ALL)))))


def assert_same(one: GraphSet, other: GraphSet) -> None:
    """Every field equal, whatever integer types the structure is kept in."""
    for field in fields(GraphSet):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if not isinstance(a, Tensor):
            assert a == b, field.name
        else:
            assert torch.equal(a, b), field.name
