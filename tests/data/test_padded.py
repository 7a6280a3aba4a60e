"""Padded batches hold the graphs of plain ones, and nothing else that matters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import pna
from pna.adjacency import Adjacency
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape, usual_shapes
from pna.degree import DegreeStats
from pna.front import Front, first_nodes
from pna.nn.architectures import Recurrent, Stacked
from pna.rows import SEGMENT
from tests.data.graph_sets import graph_sets
from tests.train.cases import assert_near, random_graphs


@pytest.mark.parametrize(
    ("counts", "holds"),
    [
        ((4, 20, 50), True),  # exactly: padding has neither nodes nor edges
        ((4, 20, 49), False),  # an edge left over, and no node for it
        ((4, 19, 50), True),  # a node of padding without edges
        ((4, 19, 49), True),
        ((0, 0, 0), True),  # nothing but padding
        ((5, 10, 10), False),  # too many graphs
        ((4, 21, 50), False),
        ((4, 20, 51), False),
    ],
)
def test_what_a_shape_holds(counts, holds):
    assert Shape(4, 20, 50).holds(*counts) is holds


@pytest.mark.parametrize(("spare", "holds"), [(SEGMENT, True), (SEGMENT + 1, False)])
def test_a_node_of_padding_has_at_most_a_short_row(spare, holds):
    assert Shape(1, 2, 1000).holds(1, 1, 1000 - spare) is holds


def padded(graphs: GraphSet, ids: list[int], shape: Shape) -> Batch:
    filled = torch.tensor(ids + [-1] * (shape.graphs - len(ids)), dtype=torch.int64)
    diameters = torch.arange(len(graphs), device=graphs.device) * 10
    return PaddedBatches(graphs, diameters).batch(filled.to(graphs.device), shape)


def assert_holds(graphs: GraphSet, ids: list[int], shape: Shape) -> None:
    """The padded batch begins as the plain one; what follows is one graph of self-loops."""
    got = padded(graphs, ids, shape)
    plain = graphs.batch(ids)
    n, e, g = plain.num_nodes, plain.num_edges, len(ids)
    assert (got.num_graphs, got.num_nodes, got.num_edges) == (
        shape.graphs + 1, shape.nodes, shape.edges,
    )  # fmt: skip
    assert got.real.tolist() == [True] * g + [False] * (shape.graphs + 1 - g)
    assert got.sizes.tolist() == [*plain.sizes.tolist(), *[0] * (shape.graphs - g), shape.nodes - n]
    assert got.starts.tolist() == [0, *got.sizes.cumsum(0).tolist()]
    assert torch.equal(got.graph_of_node[:n], plain.graph_of_node)
    assert got.graph_of_node[n:].tolist() == [shape.graphs] * (shape.nodes - n)
    assert got.graph_ids[:g].tolist() == ids
    assert got.diameter[:g].tolist() == [10 * i for i in ids]
    of_nodes, of_graphs = ("x", "y_node"), ("x_graph", "y_graph", "sample_weight")
    counts = dict.fromkeys(of_nodes, n) | {"edge_attr": e} | dict.fromkeys(of_graphs, g)
    for name, rows in counts.items():
        ours, theirs = getattr(got, name), getattr(plain, name)
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert torch.equal(ours[:rows], theirs), name
    if got.x_graph is not None:
        assert not got.x_graph[g:].any()
    senders, receivers = got.adjacency.edge_index
    expected = plain.adjacency.edge_index
    assert torch.equal(torch.stack([senders, receivers])[:, :e].long(), expected.long())
    assert torch.equal(senders[e:], receivers[e:])
    assert (receivers[e:] >= n).all()
    degree = got.adjacency.degree
    assert torch.equal(degree[:n], plain.adjacency.degree)
    if shape.nodes > n:
        assert int(degree[n:].max() - degree[n:].min()) <= 1  # spread evenly
    # and what the backward pass walks is what it would be, had they been sorted
    index = torch.stack([senders, receivers]).long()
    sorted_ = Adjacency.from_edge_index(index, shape.nodes)
    for ours, theirs in (
        (got.adjacency.outgoing.indptr, sorted_.outgoing.indptr),
        (got.adjacency.outgoing.neighbours, sorted_.outgoing.neighbours),
        (got.adjacency.out_ranks, sorted_.out_ranks),
    ):
        assert torch.equal(ours.long(), theirs.long())


@settings(max_examples=60)
@given(data=st.data())
def test_any_graphs_in_any_shape(data):
    """Without nodes, without edges, repeated or left out, and with room to spare or none."""
    graphs = data.draw(graph_sets(min_graphs=1))
    ids = data.draw(st.lists(st.integers(0, len(graphs) - 1), max_size=4))
    nodes = sum(int(graphs.sizes[i]) for i in ids)
    edges = sum(int(graphs.edge_counts[i]) for i in ids)
    shape = Shape(
        max(len(ids) + data.draw(st.integers(0, 2)), 1),
        nodes + data.draw(st.integers(0, 5)),
        edges + data.draw(st.integers(0, 9)),
    )
    if shape.holds(len(ids), nodes, edges):
        assert_holds(graphs, ids, shape)


#: Of each graph how many nodes it has, and between which of them its edges go.
KERNEL_GRAPHS = [(3, [(0, 1), (1, 0), (1, 2)]), (0, []), (2, []), (5, [(4, 0)] * 3 + [(2, 2)])]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        ([0, 3], Shape(2, 8, 7)),  # no padding at all
        ([3, 1, 0, 2], Shape(6, 15, 20)),
        ([2, 2, 1], Shape(3, 5, 1)),  # all edges are padding
        ([], Shape(1, 4, 9)),
        ([0], Shape(2, 5, 3)),  # padding without edges
    ],
    ids=str,
)
@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize("hub", [False, True], ids=["short rows", "long rows"])
def test_kernels_lay_out_what_torch_does(triton, monkeypatch, ids, shape, ranked, hub):
    """To the last number, also where orders of nodes are sorted, not counted."""
    from pna.ops.triton import assemble

    if not ranked:
        monkeypatch.setattr(assemble, "MOST_RANKED", 0)
    given = [*KERNEL_GRAPHS, (2, [(0, 1)] * 300)] if hub else KERNEL_GRAPHS
    edges = [edge for _, own in given for edge in own]
    graphs = GraphSet.from_arrays(
        [size for size, _ in given], torch.tensor(edges).t(), [len(own) for _, own in given],
        x=torch.arange(sum(size for size, _ in given)), edge_attr=torch.arange(len(edges)),
        y_graph=torch.arange(len(given)),
    )  # fmt: skip
    with monkeypatch.context() as plain:
        plain.setattr(PaddedBatches, "_has_kernels", lambda *_: False)
        expected = padded(graphs.to(triton.device), ids, shape)
    got = padded(graphs.to(triton.device), ids, shape)
    for one, other in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


#: Graphs of more than 3 nodes, and of more than 2, among the first.
FRONTS = Shape(6, 40, 40, fronts=(Front(3, 16, 14), Front(2, 24, 22)))


def arranged(graphs: GraphSet, ids: list[int], shape: Shape) -> torch.Tensor:
    chosen = np.array(ids, dtype=np.int64)
    counts = (graphs.sizes.numpy()[chosen], graphs.edge_counts.numpy()[chosen])
    found = shape.arrange(chosen, *counts)
    assert found is not None
    return torch.from_numpy(found)


def made_of(sizes: list[int]) -> GraphSet:
    """Rings of these sizes, with numbers to tell their nodes and edges by."""
    ends = [(i, (i + 1) % n) for n in sizes for i in range(n)]
    nodes, edges = sum(sizes), len(ends)
    return GraphSet.from_arrays(
        sizes, torch.tensor(ends).t(), sizes, x=torch.arange(nodes), edge_attr=torch.arange(edges)
    )


def test_graphs_stand_largest_first_and_none_crosses_a_front():
    graphs = made_of([3, 5, 2, 4, 5, 3])
    found = arranged(graphs, [0, 1, 2, 3, 4, 5], FRONTS)
    # 5 + 5 + 4 nodes, and 2 of padding; then 3 + 3 and 2; then the rest
    assert found.tolist() == [1, 4, 3, -1 - 2, 0, 5, 2, -1 - 0]
    assert arranged(graphs, [], FRONTS).tolist() == [-1 - 16, -1 - 8, *[-1] * 6]
    assert arranged(graphs, [2], FRONTS).tolist() == [2, -1 - 14, -1 - 8, *[-1] * 5]


@pytest.mark.parametrize(
    ("sizes", "edges"),
    [
        ([6, 6, 6], [1, 1, 1]),
        ([4, 4, 4], [5, 5, 5]),  # one more than the first front may have
        ([4, 4, 4, 3, 3, 3, 3], [0] * 7),
        ([2] * 7, [0] * 7),
        ([3] * 6, [7] * 6),
        ([9, 9, 9, 9, 9], [0] * 5),
    ],
    ids=["nodes", "edges", "the next front", "graphs", "edges in all", "nodes in all"],
)
def test_graphs_that_do_not_fit(sizes, edges):
    assert FRONTS.arrange(np.arange(len(sizes)), np.array(sizes), np.array(edges)) is None


def test_fewer_graphs_where_a_front_has_no_room_for_their_edges():
    sizes, edges = np.array([4, 3, 3, 3]), np.array([8, 4, 4, 2])
    found = FRONTS.arrange(np.arange(4), sizes, edges)
    assert found is not None and found.tolist() == [0, 1, -1 - 9, 2, 3, -1 - 2, -1, -1]


def test_kernels_lay_out_fronts_as_torch_does(triton, monkeypatch):
    """All but the order of nodes by degree: the first ones stand first, and what lies behind the
    edges of the last node is of none."""
    graphs = made_of([3, 5, 2, 4, 5, 3])
    ids = arranged(graphs, [1, 3, 4, 5, 2], FRONTS).to(triton.device)
    with monkeypatch.context() as plain:
        plain.setattr(PaddedBatches, "_has_kernels", lambda *_: False)
        expected = PaddedBatches(graphs.to(triton.device)).batch(ids, FRONTS)
    got = PaddedBatches(graphs.to(triton.device)).batch(ids, FRONTS)
    assert got.fronts == FRONTS.fronts and expected.fronts == ()
    orders = [got.adjacency.incoming.order, got.adjacency.outgoing.order, got.adjacency.by_degree]
    found = replace(got, fronts=(), adjacency=without_orders(got.adjacency))
    expected = replace(expected, adjacency=without_orders(expected.adjacency))
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    degree = got.adjacency.degree.tolist()
    windows = [(0, 16), (16, 24), (24, 40)]
    for order, bounds in zip(orders, (windows, windows, [(0, 40)]), strict=True):
        for low, high in bounds:
            part = order[low:high].tolist()
            assert part == sorted(range(low, high), key=lambda i: (degree[i], i))
    assert got.sizes.tolist() == [5, 5, 4, 2, 3, 2, 3, 0, 16]
    assert got.real.tolist() == [True] * 3 + [False] + [True] * 2 + [False] * 3
    assert int(got.adjacency.indptr[-1]) == 19 and got.num_edges == 40
    first = first_nodes(got.adjacency, 16, 14)
    assert int(first.indptr[-1]) == 14 and first.senders.shape == (14,)


def without_orders(adjacency: Adjacency) -> Adjacency:
    incoming, outgoing = (
        replace(rows, order=rows.indptr) for rows in (adjacency.incoming, adjacency.outgoing)
    )
    return replace(adjacency, incoming=incoming, outgoing=outgoing, by_degree=incoming.indptr)


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "convolution, swapped",
    [("pna", False), ("pna", True), ("mpnn-sum", False), ("gat", False),
     pytest.param("gcn", False, marks=pytest.mark.slow),
     pytest.param("gin", False, marks=pytest.mark.slow)],
)  # fmt: skip
def test_graphs_in_fronts_are_as_each_is_alone(triton, convolution, swapped, dtype):
    """Predictions and gradients; in training, but for batch normalisations, which see all."""
    graphs = random_graphs(6, 0, (2, 10), seed=1).to(triton.device)
    sizes = graphs.sizes.cpu()
    shape = Shape(6, 48, 120, fronts=tuple(Front(s, n, 120) for s, n in ((7, 24), (5, 32))))
    ids = arranged(graphs.to("cpu"), list(range(6)), shape).to(triton.device)
    torch.manual_seed(0)
    degrees = DegreeStats.from_degrees(graphs.degree.cpu())
    model = Recurrent(convolution, 2, 4, 3, 3, deg=degrees, swap_gru=swapped)
    model.to(triton.device, dtype).eval()
    assert model.levels(2, 9) == [7, 5, 3]
    batch = PaddedBatches(graphs).batch(ids, shape)
    batch = replace(batch, x=batch.x.to(dtype))
    assert len(batch.fronts) == 2
    got = model(batch)
    real_nodes, real = batch.real_nodes.nonzero()[:, 0], batch.real.nonzero()[:, 0]
    places = torch.argsort(batch.graph_ids[real])
    node = got.node[real_nodes].split(batch.sizes[real].tolist())
    found = [torch.cat([node[i] for i in places.tolist()]), got.graph[real][places]]
    total = sum(part.square().sum() for part in found)
    gradients = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
    model.double()
    with pna.backend("reference"):
        each = [replace(graphs.batch([i])) for i in range(6)]
        alone = [model(replace(one, x=one.x.double())) for one in each]
    expected = [torch.cat([one.node for one in alone]), torch.cat([one.graph for one in alone])]
    assert len(sizes.unique()) > 4
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for one, other in zip(found, expected, strict=True):
        assert_near(one.double(), other, tolerance)
    total = sum(part.square().sum() for part in expected)
    wanted = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
    for one, other in zip(gradients, wanted, strict=True):
        assert_near(one.double(), other, 10 * tolerance)


@pytest.mark.parametrize("sizes", [[0, 0, 0], [2, 1, 3]], ids=["no nodes", "no edges"])
def test_sets_without_nodes_or_edges(sizes):
    graphs = GraphSet.from_arrays(
        sizes, torch.zeros(2, 0, dtype=torch.int64), [0] * 3, x=torch.rand(sum(sizes), 2)
    )
    for shape in usual_shapes(graphs, 2):
        assert shape.holds(2, int(graphs.sizes[:2].sum()), 0)
        assert_holds(graphs, [0, 1], shape)


@pytest.mark.parametrize("convolution", ["gin", "pna", "gat", "mlp-gated", "diffpool"])
@pytest.mark.parametrize("level", ["node", "graph"])
def test_outputs_and_gradients_are_those_without_padding(convolution, level):
    graphs = random_graphs(missing=False)
    torch.manual_seed(0)
    degrees = DegreeStats.from_degrees(graphs.degree)
    check_padding(Recurrent(convolution, 2, 4, 3, 3, deg=degrees, dropout=0.2), graphs, level)


@pytest.mark.parametrize("convolution", ["gated-gcn", "pna"])
def test_graphs_are_of_their_own_size_beside_padding(convolution):
    graphs = random_graphs(missing=False)
    torch.manual_seed(0)
    degrees = DegreeStats.from_degrees(graphs.degree)
    model = Stacked(convolution, 2, 4, 3, 3, deg=degrees, layers=3, graph_norm=True)
    check_padding(model, graphs, "graph")


def check_padding(model, graphs, level):
    """Outputs, gradients and statistics of a padded batch are those of the batch."""
    model = model.double()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    ids = [7, 2, 11]
    padded = PaddedBatches(graphs).batch(torch.tensor([*ids, -1]), Shape(4, 64, 256))
    plain = replace(graphs.batch(ids), size_range=padded.size_range)
    found = []
    for batch, rows in ((padded, plain.num_nodes if level == "node" else 3), (plain, None)):
        model.load_state_dict(state)
        out = getattr(model(batch), level)[:rows]
        gradients = torch.autograd.grad(
            out.square().sum(), list(model.parameters()), materialize_grads=True, allow_unused=True
        )
        held = [model.state_dict()[name].double() for name in state]
        found.append([out.detach(), *gradients, *held])
    for got, expected in zip(*found, strict=True):
        assert_near(got, expected, 1e-10)


def test_a_set_smaller_than_a_batch():
    graphs = random_graphs(5, 0)
    for shape in usual_shapes(graphs, 128):
        assert shape.graphs == 5
        assert shape.holds(5, graphs.num_nodes, graphs.num_edges)
        assert_holds(graphs, [0, 1, 2, 3, 4], shape)


def test_padding_is_not_denser_than_graphs():
    """Else its states would outgrow all others in a deep model of sums."""
    graphs = random_graphs(train=40, validation=1)
    for shape in usual_shapes(graphs, 8):
        assert shape.degree <= 2 * graphs.num_edges / graphs.num_nodes + 1
        batch = PaddedBatches(graphs).batch(torch.arange(shape.graphs), shape)
        padding = batch.adjacency.degree[~batch.real_nodes]
        assert padding.max() <= shape.degree
