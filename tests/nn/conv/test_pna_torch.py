"""`PNAConv` under what torch does to modules: compile, export, vmap, autocast and so on."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, stack_module_state
from torch.utils.checkpoint import checkpoint

import pna
from pna.degree import Power
from pna.nn import PNAConv
from pna.ops.aggregators import Softmax
from tests.nn.cases import DEG, GRAPHS, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome

# torch's own: of tracing, and of processors that multiply no short numbers
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning"),
]

LAYERS = {
    "plain": {},
    "towers and edge features": dict(towers=2, divide_input=True, edge_dim=2),
    "swapped, wide edge features": dict(swap_extrema=True, edge_dim=17),
    "deep": dict(pre_layers=2, post_layers=2, towers=2, edge_dim=2),
    "learned δ": dict(train_norm=True),
}


def made(device, dtype=torch.float64, seed=0, **arguments):
    torch.manual_seed(seed)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG)
    return PNAConv(6, 6, **(given | arguments)).to(device, dtype)


def inputs_of(layer, device, dtype=torch.float64, graph="random"):
    graph = GRAPHS[graph]
    adjacency = graph.adjacency(device)
    x = numbers(graph.nodes, 6, dtype=dtype, device=device, seed=1)
    if layer.edge_dim is None:
        return x, adjacency
    shape = (adjacency.num_edges, layer.edge_dim)
    return x, adjacency, numbers(*shape, dtype=dtype, device=device, seed=2)


def everything(layer, run, inputs):
    """The output, and the gradients of x and of every parameter."""
    leaves = {"x": inputs[0].detach().clone()}
    return outcome(lambda: run(leaves["x"], *inputs[1:]), leaves | dict(layer.named_parameters()))


@pytest.fixture
def compiled_afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def but_for(*names):
    """The names of layers, of which these are slow: another test compiles them, or others alike."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in names else n for n in LAYERS]


@pytest.mark.parametrize("arguments", but_for(*({*LAYERS} - {"towers and edge features"})))
def test_compiled_whole(cpu, arguments, compiled_afresh):
    layer = made(cpu.device, **LAYERS[arguments])
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = inputs_of(layer, cpu.device)
    got = everything(layer, whole, inputs)
    assert_equal_in_norm(got, everything(layer, layer, inputs), 1e-12)


@pytest.mark.parametrize(
    "backend",
    # Torch traces every operation of the definition; test_aggregate_torch.py compiles some.
    [pytest.param("reference", marks=pytest.mark.slow), "cpu", "triton"],
    indirect=True,
)
def test_compiled_whole_on_every_backend(backend, compiled_afresh):
    layer = made(backend.device, torch.float32, towers=2)
    whole = torch.compile(layer, fullgraph=True, backend="aot_eager")
    inputs = inputs_of(layer, backend.device, torch.float32, "isolated")
    got = everything(layer, whole, inputs)
    assert_equal_in_norm(got, everything(layer, layer, inputs), 1e-5)


@pytest.mark.parametrize("arguments", but_for("plain", "towers and edge features", "deep"))
def test_exported(cpu, arguments):
    layer = made(cpu.device, **LAYERS[arguments])
    x, *rest = inputs_of(layer, cpu.device)
    program = torch.export.export(layer, (x, *rest))
    torch.testing.assert_close(program.module()(2 * x, *rest), layer(2 * x, *rest))


def test_exported_with_any_number_of_edges(cpu):
    layer = made(cpu.device, edge_dim=2)
    edges = torch.export.Dim("edges", min=2)
    sizes = ({0: torch.export.Dim("nodes", min=2)}, {1: edges}, {0: edges})

    def given(nodes, count):
        x = numbers(nodes, 6, dtype=torch.float64, device=cpu.device, seed=3)
        features = numbers(count, 2, dtype=torch.float64, device=cpu.device, seed=4)
        return x, torch.randint(nodes, (2, count)), features

    program = torch.export.export(layer, given(30, 90), dynamic_shapes=sizes).module()
    for nodes, count in [(5, 2), (7, 255), (40, 300), (3, 1000)]:
        inputs = given(nodes, count)
        torch.testing.assert_close(program(*inputs), layer(*inputs))


