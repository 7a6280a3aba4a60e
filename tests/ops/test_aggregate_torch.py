"""`pna.aggregate` under what torch does to functions: compile, export, vmap, autograd and so on."""

import contextlib
from dataclasses import fields

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.autograd import forward_ad, gradcheck
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pna
from tests.ops.cases import (
    EVERY,
    FORMS,
    FUSED,
    GRAPHS,
    Graph,
    definition,
    edge_term,
    features,
    outcome,
    pack,
    random_edges,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own

PAPER = ["mean", "std", "max", "min"]
WIDTH = 3


@pytest.fixture
def adjacency(backend):
    return GRAPHS["repeated edges"].adjacency(backend.device)


@pytest.fixture
def x(backend, adjacency):
    return features(adjacency.num_senders, WIDTH, torch.float64, backend.device)


@pytest.fixture(autouse=True)
def compiled_afresh():
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "fast", ["cpu", pytest.param("triton", marks=pytest.mark.slow)], indirect=True
)
def test_compiled_whole_with_the_graph_built_inside(fast):
    """No graph break, and no compilation for another size, where rows may be long neither."""
    counter = CompileCounter()

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(x, edge_index, num_nodes):
        adjacency = pna.Adjacency.from_edge_index(edge_index, num_nodes)
        return pna.aggregate(x, adjacency, PAPER)

    for nodes, edges in ((5, 15), (9, 30), (61, 120), (2, 600)):
        graph = Graph(random_edges(edges, nodes, nodes), nodes)
        x = features(nodes, WIDTH, torch.float64, fast.device).requires_grad_()
        out = compiled(x, graph.edge_index(fast.device), nodes)
        assert counter.frame_count == 1
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        expected, expected_gradient = definition(
            x, graph.adjacency(fast.device), PAPER, upstream=2 * out.detach()
        )
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(gradient, expected_gradient)


def compiled_and_not(function, *inputs):
    """What a function and its compiled form give, with the gradients of the first input."""
    whole = torch.compile(function, fullgraph=True, backend="aot_eager")
    leaf = inputs[0].requires_grad_()
    for run in (whole, function):
        out = run(*inputs)
        yield out, *torch.autograd.grad(out.square().sum(), leaf)


@pytest.mark.covering(1, always=True, rest="gpu")
@pytest.mark.parametrize(
    "form, combine",
    [
        ("none", "add"),
        ("table", "add"),
        ("coefficients", "mul"),
        pytest.param("weights", "mul", marks=pytest.mark.slow),
        pytest.param("table", "mul", marks=pytest.mark.slow),
    ],
)
def test_compiled_whole(fast, form, combine):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(3, WIDTH, torch.float64, fast.device)
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, x.device)

    def function(x, adjacency, edge):
        return pna.aggregate(x, adjacency, [*FUSED, "softmax"], edge, combine)

    torch.testing.assert_close(*compiled_and_not(function, x, adjacency, edge))


@pytest.mark.slow
def test_the_definition_compiled_whole(device):
    """Torch traces every operation of every aggregator, which takes seconds."""
    adjacency = GRAPHS["repeated edges"].adjacency(device)
    x = features(3, WIDTH, torch.float64, device)
    edge = edge_term("coefficients", adjacency.num_edges, WIDTH, x.dtype, x.device)

    def function(x, adjacency, edge):
        return pna.aggregate(x, adjacency, EVERY, edge)

    with pna.backend("reference"):
        torch.testing.assert_close(*compiled_and_not(function, x, adjacency, edge))


def test_another_backend_is_compiled_anew(device):
    """The choice is not baked into compiled code."""
    adjacency = GRAPHS["repeated edges"].adjacency(device)
    x = features(3, WIDTH, torch.float64, device).requires_grad_()
    compiled = torch.compile(
        lambda x: pna.aggregate(x, adjacency, PAPER), fullgraph=True, backend="eager"
    )
    compiled(x)
    with pna.backend("reference"), forward_ad.dual_level():  # which only the definition has
        out = compiled(forward_ad.make_dual(x.detach(), torch.ones_like(x)))
        assert forward_ad.unpack_dual(out).tangent is not None


class Layer(torch.nn.Module):
    def forward(self, x, adjacency):
        return pna.aggregate(2 * x, adjacency, [*PAPER, "moment_3", "softmax"])


@pytest.mark.covering(0, always=True)
def test_exported(backend, adjacency, x):
    program = torch.export.export(Layer(), (x, adjacency))
    other = features(*x.shape, x.dtype, x.device, seed=9)
    torch.testing.assert_close(program.module()(other, adjacency), Layer()(other, adjacency))


