"""Outputs for the nodes of one graph, layer by layer: those of the full batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pna.data import NodeGraph
from pna.data.graphset import GraphSet
from pna.train import layerwise
from pna.train.layerwise import layerwise_outputs
from pna.train.models import build, fitted
from pna.train.population import Population
from pna.train.settings import ModelSettings
from pna.train.tasks import tasks_of

NODES, EDGES = 40, 150


def one_graph(edge_columns=0, columns=3, level="node"):
    """A hub of 40 edges, 8 nodes without incoming edges, repeated edges and self-loops."""
    rng = np.random.default_rng(5)
    edges = rng.integers(0, [[NODES], [NODES - 8]], (2, EDGES))
    edges[1, :40], edges[1, 40:46] = 3, edges[0, 40:46] % (NODES - 8)
    edges[0, 40:46] = edges[1, 40:46]
    return GraphSet.from_arrays(
        [NODES], edges, [EDGES],
        x=rng.standard_normal((NODES, columns)),
        edge_attr=rng.standard_normal((EDGES, edge_columns)) if edge_columns else None,
        **{f"y_{level}": rng.random((NODES if level == "node" else 1, 2))},
    )  # fmt: skip


def population_of(graphs, convolution="pna", architecture="stacked", members=2, **arguments):
    """Members in evaluation mode, whose running statistics are not those of the start."""
    arguments = {"layers": 2} | arguments if architecture != "recurrent" else arguments
    if convolution.startswith(("pna", "mpnn")) and convolution != "pna-simple":
        arguments.setdefault("towers", 2)
    given = ModelSettings(convolution, architecture, 8, arguments=arguments)
    settings = fitted(given, graphs, tasks_of(graphs, "mse", None, None))
    made = Population([build(settings, seed) for seed in range(members)])
    made.to("cpu", torch.float64).train(False)
    for name, buffer in made.buffers.items():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return made


def sliced(*given):
    return torch.stack([prediction.node for prediction in layerwise_outputs(*given)])


def full_batch(population, graphs):
    with torch.no_grad():
        return population.apply(graphs.batch(), lambda prediction: prediction.node)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


CASES = [
    ("stacked", "pna", 0, {}),
    ("stacked", "gcn", 0, {}),
    *[slow("stacked", name, 0, {}) for name in ("pna-simple", "pna-moments", "gin", "gat", "sage")],
    slow("stacked", "monet", 0, {}),
    slow("stacked", "mlp-gated", 0, {}),
    ("stacked", "pna", 3, {}),  # few columns of edge features, given as a basis
    ("stacked", "pna", 20, {}),  # wide ones
    slow("stacked", "gat", 3, {}),
    ("stacked", "pna", 0, {"norm_before_mixing": True, "divide_input": True}),
    ("stacked", "pna", 0, {"swap_extrema": True, "pre_layers": 2}),
    ("stacked", "gat", 2, {"add_self_loops": True, "norm": "layer", "feed_forward": 2.0}),
    ("standard", "pna", 2, {}),
    slow("standard", "gcn", 0, {}),
    ("recurrent", "pna", 0, {"depth": 3}),
    slow("recurrent", "gin", 0, {"depth": "2log2N"}),
]


@pytest.mark.parametrize(("architecture", "convolution", "columns", "arguments"), CASES)
def test_outputs_are_those_of_the_full_batch(architecture, convolution, columns, arguments):
    graphs = one_graph(columns)
    population = population_of(graphs, convolution, architecture, **arguments)
    expected = full_batch(population, graphs)
    assert expected.shape == (2, NODES, 2)
    for nodes in (7, NODES):
        got = sliced(population, graphs, nodes)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(
    ("architecture", "convolution", "arguments"),
    [
        ("stacked", "pna", {}),
        slow("stacked", "gcn", {"edges": False}),
        slow("standard", "gat", {}),
        slow("recurrent", "pna", {"depth": 2}),
    ],
)
def test_labelled_edges(directed, architecture, convolution, arguments):
    networkx = pytest.importorskip("networkx")
    rng, graph = np.random.default_rng(1), networkx.gnm_random_graph(20, 50, 1, directed)
    for _, _, edge in graph.edges(data=True):
        edge |= {"amount": rng.normal(), "fraud": rng.integers(2)}
    made = NodeGraph.from_networkx(graph, edge_target="fraud", random_split=(0.5, 0.3, 0.2))
    graphs = made.graph_set()
    population = population_of(graphs, convolution, architecture, **arguments)
    with torch.no_grad():
        expected = population.apply(graphs.batch(), lambda prediction: prediction.edge)
    assert expected.shape == (2, 50, 1)
    for nodes in (7, None):
        got = layerwise_outputs(population, graphs, nodes)
        assert got[0].node is None
        got = torch.stack([prediction.edge for prediction in got])
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_given_weights_are_used():
    graphs = one_graph()
    population, other = population_of(graphs), population_of(graphs, members=3)
    other.keep(torch.tensor([2, 1]))
    got = sliced(population, graphs, 9, other.flat.detach(), other.buffers)
    torch.testing.assert_close(got, full_batch(other, graphs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("convolution", "some"), [("pna", 2**16), ("gcn", 48 * 2**10)])
def test_slices_and_the_place_of_states_follow_from_memory(monkeypatch, convolution, some):
    graphs = one_graph()
    population = population_of(graphs, convolution)
    counts = []
    for free in (2**10, 2**30, some):
        monkeypatch.setattr(layerwise, "free_memory", lambda device, free=free: free)
        bounds = layerwise._Blocks(graphs, population, None).bounds
        assert [a for a, _ in bounds] == [0, *[b for _, b in bounds[:-1]]]
        assert bounds[-1][1] == NODES and all(a < b for a, b in bounds)
        counts.append(len(bounds))
    # about a node each, with the least memory
    assert counts[0] >= NODES // 2 and counts[0] > counts[2] > counts[1] == 1
    got = sliced(population, graphs)
    torch.testing.assert_close(got, full_batch(population, graphs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nodes", [0, 1])
def test_graphs_without_edges_or_nodes(nodes):
    graphs = one_graph()
    population = population_of(graphs)
    x = torch.ones(nodes, 3)
    small = GraphSet.from_arrays([nodes], np.zeros((2, 0), int), [0], x=x)
    got = sliced(population, small, 1)
    torch.testing.assert_close(got, full_batch(population, small), rtol=1e-12, atol=1e-12)
    assert sliced(population, small).shape == (2, nodes, 2)


@pytest.mark.parametrize(
    ("convolution", "architecture", "arguments", "part"),
    [
        ("pna", "stacked", {"virtual_node": True}, "virtual_node"),
        ("pna", "stacked", {"graph_norm": True}, "graph_norm"),
        ("gated-gcn", "stacked", {}, "edge states"),
        ("pna", "stacked", {"flow": "target_to_source"}, "outgoing edges"),
        ("pna", "recurrent", {"depth": "adaptive"}, "depth='adaptive'"),
    ],
)
def test_what_needs_the_whole_graph_is_refused(convolution, architecture, arguments, part):
    graphs = one_graph()
    population = population_of(graphs, convolution, architecture, **arguments)
    with pytest.raises(ValueError, match=f"{part}.*all nodes of the graph at once.*slice"):
        layerwise_outputs(population, graphs, 7)


def test_other_input_is_refused():
    graphs = one_graph()
    population = population_of(graphs)
    with pytest.raises(ValueError, match=r"slice_nodes=0.*at least 1"):
        layerwise_outputs(population, graphs, 0)
    with pytest.raises(ValueError, match="2 graphs, expected one"):
        layerwise_outputs(population, graphs[[0, 0]], 7)
    population.train()
    with pytest.raises(ValueError, match="evaluation mode"):
        layerwise_outputs(population, graphs, 7)
    of_graphs = population_of(one_graph(level="graph"))
    with pytest.raises(ValueError, match="predictions of graphs"):
        layerwise_outputs(of_graphs, graphs, 7)