def population(device, dtype, arguments):
    """Three layers, their parameters stacked, and a function of the parameters of one."""
    layers = [made(device, dtype, seed, **arguments) for seed in range(3)]
    parameters, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    return layers, parameters, buffers, skeleton


@pytest.mark.parametrize("arguments", LAYERS)
@pytest.mark.parametrize("own_x", [True, False], ids=["own x", "shared x"])
@pytest.mark.parametrize("own_buffers", [True, False], ids=["own buffers", "shared buffers"])
def test_members_of_a_population_are_layers_alone(cpu, arguments, own_x, own_buffers):
    """vmap over stacked parameters, the losses summed, one ordinary backward()."""
    layers, parameters, buffers, skeleton = population(cpu.device, torch.float64, LAYERS[arguments])
    x, adjacency, *edge = inputs_of(layers[0], cpu.device)
    xs = torch.stack([x, 2 * x, x + 1]) if own_x else x
    if not own_buffers:
        buffers = dict(layers[0].named_buffers())

    def loss(parameters, buffers, x):
        return (
            functional_call(skeleton, (parameters, buffers), (x, adjacency, *edge)).square().sum()
        )

    dims = (0, 0 if own_buffers else None, 0 if own_x else None)
    losses = torch.vmap(loss, dims)(parameters, buffers, xs)
    losses.sum().backward()
    for i, layer in enumerate(layers):
        alone = layer(xs[i] if own_x else x, adjacency, *edge).square().sum()
        alone.backward()
        torch.testing.assert_close(losses[i], alone)
        for name, parameter in layer.named_parameters():
            gradient = parameters[name].grad
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(
                expected if gradient is None else gradient[i], expected, msg=lambda m, n=name: n + m
            )


def test_members_of_a_population_on_every_backend(backend):
    layers, parameters, buffers, skeleton = population(backend.device, torch.float32, {})
    x, adjacency = inputs_of(layers[0], backend.device, torch.float32, "isolated")

    def run(parameters, buffers):
        return functional_call(skeleton, (parameters, buffers), (x, adjacency))

    out = torch.vmap(run)(parameters, buffers)
    out.square().sum().backward()
    for i, layer in enumerate(layers):
        alone = layer(x, adjacency)
        alone.square().sum().backward()
        torch.testing.assert_close(out[i], alone)
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


@pytest.mark.slow
@pytest.mark.parametrize("swap_extrema", [False, True])
def test_divided_towers_on_every_backend(backend, swap_extrema):
    """Too wide for towers to be joined; alone, and as members of a population."""
    shape = dict(towers=5, divide_input=True, edge_dim=3, swap_extrema=swap_extrema, mixing=False)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG) | shape
    torch.manual_seed(0)
    layers = [PNAConv(40, 35, **given).to(backend.device) for _ in range(2)]
    parameters, buffers = stack_module_state(layers)
    skeleton = copy.deepcopy(layers[0]).to("meta")
    graph = GRAPHS["random"]
    adjacency = graph.adjacency(backend.device)
    x = numbers(graph.nodes, 40, dtype=torch.float32, device=backend.device, seed=1)
    edge = numbers(adjacency.num_edges, 3, dtype=torch.float32, device=backend.device, seed=2)

    def run(parameters, buffers, x):
        return functional_call(skeleton, (parameters, buffers), (x, adjacency, edge))

    leaf = x.clone().requires_grad_()
    out = torch.vmap(run, (0, 0, None))(parameters, buffers, leaf)
    out.square().sum().backward()
    of_x = torch.zeros_like(x, dtype=torch.float64)
    for i, layer in enumerate(layers):
        got = everything(layer, layer, (x, adjacency, edge))
        with pna.backend("reference"):
            wide = copy.deepcopy(layer).double()
            expected = everything(wide, wide, (x.double(), adjacency, edge.double()))
            alone = x.double().requires_grad_()
            wide(alone, adjacency, edge.double()).square().sum().backward()
        assert_equal_in_norm(got, expected, 1e-5)
        assert_equal_in_norm({"out": out[i].detach()}, {"out": expected["out"]}, 1e-5)
        of_x += alone.grad
        gradients = {name: p.grad[i] for name, p in parameters.items() if p.grad is not None}
        assert_equal_in_norm(
            gradients, {n: p.grad for n, p in wide.named_parameters() if n in gradients}, 2e-5
        )
    assert_equal_in_norm({"x": leaf.grad}, {"x": of_x}, 1e-5)


