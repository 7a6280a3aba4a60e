"""Padded batches hold the graphs of plain ones, and nothing else that matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from pna.adjacency import SEGMENT, Adjacency
from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.padded import PaddedBatches, Shape, usual_shapes
from pna.degree import DegreeStats
from pna.nn.architectures import Recurrent
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
    for name, rows in (("x", n), ("edge_attr", e), ("y_node", n), ("y_graph", g)):
        ours, theirs = getattr(got, name), getattr(plain, name)
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert torch.equal(ours[:rows], theirs), name
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


@settings(max_examples=60, deadline=None)
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
    model = Recurrent(convolution, 2, 4, 3, 3, deg=degrees, dropout=0.2).double()
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


def test_usual_shapes_hold_most_batches():
    """Half of them at least in the first, nearly all in the last, over many draws."""
    graphs = random_graphs(200, 0, (3, 12))
    shapes = usual_shapes(graphs, 32)
    assert len(shapes) == 2 and all(s.graphs == 32 for s in shapes)
    generator = torch.Generator().manual_seed(0)
    held = [0, 0]
    for _ in range(200):
        ids = torch.randperm(200, generator=generator)[:32]
        counts = (32, int(graphs.sizes[ids].sum()), int(graphs.edge_counts[ids].sum()))
        for i, shape in enumerate(shapes):
            held[i] += shape.holds(*counts)
    assert held[0] >= 100 and held[1] >= 199


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
