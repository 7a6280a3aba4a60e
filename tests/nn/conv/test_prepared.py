"""A narrow layer prepared for many calls against the layer itself, and its definition."""

from __future__ import annotations

import pytest
import torch

from pna import Adjacency
from pna.nn.conv.pna import NARROW_LAYER, PNAConv
from pna.nn.conv.prepared import PreparedPNA
from tests.nn.cases import (
    DEG,
    DEGREES,
    GRAPHS,
    PAPER,
    SCALERS,
    assert_equal_in_norm,
    numbers,
    outcome,
)
from tests.nn.conv import oracle

WIDTH = 8


def made(aggregators=PAPER, scalers=SCALERS, **arguments) -> PNAConv:
    torch.manual_seed(0)
    return PNAConv(WIDTH, WIDTH, aggregators, scalers, DEG, **arguments).double()


def inputs(graph, edge_dim=None):
    x = numbers(graph.nodes, WIDTH, dtype=torch.float64, device="cpu")
    edge_index = torch.tensor(graph.edges, dtype=torch.int64).reshape(-1, 2).T
    edge = None
    if edge_dim is not None:
        edge = numbers(edge_index.shape[1], edge_dim, dtype=torch.float64, device="cpu", seed=2)
    return x, edge_index, edge


def compared(layer, x, adjacency, edge, run):
    leaves = {"x": x, **dict(layer.named_parameters())}
    if edge is not None:
        leaves["edge"] = edge
    return outcome(lambda: run(x, adjacency, edge), leaves)


CASES = {
    "one tower": {},
    "towers of shares": {"towers": 4, "divide_input": True},
    "towers of all": {"towers": 2},
    "edges": {"towers": 2, "divide_input": True, "edge_dim": 3},
    "edges of one tower": {"edge_dim": 3},
    "swapped extrema": {"towers": 2, "divide_input": True, "swap_extrema": True},
    "pyg's std": {"towers": 2, "std": "pyg"},
}


@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "no nodes"])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_the_layer(case, graph):
    layer = made(**CASES[case])
    x, edge_index, edge = inputs(GRAPHS[graph], CASES[case].get("edge_dim"))
    adjacency = Adjacency.from_edge_index(edge_index, x.shape[0])
    if edge is not None:
        edge = edge[torch.argsort(edge_index[1], stable=True)]
    prepared = layer.prepared()
    assert isinstance(prepared, PreparedPNA)
    got = compared(layer, x, adjacency, edge, lambda *given: layer.prepared()(*given))
    expected = compared(layer, x, adjacency, edge, layer)
    assert_equal_in_norm(got, expected, 1e-9)


@pytest.mark.parametrize(
    ("aggregators", "scalers"),
    [
        (["sum"], ["identity"]),
        (["mean", "moment_3", "softmax"], SCALERS),
        (["normalised_mean", "max"], SCALERS),
    ],
    ids=str,
)
def test_any_aggregators_by_definition(aggregators, scalers):
    layer = made(aggregators, scalers, towers=2, divide_input=True)
    x, edge_index, _ = inputs(GRAPHS["random"])
    objects = layer.neighbourhood.aggregators
    expected = oracle.pna_conv(layer, objects, scalers, DEGREES, x, edge_index)
    got = layer.prepared()(x, Adjacency.from_edge_index(edge_index, x.shape[0]))
    # δ was kept in float32 before the layer became one of float64
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [{"pre_layers": 2}, {"post_layers": 2}],
    ids=str,
)
def test_layers_with_more_inside_are_themselves(arguments):
    layer = made(**arguments)
    assert layer.prepared() is layer


def test_wide_layers_are_themselves():
    wide = PNAConv(NARROW_LAYER + 1, NARROW_LAYER + 1, PAPER, SCALERS, DEG)
    assert wide.prepared() is wide
    wide = PNAConv(10, 10, PAPER, SCALERS, DEG, towers=5)  # each tower sees all: 50 features
    assert wide.prepared() is wide


def test_two_graphs_in_turn():
    """What is remembered of a graph is not taken for another."""
    layer = made(towers=2, divide_input=True)
    prepared = layer.prepared()
    for name in ("random", "hub", "random"):
        x, edge_index, _ = inputs(GRAPHS[name])
        adjacency = Adjacency.from_edge_index(edge_index, x.shape[0])
        torch.testing.assert_close(prepared(x, adjacency), layer(x, adjacency))
