"""Second derivatives of `pna.aggregate`: against finite differences, and against the definition."""

from itertools import product

import pytest
import torch
from torch.autograd import gradgradcheck
from torch.func import grad, jacrev, vmap

import pna
from pna.ops import blocks
from pna.ops.aggregators import BUILT_IN, Std
from pna.ops.request import Messages, Request
from tests.ops.cases import (
    EDGE_FORMS,
    EVERY,
    FUSED,
    GRAPHS,
    Graph,
    edge_term,
    examples,
    features,
    into,
    pack,
)

#: Rows of no message, of one and of several; one edge is given twice.
SEVERAL = Graph([(0, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 2), (3, 0)], 4)

#: A row that is long enough to be cut into segments, and nodes that nothing reaches.
HUB = Graph(into(0, 300, 3), 3)


def inputs_of(graph, form, width=2, device="cpu"):
    """x and an edge term, and those of them that are numbers."""
    adjacency = graph.adjacency(device)
    x = features(adjacency.num_senders, width, torch.float64, device).requires_grad_()
    edge = edge_term(form, adjacency.num_edges, width, x.dtype, device)
    parts = [edge] if isinstance(edge, torch.Tensor) else list(edge or ())
    return adjacency, x, edge, [p.requires_grad_() for p in parts if p.is_floating_point()]


def check(backend, aggregators, form, combine, fast_mode):
    torch.manual_seed(0)
    adjacency, x, edge, parts = inputs_of(SEVERAL, form, device=backend.device)

    def run(*_):
        return pna.aggregate(x, adjacency, aggregators, edge, combine)

    assert gradgradcheck(run, (x, *parts), fast_mode=fast_mode)


#: Messages without edge terms, plus every form of them, and times every form.
COMBINED = [("none", "add"), *product(EDGE_FORMS, ["add", "mul"])]
combined = pytest.mark.parametrize(("form", "combine"), COMBINED)


@pytest.mark.covering(1, always=True, rest="gpu")
@combined
def test_finite_differences(backend, form, combine):
    """Of all aggregators together, along random directions; of those with kernels in Triton's
    interpreter, which takes seconds."""
    aggregators = FUSED if backend.name == "triton" else EVERY
    check(backend, aggregators, form, combine, fast_mode=True)


@pytest.mark.slow
@combined
@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_every_finite_difference(cpu, kind, form, combine):
    """Triton's kernels are held against the definition, below."""
    check(cpu, examples(kind), form, combine, fast_mode=True)


def second(adjacency, aggregators, x, edge, parts, combine="add"):
    """The gradients of a function of the gradients."""
    leaves = [x, *parts]
    out = pna.aggregate(x, adjacency, aggregators, edge, combine)
    first = torch.autograd.grad(out.pow(3).sum(), leaves, create_graph=True, materialize_grads=True)
    return torch.autograd.grad(sum(g.pow(3).sum() for g in first), leaves, materialize_grads=True)


def assert_defined(graph, form, aggregators, device, combine="add"):
    """The same as by the definition, up to rounding."""
    inputs = inputs_of(graph, form, device=device)
    given = (inputs[0], aggregators, *inputs[1:], combine)
    got = second(*given)
    with pna.backend("reference"):
        expected = second(*given)
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(1.0, float(theirs.abs().max())) if theirs.numel() > 0 else 0.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10 * scale)


@pytest.mark.covering(1, rest="gpu")
@combined
@pytest.mark.parametrize("graph", ["no nodes", "no edges", "isolated", "bipartite"])
def test_graphs(fast, graph, form, combine):
    assert_defined(GRAPHS[graph], form, [*FUSED, Std(clamp=True)], fast.device, combine)


@pytest.mark.parametrize(
    "fast", ["cpu", pytest.param("triton", marks=pytest.mark.slow)], indirect=True
)
def test_a_long_row(fast):
    """It takes seconds in Triton's interpreter."""
    assert_defined(HUB, "none", FUSED, fast.device)


@pytest.mark.parametrize("kind", FUSED)
def test_each_statistic_alone(fast, kind):
    assert_defined(SEVERAL, "coefficients", [kind], fast.device)


def test_degrees_of_a_larger_graph(cpu):
    """Statistics are those of the edges that are present."""
    adjacency, *rest = inputs_of(SEVERAL, "dense")
    larger = adjacency.with_degree(adjacency.degree + 2)
    assert all(map(torch.equal, second(larger, FUSED, *rest), second(adjacency, FUSED, *rest)))


