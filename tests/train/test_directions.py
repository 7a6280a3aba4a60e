"""Messages against the direction of the edges, in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pna.data import NodeGraph
from pna.degree import DegreeStats
from pna.nn.conv.pna import PNAConv
from pna.train import Settings, train
from pna.train.defaults import model_for
from pna.train.models import build
from pna.train.prediction import predict

nx = pytest.importorskip("networkx")


@pytest.fixture(scope="module")
def graph():
    """A random directed graph, with a number to predict that is that of a node's receivers."""
    made = nx.gnp_random_graph(16, 0.2, seed=0, directed=True)
    for node, of_node in made.nodes(data=True):
        of_node["own"] = node % 5 + node / 100
    for node, of_node in made.nodes(data=True):
        of_node["target"] = sum(made.nodes[other]["own"] for other in made.successors(node))
    return NodeGraph.from_networkx(made, target="target", random_split=(0.5, 0.25, 0.25))


@pytest.mark.parametrize("architecture", ["stacked", "standard", "recurrent"])
def test_nodes_hear_from_their_receivers(graph, architecture, tmp_path):
    graphs = graph.graph_set()
    depth = {"depth": "2"} if architecture == "recurrent" else {"layers": 1}
    given = dict(architecture=architecture, hidden=8, direction="both", **depth)
    model = model_for(graphs, "pna", given)
    settings = Settings(epochs=1, members=2)
    run = train(graphs, tmp_path / "run", model, settings, device="cpu")
    for layer in build(run.config.model).modules():
        if isinstance(layer, PNAConv):
            out = DegreeStats.from_degrees(graphs.out_degree)
            found = layer.outgoing.neighbourhood.mean_log_degree.item()
            assert found == pytest.approx(out.mean_log)
    changed = replace(graphs, x=graphs.x.clone())
    changed.x[3] += 1
    before, after = (predict(run, g, device="cpu").node["target"] for g in (graphs, changed))
    moved = torch.from_numpy(before != after)
    senders = graphs.edges[0][graphs.edges[1] == 3]
    receivers = graphs.edges[1][graphs.edges[0] == 3]
    near = torch.zeros(16, dtype=torch.bool)
    near[torch.cat([senders, receivers, torch.tensor([3])])] = True
    assert bool(moved[senders].all()) and len(senders) > 0
    if architecture != "recurrent":  # whose two steps reach farther
        assert torch.equal(moved, near)


def test_convolutions_that_cannot(graph, tmp_path):
    graphs = graph.graph_set()
    with pytest.raises(ValueError, match="direction='both' for 'gcn', which aggregates along"):
        train(graphs, tmp_path / "a", model_for(graphs, "gcn", {"direction": "both"}))
    with pytest.raises(ValueError, match="unknown direction 'out'"):
        train(graphs, tmp_path / "b", model_for(graphs, "pna", {"direction": "out"}))
    assert "direction" not in model_for(graphs, "gcn", {"direction": "in"}).arguments
