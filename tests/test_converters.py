"""Graphs of NetworkX, SciPy and DGL have the same edges as an Adjacency."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

import pna
from pna import Adjacency
from pna.adjacency import as_adjacency
from tests.data.graph_sets import make
from tests.dgl_graphs import DGLGraph

KINDS = [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]


def test_directed_graph_by_eye():
    graph = nx.DiGraph([("b", "a"), ("c", "a"), ("a", "c")])
    graph.add_node("alone")
    adj = Adjacency.from_networkx(graph)
    assert list(graph.nodes) == ["b", "a", "c", "alone"]
    assert adj.edge_index.tolist() == [[0, 1, 2], [1, 2, 1]]
    assert adj.degree.tolist() == [0, 2, 1, 0]


def test_undirected_graph_by_eye():
    """Both directions of an edge; a self-loop once."""
    adj = Adjacency.from_networkx(nx.Graph([(7, 3), (3, 3)]))
    assert adj.edge_index.tolist() == [[0, 1, 1], [1, 0, 1]]


@st.composite
def networks(draw):
    graph = draw(st.sampled_from(KINDS))()
    names = draw(st.permutations(["a", 1, ("b", 2), 4.5, "é"]))
    graph.add_nodes_from(names[: draw(st.integers(0, 5))])
    if len(graph):
        node = st.sampled_from(list(graph.nodes))
        graph.add_edges_from(draw(st.lists(st.tuples(node, node), max_size=8)))
    return graph, draw(st.permutations(list(graph.nodes)))


@settings(max_examples=25)
@given(networks())
def test_networkx_edges_in_the_order_of_the_directed_graph(drawn):
    graph, order = drawn
    expected = [(order.index(u), order.index(v)) for u, v, *_ in graph.to_directed().edges]
    adj = Adjacency.from_networkx(graph, nodes=order)
    assert list(zip(*adj.edge_index.tolist(), strict=True)) == expected
    assert adj.num_senders == adj.num_receivers == len(order)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([0, 1, 1], "got node 1 twice in nodes"),
        ([0, 1], r"got nodes without 2, expected all 3 nodes .* graph.subgraph\(nodes\)"),
        ([0, 1, 2, "x"], "got 'x' in nodes, which is no node of the graph"),
    ],
)
def test_wrong_order_of_nodes(nodes, message):
    with pytest.raises(ValueError, match=message):
        Adjacency.from_networkx(nx.path_graph(3), nodes=nodes)


FORMATS = ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"]


@pytest.mark.parametrize("array", [scipy.sparse.coo_array, scipy.sparse.coo_matrix])
@pytest.mark.parametrize("kind", FORMATS)
def test_sparse_matrix_receives_as_it_multiplies(kind, array):
    dense = np.zeros((4, 6))
    dense[0, 5], dense[0, 1], dense[3, 0], dense[2, 2] = 1, -1, 2, 3
    matrix = array(dense).asformat(kind)
    if kind == "bsr":  # blocks that hold zeros too
        matrix = matrix.tobsr(blocksize=(2, 2))
    adj = Adjacency.from_scipy(matrix)
    assert (adj.num_senders, adj.num_receivers, adj.num_edges) == (6, 4, 4)
    pattern = dense != 0
    x = torch.randn(6, 3, dtype=torch.float64)
    expected = torch.from_numpy(pattern @ x.numpy())
    torch.testing.assert_close(pna.aggregate(x, adj, ["sum"])[:, 0], expected)


def test_entries_stored_twice_are_repeated_edges_and_zeros_are_edges():
    twice = scipy.sparse.coo_array(([1.0, 0.0, 1.0], ([0, 1, 0], [2, 1, 2])), (3, 3))
    assert Adjacency.from_scipy(twice).edge_index.tolist() == [[2, 1, 2], [0, 1, 0]]
    assert Adjacency.from_scipy(twice.tocsr(copy=True)).degree.sum() == 2


def test_scipy_as_torch():
    matrix = scipy.sparse.random_array((5, 7), density=0.4, rng=np.random.default_rng(0))
    indices = np.stack(matrix.coords)
    theirs = torch.sparse_coo_tensor(indices, matrix.data, matrix.shape, check_invariants=True)
    ours, expected = Adjacency.from_scipy(matrix), Adjacency.from_sparse(theirs)
    assert torch.equal(ours.edge_index, expected.edge_index)
    assert ours.num_senders == expected.num_senders == 7


def test_dgl_edges_keep_their_numbers():
    adj = Adjacency.from_dgl(DGLGraph([[2, 0, 1, 0], [0, 1, 0, 1]], 4))
    assert adj.edge_index.tolist() == [[2, 0, 1, 0], [0, 1, 0, 1]]
    assert adj.num_senders == adj.num_receivers == 4


def test_dgl_block_has_senders_and_receivers():
    adj = Adjacency.from_dgl(DGLGraph([[2, 4], [0, 1]], (5, 2), is_block=True))
    assert adj.edge_index.tolist() == [[2, 4], [0, 1]]
    assert (adj.num_senders, adj.num_receivers) == (5, 2)


@pytest.mark.parametrize(
    "etypes",
    [
        [("user", "plays", "game")],
        [("user", "knows", "user"), ("user", "likes", "user")],
    ],
    ids=["two types of nodes", "two types of edges"],
)
def test_dgl_graph_of_several_types(etypes):
    with pytest.raises(ValueError, match=r"node types \[.*'user'\] .* expected one type of each"):
        Adjacency.from_dgl(DGLGraph([[0], [1]], 2, etypes))


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (Adjacency.from_networkx, "got list, expected a networkx graph"),
        (Adjacency.from_scipy, r"got list of shape \(\), expected a scipy.sparse matrix"),
        (Adjacency.from_dgl, "got list, expected a dgl.DGLGraph"),
    ],
)
def test_other_objects_are_refused(convert, message):
    with pytest.raises(TypeError, match=message):
        convert([[0], [1]])


def test_scipy_array_of_one_axis():
    with pytest.raises(TypeError, match=r"got coo_array of shape \(3,\), .* with two axes"):
        Adjacency.from_scipy(scipy.sparse.coo_array(np.ones(3)))


class Own(nx.DiGraph):
    """A class of a user."""


@pytest.mark.parametrize(
    ("given_edges", "converter"),
    [
        (nx.path_graph(3), r"pna.Adjacency.from_networkx\(graph\)"),
        (Own(), r"pna.Adjacency.from_networkx\(graph\)"),
        (scipy.sparse.eye_array(3), r"pna.Adjacency.from_scipy\(matrix\)"),
        (DGLGraph([[0], [1]], 2), r"pna.Adjacency.from_dgl\(graph\)"),
        (Data(edge_index=torch.zeros(2, 1)), r"from_edge_index\(data.edge_index, data.num_nodes\)"),
        (HeteroData(), r"data\[edge_type\].edge_index"),
        (make([2], [[(0, 1)]]), r"graphs.batch\(\)"),
        (np.zeros((2, 1), int), "torch.as_tensor"),
        ([[0], [1]], "torch.as_tensor"),
        ((torch.zeros(1), torch.zeros(1)), "torch.stack"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_error_names_the_converter(given_edges, converter):
    layer = pna.nn.PNAConv(3, 3, ["mean"], ["identity"], None)
    for call in (
        lambda: layer(torch.zeros(3, 3), given_edges),
        lambda: as_adjacency(given_edges, 3),
        lambda: Adjacency.from_edge_index(given_edges, 3),
        lambda: pna.aggregate(torch.zeros(3, 3), given_edges, ["mean"]),
    ):
        with pytest.raises(TypeError, match=f"got .* of type .*, expected .*{converter}"):
            call()