def test_blocks_of_receivers(cpu, monkeypatch):
    """Their messages are computed again in the backward pass."""
    monkeypatch.setattr(blocks, "BLOCK", 10)
    assert_defined(GRAPHS["random"], "dense", ["softmax", "moment_3"], cpu.device)


def test_ties_and_nan(fast):
    """The edge that was given first moves the maximum; a NaN stays with its receiver."""
    adjacency = Graph([(0, 0), (1, 0), (2, 1), (2, 2)], 3).adjacency(fast.device)
    x = torch.tensor([[2.0], [2.0], [float("nan")]], device=fast.device, requires_grad=True)
    edge = torch.zeros(4, 1, device=fast.device, requires_grad=True)
    out = pna.aggregate(x, adjacency, ["max", "min", "std"], edge)
    (first,) = torch.autograd.grad(out[:, :2].pow(3).sum(), edge, create_graph=True)
    (gradient,) = torch.autograd.grad(first.sum(), edge)
    assert gradient[:2].flatten().tolist() == [24, 0]  # 6 · 2 of max, and of min
    assert gradient[2:].isnan().all()


def test_two_equal_messages(fast):
    """std = √((a − b)² / 4 + ε): its second derivative by a is 1 / (4 √ε) where a = b."""
    adjacency = Graph([(0, 0), (1, 0)], (2, 1)).adjacency(fast.device)
    x = torch.ones(2, 1, dtype=torch.float64, device=fast.device, requires_grad=True)
    for std, expected in ((Std(epsilon=0.25), 0.5), (Std(epsilon=0.25, clamp=True), 0.0)):
        (first,) = torch.autograd.grad(pna.aggregate(x, adjacency, [std]), x, create_graph=True)
        (gradient,) = torch.autograd.grad(first[0], x)
        assert gradient.flatten().tolist() == [expected, -expected]


def test_third_derivatives(fast):
    given = inputs_of(SEVERAL, "coefficients", device=fast.device)
    adjacency, x, edge, (coefficients, basis) = given

    def third():
        out = pna.aggregate(x, adjacency, FUSED, edge)
        (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
        (gradient,) = torch.autograd.grad(first.pow(2).sum(), basis, create_graph=True)
        return torch.autograd.grad(gradient.pow(2).sum(), [x, coefficients, basis])

    got = third()
    with pna.backend("reference"):
        torch.testing.assert_close(got, third(), rtol=1e-9, atol=1e-9)


_TWICE = {
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).square().sum()),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "grad of vmap of grad": lambda f: grad(
        lambda x: vmap(grad(f))(torch.stack([x, -x])).square().sum()
    ),
}


@pytest.mark.covering(0)
@pytest.mark.parametrize("how", _TWICE)
def test_inside_functions_of_torch(fast, how):
    adjacency, x, edge, _ = inputs_of(SEVERAL, "coefficients", device=fast.device)
    edge = tuple(part.detach() for part in edge)

    def function(x):
        return (pna.aggregate(x, adjacency, FUSED, edge) ** 3).sum()

    got = _TWICE[how](function)(x.detach())
    with pna.backend("reference"):
        torch.testing.assert_close(got, _TWICE[how](function)(x.detach()))


def test_batches_of_gradients_are_refused(cpu):
    adjacency, x, _, _ = inputs_of(SEVERAL, "none")

    def function(x):
        return (pna.aggregate(x, adjacency, ["std"]) ** 3).sum()

    with pytest.raises(RuntimeError, match="got a batch of gradients"):
        torch.autograd.functional.hessian(function, x, vectorize=True)
    hessian = torch.autograd.functional.hessian(function, x)
    torch.testing.assert_close(hessian, jacrev(jacrev(function))(x.detach()))


def test_autocast_changes_nothing(fast):
    adjacency, x, edge, parts = inputs_of(SEVERAL, "coefficients", device=fast.device)
    expected = second(adjacency, FUSED, x, edge, parts)
    with torch.autocast(fast.device.type):
        assert all(map(torch.equal, second(adjacency, FUSED, x, edge, parts), expected))


def test_opcheck(triton):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes. An Adjacency
    that is built on a GPU has spare long rows, whose argmax is not written."""
    adjacency = SEVERAL.exact_adjacency(triton.device)
    x = features(4, 2, torch.float32, triton.device)
    out = pna.aggregate(x, adjacency, ["max", "min"])
    messages, request = Messages(x, None, None, adjacency), Request(("max", "min"), 1e-5, False)
    torch.library.opcheck(torch.ops.pna.extrema.default, (*pack(messages, request), out))
