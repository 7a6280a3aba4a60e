"""A GraphSet holds what it was given, in any selection, and batches as PyG does."""

import copy
import math
from dataclasses import FrozenInstanceError, replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as PygLoader
from torch_geometric.nn import PNAConv as PygPNAConv
from torch_geometric.nn import global_add_pool

import pna
import pna.nn
from pna import Adjacency, DegreeStats, GraphSet
from tests.data.graph_sets import ALL, SPLITS, assert_same, graph_sets, make


def example(has=ALL):
    """Three graphs: edges in no order, one twice and a self-loop; no nodes; no edges."""
    edges = [[(2, 0), (0, 1), (1, 0), (0, 1), (2, 2)], [], []]
    return make([3, 0, 2], edges, has)


def test_fields_by_eye():
    gs = example()
    assert gs.node_offsets.tolist() == [0, 3, 3, 5]
    assert gs.edge_offsets.tolist() == [0, 5, 5, 5]
    assert gs.degree.tolist() == [2, 2, 1, 0, 0]
    assert gs.senders.tolist() == [2, 1, 0, 0, 2]
    assert gs.out_degree.tolist() == [2, 1, 2, 0, 0]
    assert gs.receivers.tolist() == [1, 1, 0, 0, 2]
    assert gs.out_ranks.tolist() == [0, 1, 1, 0, 0]
    assert gs.edge_attr.tolist() == [[-1], [-3], [-2], [-4], [-5]]
    assert gs.edges.tolist() == [[2, 1, 0, 0, 2], [0, 0, 1, 1, 2]]
    assert (len(gs), gs.num_nodes, gs.num_edges) == (3, 5, 5)
    assert (gs.sizes.tolist(), gs.edge_counts.tolist()) == ([3, 0, 2], [5, 0, 0])
    assert {t.dtype for t in (gs.degree, gs.senders, gs.out_ranks, gs.type_of_graph)} == {
        torch.uint8
    }
    assert repr(gs) == "GraphSet(3 graphs, 5 nodes, 5 edges, cpu)"


def test_names_by_default_are_numbers():
    gs = example()
    assert (gs.node_features, gs.edge_features) == (("0", "1"), ("0",))
    assert (gs.node_targets, gs.graph_targets) == (("0", "1", "2"), ("0", "1"))


def test_is_a_copy_and_cannot_be_changed():
    x = torch.ones(2, 1)
    gs = GraphSet.from_arrays([2], torch.zeros(2, 0), [0], x=x)
    x.zero_()
    assert gs.x.tolist() == [[1.0], [1.0]]
    with pytest.raises(FrozenInstanceError):
        gs.x = x


def test_without_columns_is_without():
    gs = GraphSet.from_arrays([2], [[0], [1]], [1], x=np.zeros((2, 0)), y_node=[5, 6])
    assert gs.x is None
    assert gs.y_node.tolist() == [[5], [6]]


@pytest.mark.parametrize(
    ("nodes", "kept"), [(256, torch.uint8), (257, torch.int16), (32769, torch.int32)]
)
def test_large_graphs_take_larger_integers(nodes, kept):
    ends = [nodes - 1, 0]
    gs = GraphSet.from_arrays([1, nodes], [ends, ends[::-1]], [0, 2])
    assert gs.senders.dtype == gs.receivers.dtype == kept
    assert gs.to_pyg()[1].edge_index.tolist() == [[nodes - 1, 0], [0, nodes - 1]]
    joined = GraphSet.concat([example(frozenset()), gs])
    assert joined.senders.dtype == kept
    assert_same(joined[3:], gs)


