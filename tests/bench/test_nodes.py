"""Steps on the nodes of one graph, and the model that they train."""

from dataclasses import replace

import pytest
import torch

from pna.bench import nodes
from pna.bench.nodes import CASES, SMALL, NodeModel, adjacency_of, cases, measure_case, random_graph
from pna.data.neighbours import NeighbourBatches
from pna.nn import PNAConv

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "case", [*SMALL, *CASES["cpu"], *CASES["cuda"]], ids=lambda case: case.name
)
def test_every_case_is_described(case):
    assert 0 < case.known < 1 and case.classes > 1
    assert not case.sample or len(case.sample) == case.layers
    assert case.work


def test_the_graph_has_the_asked_size_and_a_power_law():
    (case, *_) = SMALL
    graphs = random_graph(case, CPU)
    adjacency = adjacency_of(graphs)
    assert (adjacency.num_receivers, adjacency.num_edges) == (case.nodes, case.edges)
    assert torch.equal(adjacency.incoming.lengths.long(), graphs.degree.long())
    most, mean = int(graphs.degree.max()), case.edges / case.nodes
    assert most > 4 * mean  # of a uniform graph it would be about twice the mean
    known = float((~graphs.y_node.isnan()).float().mean())
    assert abs(known - case.known) < 0.1


def test_the_models_are_the_same():
    pyg = pytest.importorskip("torch_geometric.nn")
    (case, *_) = SMALL
    graphs = random_graph(case, CPU)
    graphs = replace(graphs, x=graphs.x.double())
    deg = torch.bincount(graphs.degree.long())
    ours, theirs = (NodeModel(case, make, deg).double() for make in (PNAConv, pyg.PNAConv))
    for k, layer in enumerate(theirs.layers):
        ours.layers[k] = PNAConv.from_pyg(layer)  # which takes PyG's ε of std
    for name in ("embed", "head"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    adjacency, rows = adjacency_of(graphs), torch.arange(case.nodes)
    got = ours.full(graphs.x, adjacency, rows)
    expected = theirs.full(graphs.x, adjacency.edge_index.long(), rows)
    torch.testing.assert_close(got, expected)
    # samples of all neighbours are the whole graph
    batch = next(iter(NeighbourBatches(graphs, (case.edges // 20,) * 3, 7)))
    full = got[batch.nodes[: batch.num_seeds]]
    torch.testing.assert_close(ours.sampled(batch, pairs=True), full)
    torch.testing.assert_close(theirs.sampled(batch, pairs=False), full)


@pytest.mark.parametrize("case", cases("cpu", small=True), ids=lambda case: case.name)
def test_every_row_has_time_and_memory(case):
    pytest.importorskip("torch_geometric")
    rows = measure_case(case, "cpu", seconds=0.01)
    assert [row.contender for row in rows][:2] == ["pna", "PyG"]
    assert all(row.ms > 0 and row.mib > 0 and row.note is None for row in rows[:2])


def test_what_fails_is_a_note(monkeypatch):
    monkeypatch.setattr(nodes, "_pyg", lambda *given: 1 / 0)
    pytest.importorskip("torch_geometric")
    ours, theirs, *_ = measure_case(SMALL[0], "cpu", seconds=0.01)
    assert ours.ms > 0 and theirs.ms is None and "ZeroDivisionError" in theirs.note