def any_length(value):
    """That the first axis of every tensor may have any length, as `torch.export` wants it said."""
    if isinstance(value, torch.Tensor):
        return {0: torch.export.Dim.AUTO}
    return [any_length(getattr(value, field.name)) for field in fields(value)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "triton"], indirect=True)
def test_exported_for_any_number_of_nodes_and_edges(backend):
    example = features(12, WIDTH, torch.float32, backend.device)
    adjacency = GRAPHS["random"].adjacency(backend.device)
    shapes = (any_length(example), any_length(adjacency))
    program = torch.export.export(Layer(), (example, adjacency), dynamic_shapes=shapes)
    other = Graph(random_edges(33, 20, 20), 20).adjacency(backend.device)
    x = features(20, WIDTH, torch.float32, backend.device)
    torch.testing.assert_close(program.module()(x, other), Layer()(x, other))


class Calls(TorchDispatchMode):
    """How often an operator of ours is called."""

    def __init__(self):
        super().__init__()
        self.counts = {"statistics": 0, "statistics_backward": 0}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "pna":
            self.counts[function._opname] += 1
        return function(*arguments, **(keywords or {}))


def members(backend, *shape):
    return features(1, torch.Size(shape).numel(), torch.float64, backend.device).reshape(shape)


# What differs between members: x, and which part of which edge form.
VMAPPED = {
    "x": ("none", 0, None, "add"),
    "x along its last axis": ("none", 2, None, "add"),
    "x and e": ("dense", 0, 0, "add"),
    "e": ("dense", None, 0, "mul"),
    "the table": ("table", None, (0, None), "mul"),
    "x and the index": ("table", 0, (None, 0), "add"),
    "the basis": ("coefficients", None, (None, 0), "add"),
    "x and the coefficients": ("coefficients", 0, (0, None), "mul"),
    "coefficients and basis": ("coefficients", None, (0, 0), "add"),
    "x, with the same weights": ("weights", 0, None, "mul"),
    "the weights": ("weights", None, 0, "add"),
    "x and the weights": ("weights", 0, 0, "mul"),
}


@pytest.mark.parametrize("case", VMAPPED)
def test_vmap_is_a_loop_in_one_call(backend, adjacency, x, case):
    form, x_axis, edge_axes, combine = VMAPPED[case]
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, x.device)

    def stack(tensor, axis):
        """Two members: the tensor itself and one that differs; an index stays in the table."""
        if axis is None or tensor is None:
            return tensor
        other = -2 * tensor if tensor.is_floating_point() else 2 - tensor
        return torch.stack([tensor, other], dim=axis)

    def member(tensor, axis, i):
        return tensor if axis is None or tensor is None else tensor.select(axis, i)

    pair = isinstance(edge, tuple)
    axes = edge_axes if pair else (edge_axes,)
    xs = stack(x, x_axis)
    parts = [stack(p, a) for p, a in zip(edge if pair else (edge,), axes, strict=True)]
    with Calls() as calls:
        out = vmap(
            lambda x, edge: pna.aggregate(x, adjacency, FUSED, edge, combine), (x_axis, edge_axes)
        )(xs, tuple(parts) if pair else parts[0])
    for i in range(2):
        mine = [member(p, a, i) for p, a in zip(parts, axes, strict=True)]
        expected = pna.aggregate(
            member(xs, x_axis, i), adjacency, FUSED, tuple(mine) if pair else mine[0], combine
        )
        torch.testing.assert_close(out[i], expected)
    assert calls.counts["statistics"] == (0 if backend.name == "reference" else 1)


@pytest.mark.parametrize("shared", [False, True])
def test_backward_through_vmap_of_weights(backend, adjacency, shared):
    """Each member has weights of its own, or all have the same; features are taken in one pass."""
    xs = members(backend, 3, adjacency.num_senders, 4).requires_grad_()
    shape = (adjacency.num_edges, 1) if shared else (3, adjacency.num_edges, 1)
    weights = members(backend, *shape).requires_grad_()

    def loss(x, weights):
        return pna.aggregate(x, adjacency, FUSED, weights, "mul").square().sum()

    with Calls() as calls:
        vmap(loss, (0, None if shared else 0))(xs, weights).sum().backward()
    once = 0 if backend.name == "reference" else 1
    assert calls.counts == {"statistics": once, "statistics_backward": once}
    each = [weights] * 3 if shared else weights
    pairs = [[p.detach().requires_grad_() for p in pair] for pair in zip(xs, each, strict=True)]
    of_x, of_weights = zip(*(torch.autograd.grad(loss(*p), p) for p in pairs), strict=True)
    torch.testing.assert_close(xs.grad, torch.stack(of_x))
    expected = sum(of_weights) if shared else torch.stack(of_weights)
    torch.testing.assert_close(weights.grad, expected)


