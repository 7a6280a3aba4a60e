"""What is particular to the C kernels; that they are right is in test_aggregate.py."""

import ctypes
import importlib.util
import os
import signal
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pna
from pna.adjacency import Adjacency
from pna.ops import cpu
from tests.ops.cases import widened

KINDS = ["mean", "sum", "var", "std", "max", "min", "normalised_mean"]
EDGE_FORMS = ["none", "dense", "table", "coefficients"]
Edge = Tensor | tuple[Tensor, Tensor] | None

needs_kernel = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))


def random_graph(num_nodes: int, num_edges: int) -> Adjacency:
    return Adjacency.from_edge_index(torch.randint(0, num_nodes, (2, num_edges)), num_nodes)


def hub(num_edges: int) -> Adjacency:
    """A hundred nodes send to node 0, often, and receive from it: one row is half of the graph."""
    nodes, zeros = torch.arange(num_edges // 2) % 100, torch.zeros(num_edges // 2).long()
    both = torch.cat([torch.stack([nodes, zeros]), torch.stack([zeros, nodes])], dim=1)
    return Adjacency.from_edge_index(both, 100)


def make_edge(form: str, num_edges: int, features: int) -> Edge:
    if form == "dense":
        return torch.randn(num_edges, features)
    if form == "table":
        return torch.randn(5, features), torch.randint(0, 5, (num_edges,))
    if form == "coefficients":
        return torch.randn(num_edges, 3), torch.randn(3, features)
    return None


def outcome(x: Tensor, adjacency: Adjacency, edge: Edge = None) -> list[Tensor]:
    """Output, and the gradients of whatever has one, of the C kernels."""
    given = edge if isinstance(edge, tuple) else (edge,)
    leaves = [t for t in (x, *given) if t is not None and t.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    with pna.backend("cpu"):
        out = pna.aggregate(x, adjacency, KINDS, edge)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def assert_equal(got: list[Tensor], expected: list[Tensor]) -> None:
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def threads():
    """Sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_kernel
@pytest.mark.parametrize("form", EDGE_FORMS)
@pytest.mark.parametrize("graph", ["random", "hub"])
def test_result_does_not_depend_on_the_number_of_threads(threads, graph, form):
    torch.manual_seed(0)
    adjacency = random_graph(500, 8000) if graph == "random" else hub(10_000)
    x = torch.randn(adjacency.num_senders, 70) * torch.logspace(-3, 3, 70)
    x[3, 5], x[4, 40], x[5, 69] = float("nan"), float("inf"), 1e30  # each has a path of its own
    edge = make_edge(form, adjacency.num_edges, 70)
    results = []
    for count in (1, 2, 3, 8):
        threads(count)
        results.append(outcome(x, adjacency, edge))
    for other in results[1:]:
        assert_equal(other, results[0])


@needs_kernel
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_long_indices_give_the_same(form):
    torch.manual_seed(0)
    adjacency = hub(600)
    x, edge = torch.randn(100, 33), make_edge(form, adjacency.num_edges, 33)
    assert_equal(outcome(x, widened(adjacency), edge), outcome(x, adjacency, edge))


@needs_kernel
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_forked_process(threads, monkeypatch):
    """As in the workers of a PyG loader, whose parent had threads that they have not."""
    threads(1)  # torch's own threads do not survive a fork
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    torch.manual_seed(0)
    adjacency, x = random_graph(300, 6000), torch.randn(300, 64)
    expected = outcome(x, adjacency)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather die than hang
        same = all(map(torch.equal, outcome(x, adjacency), expected))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


@needs_kernel
def test_strides():
    """Rows in one piece are read where they lie; anything else is copied."""
    torch.manual_seed(0)
    adjacency = random_graph(30, 90)
    wide, edges = torch.randn(30, 50), torch.randn(90, 17)
    columns = wide.T.contiguous().T
    cases: list[tuple[Tensor, Edge]] = [
        (wide[:, 3:20], None),
        (columns[:, 3:20], None),
        (wide[:1, :17].expand(30, 17), None),
        (wide[:, :1].expand(30, 17), None),
        (wide[:, 7:8], None),
        (wide[:, :17], edges.T.contiguous().T),
        (wide[:, :17], edges[:1].expand(90, 17)),
        (wide[:, :17], (edges[:, :5].T.contiguous().T, columns[:5, 20:37])),
        (wide[:, :17], (columns[:5, 20:37], torch.arange(180)[::2] % 5)),
    ]
    for x, edge in cases:
        plain = tuple(map(copy, edge)) if isinstance(edge, tuple) else copy(edge)
        assert_equal(outcome(x.detach(), adjacency, edge), outcome(copy(x), adjacency, plain))


def copy(tensor):
    return None if tensor is None else tensor.detach().clone(memory_format=torch.contiguous_format)


@needs_kernel
def test_gradient_without_memory_of_its_own():
    adjacency = Adjacency.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2)
    x = torch.tensor([[1.0, 5.0], [4.0, 2.0]], requires_grad=True)
    with pna.backend("cpu"):
        pna.aggregate(x, adjacency, ["sum", "max"]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1, 2], [4, 3]]


@needs_kernel
def test_index_outside_the_table():
    adjacency = Adjacency.from_edge_index(torch.tensor([[0, 1, 1], [1, 0, 1]]), 2)
    x, table = torch.zeros(2, 4), torch.zeros(3, 4)
    for index, message in [([0, 3, 7], "row 3 .*edge 1.*0 to 2"), ([0, 2, -1], "row -1 .*edge 2")]:
        with pna.backend("cpu"), pytest.raises(ValueError, match=message):
            pna.aggregate(x, adjacency, ["mean"], (table, torch.tensor(index)))


def test_reason_where_nothing_was_built(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    library, reason = cpu._load()
    assert library is None
    assert reason is not None and "no compiler" in reason and "reinstall" in reason


def test_reason_where_the_library_is_for_another_machine(monkeypatch, tmp_path: Path):
    path = tmp_path / "_cpu.so"
    path.write_bytes(b"not a library")
    spec = ModuleSpec("pna.ops._cpu", None, origin=str(path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    library, reason = cpu._load()
    assert library is None
    assert reason is not None and "cannot be loaded" in reason and "reinstall" in reason


@needs_kernel
def test_reason_where_the_library_is_of_another_version(monkeypatch):
    class Older(ctypes.Structure):
        _fields_ = (("x", ctypes.c_void_p),)

    monkeypatch.setattr(cpu, "_Problem", Older)
    library, reason = cpu._load()
    assert library is None
    assert reason is not None and "another version" in reason