@pytest.mark.parametrize("degree", [255, 256, 600])
def test_hubs_are_batched_as_they_are_built(degree):
    star = [list(range(degree)), [0] * degree]
    gs = GraphSet.from_arrays([degree, 3], np.hstack([star, [[1], [2]]]), [degree, 1])
    assert gs.degree.dtype == (torch.uint8 if degree <= 255 else torch.int16)
    x = torch.randn(gs.num_nodes, 4, requires_grad=True)
    union = PygBatch.from_data_list(gs.to_pyg())
    results = []
    for adjacency in (
        gs.batch().adjacency,
        Adjacency.from_edge_index(union.edge_index, gs.num_nodes),
    ):
        out = pna.aggregate(x, adjacency, ["mean", "max", "std"])
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        results.append((out, gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@settings(max_examples=60)
@given(gs=graph_sets(min_graphs=1))
def test_pyg_and_back(gs):
    level = "node" if gs.y_node is not None else "graph"
    back = GraphSet.from_pyg(
        gs.to_pyg(),
        level=level,
        **({"splits": SPLITS} if gs.splits else {}),
        **({"types": gs.types} if gs.types else {}),
    )
    assert_same(back, gs)


def test_pyg_by_eye():
    graphs = example().to_pyg()
    first = graphs[0]
    assert first.edge_index.tolist() == [[2, 1, 0, 0, 2], [0, 0, 1, 1, 2]]
    assert first.edge_attr.tolist() == [[-1], [-3], [-2], [-4], [-5]]
    assert first.y_node.shape == (3, 3)
    assert first.y_graph.tolist() == [[0.0, 1.0]]
    assert [g.split for g in graphs] == ["train", "validation", "test"]
    assert [g.type for g in graphs] == ["star", "path", "star"]
    assert "y" not in first
    assert all(g.validate() for g in graphs)


def kinds_of_atoms(count=4):
    """As ZINC has them: kinds of a byte for atoms and bonds, one target."""
    sizes, ring = [3] * count, [[0, 1, 2], [1, 2, 0]]
    return GraphSet.from_arrays(
        sizes, np.tile(ring, count), sizes, x=np.arange(3 * count, dtype=np.uint8) % 5,
        edge_attr=np.arange(3 * count, dtype=np.uint8) % 3,
        y_graph=np.arange(count, dtype=np.float32),
    )  # fmt: skip


def test_pyg_gets_the_shapes_of_its_own_zinc():
    """PyG's ZINC has x (nodes, 1) and edge_attr (edges,) of int64, y (1,) of float32."""
    gs = kinds_of_atoms()
    graph = gs.to_pyg()[1]
    assert (graph.x.shape, graph.x.dtype) == ((3, 1), torch.int64)
    assert (graph.edge_attr.shape, graph.edge_attr.dtype) == ((3,), torch.int64)
    assert (graph.y.shape, graph.y.dtype) == ((1,), torch.float32)
    union = PygBatch.from_data_list(gs.to_pyg())
    assert union.y.tolist() == [0, 1, 2, 3]
    assert union.edge_attr.tolist() == gs.edge_attr[:, 0].tolist()
    back = GraphSet.from_pyg(gs.to_pyg())
    assert back.x.dtype == back.edge_attr.dtype == torch.int64
    kinds = {"x": gs.x.long(), "edge_attr": gs.edge_attr.long()}
    assert_same(back, replace(gs, **kinds))


def test_the_step_of_pygs_own_example_runs():
    """The lines of its `examples/pna.py` that touch the data, as they are."""
    gs = kinds_of_atoms()
    train_loader = PygLoader(gs.to_pyg(), batch_size=4)
    deg = torch.bincount(gs.degree.long())
    node_emb, edge_emb = torch.nn.Embedding(21, 75), torch.nn.Embedding(4, 50)
    conv = PygPNAConv(75, 75, aggregators=["mean"], scalers=["identity"], deg=deg, edge_dim=50)
    lin = torch.nn.Linear(75, 1)
    for data in train_loader:
        x = node_emb(data.x.squeeze())
        edge_attr = edge_emb(data.edge_attr)
        x = conv(x, data.edge_index, edge_attr)
        out = lin(global_add_pool(x, data.batch))
        loss = (out.squeeze() - data.y).abs()
        assert loss.shape == (4,)
        loss.mean().backward()


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        ({"y_graph": torch.ones(2, 1)}, {"y": (1,)}),
        ({"y_graph": torch.ones(2, 3)}, {"y": (1, 3)}),
        ({"y_node": torch.ones(6, 1)}, {"y": (3,)}),
        ({"y_node": torch.ones(6, 2)}, {"y": (3, 2)}),
        (
            {"y_node": torch.ones(6, 1), "y_graph": torch.ones(2, 1)},
            {"y_node": (3,), "y_graph": (1,)},
        ),
        ({"edge_attr": torch.ones(4, 1)}, {"edge_attr": (2, 1)}),  # numbers, as layers take them
        ({"edge_attr": torch.ones(4, 1).byte()}, {"edge_attr": (2,)}),
        ({"edge_attr": torch.ones(4, 2).byte()}, {"edge_attr": (2, 2)}),
        ({"x": torch.ones(6, 1).short()}, {"x": (3, 1)}),
    ],
)
def test_shapes_in_pyg(given, shapes):
    gs = GraphSet.from_arrays([3, 3], [[0, 1, 0, 1], [1, 0, 2, 0]], [2, 2], **given)
    graphs = gs.to_pyg()
    for name, shape in shapes.items():
        assert graphs[0][name].shape == shape
        assert graphs[0][name].dtype in (torch.float32, torch.int64)
    back = GraphSet.from_pyg(graphs)
    for name, tensor in given.items():
        assert torch.equal(getattr(back, name), tensor.to(getattr(back, name).dtype))


