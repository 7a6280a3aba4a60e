"""Training on forces: gradients of −∂E/∂position, of layers and models, beside PyG's."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import nn as pyg

import pna
from pna import fast_paths
from pna.nn import PNA, PNAConv, PNASimpleConv
from pna.nn.conv import small_cpu
from pna.nn.conv.pyg import rename_keys
from tests.nn.cases import DEG, DEGREES, GRAPHS, PAPER, SCALERS, assert_equal_in_norm, numbers
from tests.nn.conv import oracle

LAYERS = {
    "plain": {},
    "narrow edge features": dict(edge_dim=3),
    "wide edge features": dict(edge_dim=17),
    "towers": dict(towers=2, edge_dim=3),
    "divided towers": dict(towers=2, divide_input=True, edge_dim=17),
    "deep": dict(pre_layers=2, post_layers=2, edge_dim=3, act="tanh"),
    "other aggregators": dict(aggregators=["sum", "var", "max"], scalers=["linear"]),
    "learned δ": dict(train_norm=True, edge_dim=3),
}


def made(device="cpu", dtype=torch.float64, **arguments):
    """A layer of PyG's and ours made of it, 6 features to 4."""
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG)
    theirs = pyg.PNAConv(6, 4, **(given | arguments)).to(device, dtype)
    return theirs, PNAConv.from_pyg(theirs)


def trained(run, module, graph, edge_dim=None, dtype=torch.float64, device="cpu"):
    """The forces, and the gradients of their loss by positions and parameters.

    Node and edge features are functions of the positions, so those of edges are no leaves, and
    depend on the same leaf as those of nodes.
    """
    senders, receivers = graph.edge_index(device)
    position = numbers(graph.nodes, 3, dtype=dtype, device=device, seed=1).requires_grad_()
    x = (position @ numbers(3, 6, dtype=dtype, device=device, seed=2)).sin()
    edge = [x[senders]]
    if edge_dim is not None:
        apart = (position[senders] - position[receivers]).square().sum(1, keepdim=True)
        edge = [(apart * torch.linspace(0.1, 1, edge_dim, dtype=dtype, device=device)).cos()]
    energy = run(x, *edge[: edge_dim is not None]).pow(3).sum()
    (force,) = torch.autograd.grad(-energy, position, create_graph=True)
    leaves = {"position": position, **dict(module.named_parameters())}
    target = numbers(*force.shape, dtype=dtype, device=device, seed=3)
    loss = (force - target).square().sum()
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return {"force": force.detach(), **dict(zip(leaves, found, strict=True))}


def compare(arguments, graph, dtype=torch.float64, device="cpu", tolerance=1e-9):
    """Ours beside PyG's in float64."""
    theirs, ours = made(device, dtype, **arguments)
    graph, edge_dim = GRAPHS[graph], arguments.get("edge_dim")
    edge_index = graph.edge_index(device)
    got = trained(
        lambda x, edge=None: ours(x, edge_index, edge), ours, graph, edge_dim, dtype, device
    )
    theirs = theirs.double()
    expected = trained(
        lambda x, edge=None: theirs(x, edge_index, edge), theirs, graph, edge_dim, device=device
    )
    rename_keys(ours, expected, "")
    assert_equal_in_norm(got, {name: expected[name] for name in got}, tolerance)


@pytest.mark.parametrize("arguments", LAYERS)
def test_beside_pyg(device, arguments):
    compare(LAYERS[arguments], "random", device=device)


@pytest.mark.parametrize("graph", ["isolated", "repeated edges", "no edges", "no nodes"])
def test_graphs(device, graph):
    compare(LAYERS["narrow edge features"], graph, device=device)


#: The ways through the layer that are steps of autograd of their own: fast paths that are off.
PATHS = {
    "small": (),
    "few nodes": ("small", "small_cpu"),
    "many nodes": ("small", "small_cpu", "few_nodes", "divided"),
    "separate operations": ("fused",),
}


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("arguments", ["wide edge features", "towers", "divided towers"])
@pytest.mark.parametrize("path", PATHS)
def test_paths(fast, path, arguments, monkeypatch):
    monkeypatch.setattr(small_cpu, "_FEWEST", 0)  # products degree by degree
    with fast_paths.without(*PATHS[path]):
        compare(LAYERS[arguments], "random", torch.float32, fast.device, tolerance=2e-4)


@pytest.mark.parametrize("arguments", ["plain", "towers", "wide edge features"])
def test_convention_of_the_paper(device, arguments):
    """Against the layer in plain torch, which PyG's convention of std is no oracle of."""
    arguments = LAYERS[arguments]
    torch.manual_seed(0)
    ours = PNAConv(6, 4, PAPER, SCALERS, DEG, **arguments).to(device, torch.float64)
    graph, edge_dim = GRAPHS["random"], arguments.get("edge_dim")
    edge_index = graph.edge_index(device)
    described = (ours.neighbourhood.aggregators, SCALERS, DEGREES)

    def by_definition(x, edge=None):
        return oracle.pna_conv(ours, *described, x, edge_index, edge)

    got = trained(
        lambda x, edge=None: ours(x, edge_index, edge), ours, graph, edge_dim, device=device
    )
    expected = trained(by_definition, ours, graph, edge_dim, device=device)
    assert_equal_in_norm(got, expected, 1e-9)