def test_backward_through_vmap_of_losses(backend, adjacency):
    """How a population trains: each member's loss under vmap, then one ordinary backward()."""
    assert_vmap_of_losses(backend, adjacency, compiled=False)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("backend", ["cpu", "triton"], indirect=True)
def test_backward_through_vmap_of_losses_compiled(backend, adjacency):
    assert_vmap_of_losses(backend, adjacency, compiled=True)


def assert_vmap_of_losses(backend, adjacency, compiled):
    xs = members(backend, 4, adjacency.num_senders, WIDTH).requires_grad_()
    tables = members(backend, 4, 2, WIDTH).requires_grad_()
    index = torch.arange(adjacency.num_edges, device=backend.device) % 2

    def loss(x, table):
        return pna.aggregate(x, adjacency, FUSED, (table, index)).square().sum()

    def losses(xs, tables):
        return vmap(loss)(xs, tables).sum()

    run = torch.compile(losses, fullgraph=True, backend="aot_eager") if compiled else losses
    with contextlib.nullcontext() if compiled else Calls() as calls:
        run(xs, tables).backward()
    if not compiled:
        once = 0 if backend.name == "reference" else 1
        assert calls.counts == {"statistics": once, "statistics_backward": once}
    for i in range(4):
        x, table = xs[i].detach().requires_grad_(), tables[i].detach().requires_grad_()
        expected = torch.autograd.grad(loss(x, table), (x, table))
        torch.testing.assert_close((xs.grad[i], tables.grad[i]), expected)


@pytest.mark.covering(0)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_vmap_over_an_index_of_few_bytes(backend, adjacency, x, dtype):
    kinds = torch.arange(2 * adjacency.num_edges, device=x.device).view(2, -1) % 5
    table = torch.randn(adjacency.num_edges, WIDTH, device=x.device, dtype=x.dtype)

    def run(index):
        return pna.aggregate(x, adjacency, FUSED, (table, index))

    out = vmap(run)(kinds.to(dtype))
    torch.testing.assert_close(out, torch.stack([run(index) for index in kinds]))


def test_vmap_of_grad(backend, adjacency):
    """A derivative inside: each member's saved results are slices of those of all."""
    xs = members(backend, 3, adjacency.num_senders, WIDTH)

    def loss(x):
        return pna.aggregate(x, adjacency, FUSED).square().sum()

    for x, gradient in zip(xs, vmap(grad(loss))(xs), strict=True):
        torch.testing.assert_close(gradient, grad(loss)(x))
        x.requires_grad_()
        torch.testing.assert_close(gradient, *torch.autograd.grad(loss(x), x))
        x.requires_grad_(False)


def test_jacrev(backend, adjacency, x):
    """Node 1 receives node 0 three times and node 2 once."""
    jacobian = jacrev(lambda x: pna.aggregate(x, adjacency, ["mean", "sum", "std"]))(x)
    assert jacobian.shape == (3, 3, WIDTH, 3, WIDTH)
    assert jacobian[1, 0, 0, :, 0].tolist() == pytest.approx([0.75, 0, 0.25])
    assert jacobian[1, 1, 0, :, 0].tolist() == pytest.approx([3, 0, 1])
    by_autograd = torch.autograd.functional.jacobian(
        lambda x: pna.aggregate(x, adjacency, ["mean", "sum", "std"]), x
    )
    torch.testing.assert_close(jacobian, by_autograd)


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(backend, form):
    graph = Graph([(0, 1), (2, 1), (1, 2), (2, 2), (0, 2)], 3)
    adjacency = graph.adjacency(backend.device)
    x = features(3, 2, torch.float64, backend.device).requires_grad_()
    edge = edge_term(form, 5, 2, x.dtype, x.device)
    parts = [edge] if isinstance(edge, torch.Tensor) else list(edge or ())
    leaves = [part.requires_grad_() for part in parts if part.is_floating_point()]

    def function(*_):
        return pna.aggregate(x, adjacency, FUSED, edge)

    assert gradcheck(function, (x, *leaves), fast_mode=backend.name == "triton")


def test_derivatives_in_forward_mode_say_what_to_do(fast):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, 2, torch.float64, fast.device)

    def total(x):
        return pna.aggregate(x, adjacency, PAPER).square().sum()

    for derivative in (torch.func.jacfwd, torch.func.hessian):
        with pytest.raises(RuntimeError, match=r"forward mode.*pna\.backend\('reference'\)"):
            derivative(total)(x)
        with pna.backend("reference"):
            assert derivative(total)(x).isfinite().all()


