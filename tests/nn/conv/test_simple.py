"""`PNASimpleConv` against the definition: U of scaled aggregates of the neighbours' features."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, stack_module_state

import pna
from pna.degree import Power
from pna.nn import PNASimpleConv
from pna.ops.aggregators import KthSmallest
from tests.nn.cases import DEG, GRAPHS, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome

STATS = pna.DegreeStats.from_histogram(DEG)

LAYERS = {
    "plain": {},
    "two layers of U": dict(post_layers=2),
    "three layers of U": dict(post_layers=3, act="tanh"),
    "one of each": dict(aggregators=["max"], scalers=["identity"], deg=None),
    "every scaler": dict(scalers=[*SCALERS, "linear", "inverse_linear", Power(0.5)]),
    "other aggregators": dict(aggregators=["sum", "softmax", "normalised_mean", KthSmallest(2)]),
}


def made(device, dtype, seed=0, **arguments):
    torch.manual_seed(seed)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=STATS) | arguments
    return PNASimpleConv(5, 7, **given).to(device, dtype), given


def by_definition(layer, given, x, adjacency):
    with pna.backend("reference"):
        results = pna.aggregate(x, adjacency, given["aggregators"])
    h = pna.scale(results, adjacency.degree, given["scalers"], given["deg"]).flatten(1)
    for k, linear in enumerate(layer.post):
        h = F.linear(h if k == 0 else layer.act(h), linear.weight[0], linear.bias[0])
    return h


def compare(device, arguments, graph, dtype, tolerance):
    layer, given = made(device, dtype, **LAYERS[arguments])
    adjacency = GRAPHS[graph].adjacency(device)
    leaves = {"x": numbers(adjacency.num_senders, 5, dtype=dtype, device=device)}
    everything = leaves | dict(layer.named_parameters())
    got = outcome(lambda: layer(leaves["x"], adjacency), everything)
    expected = outcome(lambda: by_definition(layer, given, leaves["x"], adjacency), everything)
    assert got["out"].shape == (adjacency.num_receivers, 7)
    assert_equal_in_norm(got, expected, tolerance)


@pytest.mark.parametrize("arguments", LAYERS)
def test_layers(device, arguments):
    # δ comes as float32
    compare(device, arguments, "random", torch.float64, 1e-6)


@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "random"])
def test_graphs(device, graph):
    compare(device, "plain", graph, torch.float64, 1e-6)


@pytest.mark.parametrize(
    "arguments, graph",
    [("plain", "isolated"), ("two layers of U", "random"), ("plain", "no nodes")],
)
def test_every_backend(backend, arguments, graph):
    compare(backend.device, arguments, graph, torch.float32, 1e-5)


def test_edges_of_any_kind(device):
    """A bare edge_index, an Adjacency, and from senders to other receivers."""
    layer, given = made(device, torch.float64)
    graph = GRAPHS["random"]
    x = numbers(graph.nodes, 5, dtype=torch.float64, device=device)
    expected = layer(x, graph.adjacency(device))
    assert torch.equal(layer(x, graph.edge_index(device)), expected)
    edge_index = torch.tensor([[0, 13, 4], [1, 1, 0]], device=device)
    bipartite = pna.Adjacency.from_edge_index(edge_index, (graph.nodes, 2))
    assert layer(x, bipartite).shape == (2, 7)
    torch.testing.assert_close(
        layer(x, bipartite), by_definition(layer, given, x, bipartite), rtol=1e-6, atol=1e-6
    )


def test_compiled_whole(device):
    torch._dynamo.reset()
    layer, _ = made(device, torch.float64)
    adjacency = GRAPHS["isolated"].adjacency(device)
    leaves = {"x": numbers(5, 5, dtype=torch.float64, device=device)}
    everything = leaves | dict(layer.named_parameters())
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got, expected = (
        outcome(lambda run=run: run(leaves["x"], adjacency), everything) for run in (whole, layer)
    )
    assert_equal_in_norm(got, expected, 1e-12)


def test_members_of_a_population_are_layers_alone(device):
    layers = [made(device, torch.float64, seed)[0] for seed in range(2)]
    adjacency = GRAPHS["random"].adjacency(device)
    x = numbers(adjacency.num_senders, 5, dtype=torch.float64, device=device)
    parameters, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    out = torch.vmap(lambda p, b: functional_call(skeleton, (p, b), (x, adjacency)))(
        parameters, buffers
    )
    out.square().sum().backward()
    for i, layer in enumerate(layers):
        alone = layer(x, adjacency)
        alone.square().sum().backward()
        torch.testing.assert_close(out[i], alone)
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


def test_autocast(device):
    layer, _ = made(device, torch.float32)
    adjacency = GRAPHS["random"].adjacency(device)
    x = numbers(adjacency.num_senders, 5, dtype=torch.float32, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = layer(x, adjacency)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, adjacency), rtol=0.05, atol=0.05)


def test_reset_parameters():
    layer, _ = made("cpu", torch.float32, post_layers=2, train_norm=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(100)
    layer.reset_parameters()
    assert all(parameter.abs().max() < 5 for parameter in layer.parameters())
    assert repr(layer) == "PNASimpleConv(5, 7)"


@pytest.mark.parametrize("shape", [(3, 4), (5,), (3, 5, 1)], ids=str)
def test_refuses_features_of_another_width(shape):
    layer, _ = made("cpu", torch.float32)
    with pytest.raises(ValueError, match=r"got x of shape.*expected \(nodes, 5\).*in_channels=5"):
        layer(torch.ones(shape), torch.tensor([[0], [1]]))
