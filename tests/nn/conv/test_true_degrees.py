"""A layer on some edges of a graph, with the degrees of the whole graph for its scalers."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pna
from pna import Adjacency, fast_paths
from pna.nn import (
    GATConv,
    GatedGCNConv,
    GCNConv,
    GINConv,
    MoNetConv,
    PNAConv,
    PNASimpleConv,
    SAGEConv,
)
from pna.nn.conv import small_cpu
from pna.ops import degree_groups
from pna.ops.backend import availability
from tests.nn.cases import DEG, DEGREES, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome
from tests.nn.conv import oracle
from tests.ops.cases import Graph, random_edges

#: Edges, and degrees that are not their numbers.
GRAPHS = {
    # some receive nothing; equal numbers of edges have different degrees, and the other way round
    "random": (Graph(random_edges(30, 12, 9), 12), [6, 6, 6, 9, 9, 9, 6, 9, 8, 6, 1, 0]),
    # one edge each: kernels that group by the number of edges would take one group
    "ring": (Graph([(i, (i + 1) % 8) for i in range(8)], 8), [1, 2, 3, 4, 4, 3, 2, 1]),
    # one degree, two numbers of edges, and nodes without edges
    "alike": (Graph([(0, 1), (1, 2), (2, 1), (3, 0)], 6), [5] * 6),
    "no edges": (Graph([], 3), [2, 0, 2]),
}

#: The ways through the layer: the backend, the fast paths that are off, and small thresholds.
WAYS = {
    "reference": ("reference", (), ()),
    "plain": ("cpu", ("split",), ()),
    "small, grouped": ("cpu", (), ((small_cpu, "_FEWEST"),)),
    "small, not grouped": ("cpu", ("grouped",), ()),
    "large, at once": ("cpu", ("small_cpu",), ()),
    "large, grouped": (
        "cpu", ("small_cpu",), ((degree_groups, "_NARROW"), (degree_groups, "_WORTH")),
    ),
    "step by step": ("cpu", ("fused", "degree_groups"), ((degree_groups, "_NARROW"),)),
    "a product for each scaler": ("cpu", ("fused", "degree_linear"), ()),
    "triton, small": ("triton", (), ()),
    "triton, few nodes": ("triton", ("small",), ()),
    "triton, tiles": (
        "triton", ("small", "few_nodes", "narrow_linear", "scaled_linear"), (),
    ),
    "triton, factors by torch": (
        "triton", ("small", "narrow_linear", "scaled_linear", "degree_spread", "factors"), (),
    ),
}  # fmt: skip


def made(device, dtype=torch.float32, **arguments):
    torch.manual_seed(0)
    given_arguments = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG) | arguments
    return PNAConv(6, 6, **given_arguments).to(device, dtype)


def assert_is_the_definition(layer, graph, degree, device, dtype=torch.float32, tolerance=1e-5):
    edge_index, degree = graph.edge_index(device), torch.tensor(degree, device=device)
    x = numbers(graph.nodes, 6, dtype=dtype, device=device, seed=1)
    adjacency = Adjacency.from_edge_index(edge_index, graph.nodes, degree=degree)
    exact = copy.deepcopy(layer).double()
    wide = x.double()

    def defined():
        kinds = exact.neighbourhood.aggregators
        return oracle.pna_conv(
            exact, kinds, SCALERS, DEGREES, wide, edge_index, degree=degree
        )  # fmt: skip

    got = outcome(lambda: layer(x, adjacency), {"x": x} | dict(layer.named_parameters()))
    expected = outcome(defined, {"x": wide} | dict(exact.named_parameters()))
    assert_equal_in_norm(got, expected, tolerance)


@pytest.mark.covering(2, always=True)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("towers", [1, 2])
def test_every_way_is_the_definition(towers, way, name, device, monkeypatch):
    backend, off, thresholds = WAYS[way]
    if availability()[backend] is not None:
        pytest.skip(f"{backend}: {availability()[backend]}")
    device = "cpu" if backend == "cpu" else device
    for module, threshold in thresholds:
        monkeypatch.setattr(module, threshold, 0)
    graph, degree = GRAPHS[name]
    aggregators = PAPER if towers == 1 else ["sum", *PAPER]
    layer = made(device, towers=towers, divide_input=towers > 1, aggregators=aggregators)
    with pna.backend(backend), fast_paths.without(*off):
        assert_is_the_definition(layer, graph, degree, device)


@st.composite
def samples(draw):
    """A graph without some of its edges, and its degrees with them."""
    nodes = draw(st.integers(1, 9))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node, st.booleans()), max_size=30))
    degree = [sum(receiver == i for _, receiver, _ in edges) for i in range(nodes)]
    return Graph([(a, b) for a, b, is_kept in edges if is_kept], nodes), degree


@settings(max_examples=10)
@given(
    samples(),
    st.sampled_from([name for name in ("cpu", "reference") if availability()[name] is None]),
    st.sampled_from([0, 4096]),
)
def test_any_sample(sample, backend, narrow):
    aggregators = ["normalised_mean", "mean", "std", "moment_3", "max"]
    with pna.backend(backend), pytest.MonkeyPatch.context() as patch:
        for name in ("_NARROW", "_WORTH"):
            patch.setattr(degree_groups, name, narrow)
        layer = made("cpu", torch.float64, aggregators=aggregators)
        assert_is_the_definition(layer, *sample, "cpu", torch.float64, 1e-5)


def test_by_hand():
    """One of three messages was sampled: the mean is that message, the degree is 3."""
    edge_index = torch.tensor([[0], [1]])
    adjacency = Adjacency.from_edge_index(edge_index, 2, degree=torch.tensor([0, 3]))
    x = torch.tensor([[5.0], [7.0]])
    mean = pna.aggregate(x, adjacency, ["mean"])
    assert mean.flatten().tolist() == [0.0, 5.0]
    twice = pna.degree.Linear(1.0, delta=1.5)  # d / 1.5
    assert pna.scale(mean, adjacency.degree, [twice]).flatten().tolist() == [0.0, 10.0]
    layer = PNASimpleConv(1, 1, ["mean"], [twice], None)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
    out = layer(x, adjacency)
    assert out[1].item() == 10.0 and out.isfinite().all()


def test_factors_are_not_those_of_the_same_edges_with_other_degrees(fast):
    """Layers remember the factors of the last graph."""
    edge_index = torch.tensor([[0], [1]], device=fast.device)
    layer = made(fast.device)
    x = numbers(2, 6, dtype=torch.float32, device=fast.device)
    plain = Adjacency.from_edge_index(edge_index, 2)
    sampled = plain.with_degree(torch.tensor([0, 9], device=fast.device))
    results = [layer(x, each) for each in (plain, sampled, plain)]
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])


def sampled_graph(device):
    graph, degree = GRAPHS["random"]
    return graph, graph.edge_index(device), torch.tensor(degree, device=device)


@pytest.mark.slow
def test_compiled(device):
    """Tracing the layer takes 6 s."""
    graph, edge_index, degree = sampled_graph(device)
    layer, x = made(device), numbers(12, 6, dtype=torch.float32, device=device)

    def run(x, edge_index, degree):
        return layer(x, Adjacency.from_edge_index(edge_index, graph.nodes, degree))

    expected = run(x, edge_index, degree)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, edge_index, degree), expected)
    assert not torch.allclose(layer(x, edge_index), expected)


def test_joined_copied_and_sent(device):
    """A layer on a batch of two is the layer on each; copies keep the degrees."""
    graph, edge_index, degree = sampled_graph(device)
    layer, x = made(device), numbers(12, 6, dtype=torch.float32, device=device)
    adjacency = Adjacency.from_edge_index(edge_index, graph.nodes, degree)
    expected = layer(x, adjacency)
    joined = Adjacency.disjoint_union([adjacency, Adjacency.from_edge_index(edge_index, 12)])
    both = layer(torch.cat([x, x]), joined)
    torch.testing.assert_close(both[:12], expected)
    torch.testing.assert_close(both[12:], layer(x, edge_index))
    file = io.BytesIO()
    torch.save(adjacency, file)
    file.seek(0)
    for copied in (
        torch.load(file, weights_only=True),
        copy.deepcopy(adjacency),
        adjacency.to("cpu").to(device),
    ):
        assert copied.degree.tolist() == degree.tolist()
        torch.testing.assert_close(layer(x, copied), expected)


@pytest.mark.parametrize(
    "layer",
    [
        GATConv(6, 8, edge_dim=2, add_self_loops=True),
        GatedGCNConv(6, 6),
        GINConv(6, 6),
        SAGEConv(6, 6),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_without_scalers_see_the_edges_that_are_there(layer, device):
    graph, edge_index, degree = sampled_graph(device)
    x = numbers(12, 6, dtype=torch.float32, device=device)
    edge_attr = (
        None
        if layer.edge_dim is None
        else numbers(edge_index.shape[1], 2, dtype=torch.float32, device=device)
    )
    layer.to(device)
    adjacency = Adjacency.from_edge_index(edge_index, graph.nodes)
    expected = layer(x, adjacency, edge_attr)
    assert torch.equal(layer(x, adjacency.with_degree(degree), edge_attr), expected)


def test_gcn_weighs_edges_as_in_the_whole_graph():
    """With one edge left out, the result lacks its term alone."""
    whole = torch.tensor([[0, 1, 2, 0], [1, 2, 1, 2]])
    torch.manual_seed(0)
    x = numbers(3, 4, dtype=torch.float64, device="cpu")
    layer = GCNConv(4, 5).double()
    degree = torch.tensor([0, 2, 2])
    part = Adjacency.from_edge_index(whole[:, 1:], 3, degree=degree)  # without 0 → 1
    missing = (x[0] / (1 * 3) ** 0.5) @ layer.lin.weight.t()
    expected = layer(x, whole)
    expected[1] -= missing
    torch.testing.assert_close(layer(x, part), expected)


def test_monet_sees_the_degrees_of_the_whole_graph():
    """An edge has the same weight, whichever other edges are there."""
    torch.manual_seed(0)
    layer = MoNetConv(4, 5).double()
    x = numbers(3, 4, dtype=torch.float64, device="cpu")
    whole = torch.tensor([[0, 1, 0], [1, 2, 2]])
    degree = Adjacency.from_edge_index(whole, 3).degree
    apart = [
        layer(x, Adjacency.from_edge_index(edges, 3, degree)) - layer.bias
        for edges in (whole[:, :1], whole[:, 1:])
    ]
    torch.testing.assert_close(sum(apart) + layer.bias, layer(x, whole))