def test_vmap_over_kinds_of_edges(cpu):
    layer = made(cpu.device, edge_dim=2)
    x, adjacency, features = inputs_of(layer, cpu.device)
    table, kinds = features[:4], torch.arange(2 * adjacency.num_edges).view(2, -1) % 4
    out = torch.vmap(lambda index: layer(x, adjacency, (table, index)))(kinds)
    torch.testing.assert_close(out, torch.stack([layer(x, adjacency, (table, k)) for k in kinds]))


def test_vmap_of_grad(cpu):
    layers, parameters, buffers, skeleton = population(cpu.device, torch.float64, dict(towers=2))
    x, adjacency = inputs_of(layers[0], cpu.device)

    def loss(parameters, buffers):
        return functional_call(skeleton, (parameters, buffers), (x, adjacency)).square().sum()

    together = torch.vmap(torch.func.grad(loss))(parameters, buffers)
    for i, layer in enumerate(layers):
        layer(x, adjacency).square().sum().backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(together[name][i], parameter.grad)


def test_autocast_around_both_passes_of_narrow_towers():
    """Whose products are taken in C, in float32."""
    torch.manual_seed(0)
    adjacency = pna.Adjacency.from_edge_index(torch.randint(200, (2, 800)), 200)
    stats = pna.DegreeStats.from_degrees(adjacency.degree)
    layer = PNAConv(16, 16, PAPER, SCALERS, stats, edge_dim=4, towers=4, divide_input=True)
    inputs = (torch.randn(200, 16), adjacency, torch.randn(800, 4))
    want = everything(layer, layer, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        got = everything(layer, layer, inputs)
    got = {name: tensor.float() for name, tensor in got.items()}
    assert_equal_in_norm(got, want, 0.05)


@pytest.mark.parametrize("arguments", LAYERS)
def test_autocast(backend, arguments):
    """Products and results in bfloat16; gradients of parameters in their own type."""
    if backend.name == "triton" and arguments not in ("plain", "towers and edge features"):
        pytest.skip("the interpreter is slow, and the kernels are the same")
    layer = made(backend.device, torch.float32, **LAYERS[arguments])
    inputs = inputs_of(layer, backend.device, torch.float32)
    with torch.autocast(backend.device.type, dtype=torch.bfloat16):
        got = everything(layer, layer, inputs)
    assert got["out"].dtype == torch.bfloat16
    assert all(got[name].dtype == torch.float32 for name in got if name != "out")
    assert_equal_in_norm(got, everything(layer, layer, inputs), 0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_types_throughout(backend, dtype):
    layer = made(backend.device, dtype, towers=2, edge_dim=2)
    inputs = inputs_of(layer, backend.device, dtype)
    got = everything(layer, layer, inputs)
    assert all(result.dtype == dtype for result in got.values())
    wide = [i.double() if isinstance(i, torch.Tensor) else i for i in inputs]
    layer = layer.double()
    assert_equal_in_norm(got, everything(layer, layer, wide), 0.05)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(backend, reentrant):
    layer = made(backend.device, torch.float32, towers=2)
    inputs = inputs_of(layer, backend.device, torch.float32, "isolated")

    def run(*given):
        return checkpoint(layer, *given, use_reentrant=reentrant)

    expected = everything(layer, layer, inputs)
    x = inputs[0].clone().requires_grad_()
    run(x, inputs[1]).backward(
        numbers(*expected["out"].shape, dtype=x.dtype, device=x.device, seed=7)
    )
    assert torch.equal(x.grad, expected["x"])
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter.grad, expected[name])


def test_inference_mode(backend):
    layer = made(backend.device, torch.float32)
    x, adjacency = inputs_of(layer, backend.device, torch.float32, "isolated")
    expected = layer(x, adjacency)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, adjacency), expected.detach())