def test_a_model(device):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, edge_dim=3, norm="batch_norm")
    theirs = pyg.PNA(6, 4, 2, **given).to(device, torch.float64)
    ours = PNA(6, 4, 2, **given, std="pyg").to(device, torch.float64)
    ours.load_state_dict(theirs.state_dict())
    graph = GRAPHS["random"]
    edges = graph.edge_index(device)
    got = trained(lambda x, e: ours(x, edges, edge_attr=e), ours, graph, 3, device=device)
    expected = trained(lambda x, e: theirs(x, edges, edge_attr=e), theirs, graph, 3, device=device)
    ours.load_state_dict(theirs.state_dict() | expected, strict=False)  # gradients, renamed
    renamed = {name: value.detach() for name, value in ours.named_parameters()}
    renamed |= {name: expected[name] for name in ("force", "position")}
    assert_equal_in_norm(got, renamed, 1e-8)


def test_the_simple_layer(fast):
    torch.manual_seed(0)
    layer = PNASimpleConv(6, 4, PAPER, SCALERS, DEG, post_layers=2, act="tanh")
    layer, graph = layer.to(fast.device, torch.float64), GRAPHS["random"]

    def run():
        edges = graph.edge_index(fast.device)
        return trained(lambda x: layer(x, edges), layer, graph, device=fast.device)

    got = run()
    with pna.backend("reference"):
        assert_equal_in_norm(got, run(), 1e-9)


def test_saved_tensors_may_be_packed():
    """And a pass may be repeated: ``create_graph=True`` frees nothing."""
    layer = made(dtype=torch.float32, edge_dim=3)[1]
    graph = GRAPHS["random"]

    def run():
        edges = graph.edge_index()
        return trained(lambda x, e: layer(x, edges, e), layer, graph, 3, torch.float32)

    expected = run()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.tensor):
        got = run()
    assert all(torch.equal(got[name], value) for name, value in expected.items())


def test_a_pass_can_be_repeated(cpu):
    layer = made(dtype=torch.float32)[1]
    graph = GRAPHS["random"]
    x = numbers(graph.nodes, 6, dtype=torch.float32, device="cpu").requires_grad_()
    out = layer(x, graph.edge_index()).square().sum()
    both = [torch.autograd.grad(out, x, create_graph=True)[0] for _ in range(2)]
    assert torch.equal(*both)
    seconds = [torch.autograd.grad(g.square().sum(), x, retain_graph=True)[0] for g in both]
    assert torch.equal(*seconds)
    (plain,) = torch.autograd.grad(out, x)
    torch.testing.assert_close(plain, both[0])


def test_autocast(cpu):
    """In bfloat16 inside autocast, with the gradients of float32 parameters."""
    layer = made(dtype=torch.float32, edge_dim=3)[1]
    graph = GRAPHS["random"]
    edges = graph.edge_index()

    def run(x, edge):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x, edges, edge).float()

    got = trained(run, layer, graph, 3, torch.float32)
    assert {value.dtype for value in got.values()} == {torch.float32}
    expected = trained(lambda x, e: layer(x, edges, e), layer, graph, 3, torch.float32)
    for name in ("force", "position", "post.0.weight"):
        near = torch.nn.functional.cosine_similarity(
            got[name].flatten(), expected[name].flatten(), 0
        )
        assert near > 0.95, name


def test_frozen_parts(cpu):
    """Only what needs gradients gets them."""
    layer = made(dtype=torch.float32, edge_dim=3)[1]
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == "post.0.weight")
    graph = GRAPHS["random"]
    position = numbers(graph.nodes, 3, dtype=torch.float32, device="cpu").requires_grad_()
    x = numbers(graph.nodes, 6, dtype=torch.float32, device="cpu")
    senders, receivers = graph.edge_index()
    out = layer(x, graph.edge_index(), position[senders] - position[receivers])
    (force,) = torch.autograd.grad(out.square().sum(), position, create_graph=True)
    force.square().sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad is not None} == {"post.0.weight"}


def test_compiled_code_has_no_second_derivative(device):
    """Torch itself says so. The remedy, to call the layer uncompiled, is in docs/forces.md."""
    adjacency = GRAPHS["random"].adjacency(device)
    x = numbers(14, 6, dtype=torch.float64, device=device).requires_grad_()
    torch._dynamo.reset()
    run = torch.compile(lambda x: pna.aggregate(x, adjacency, ["std"]), backend="aot_eager")
    (gradient,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch.compile .* does not .*support double backward"):
        gradient.sum().backward()