@pytest.mark.parametrize(("kind", "rows"), [("y_node", 3), ("y_graph", 1)])
def test_one_kind_of_targets_is_y(kind, rows):
    gs = example(frozenset({kind}))
    graph = gs.to_pyg()[0]
    assert graph.y.shape[0] == rows
    assert graph.num_nodes == 3
    assert_same(GraphSet.from_pyg(gs.to_pyg()), gs)


def test_pyg_graphs_share_no_memory_with_the_set():
    gs = example()
    gs.to_pyg()[0].x.zero_()
    assert_same(gs, example())


def test_pyg_takes_what_users_have():
    """Scalars and one axis, an EdgeIndex, graphs without names."""
    edges = torch.tensor([[1, 0], [0, 0]])
    one = Data(edge_index=EdgeIndex(edges, sparse_size=(2, 2)), x=torch.ones(2), y=3.0, split=1)
    two = Data(edge_index=edges[:, :0], x=torch.zeros(3), y=torch.tensor([4.0]), split=2)
    gs = GraphSet.from_pyg([one, two], node_features=["mass"])
    assert gs.y_graph.tolist() == [[3.0], [4.0]]
    assert (gs.x.shape, gs.node_features, gs.splits) == ((5, 1), ("mass",), ())


def test_pyg_batches_are_taken_apart():
    gs = example()
    graphs = gs.to_pyg()
    for batches in (PygBatch.from_data_list(graphs), PygLoader(graphs, batch_size=2)):
        assert_same(GraphSet.from_pyg(batches), gs)
    assert_same(GraphSet.from_pyg(graphs[0]), GraphSet.from_pyg(graphs[:1]))


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([Data(x=torch.ones(1, 1))], "graph 0.*without an edge_index"),
        ([{"x": torch.ones(1, 1)}, {}], "graph 1 without x"),
        ([{"x": torch.ones(1, 1)}, {"x": torch.ones(1, 3)}], "x of shape .1, 3. in graph 1"),
        ([{"y": torch.ones(1)}], "one row in graphs of one node"),
        ([{"y": torch.ones(1), "num_nodes": 2}, {"y": torch.ones(5)}], "neither one row"),
    ],
)
def test_pyg_errors(graphs, message):
    empty = torch.zeros(2, 0, dtype=torch.int64)
    given = [
        g if isinstance(g, Data) else Data(**({"edge_index": empty, "num_nodes": 1} | g))
        for g in graphs
    ]
    with pytest.raises(ValueError, match=message):
        GraphSet.from_pyg(given)


KEYS = st.one_of(
    st.slices(5),
    st.lists(st.integers(-5, 4), max_size=7),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(-5, 4),
)


@settings(max_examples=80)
@given(gs=graph_sets(min_graphs=5), key=KEYS, kind=st.sampled_from([list, np.array, torch.tensor]))
def test_indexing_is_that_of_a_list(gs, key, kind):
    graphs = [gs[i] for i in range(5)]
    if isinstance(key, list):
        mask = len(key) == 5 and all(isinstance(k, bool) for k in key)
        wanted = (
            [g for g, k in zip(graphs, key, strict=True) if k] if mask else [graphs[k] for k in key]
        )
        chosen = gs[kind(key)] if key else gs[key]
    else:
        wanted = graphs[key] if isinstance(key, slice) else [graphs[key]]
        chosen = gs[key]
    assert_same(chosen, GraphSet.concat([*wanted, gs[:0]]))