def test_training_after_inference_on_the_same_graph(fast):
    layer = made(fast.device, torch.float32)
    x, adjacency = inputs_of(layer, fast.device, torch.float32, "isolated")
    with torch.inference_mode():
        layer(x, adjacency)
    layer(x, adjacency).sum().backward()
    assert all(p.grad is not None for name, p in layer.named_parameters() if "bias" not in name)


LEARNED = dict(
    aggregators=["mean", Softmax(torch.nn.Parameter(torch.tensor([0.5])))],
    scalers=[Power(torch.nn.Parameter(torch.tensor(0.5))), "linear"],
    edge_dim=2,
    towers=2,
)


@pytest.mark.parametrize("arguments", [*LAYERS.values(), LEARNED], ids=[*LAYERS, "learned parts"])
def test_state_survives_a_file(arguments):
    layer = made("cpu", **copy.deepcopy(arguments))
    other = made("cpu", seed=1, **copy.deepcopy(arguments) | dict(deg=torch.tensor([0, 1, 1])))
    inputs = inputs_of(layer, "cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    assert not torch.equal(other(*inputs), layer(*inputs))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(*inputs), layer(*inputs))


def test_a_copy_is_independent():
    layer = made("cpu", **copy.deepcopy(LEARNED))
    inputs = inputs_of(layer, "cpu")
    before = layer(*inputs)
    other = copy.deepcopy(layer)
    assert torch.equal(other(*inputs), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    assert torch.equal(layer(*inputs), before)
    assert not torch.equal(other(*inputs), before)
    others = dict(other.named_parameters())
    assert not any(others[name] is value for name, value in layer.named_parameters())


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("recorded", [True, False])
def test_derivatives_in_forward_mode_say_what_to_do(fast, towers, recorded):
    layer = made(fast.device, torch.float32, towers=towers)
    x, adjacency = inputs_of(layer, fast.device, torch.float32)
    message = r"forward mode.*pna\.backend\('reference'\)"
    modes = torch.set_grad_enabled(recorded), forward_ad.dual_level()
    with modes[0], modes[1], pytest.raises(RuntimeError, match=message):
        layer(forward_ad.make_dual(x.detach(), torch.ones_like(x)), adjacency)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(triton):
    layer = made(triton.device, torch.float32, towers=2, edge_dim=2)
    inputs = inputs_of(layer, triton.device, torch.float32)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        everything(layer, layer, inputs)  # kernels are compiled here, not captured
    torch.cuda.current_stream().wait_stream(aside)
    leaves = {"x": inputs[0].requires_grad_()} | dict(layer.named_parameters())
    upstream = torch.ones_like(layer(*inputs))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = layer(*inputs)
        gradients = torch.autograd.grad(out, list(leaves.values()), upstream)
    with torch.no_grad():
        inputs[0].mul_(2)
    captured.replay()
    expected = layer(*inputs)
    assert torch.equal(out, expected)
    for a, b in zip(
        gradients, torch.autograd.grad(expected, list(leaves.values()), upstream), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("towers", [1, 2])
def test_a_mixing_layer_without_bias(device, towers):
    """As one whose bias is zero: it may be replaced."""
    layer = made(device, towers=towers)
    with torch.no_grad():
        layer.lin.bias.zero_()
    bare = copy.deepcopy(layer)
    bare.lin = torch.nn.Linear(6, 6, bias=False).to(device, torch.float64)
    bare.lin.weight = copy.deepcopy(layer.lin.weight)
    inputs = inputs_of(layer, device)
    expected = everything(layer, layer, inputs)
    found = everything(bare, bare, inputs)
    torch.testing.assert_close(found, {name: expected[name] for name in found})
