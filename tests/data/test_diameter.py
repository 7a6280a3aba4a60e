"""Diameters against networkx, and by eye."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

from pna.data import diameter
from pna.data.diameter import diameters
from pna.data.graphset import GraphSet
from tests.train.cases import random_graphs


def set_of(graphs: list[nx.DiGraph]) -> GraphSet:
    edges = [np.array(list(g.edges), int).reshape(-1, 2).T for g in graphs]
    return GraphSet.from_arrays(
        [len(g) for g in graphs], np.concatenate(edges, 1), [e.shape[1] for e in edges]
    )


def longest(graph: nx.DiGraph) -> int:
    """Of the shortest paths along edges, between nodes that have one."""
    return max((d for _, far in nx.all_pairs_shortest_path_length(graph) for d in far.values()),
               default=0)  # fmt: skip


def test_by_eye():
    """A path, a ring, a star, two nodes apart, a node, none; and one way only."""
    both = [nx.path_graph(5), nx.cycle_graph(7), nx.star_graph(3), nx.empty_graph(2),
            nx.empty_graph(1), nx.empty_graph(0)]  # fmt: skip
    graphs = [g.to_directed() for g in both] + [nx.path_graph(4, nx.DiGraph)]
    assert diameters(set_of(graphs)).tolist() == [4, 3, 2, 0, 0, 0, 3]


def test_parts_of_a_graph_count_by_the_longest_in_any():
    graph = nx.disjoint_union(nx.path_graph(4), nx.path_graph(6)).to_directed()
    assert diameters(set_of([graph])).tolist() == [5]


@pytest.mark.parametrize("dense", [128, 4], ids=["dense", "sparse where larger"])
@pytest.mark.parametrize("together", [2**22, 30], ids=["at once", "in pieces"])
def test_against_networkx(monkeypatch, dense, together):
    monkeypatch.setattr(diameter, "_DENSE", dense)
    monkeypatch.setattr(diameter, "_TOGETHER", together)
    graphs = [nx.gnp_random_graph(n, 0.25, seed=n + s, directed=True)
              for n in range(1, 10) for s in range(3)]  # fmt: skip
    got = diameters(set_of(graphs))
    assert got.dtype == torch.int64
    assert got.tolist() == [longest(g) for g in graphs]


def test_a_graph_of_many_nodes():
    graph = nx.path_graph(200).to_directed()
    assert diameters(set_of([graph, nx.path_graph(3).to_directed()])).tolist() == [199, 2]


def test_no_graphs():
    assert diameters(random_graphs()[:0]).tolist() == []
