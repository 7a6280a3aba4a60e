"""`degree_linear` of few features in C, against the definition in float64."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch

from pna.ops import cpu, degree_groups, narrow_cpu
from pna.ops.degree_linear import degree_linear
from tests.ops.cases import Graph, random_edges

pytestmark = pytest.mark.skipif(
    narrow_cpu._kernel is None, reason=f"narrow.c was not built: {cpu.unavailable()}"
)

FEW = Graph(random_edges(900, 300, 300), 300)  # some 10 degrees, one node of some of them
MANY = Graph(random_edges(6000, 3000, 3000), 3000)  # several chunks of a degree, for two threads

CASES = {
    # graph, groups, towers, width, outputs, times, base
    "as in a layer": (FEW, 4, 1, 16, 16, (1, 0, 1, 2), True),
    "a vector of outputs": (FEW, 1, 1, 3, 4, (2,), True),
    "many outputs": (FEW, 2, 1, 5, 32, (2, 1), True),
    "the most outputs": (FEW, 2, 1, 5, 64, (2, 1), True),
    "an odd number of vectors": (FEW, 3, 1, 4, 20, (1, 1, 0), True),
    "towers": (FEW, 2, 3, 4, 8, (2, 0), True),
    "no base": (FEW, 2, 1, 7, 12, (1, 2), False),
    "many chunks": (MANY, 4, 1, 16, 16, (1, 0, 1, 1), True),
}


def inputs_of(case, dtype=torch.float32):
    graph, groups, towers, width, outputs, _, base = case
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    nodes = graph.nodes
    tensors = [numbers(nodes, groups, towers, width), numbers(3, towers, groups * width, outputs)]
    tensors += [numbers(nodes, towers, width)]
    tensors += [numbers(nodes, towers, outputs)] if base else []
    adjacency = graph.adjacency()
    factors = numbers(100, 3)[adjacency.degree.long()]
    return [t.requires_grad_() for t in tensors], factors, adjacency


def outcome(case, dtype=torch.float32):
    tensors, factors, adjacency = inputs_of(case, dtype)
    z, weight, shift, *base = tensors
    out = degree_linear(z, weight, factors, adjacency, *(base or [None]), shift, case[5])
    upstream = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, tensors, upstream)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_and_gradients(case, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with mock.patch.object(narrow_cpu, "_run", wraps=narrow_cpu._run) as ran:
            got = outcome(case)
        assert ran.call_count == 2, "the C kernel was not used, so nothing was tested"
    finally:
        torch.set_num_threads(before)
    for one, other in zip(got, outcome(case, torch.float64), strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 1e-6


def test_autocast_around_both_passes_changes_nothing():
    """Products that autocast takes in bfloat16 would be read as float32, and past their end."""
    case = CASES["as in a layer"]
    want = outcome(case)
    with torch.autocast("cpu", torch.bfloat16):
        got = outcome(case)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_the_same_on_any_number_of_threads():
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        found.append(outcome(CASES["many chunks"]))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(
    "outputs, dtype",
    [
        (6, torch.float32),  # no whole vectors
        (68, torch.float32),  # more than there is room for
        (16, torch.float64),  # not compiled for this type
        (16, torch.bfloat16),
    ],
)
def test_the_rest_is_left_to_torch(outputs, dtype):
    case = (FEW, 2, 1, 4, outputs, (1, 0), True)
    with mock.patch.object(narrow_cpu, "_run") as ran:
        outcome(case, dtype)
    assert not ran.called


def test_degrees_that_few_nodes_have_are_left_to_torch():
    graph = Graph([(0, i) for i in range(20) for _ in range(i)], 20)  # 20 nodes of 20 degrees
    with mock.patch.object(narrow_cpu, "_run") as ran:
        outcome((graph, 2, 1, 4, 4, (1, 0), True))
    assert not ran.called


def test_chunks_are_remembered_while_the_graph_lives():
    case = CASES["as in a layer"]
    tensors, factors, adjacency = inputs_of(case)
    z, weight, shift, base = tensors
    gc.collect()  # mocks of other tests keep their graphs alive
    before = len(narrow_cpu._remembered)
    for _ in range(3):
        degree_linear(z, weight, factors, adjacency, base, shift, case[5])
        assert len(narrow_cpu._remembered) == before + 1
    del adjacency
    gc.collect()
    assert len(narrow_cpu._remembered) == before


def test_without_the_library(monkeypatch):
    """As where there was no compiler: torch does it."""
    expected = outcome(CASES["towers"])
    monkeypatch.setattr(narrow_cpu, "built", False)
    with mock.patch.object(
        degree_groups, "_forward_at_once", wraps=degree_groups._forward_at_once
    ) as at_once:
        got = outcome(CASES["towers"])
    assert at_once.called
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
