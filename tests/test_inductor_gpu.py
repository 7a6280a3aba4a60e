"""Compiled for a GPU, the layer is launched, recorded and packaged by Inductor."""

import zipfile
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import pna
from pna import Adjacency
from pna.nn import PNAConv
from tests.nn.cases import DEG, assert_equal_in_norm, numbers, outcome

WIDTH = 32
SIZES = [(300, 640), (512, 1000), (77, 160), (1003, 2100), (640, 1500)]
SIZES += [(128, 400), (901, 1717), (333, 800), (256, 511), (1500, 3300)]


@pytest.fixture(autouse=True)
def compiled_afresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def layer(device, **options):
    torch.manual_seed(0)
    scalers = ["identity", "amplification", "attenuation"]
    return PNAConv(WIDTH, WIDTH, ["mean", "min", "max", "std"], scalers, DEG, **options).to(device)


def batch(size, kind, device):
    """Node features, and random edges as an ``edge_index`` or an `Adjacency`."""
    nodes, edges = size
    random = torch.Generator().manual_seed(nodes)
    edge_index = torch.randint(nodes, (2, edges), generator=random).to(device)
    x = numbers(nodes, WIDTH, dtype=torch.float32, device=device, seed=nodes)
    if kind == "Adjacency":
        return x, Adjacency.from_edge_index(edge_index, nodes)
    return x, edge_index


def learn(module, run, x, *edges):
    leaves = {"x": x, **dict(module.named_parameters())}
    return outcome(partial(run, x, *edges), leaves)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["edge_index", "Adjacency"])
@pytest.mark.parametrize("options", [{}, {"towers": 4, "divide_input": True}], ids=["one", "four"])
def test_as_eager(device, kind, options):
    module = layer(device, **options)
    compiled = torch.compile(module, fullgraph=True)
    for size in SIZES[:5]:
        given = batch(size, kind, device)
        got, expected = (learn(module, run, *given) for run in (compiled, module))
        assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["dense", "table", "coefficients"])
def test_edge_features_as_eager(device, form):
    module = layer(device, edge_dim=3)
    compiled = torch.compile(module, fullgraph=True)
    for size in SIZES[:3]:
        x, graph = batch(size, "Adjacency", device)
        shape = {"dense": (size[1], 3), "table": (4, 3), "coefficients": (2, 3)}[form]
        edge = numbers(*shape, dtype=torch.float32, device=device)
        if form == "table":
            edge = (edge, torch.arange(size[1], device=device) % 4)
        if form == "coefficients":
            edge = (edge, numbers(size[1], 2, dtype=torch.float32, device=device))
        got, expected = (learn(module, run, x, graph, edge) for run in (compiled, module))
        assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.gpu
def test_hubs_as_eager(device):
    """Rows longer than a segment; in compiled code, the length of the longest row is not known."""
    module = layer(device)
    compiled = torch.compile(module, fullgraph=True)
    for size in SIZES[:3]:
        x, edge_index = batch(size, "edge_index", device)
        hubs = torch.arange(2 * 600, device=device).reshape(2, -1) % 50
        hubs[0, :300], hubs[1, 300:] = 0, 1
        edge_index = torch.cat([edge_index, hubs], 1)
        got, expected = (learn(module, run, x, edge_index) for run in (compiled, module))
        assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.gpu
def test_inductor_launches_the_kernels(device):
    module = layer(device)
    x, graph = batch(SIZES[0], "Adjacency", device)
    compiled = torch.compile(module, fullgraph=True)
    _, code = run_and_get_code(lambda: compiled(x.requires_grad_(), graph).sum().backward())
    code = "\n".join(code)
    assert "_inputs_kernel" in code and "_gradients_kernel" in code
    assert "torch.ops.pna" not in code


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["edge_index", "Adjacency"])
def test_reduce_overhead_records(device, kind):
    module = layer(device)
    compiled = torch.compile(module, fullgraph=True, mode="reduce-overhead")
    x, edges = batch(SIZES[0], kind, device)
    expected = learn(module, module, x, edges)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        got = {name: value.clone() for name, value in learn(module, compiled, x, edges).items()}
    assert_equal_in_norm(got, expected, 1e-5)
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.gpu
@pytest.mark.xfail(run=False, reason="torch 2.11 crashes when it loads the package")
@pytest.mark.parametrize("towers", [1, 4])
def test_a_package_has_the_kernels(device, towers, tmp_path):
    """It runs without this package: all kernels are in it, compiled."""
    module = layer(device, towers=towers).eval()
    x, edge_index = batch(SIZES[0], "edge_index", device)
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    sizes = ({0: nodes}, {1: edges})
    with torch.no_grad():
        program = torch.export.export(module, (x, edge_index), dynamic_shapes=sizes)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "layer.pt2")
        )
        packaged = torch._inductor.aoti_load_package(path)
        assert any("statistics" in name for name in zipfile.ZipFile(path).namelist())
        for size in SIZES[:4]:
            x, edge_index = batch(size, "edge_index", device)
            expected = {"out": module(x, edge_index)}
            assert_equal_in_norm({"out": packaged(x, edge_index)}, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["edge_index", "Adjacency"])
def test_ten_sizes_are_compiled_at_most_twice(device, kind):
    """The first size for itself, and the second one for all others. On a CPU no code is made."""
    counter = CompileCounterWithBackend("inductor" if device.type == "cuda" else "aot_eager")
    module = layer(device)
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for size in SIZES:
        x, edges = batch(size, kind, device)
        compiled(x.requires_grad_(), edges).sum().backward()
    assert counter.frame_count <= 2


@pytest.mark.gpu
def test_another_backend_is_compiled_anew(device):
    module = layer(device)
    compiled = torch.compile(module, fullgraph=True)
    x, graph = batch(SIZES[0], "Adjacency", device)
    for name in ("triton", "reference"):
        with pna.backend(name):
            assert_equal_in_norm({"out": compiled(x, graph)}, {"out": module(x, graph)}, 1e-5)
