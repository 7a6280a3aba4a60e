"""Features of random walks, against powers of the matrix of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pna.data import pairs as pairs_module
from pna.data.graphset import GraphSet
from pna.data.walks import arrival_probabilities, return_probabilities, with_walks
from tests.data.graph_sets import graph_sets, make

RING, PATH = [(0, 1), (1, 2), (2, 0)], [(0, 1), (1, 0), (1, 2), (2, 1)]


def by_definition(graphs: GraphSet, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Diagonals and edges of every power, one graph after another."""
    returns, arrivals = [np.zeros((0, steps))], [np.zeros((0, steps))]
    for i in range(len(graphs)):
        size = int(graphs[i].sizes)
        sender, receiver = graphs[i].edges.numpy()
        walk = np.zeros((size, size))
        np.add.at(walk, (sender, receiver), 1)
        walk /= walk.sum(1, keepdims=True).clip(1)
        powers = [np.linalg.matrix_power(walk, k) for k in range(1, steps + 1)]
        returns.append(np.stack([np.diag(power) for power in powers], 1))
        arrivals.append(np.stack([power[sender, receiver] for power in powers], 1))
    return np.concatenate(returns), np.concatenate(arrivals)


@given(graph_sets(), st.integers(1, 7), st.sampled_from([1, 20, 1 << 20]))
def test_they_are_powers_of_the_steps(graphs, steps, pairs):
    """Of directed graphs with loops and repeated edges too, however many are taken at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "_PAIRS", pairs)
        found = return_probabilities(graphs, steps), arrival_probabilities(graphs, steps)
    for got, expected in zip(found, by_definition(graphs, steps), strict=True):
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_ring_and_a_path():
    """A walk round a ring of three is back after three steps; one from the middle of a path of
    three after two, one from its end half the time."""
    graphs = make([3, 3], [RING, PATH])
    found = return_probabilities(graphs, 4)
    assert found[:3].tolist() == [[0, 0, 1, 0]] * 3
    assert found[3:].tolist() == [[0, 0.5, 0, 0.5], [0, 1, 0, 1], [0, 0.5, 0, 0.5]]
    arrived = arrival_probabilities(graphs, 4)
    assert arrived[:3].tolist() == [[1, 0, 0, 1]] * 3
    assert sorted(arrived[3:].tolist()) == [[0.5, 0, 0.5, 0]] * 2 + [[1, 0, 1, 0]] * 2


def test_columns_are_added():
    graphs = make([3, 3], [RING, PATH])
    found = with_walks(graphs, 2, edge_steps=1)
    torch.testing.assert_close(found.x, torch.cat([graphs.x, return_probabilities(graphs, 2)], 1))
    assert found.node_features == ("0", "1", "return after 1", "return after 2")
    assert torch.equal(found.edge_attr[:, 1:], arrival_probabilities(graphs, 1))
    assert found.edge_features == ("0", "arrival after 1")
    assert "node_values" not in found.metadata  # numbers beside numbers
    assert torch.equal(found.senders, graphs.senders) and found.splits == graphs.splits
    bare = with_walks(make([3, 3], [RING, PATH], frozenset()), 2)
    assert torch.equal(bare.x, return_probabilities(graphs, 2)) and bare.edge_attr is None


@pytest.mark.parametrize("said", [None, [9, 4]], ids=["counted", "said"])
def test_kinds_stay_kinds(said):
    """Beside numbers, from the metadata or as many as there are."""
    graphs = make([3, 3], [RING, PATH])
    kinds = torch.tensor([[0, 1], [2, 0], [1, 1], [0, 0], [0, 3], [1, 1]], dtype=torch.uint8)
    graphs = replace(graphs, x=kinds, metadata={} if said is None else {"node_values": said})
    found = with_walks(graphs, 3)
    assert found.metadata["node_values"] == [*(said or [3, 4]), 0, 0, 0]
    assert found.x.dtype == torch.float32 and torch.equal(found.x[:, :2], kinds.float())


def test_a_file_holds_them(tmp_path):
    found = with_walks(make([3, 3], [RING, PATH]), 3, edge_steps=2)
    found.save(tmp_path / "walks.safetensors")
    again = GraphSet.load(tmp_path / "walks.safetensors")
    assert torch.equal(again.x, found.x) and again.edge_features == found.edge_features


def test_refused():
    graphs = make([3, 3], [RING, PATH])
    with pytest.raises(ValueError, match="have the feature 'return after 1' already"):
        with_walks(with_walks(graphs, 2), 3)
    with pytest.raises(ValueError, match="got walks of no steps"):
        with_walks(graphs, 0)
    with pytest.raises(ValueError, match="got walks of steps=-1"):
        return_probabilities(graphs, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "MOST_NODES", 2)
        with pytest.raises(ValueError, match="got a graph of 3 nodes, expected at most 2"):
            return_probabilities(graphs, 1)