_TWICE = {
    "grad of grad": lambda f: grad(lambda x: grad(f)(x).square().sum()),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "hessian": hessian,
    "forward mode": lambda f: lambda x: jvp(f, (x,), (x.cos(),))[1],
}


@pytest.mark.parametrize("how", _TWICE)
def test_what_has_no_kernel_is_differentiated_at_every_level(fast, how):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, 2, torch.float64, fast.device)

    def function(x):
        return (pna.aggregate(x, adjacency, ["moment_4", "softmax"]) ** 3).sum()

    got = _TWICE[how](function)(x)
    with pna.backend("reference"):
        expected = _TWICE[how](function)(x)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected)


def test_forward_mode_is_refused_and_not_wrong(fast):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(3, 2, torch.float64, fast.device)
    with forward_ad.dual_level(), pytest.raises((NotImplementedError, RuntimeError)):
        pna.aggregate(forward_ad.make_dual(x, torch.ones_like(x)), adjacency, PAPER)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(backend, adjacency, x, reentrant):
    x.requires_grad_()
    out = checkpoint(
        lambda x: pna.aggregate(x, adjacency, [*FUSED, "softmax"]), x, use_reentrant=reentrant
    )
    out.square().sum().backward()
    expected, gradient = outcome(x, adjacency, [*FUSED, "softmax"], upstream=2 * out.detach())
    assert torch.equal(out, expected)
    assert torch.equal(x.grad, gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_leaves_the_type_of_x(backend, adjacency, dtype):
    """And of the products with a basis, which autocast would like in bfloat16."""
    x = features(3, WIDTH, dtype, backend.device).requires_grad_()
    edge = edge_term("coefficients", adjacency.num_edges, WIDTH, dtype, backend.device)
    kinds = [*FUSED, "softmax", "moment_3"]
    expected = pna.aggregate(x, adjacency, kinds, edge)
    with torch.autocast(backend.device.type, dtype=torch.bfloat16):
        out = pna.aggregate(x, adjacency, kinds, edge)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_inference_mode(backend, adjacency, x):
    expected = pna.aggregate(x, adjacency, FUSED)
    with torch.inference_mode():
        out = pna.aggregate(x, adjacency, FUSED)
    assert out.is_inference()
    assert torch.equal(out, expected)


def operator_arguments(fast, form, combine):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(3, WIDTH, torch.float32, fast.device).requires_grad_()
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, x.device)
    values, at = edge if isinstance(edge, tuple) else (edge, None)
    if form == "coefficients":
        values, at = at, values
    request = (",".join(FUSED), 1e-5, False, fast.name)
    return x, values, at, (*pack(adjacency), combine, *request)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("form, combine", [("none", "add"), ("coefficients", "mul")])
def test_opcheck(fast, form, combine):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    x, values, at, rest = operator_arguments(fast, form, combine)
    torch.library.opcheck(torch.ops.pna.statistics.default, (x, values, at, *rest))


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("form, combine", [("none", "add"), ("coefficients", "mul")])
def test_opcheck_of_the_gradient(fast, form, combine):
    x, values, at, rest = operator_arguments(fast, form, combine)
    x = x.detach()
    saved = torch.ops.pna.statistics(x, values, at, *rest)
    graph, request = rest[:-4], rest[-4:]
    upstream = features(1, saved[0].numel(), x.dtype, x.device).reshape(saved[0].shape)
    needs = [True, values is not None, form == "coefficients"]
    torch.library.opcheck(
        torch.ops.pna.statistics_backward.default,
        (upstream, needs, x, values, at, *graph, *saved, *request),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_captured_in_a_cuda_graph(triton, form):
    graph = GRAPHS["hubs both ways"]
    adjacency = graph.adjacency(triton.device)
    x = features(adjacency.num_senders, 32, torch.float32, triton.device)
    edge = edge_term(form, adjacency.num_edges, 32, x.dtype, x.device)
    upstream = features(adjacency.num_receivers, len(FUSED) * 32, x.dtype, x.device, seed=3)
    upstream = upstream.reshape(adjacency.num_receivers, len(FUSED), 32)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        outcome(x, adjacency, FUSED, edge, upstream)  # kernels are compiled here, not captured
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = outcome(x, adjacency, FUSED, edge, upstream)
    x.copy_(features(*x.shape, x.dtype, x.device, seed=7))
    captured.replay()
    expected = outcome(x, adjacency, FUSED, edge, upstream)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