def test_one_graph_by_eye():
    gs = example()
    assert gs[0].senders.tolist() == [2, 1, 0, 0, 2]
    assert gs[-1].x.tolist() == [[6.0, 7.0], [8.0, 9.0]]
    assert gs[[2, 0]].y_graph.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert [len(g) for g in gs] == [1, 1, 1]


def test_graphs_side_by_side_are_not_copied():
    gs = example()
    for part in (gs[0:2], gs[np.array([True, True, False])], gs[[0, 1]]):
        assert part.senders.data_ptr() == gs.senders.data_ptr()
    assert gs[[1, 0]].senders.data_ptr() != gs.senders.data_ptr()


def test_select():
    gs = make([2, 3, 4, 2, 3, 4], [[]] * 6)
    assert gs.split("validation").sizes.tolist() == [3, 3]
    assert gs.select(type="star").sizes.tolist() == [2, 4, 3]
    assert gs.select(split=["train", "test"], size=range(3, 9)).sizes.tolist() == [4, 4]
    assert gs.select(size=3, type="path").sizes.tolist() == [3]
    assert len(gs.select(size=[])) == 0
    assert_same(gs.select(), gs)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (3, IndexError, "graph 3 of a set of 3"),
        ([0, -4], IndexError, "graph -4 of a set of 3"),
        ([True], IndexError, "mask of 1 for 3 graphs"),
        ([0.5], TypeError, "expected a whole number"),
        ([[0]], TypeError, "expected a whole number"),
    ],
)
def test_wrong_index(key, error, message):
    with pytest.raises(error, match=message):
        example()[key]


def test_wrong_selection():
    with pytest.raises(ValueError, match="unknown split 'tests'; did you mean 'test'"):
        example().split("tests")
    with pytest.raises(ValueError, match=r"for graphs without a type.*make it with type=\[…\]"):
        example(frozenset()).select(type="star")


@settings(max_examples=40)
@given(gs=graph_sets(min_graphs=2), at=st.integers(0, 5))
def test_parts_make_the_whole(gs, at):
    assert_same(GraphSet.concat([gs[:at], gs[at:]]), gs)
    if gs.split_of_graph is not None:
        parts = [gs.split(name) for name in SPLITS]
        assert sum(map(len, parts)) == len(gs)
        order = torch.sort(gs.split_of_graph, stable=True).indices
        assert_same(GraphSet.concat(parts), gs[order])


def test_splits_and_types_are_gathered():
    def part(split, types, of):
        return GraphSet.from_arrays([1], [[], []], [0], split=[split], type=of, types=types)

    one, two = part("train", ["star"], [0]), part("test", ["path", "star"], [1])
    both = GraphSet.concat([one, two])
    assert (both.splits, both.split_of_graph.tolist()) == (("train", "test"), [0, 1])
    assert (both.types, both.type_of_graph.tolist()) == (("star", "path"), [0, 0])


def test_metadata_that_agrees_is_kept():
    one, two = (
        GraphSet.from_arrays([1], [[], []], [0], metadata={"seed": seed, "protocol": "paper"})
        for seed in (0, 1)
    )
    assert GraphSet.concat([one, two]).metadata == {"protocol": "paper"}


@pytest.mark.parametrize(
    ("has", "message"),
    [
        (ALL - {"x"}, "node_features none in part 1, expected 0, 1 as in part 0"),
        (ALL - {"split"}, "splits in one of the parts 0 and 1"),
    ],
)
def test_unlike_parts(has, message):
    with pytest.raises(ValueError, match=message):
        GraphSet.concat([example(), example(has)])
    with pytest.raises(ValueError, match="empty list"):
        GraphSet.concat([])


def scales(y_graph, split, y_node=None):
    n = len(y_graph)
    return GraphSet.from_arrays(
        [1] * n, [[], []], [0] * n, y_graph=y_graph, y_node=y_node, split=split
    )


