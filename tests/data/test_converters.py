"""Attributes of NetworkX and DGL graphs become named columns."""

import networkx as nx
import numpy as np
import pytest
import torch

from pna import GraphSet
from tests.data.graph_sets import assert_same
from tests.dgl_graphs import DGLGraph, batch


def molecules():
    """Two undirected graphs: a – b with a self-loop at b, and one node."""
    first = nx.Graph(energy=-1.5)
    first.add_node("a", charge=1, place=[0.0, 0.5], label=0)
    first.add_node("b", charge=2, place=np.array([1.0, 2.0]), label=1)
    first.add_edge("a", "b", bond=3, length=0.5)
    first.add_edge("b", "b", bond=4, length=0.25)
    second = nx.Graph(energy=2.0)
    second.add_node("a", charge=7, place=(3.0, 4.0), label=2)
    return [first, second]


def test_networkx_by_eye():
    gs = GraphSet.from_networkx(
        molecules(),
        node_features=["charge", "place"],
        edge_features=["bond"],
        node_targets=["label"],
        graph_targets=["energy"],
        split=["train", "test"],
    )
    assert (gs.sizes.tolist(), gs.edge_counts.tolist()) == ([2, 1], [3, 0])
    assert gs.edges.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert gs.node_features == ("charge", "place_0", "place_1")
    assert gs.x.tolist() == [[1, 0, 0.5], [2, 1, 2], [7, 3, 4]]
    assert gs.x.dtype == torch.float32
    assert (gs.edge_features, gs.edge_attr.tolist()) == (("bond",), [[3], [3], [4]])
    assert not gs.edge_attr.is_floating_point()
    assert (gs.node_targets, gs.y_node.tolist()) == (("label",), [[0], [1], [2]])
    assert (gs.graph_targets, gs.y_graph.tolist()) == (("energy",), [[-1.5], [2.0]])
    assert gs.splits == ("train", "test")


def test_networkx_without_names_or_graphs():
    assert GraphSet.from_networkx(molecules()).x is None
    assert len(GraphSet.from_networkx([])) == 0
    assert len(GraphSet.from_networkx(molecules()[0])) == 1  # one graph


def test_networkx_without_edges_or_nodes():
    graph = nx.Graph()
    for nodes in range(2):
        assert GraphSet.from_networkx([graph], edge_features=["order"]).edge_attr.shape == (0, 1)
        graphs = GraphSet.from_networkx([graph], node_features=["charge"])
        assert graphs.x.shape == (nodes, 1) and graphs.node_features == ("charge",)
        graph.add_node("C", charge=6)


def test_repeated_edges_have_their_own_attributes():
    graph = nx.MultiDiGraph()
    graph.add_edges_from([(0, 1, {"w": 1}), (0, 1, {"w": 2}), (1, 0, {"w": 3})])
    gs = GraphSet.from_networkx([graph], edge_features=["w"])
    assert gs.edges.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert gs.edge_attr.tolist() == [[3], [1], [2]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"node_features": ["mass"]}, "no attribute 'mass' of node 'a' of graph 0, .* charge, pl"),
        ({"edge_features": ["mass"]}, "no attribute 'mass' of an edge of graph 0"),
        ({"graph_targets": ["mass"]}, "no attribute 'mass' of graph 0, .* it has: energy"),
        ({"node_features": ["name"]}, "got name = 'C' of node 'b' of graph 0, expected a number"),
        ({"node_features": ["ragged"]}, r"got ragged = \[1, \[2\]\] of node 'a' of graph 0"),
        ({"node_features": ["wide"]}, r"got wide = \[1, 2\] of node 'b' of graph 0, .* as many"),
        ({"node_features": ["hidden"]}, r"got hidden = masked_array(.|\n)* of node 'b' of graph 0"),
    ],
)
def test_attributes_that_are_no_numbers(names, message):
    graph = molecules()[0]
    graph.add_node("a", name=1, ragged=[1, [2]], wide=[1])
    graph.add_node("b", name="C", ragged=1, wide=[1, 2])
    for name, mask in (("a", False), ("b", True)):
        graph.nodes[name]["hidden"] = np.ma.array([1.0, 2.0], mask=[False, mask])
    with pytest.raises(ValueError, match=message):
        GraphSet.from_networkx([graph], **names)


def test_a_name_is_no_list():
    with pytest.raises(TypeError, match=r"node_features='charge', .* write \['charge'\]"):
        GraphSet.from_networkx(molecules(), node_features="charge")


def graphs_of_dgl():
    first, second = DGLGraph([[2, 0, 1], [0, 1, 0]], 3), DGLGraph([[0], [0]], 1)
    for graph, start in ((first, 0.0), (second, 10.0)):
        nodes, edges = graph.num_nodes(), len(graph.edges()[0])
        graph.ndata["feat"] = start + torch.arange(2.0 * nodes).reshape(nodes, 2)
        graph.ndata["label"] = torch.arange(nodes)
        graph.edata["weight"] = start + torch.arange(float(edges))
    return [first, second]


def test_dgl_by_eye():
    gs = GraphSet.from_dgl(
        graphs_of_dgl(),
        node_features=["feat"],
        edge_features=["weight"],
        node_targets=["label"],
        y_graph=[[5.0], [6.0]],
        graph_targets=["energy"],
    )
    assert (gs.sizes.tolist(), gs.edge_counts.tolist()) == ([3, 1], [3, 1])
    assert gs.edges.tolist() == [[2, 1, 0, 0], [0, 0, 1, 0]]
    assert gs.node_features == ("feat_0", "feat_1")
    assert gs.x.tolist() == [[0, 1], [2, 3], [4, 5], [10, 11]]
    assert gs.edge_attr.tolist() == [[0], [2], [1], [10]]  # edges are sorted by receiver
    assert gs.y_node.tolist() == [[0], [1], [2], [0]]
    assert (gs.graph_targets, gs.y_graph.tolist()) == (("energy",), [[5], [6]])


def test_batch_of_dgl_is_its_graphs():
    graphs, names = graphs_of_dgl(), {"node_features": ["feat"], "edge_features": ["weight"]}
    expected = GraphSet.from_dgl(graphs, **names)
    assert_same(GraphSet.from_dgl(batch(graphs), **names), expected)
    assert_same(GraphSet.from_dgl([batch(graphs)], **names), expected)


def test_what_dgl_does_not_have():
    with pytest.raises(ValueError, match=r"no attribute 'x' of graph 0, .* it has: feat, label"):
        GraphSet.from_dgl(graphs_of_dgl(), node_features=["x"])
    with pytest.raises(TypeError, match=r"got tuple, .* items \(graph, label\) .* as two lists"):
        GraphSet.from_dgl([(graphs_of_dgl()[0], 1)])
    with pytest.raises(ValueError, match="got a DGL block, expected a graph"):
        GraphSet.from_dgl([DGLGraph([[2, 4], [0, 1]], (5, 2), is_block=True)])
