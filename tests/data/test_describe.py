"""Figures of graph sets, small enough to check by eye."""

import math

import pytest

from pna import GraphSet
from pna.data.describe import describe


@pytest.fixture
def graphs():
    """A pair, a triangle without one edge, and a single node."""
    return GraphSet.from_arrays(
        sizes=[2, 3, 1],
        edge_index=[[0, 1, 0, 1], [1, 0, 1, 2]],
        edge_counts=[2, 2, 0],
        y_node=[[1.0], [3.0], [0.0], [2.0], [4.0], [2.0]],
        y_graph=[[2.0], [4.0], [math.nan]],
        split=["train", "train", "test"],
        type=["pair", "path", "pair"],
        node_targets=["height"],
        graph_targets=["weight"],
        metadata={"seed": 3},
    )


def test_splits(graphs):
    train, test = describe(graphs).splits
    assert (train.name, train.graphs, train.sizes) == ("train", 2, (2, 3))
    assert (train.nodes, train.edges) == (5, 4)
    assert train.mean_degree == pytest.approx(4 / 5)
    assert train.mean_log_degree == pytest.approx(4 * math.log(2) / 5)
    assert train.types == {"pair": 1, "path": 1}
    assert (test.graphs, test.edges, test.types) == (1, 0, {"pair": 1})


def test_targets(graphs):
    height, weight = describe(graphs).targets
    assert (height.name, height.level, height.least, height.mean) == ("height", "node", 0, 2)
    assert (height.greatest, height.scale, height.missing) == (4, 4, 0)
    assert height.baseline["train"] == pytest.approx(math.log10(2 / 16))  # variance over scale²
    assert height.baseline["test"] == -math.inf  # the mean of training is right there
    assert (weight.missing, weight.scale) == (1, 4)
    assert weight.baseline["train"] == pytest.approx(math.log10(1 / 16))


def test_values_of_what_may_be_classes_are_counted(graphs):
    height, weight = describe(graphs).targets
    assert height.counts == {"train": (1, 1, 1, 1, 1), "test": (0, 0, 1, 0, 0)}
    assert weight.counts == {"train": (0, 0, 1, 0, 1), "test": (0, 0, 0, 0, 0)}  # one is missing


@pytest.mark.parametrize(
    "values", [[0.5, 1], [-1, 1], [0, 10], [0, math.inf], [0, 0], [math.nan] * 2]
)
def test_other_numbers_are_not_counted(values):
    graphs = GraphSet.from_arrays([1, 1], [[], []], [0, 0], y_graph=[[v] for v in values])
    (target,) = describe(graphs).targets
    assert target.counts == {}


def test_a_set_without_splits_types_or_targets():
    plain = GraphSet.from_arrays(sizes=[2], edge_index=[[0], [1]], edge_counts=[1])
    found = describe(plain)
    assert [split.name for split in found.splits] == ["all"]
    assert found.targets == () and found.splits[0].types == {}


def test_metadata(graphs):
    assert describe(graphs).metadata == {"seed": 3}


def test_a_set_of_no_graphs(graphs):
    found = describe(graphs[:0])
    assert found.splits == () and found.targets == ()