def test_scale_is_the_maximum_in_training():
    gs = scales([1.0, 5.0, 9.0], ["train", "train", "test"], y_node=[[2, -1], [3, -2], [8, 7]])
    assert gs.graph_scale == (5.0,)
    assert gs.node_scale == (3.0, 1.0)  # nothing positive: divide by 1
    assert gs.split("test").graph_scale == (5.0,)
    assert GraphSet.concat([gs[2:], gs[:1]]).graph_scale == (5.0,)
    more = scales([6.0], ["train"], y_node=[[1, 1]])
    assert GraphSet.concat([gs, more]).graph_scale == (6.0,)


def test_scale_leaves_out_missing_targets():
    assert scales([1.0, math.nan, 3.0], ["train"] * 3).graph_scale == (3.0,)
    assert scales([math.nan], ["train"]).graph_scale == (1.0,)
    assert scales([4.0, 2.0], None).graph_scale == (4.0,)


@settings(max_examples=60)
@given(gs=graph_sets(min_graphs=1), data=st.data())
def test_batch_equals_pyg(gs, data):
    """Down to every field of the Adjacency, for any graphs in any order."""
    places = st.lists(st.integers(0, len(gs) - 1), min_size=1, max_size=6)
    indices = data.draw(st.none() | places)
    batch = gs.batch(indices)
    graphs = gs.to_pyg()
    union = PygBatch.from_data_list([graphs[i] for i in indices] if indices else graphs)
    expected = Adjacency.from_edge_index(union.edge_index, union.num_nodes)
    for one, other in zip(tree_leaves(batch.adjacency), tree_leaves(expected), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    assert torch.equal(batch.graph_of_node, union.batch)
    assert torch.equal(batch.sizes, union.ptr.diff())
    kinds = ("y_node", "y_graph") if "y_node" in union else ("y", "y")
    for one, name in zip(
        (batch.x, batch.edge_attr, batch.y_node, batch.y_graph),
        ("x", "edge_attr", *kinds),
        strict=True,
    ):
        assert one is None or torch.equal(one, union[name])
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (
        union.num_graphs,
        union.num_nodes,
        union.num_edges,
    )


def test_layer_on_a_batch_equals_pyg():
    random = np.random.default_rng(0)
    sizes = random.integers(1, 9, 20)
    counts = sizes * 2
    ends = random.integers(0, np.repeat(sizes, counts), (2, counts.sum()))
    x, edge_attr = random.normal(size=(sizes.sum(), 3)), random.normal(size=(counts.sum(), 2))
    gs = GraphSet.from_arrays(sizes, ends, counts, x=x, edge_attr=edge_attr)
    conv = pna.nn.PNAConv(
        3, 4, ["mean", "max", "std"], ["identity", "amplification"], gs.degree_stats(), edge_dim=2
    ).double()
    order = [7, 3, 19, 0]
    union = PygBatch.from_data_list([gs.to_pyg()[i] for i in order])
    batch = gs.batch(order)
    with torch.no_grad():
        expected = conv(union.x, union.edge_index, union.edge_attr)
        torch.testing.assert_close(conv(batch.x, batch.adjacency, batch.edge_attr), expected)


def test_no_edge_is_sorted_and_no_graph_looped_over():
    gs = make([4] * 300, [[(0, 1), (1, 2), (2, 0)]] * 300)
    with mock.patch("torch.sort", side_effect=torch.sort) as sort:
        gs.batch(torch.randperm(300))
    assert {call.args[0].shape[0] for call in sort.call_args_list} == {gs.num_nodes}


def test_batch_and_set_move(device):
    gs = example()
    moved = gs.to(device)
    assert gs.to("cpu") is gs
    assert moved.senders.device.type == device.type
    assert moved.node_offsets.device.type == moved.split_of_graph.device.type == "cpu"
    batch = moved.batch([2, 0])
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    assert {t.device.type for t in tensors} == {device.type}
    for one, other in zip(tree_leaves(batch.to("cpu")), tree_leaves(gs.batch([2, 0])), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert_same(moved[[2, 0]].to("cpu"), gs[[2, 0]])
    assert repr(batch).startswith("Batch(2 graphs, 5 nodes, 5 edges, ")
    assert batch.to(batch.device) is batch


@pytest.mark.gpu
def test_batches_never_wait_for_the_device():
    gs = make([4] * 30, [[(0, 1), (1, 2), (2, 0)]] * 30).to("cuda")
    order = torch.randperm(30)
    try:
        torch.cuda.set_sync_debug_mode("error")
        gs.batch(order[:8])
        gs.batch([3, 4, 5])
        gs.batch()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_moves_to_meta():
    """Where there is no GPU, to see that everything moves."""
    gs = example().to("meta")
    assert gs.device.type == "meta"
    assert example().batch().to("meta").adjacency.device.type == "meta"


def test_loader_workers_send_batches():
    gs = example()
    loader = DataLoader(range(3), batch_size=2, collate_fn=gs.batch, num_workers=1, timeout=60)
    assert [batch.sizes.tolist() for batch in loader] == [[3, 0], [2]]


def test_degree_stats():
    gs = example()
    assert gs.degree_stats().histogram.tolist() == [2, 1, 2]
    assert DegreeStats.from_graphs(gs) == gs.degree_stats()
    assert DegreeStats.from_graphs([gs.batch([0]), gs.batch([1, 2])]) == gs.degree_stats()
    assert DegreeStats.from_graphs(gs.to_pyg()) == gs.degree_stats()


def test_empty_set():
    gs = GraphSet.from_arrays([], torch.zeros(2, 0, dtype=torch.int64), [], x=torch.zeros(0, 3))
    assert (len(gs), gs.to_pyg(), gs.x.shape) == (0, [], (0, 3))
    assert gs.batch().num_graphs == gs.batch([]).num_nodes == 0
    assert_same(GraphSet.concat([gs, gs]), gs)
    assert len(GraphSet.from_pyg([])) == 0
    assert_same(copy.deepcopy(gs), gs)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sizes": [2, -1]}, ValueError, r"sizes\[1\] = -1"),
        ({"sizes": [2.5, 1]}, TypeError, "sizes of dtype float64"),
        ({"sizes": [[2, 1]]}, ValueError, r"sizes of shape \(1, 2\)"),
        ({"sizes": [2]}, ValueError, "1 sizes and 2 edge_counts"),
        ({"edge_index": [[0], [1]]}, ValueError, r"shape \(2, 1\), expected \(2, 3\)"),
        (
            {"edge_index": [[0, 1, 0], [1, 0, 1]]},
            ValueError,
            "receiver 1 in edge 0 of graph 1, which has 1 nodes",
        ),
        ({"edge_index": [[0, -1, 0], [1, 0, 0]]}, ValueError, "sender -1 in edge 1 of graph 0"),
        ({"x": [1.0, 2.0]}, ValueError, r"x of shape \(2, 1\), expected \(3, columns\)"),
        ({"y_graph": np.zeros((3, 2))}, ValueError, "a row for each graph"),
        ({"edge_attr": np.zeros((3, 2, 1))}, ValueError, "a row for each edge"),
        ({"x": np.zeros((3, 2)), "node_features": ["a"]}, ValueError, "1 node_features .a. for 2"),
        ({"node_features": ["a"]}, ValueError, "for 0 columns"),
        ({"x": np.zeros((3, 2)), "node_features": ["a", "a"]}, ValueError, "'a' twice"),
        ({"x": np.zeros((3, 2)), "node_features": "ab"}, TypeError, "expected a list of names"),
        ({"split": ["train"]}, ValueError, "one for each graph"),
        (
            {"split": ["train", "tst"], "splits": ["train", "test"]},
            ValueError,
            "did you mean 'test'",
        ),
        ({"type": [0, 1]}, ValueError, "type 0 of graph 0, expected an index of 0 types"),
        ({"type": [0, 2], "types": ["a", "b"]}, ValueError, "type 2 of graph 1"),
        ({"type": [0.5, 1], "types": ["a", "b"]}, TypeError, "type of dtype float64"),
        ({"metadata": {"a": object()}}, TypeError, "JSON cannot hold"),
        ({"metadata": [1]}, TypeError, "metadata of type list"),
    ],
)
def test_bad_input(change, error, message):
    good = {"sizes": [2, 1], "edge_index": [[0, 1, 0], [1, 0, 0]], "edge_counts": [2, 1]}
    GraphSet.from_arrays(**good)
    with pytest.raises(error, match=message):
        GraphSet.from_arrays(**(good | change))
