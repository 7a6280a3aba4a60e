"""Arrays of npz files and graphs of PyG as one graph."""

import numpy as np
import pytest
import torch

from pna import GraphSet
from pna.data import NodeGraph

torch_geometric = pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData  # noqa: E402

COUNT = 8
PARTS = np.array([0, 0, 0, 0, 1, 1, 2, 2])


def arrays():
    """Eight nodes in a ring, and two splits, of which the second is the first reversed."""
    masks = [np.stack([part == PARTS, part == PARTS[::-1]]) for part in range(3)]
    nodes = np.arange(COUNT)
    return {
        "node_features": np.stack([nodes, nodes % 2, np.ones(COUNT)], 1).astype(np.float32),
        "node_labels": nodes // 2 % 2,
        "edges": np.stack([nodes, (nodes + 1) % COUNT], 1),
        **dict(zip(("train_masks", "val_masks", "test_masks"), masks, strict=True)),
    }


@pytest.fixture
def read(tmp_path):
    def made(**changed):
        kept = {name: a for name, a in (arrays() | changed).items() if a is not None}
        np.savez(tmp_path / "g.npz", **kept)
        return NodeGraph.from_npz(tmp_path / "g.npz")

    return made


def test_npz(read):
    graph = read()
    assert graph.num_nodes == 8 and graph.num_edges == 8 and graph.edge_index.shape == (2, 16)
    assert graph.nodes.features == ("feature 0", "feature 1")
    assert graph.nodes.target("label").values.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert graph.nodes.split.T.tolist() == [[1, 1, 1, 1, 2, 2, 3, 3], [3, 3, 2, 2, 1, 1, 1, 1]]
    assert graph.nodes.mean.tolist() == [[1.5, 0.5], [5.5, 0.5]]
    assert graph.nodes.part("train", 1).tolist() == [False] * 4 + [True] * 4
    assert "the first of 2 splits" in " ".join(graph.summary())
    with pytest.raises(IndexError, match="got split 2, expected 0 to 1"):
        graph.nodes.part("train", 2)


def overlapping():
    masks = arrays()["val_masks"].copy()
    masks[1, 5] = True
    return masks


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"val_masks": None, "edges": None}, "g.npz with the arrays .*, expected also edges, val"),
        ({"node_labels": np.array([None] * COUNT)}, "g.npz, which cannot be read as npz .*pickle"),
        ({"val_masks": overlapping()},
         r"got row 5 of .*g.npz in train_masks and in val_masks, split 1; 1 rows are, expected"),
        ({"val_masks": np.zeros((2, COUNT), bool)}, "no validation nodes with a known label in sp"),
        ({"val_masks": np.zeros((2, 5), bool)}, r"val_masks of shape \(5, 2\) and type bool"),
        ({f"{part}_masks": np.zeros((0, COUNT), bool) for part in ("train", "val", "test")},
         r"train_masks of shape \(8, 0\) and type bool, expected .*\(8, 1\)"),
        ({"edges": np.array([[0, 8]])}, "an edge from 0 to 8, number 0 of edges of .*, expected"),
        ({"edges": np.zeros((3, 4))}, "got edges of .* with 4 × 3 numbers of type float64"),
        ({"node_features": np.full((COUNT, 1), np.inf)}, "got inf as feature 0 in row 0 of"),
        ({"node_features": np.zeros((3, 1))}, r"got feature of shape \(3, 1\) and type float64"),
        ({"node_labels": np.full(COUNT, -1)}, "'label', which is missing in all 8 rows of nodes"),
    ],
)  # fmt: skip
def test_bad_npz(read, changed, words):
    with pytest.raises(ValueError, match=words):
        read(**changed)


def data(**more):
    """A path of four nodes, in both directions, in an order of its own."""
    return Data(
        x=torch.tensor([[0.5, 1], [float("nan"), 0], [2, 1], [3, 1]]),
        edge_index=torch.tensor([[1, 0, 3, 1, 2, 2], [0, 1, 2, 2, 1, 3]]),
        y=torch.tensor([0, 2, 2, -1]),
        train_mask=torch.tensor([True, True, False, False]),
        val_mask=torch.tensor([False, False, True, False]),
        test_mask=torch.tensor([False, False, False, False]),
        **more,
    )


@pytest.mark.filterwarnings("ignore:got no test")
def test_pyg():
    graph = NodeGraph.from_pyg(data(edge_attr=torch.tensor([7, 7, 5, 6, 6, 5])), title="path")
    assert torch.equal(graph.edge_index, data().edge_index) and not graph.directed
    assert graph.num_edges == 3 and graph.is_reverse.tolist() == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert graph.edge_row.tolist() == [0, 0, 2, 1, 1, 2]
    assert graph.edges.categories == {"edge_attr 0": ("5", "6", "7")}
    assert graph.edges.codes[graph.edge_row, 0].tolist() == [2, 2, 0, 1, 1, 0]
    assert graph.nodes.features == ("x 0", "x 0 missing", "x 1")
    assert graph.nodes.x[1].tolist() == [0.5, 1, 0]
    y = graph.nodes.target("y")
    assert y.values.tolist() == [0, 1, 1, -1] and y.classes == ("0", "2")
    assert graph.metadata["title"] == "path"


