"""The layer on a small graph of a GPU: one step of autograd, and its operators for compilation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import pna
from pna import fast_paths
from pna.nn import PNAConv
from pna.nn.conv import pna as module
from pna.nn.conv import small
from pna.ops.small import SmallLayer
from pna.ops.streams import DeferredJoins
from tests.nn.cases import DEG, SCALERS, assert_equal_in_norm, numbers, outcome
from tests.ops.cases import pack

KINDS = ["mean", "sum", "var", "std", "max", "min"]
FORMS = ["none", "narrow", "wide", "table", "long table", "basis"]


def edge_features(form, edges, device):
    """Edge features in this form, of width 20 or 3, and those of them that have gradients."""
    index = torch.arange(edges, device=device)
    make = lambda *shape: numbers(*shape, dtype=torch.float32, device=device, seed=3)  # noqa: E731
    if form == "none":
        return None, {}
    if form in ("narrow", "wide"):
        leaf = make(edges, 3 if form == "narrow" else 20)
        return leaf, {"edge": leaf}
    if form == "basis":
        basis, coefficients = make(2, 20), make(edges, 2)
        return (basis, coefficients), {"basis": basis, "coefficients": coefficients}
    table = make(4 if form == "table" else 300, 20)
    return (table, index % len(table)), {"table": table}


def case_of(device, aggregators, form="none", nodes=30, **arguments):
    """A layer, its leaves, and a function that calls it on a graph with hubs and isolated nodes."""
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(0, max(nodes - 3, 1), (2, 4 * nodes), generator=generator)
    ends[1, : 2 * nodes] = min(1, nodes - 1)  # a hub, with repeated edges and a self-loop
    edge_index = ends.to(device)
    edge_attr, leaves = edge_features(form, 4 * nodes, device)
    width = {"none": None, "narrow": 3}.get(form, 20)
    torch.manual_seed(0)
    layer = PNAConv(5, 6, aggregators, SCALERS, DEG, edge_dim=width, **arguments).to(device)
    leaves["x"] = numbers(nodes, 5, dtype=torch.float32, device=device, seed=2)
    everything = leaves | dict(layer.named_parameters())
    return layer, everything, lambda: layer(leaves["x"], edge_index, edge_attr)


def counted(monkeypatch):
    """A list to which every call of `small_layer` adds."""
    calls = []
    real = module.small_layer
    monkeypatch.setattr(module, "small_layer", lambda *given: calls.append(1) or real(*given))
    return calls


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("towers", [1, 2])
def test_it_is_the_definition(triton, monkeypatch, form, towers):
    calls = counted(monkeypatch)
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "min"], form, towers=towers)
    got = outcome(run, everything)
    assert calls
    with pna.backend("reference"):
        expected = outcome(run, everything)
    assert_equal_in_norm(got, expected, 1e-5)


@settings(max_examples=8)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=6, unique=True),
    convention=st.sampled_from(["paper", "pyg"]),
    mixing=st.booleans(),
    post_layers=st.integers(1, 2),
)
def test_any_aggregators(kinds, convention, mixing, post_layers):
    arguments = dict(std=convention, mixing=mixing, post_layers=post_layers)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _, everything, run = case_of(device, kinds, nodes=12, **arguments)
    with pna.backend("triton"):
        got = outcome(run, everything)
    with pna.backend("reference"):
        expected = outcome(run, everything)
    assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.parametrize("form", ["none", "narrow", "wide", "table", "basis"])
def test_steps_for_the_compiler_are_the_same(triton, monkeypatch, form):
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "sum"], form, towers=2)
    expected = outcome(run, everything)
    monkeypatch.setattr(module, "small_layer", small._in_steps)
    assert_equal_in_norm(outcome(run, everything), expected, 1e-6)


@pytest.mark.parametrize("nodes", [1, 2])
def test_tiny_graphs(triton, nodes):
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "min"], nodes=nodes)
    got = outcome(run, everything)
    with pna.backend("reference"):
        assert_equal_in_norm(got, outcome(run, everything), 1e-5)


def test_equal_messages_far_from_0_have_no_spread(triton):
    """The rounding of their mean must not become a standard deviation, nor a gradient of one."""
    torch.manual_seed(0)
    layer = PNAConv(3, 4, ["std"], ["identity"], None).to(triton.device)
    x = torch.full((9, 3), 1234.567, device=triton.device, requires_grad=True)
    edge_index = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [0] * 7], device=triton.device)
    out = layer(x, edge_index)
    with pna.backend("reference"):
        torch.testing.assert_close(out, layer(x.detach(), edge_index))
    (of_x,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(of_x[1:8], of_x[8:].expand(7, 3))  # what node 8, which sends nothing, gets


def test_spread_of_messages_far_from_0(triton):
    x = 1000 + numbers(40, 3, dtype=torch.float32, device=triton.device, seed=4).detach()
    x.requires_grad_()
    torch.manual_seed(0)
    layer = PNAConv(3, 4, ["std", "var"], ["identity"], None).to(triton.device)
    edge_index = torch.stack([torch.arange(40), torch.arange(40) // 8]).to(triton.device)
    got = outcome(lambda: layer(x, edge_index), {"x": x})
    exact = layer.double()
    given = x.detach().double().requires_grad_()
    with pna.backend("reference"):
        expected = outcome(lambda: exact(given, edge_index), {"x": given})
    assert_equal_in_norm(got, {n: t.float() for n, t in expected.items()}, 1e-3)


def test_not_a_number_reaches_its_receivers_only(triton):
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "min"])
    with torch.no_grad():
        everything["x"][4] = float("nan")
    out = run()
    with pna.backend("reference"):
        assert torch.equal(out.isnan(), run().isnan())


def test_large_graphs_captured_steps_and_divided_inputs_take_other_paths(triton, monkeypatch):
    calls = counted(monkeypatch)
    _, _, run = case_of(triton.device, ["mean"])
    with fast_paths.without("small"):
        run()
    with DeferredJoins():
        run()
    with monkeypatch.context() as few:
        few.setattr(small, "_INPUTS", 10)
        run()
    with monkeypatch.context() as few:
        few.setattr(small, "_EDGES", 10)
        run()
    torch.manual_seed(0)
    divided = PNAConv(4, 4, ["mean"], SCALERS, DEG, towers=2, divide_input=True).to(triton.device)
    divided(torch.ones(3, 4, device=triton.device), torch.tensor([[0], [1]], device=triton.device))
    assert not calls


def test_a_second_derivative_of_compiled_code_is_refused(triton):
    layer, everything, _ = case_of(triton.device, ["mean"])
    x = everything["x"].requires_grad_()
    edge_index = torch.tensor([[0, 1], [1, 2]], device=triton.device)
    torch._dynamo.reset()
    out = torch.compile(layer, backend="eager")(x, edge_index)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    message = "got a second derivative of the PNA layer in compiled code.*outside of torch.compile"
    with pytest.raises(RuntimeError, match=message):
        gradient.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("fresh", [False, True], ids=["Adjacency", "fresh edge_index"])
def test_a_step_launches_few_kernels_and_never_waits(fresh):
    """More launches are slower: the host needs longer for one than the GPU for its work."""
    torch.manual_seed(0)
    aggregators = ["mean", "std", "max", "min"]
    layer = PNAConv(64, 64, aggregators, SCALERS, DEG).to("cuda")
    x = torch.randn(3000, 64, device="cuda", requires_grad=True)
    edge_index = torch.randint(0, 3000, (2, 6500), device="cuda")
    graph, upstream = pna.Adjacency.from_edge_index(edge_index, 3000), torch.ones_like(x)

    def step():
        for leaf in (x, *layer.parameters()):
            leaf.grad = None
        layer(x, edge_index.clone() if fresh else graph).backward(upstream)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    names = [e.name for e in profiler.events() if e.device_type == DeviceType.CUDA]
    assert len(names) <= (23 if fresh else 17), names


def operator_arguments(device):
    nodes, width, edges = 6, 3, 9
    ends = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    make = lambda *shape: numbers(*shape, dtype=torch.float32, device=device, seed=5)  # noqa: E731
    inputs = width * (1 + 2 * 3)
    layer = SmallLayer(
        make(nodes, width), make(2, width, 2 * width), make(2, width), make(2, 5, inputs),
        make(2, 5), make(10, 10), make(10), make(edges, 2 * width), None, make(nodes, 2).detach(),
        pna.Adjacency.from_edge_index(ends.to(device), nodes),
        pna.ops.request.Request(("mean", "std", "max"), 1e-5, False), [1, 0, 1],
    )  # fmt: skip
    return layer, pack(layer)


def test_opcheck(triton):
    _, arguments = operator_arguments(triton.device)
    torch.library.opcheck(torch.ops.pna.small_layer.default, tuple(arguments))


def test_opcheck_of_the_gradient(triton):
    _, arguments = operator_arguments(triton.device)
    arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    out, *made = torch.ops.pna.small_layer.default(*arguments)
    given = (torch.ones_like(out), [True], *arguments, *made)
    torch.library.opcheck(torch.ops.pna.small_gradients.default, given)


def test_a_backward_pass_under_autocast(triton):
    """The kernels take one dtype, so that autocast must not convert some of their inputs."""
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "min"], "wide")
    leaves = [leaf.requires_grad_() for leaf in everything.values()]
    out = run()
    upstream = torch.ones_like(out)
    expected = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
    with torch.autocast(triton.device.type, torch.bfloat16):
        found = torch.autograd.grad(out, leaves, upstream)
    for got, exact in zip(found, expected, strict=True):
        assert torch.equal(got, exact)


def test_autocast(triton):
    _, everything, run = case_of(triton.device, ["mean", "std", "max", "min"], "wide")
    expected = outcome(run, everything)
    with torch.autocast(triton.device.type, torch.bfloat16):
        got = outcome(run, everything)
    assert got["out"].dtype == torch.bfloat16
    got = {name: value.to(expected[name].dtype) for name, value in got.items()}
    assert_equal_in_norm(got, expected, 0.05)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("towers", "convention"), [(1, "paper"), (2, "pyg")])
def test_second_derivatives_are_those_of_the_definition(triton, form, towers, convention):
    """Of a hub with repeated edges, isolated nodes and every kind of statistics."""
    _, everything, run = case_of(triton.device, KINDS, form, towers=towers, std=convention)
    leaves = [leaf.requires_grad_() for leaf in everything.values()]

    def penalty():
        out = run()
        slopes = torch.autograd.grad(out.pow(2).sum(), leaves, create_graph=True)
        total = sum(slope.square().sum() for slope in slopes)
        return dict(enumerate(torch.autograd.grad(total, leaves)))

    got = penalty()
    with pna.backend("reference"):
        assert_equal_in_norm(got, penalty(), 2e-4)
