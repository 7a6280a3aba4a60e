"""The layer on a small graph of a CPU, against the definition in float64."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import pna
from pna import fast_paths
from pna.nn import PNAConv
from pna.nn.conv import small_cpu as small
from pna.ops.small_cpu import built
from tests.ops.cases import TOLERANCES, Graph, assert_near, into, random_edges

pytestmark = pytest.mark.skipif(not built, reason="small.c was not built")

GRAPHS = {
    "one node": Graph([], 1),
    "no edges": Graph([], 3),
    "isolated": Graph([(0, 1), (2, 1), (3, 2)], 5),
    "repeated edges": Graph([(0, 1), (2, 1), (0, 1), (1, 1)], 3),
    "random": Graph(random_edges(60, 12, 12), 12),
    "hub": Graph(into(3, 300, 20), 20),
}


def outcome(layer, graph, x, edge_attr, grad):
    """The output and the gradients of x, of the edge features, and of all parameters."""
    leaves = [x, *layer.parameters()]
    leaves += [] if edge_attr is None else [t for t in edge_attr if t.is_floating_point()]
    given = edge_attr if edge_attr is None or len(edge_attr) == 2 else edge_attr[0]
    out = layer(x, graph.adjacency(), given)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def wide(tensor):
    return tensor.detach().double().requires_grad_() if tensor.is_floating_point() else tensor


LAYER = dict(
    aggregators=["mean", "max", "min", "std"],
    scalers=["identity", "amplification", "attenuation"],
    deg=torch.tensor([1, 4, 3, 2]),
)


@pytest.mark.parametrize("towers", [1, 3])
@pytest.mark.parametrize("form", ["none", "dense", "table"])
@pytest.mark.parametrize("name", GRAPHS)
def test_definition(name, form, towers, monkeypatch):
    monkeypatch.setattr(small, "_FEWEST", 0)
    torch.manual_seed(0)
    graph = GRAPHS[name]
    edges = len(graph.edges)
    forms = {
        "none": None,
        "dense": (torch.randn(edges, 20).requires_grad_(),),
        "table": (torch.randn(4, 20).requires_grad_(), torch.randint(3, (edges,))),
    }
    edge_attr = forms[form]
    arguments = dict(LAYER, edge_dim=None if edge_attr is None else 20, towers=towers)
    layer = PNAConv(5, 6, **arguments)
    exact = PNAConv(5, 6, **arguments).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(graph.nodes, 5, requires_grad=True)
    grad = torch.randn(graph.nodes, 6)
    with fast_paths.queried() as queried:
        check(layer, exact, graph, x, edge_attr, grad)
    assert "grouped" in queried


@pytest.mark.parametrize("std", ["paper", "pyg"])
@pytest.mark.parametrize("fewest", [0, 99], ids=["grouped", "not grouped"])
def test_strides_and_conventions(fewest, std, monkeypatch):
    monkeypatch.setattr(small, "_FEWEST", fewest)
    torch.manual_seed(0)
    graph = GRAPHS["random"]
    layer, exact = PNAConv(5, 6, **LAYER, std=std), PNAConv(5, 6, **LAYER, std=std).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(2 * 5, graph.nodes).t()[:, ::2].requires_grad_()
    grad = torch.randn(6, graph.nodes).t()
    check(layer, exact, graph, x, None, grad)
    check(layer, exact, graph, x, None, torch.ones(1, 1).expand(graph.nodes, 6))


def test_another_default_device():
    """Whatever the layer makes is where its input is."""
    torch.manual_seed(0)
    graph = Graph(random_edges(4000, 1000, 1000), 1000)
    layer, x = PNAConv(5, 6, **LAYER), torch.randn(1000, 5)
    adjacency = graph.adjacency()
    with pna.backend("cpu"):
        expected = layer(x, adjacency)
        with torch.device("meta"):
            assert torch.equal(layer(x, adjacency), expected)


def test_a_fake_tensor():
    layer, graph = PNAConv(5, 6, **LAYER), GRAPHS["random"]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    found = layer(mode.from_tensor(torch.randn(graph.nodes, 5)), graph.adjacency())
    assert isinstance(found, FakeTensor) and found.shape == (graph.nodes, 6)


def test_backward_inside_autocast():
    torch.manual_seed(0)
    layer, graph = PNAConv(5, 6, **LAYER), GRAPHS["random"]
    x, grad = torch.randn(graph.nodes, 5, requires_grad=True), torch.randn(graph.nodes, 6)
    with pna.backend("cpu"):
        expected = outcome(layer, graph, x, None, grad)
        out = layer(x, graph.adjacency())
    with torch.autocast("cpu"):
        (got,) = torch.autograd.grad(out, [x], grad)
    assert torch.equal(got, expected[1])


def check(layer, exact, graph, x, edge_attr, grad):
    with pna.backend("cpu"):
        got = outcome(layer, graph, x, edge_attr, grad)
    with pna.backend("reference"):
        wide_attr = None if edge_attr is None else tuple(map(wide, edge_attr))
        expected = outcome(exact, graph, wide(x), wide_attr, grad.double())
    scale = max(float(e.abs().max()) for e in expected if e.numel() > 0)
    assert_near(got, expected, TOLERANCES[torch.float32], at_least=scale)