@pytest.mark.filterwarnings("ignore:got no test")
@pytest.mark.parametrize(
    "edges",
    [
        {"edge_index": torch.tensor([[0, 1], [1, 2]])},
        {"edge_attr": torch.tensor([[7.0], [7], [5], [6], [6], [4]])},
    ],
    ids=["no reverse", "other features"],
)
def test_pyg_directed(edges):
    given = data()
    given.update(edges)
    graph = NodeGraph.from_pyg(given)
    assert graph.directed and torch.equal(graph.edge_index, given.edge_index)
    assert graph.edge_row.tolist() == list(range(given.num_edges)) and not graph.is_reverse.any()


def test_repeated_edges_of_pyg_find_their_reverses():
    """The second edge of a pair of nodes belongs to the second reverse."""
    index = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    graph = NodeGraph.from_pyg(
        Data(edge_index=index, edge_attr=torch.tensor([1.0, 1, 2, 2]), num_nodes=2)
    )
    assert not graph.directed and graph.edge_row.tolist() == [0, 0, 1, 1]
    assert graph.edges.x.tolist() == [[1], [2]]


def test_pyg_with_several_splits_and_targets():
    ten = torch.zeros(4, 10, dtype=torch.bool)
    masks = [ten.clone() for _ in range(3)]
    for part, mask in enumerate(masks):
        mask[part] = True
    names = dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    y = torch.tensor([[0.5, 1], [2, 3], [4, float("nan")], [6, 7]])
    with pytest.warns(UserWarning, match="got no test nodes with a known y 1 in split 0"):
        graph = NodeGraph.from_pyg(
            Data(edge_index=torch.zeros(2, 0).long(), y=y, num_nodes=4, **names)
        )
    assert graph.nodes.split.shape == (4, 10)
    assert [(t.name, t.kind) for t in graph.nodes.targets] == [("y 0", "number"), ("y 1", "number")]


def test_edge_types_and_edge_labels_of_pyg():
    hetero = HeteroData()
    hetero["user"].x = torch.rand(3, 2)
    for name, label, part in (("likes", [0, 1], 0), ("knows", [1, 0], 1)):
        store = hetero["user", name, "user"]
        store.edge_index = torch.tensor([[0, 1], [1, 2]])
        store.edge_label = torch.tensor(label)
        for index, mask in enumerate(("train_mask", "val_mask", "test_mask")):
            store[mask] = torch.tensor([index == part] * 2)
    with pytest.warns(UserWarning, match="got no test edges with a known edge_label"):
        graph = NodeGraph.from_pyg(hetero)
    assert graph.edges.categories == {"edge type": ("user/likes/user", "user/knows/user")}
    assert graph.edges.codes.T.tolist() == [[0, 0, 1, 1]]
    assert graph.edges.target("edge_label").values.tolist() == [0, 1, 1, 0]
    assert graph.edges.split.T.tolist() == [[1, 1, 2, 2]]


def test_edge_labels_of_data():
    given = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    given.edge_label = torch.tensor([0.5, 1.5, 2.5])
    for part, name in enumerate(("train", "val", "test")):
        given[f"edge_{name}_mask"] = torch.arange(3) == part
    graph = NodeGraph.from_pyg(given)
    assert graph.directed and graph.edges.target("edge_label").kind == "number"
    assert graph.edges.split.T.tolist() == [[1, 2, 3]]


def two_types():
    hetero = HeteroData()
    hetero["a"].x, hetero["b"].x = torch.rand(1, 1), torch.rand(1, 1)
    return hetero


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: data(edge_label_index=torch.zeros(2, 1)), "got edge_label_index"),
        (two_types, "with the node types a, b, expected one; join them with data.to_homogeneous"),
        (lambda: Data(x=torch.rand(2, 1), edge_index=None), "got no edge_index"),
        (lambda: Data(x=torch.rand(2), edge_index=torch.ones(2, 1).int(), train_mask=torch.ones(2)),
         "got train_mask alone, expected train_mask, val_mask, test_mask"),
        (lambda: Data(x=torch.arange(200_000), edge_index=torch.zeros(2, 0).long()),
         r"200,000 different whole numbers, .* at most 100,000; .*\.float\(\)"),
        (lambda: Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 1).long(), y=torch.ones(3)),
         r"got y of shape \(3,\) and type float32, expected \(2,\)"),
    ],
)  # fmt: skip
def test_bad_graphs_of_pyg(make, words):
    with pytest.raises(ValueError, match=words):
        NodeGraph.from_pyg(make())


def test_masks_of_pyg_that_overlap():
    given = data()
    given.test_mask = torch.tensor([False, True, True, False])
    with pytest.raises(ValueError, match=r"node 1 in train_mask and in test_mask; 2 rows are"):
        NodeGraph.from_pyg(given)


def test_a_graph_set_refuses_a_split_inside_a_graph():
    with pytest.raises(ValueError, match=r"graph 0 with a train_mask.*pna.data.NodeGraph.from_pyg"):
        GraphSet.from_pyg([data()])
