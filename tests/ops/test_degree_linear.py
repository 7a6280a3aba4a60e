"""`degree_linear` on every backend against its definition in float64: outputs and gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from pna.ops import degree_groups, product
from pna.ops.degree_linear import degree_linear
from pna.ops.product import Product, definition, shifted
from tests.ops.cases import GRAPHS, Graph, features, into, pack, random_edges, widened

# torch says so of processors that multiply no short numbers
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")

NAMES = ("z", "weight", "factors", "base", "shift")


@dataclass(frozen=True)
class Case:
    """Shapes: z is (nodes, groups, towers, width), weight (factors, towers, …, outputs)."""

    graph: Graph
    groups: int = 2
    towers: int = 1
    width: int = 5
    factors: int = 3
    outputs: int = 4
    base: bool = True
    times: tuple[int, ...] = (1, 2)  # of the shift, for each group: never, once, each neighbour


RING = Graph([(i, (i + 1) % 70) for i in range(70)], 70)
MIXED = Graph(random_edges(60, 20, 20), 20)

CASES = {
    "mixed": Case(MIXED),
    "no nodes": Case(GRAPHS["no nodes"]),
    "one node": Case(GRAPHS["one node with a self-loop"]),
    "nothing reaches anyone": Case(GRAPHS["no edges"]),
    "one degree": Case(RING),  # a tile of 64 nodes and a part of one
    "all degrees different": Case(GRAPHS["every small degree"]),
    # a tile of degree 0 only, and one in which 0, 1, 2 and 300 meet
    "hub": Case(Graph([(0, 1), (2, 1), (0, 2)] + into(3, 300, 70), 70)),
    "towers": Case(MIXED, towers=3),
    "odd widths": Case(MIXED, width=7, outputs=3),
    # no multiple of any block
    "75 features": Case(MIXED, groups=1, width=75, outputs=75, times=(1,)),
    "molecules": Case(MIXED, towers=2, width=75, outputs=15),  # blocks of inputs that are not full
    "whole blocks": Case(MIXED, width=64, outputs=16),  # groups that end where blocks do
    "75 results": Case(Graph([(0, 1)], 3), groups=1, width=1, outputs=75, times=(2,)),
    "one factor": Case(MIXED, factors=1),
    "one factor, wide": Case(MIXED, 4, 2, 70, factors=1, outputs=70, times=(1, 0, 2, 1)),
    "a block of results and a rest": Case(MIXED, width=35, outputs=134),
    "several blocks of results": Case(MIXED, width=3, outputs=200),
    "six factors": Case(MIXED, towers=2, factors=6),  # more than a kernel sums at a time
    "as in the layer": Case(MIXED, groups=4, towers=2, times=(1, 0, 1, 1)),
    "as in the layer, in another order": Case(MIXED, groups=4, towers=2, times=(1, 1, 1, 0)),
    "shifted by nothing": Case(MIXED, times=(0, 0)),
    "no shift": Case(MIXED, times=()),
    "no base": Case(MIXED, base=False),
    "neither": Case(MIXED, base=False, times=()),
}

#: In the interpreter a tile costs as much as a page of NumPy.
FEWER = (
    "as in the layer, in another order",
    "no nodes",
    "one node",
    "hub",
    "towers",
    "75 features",
    "molecules",
    "whole blocks",
    "one factor, wide",
    "a block of results and a rest",
    "several blocks of results",
    "six factors",
    "as in the layer",
)

#: Relative to the largest number of a result. In the short types each factor's product is rounded.
TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 2e-6,
    torch.bfloat16: 2**-6,
    torch.float16: 2**-8,
}


def inputs_of(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor | None]:
    """z, weight, factors, base, shift: random, with factors that depend on the degree alone."""
    adjacency = case.graph.adjacency(device)
    nodes, inner = adjacency.num_receivers, case.groups * case.width

    def make(seed: int, *shape: int) -> Tensor:
        return features(1, torch.Size(shape).numel(), dtype, device, seed).reshape(shape)

    wide = torch.promote_types(dtype, torch.float32)
    of_degree = features(301, case.factors, wide, device, 9)
    return [
        make(1, nodes, case.groups, case.towers, case.width),
        make(2, case.factors, case.towers, inner, case.outputs),
        of_degree[adjacency.degree],
        make(4, nodes, case.towers, case.outputs) if case.base else None,
        make(3, nodes, case.towers, case.width) if case.times else None,
    ]


def outcome(run, inputs, upstream) -> dict[str, Tensor]:
    """The output, then the gradients of whatever inputs there are."""
    leaves = [None if i is None else i.detach().requires_grad_() for i in inputs]
    out = run(*leaves)
    present = {name: leaf for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None}
    gradients = torch.autograd.grad(out, list(present.values()), upstream, materialize_grads=True)
    return {"out": out.detach(), **dict(zip(present, gradients, strict=True))}


def on(case: Case, device, adjacency=None):
    """The operator on the graph of a case, of whatever of NAMES there is."""
    adjacency = case.graph.adjacency(device) if adjacency is None else adjacency

    def run(z, weight, factors, base, shift):
        return degree_linear(z, weight, factors, adjacency, base, shift, case.times)

    return run


def defined(case: Case, device):
    degree = case.graph.adjacency(device).degree

    def run(z, weight, factors, base, shift):
        if shift is not None:
            often = [torch.ones_like(degree) * (t > 0) if t < 2 else degree for t in case.times]
            z = z + torch.stack(often, 1)[:, :, None, None] * shift[:, None]
        return definition(z, weight, factors, base)

    return run


def expected_of(case, inputs, upstream) -> dict[str, Tensor]:
    wide = [None if i is None else i.double() for i in inputs]
    return outcome(defined(case, upstream.device), wide, upstream.double())


def assert_near(got, expected, tolerance) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max()) if value.numel() > 0 else 0.0
        torch.testing.assert_close(
            got[name].double(),
            value,
            rtol=0,
            atol=tolerance * scale,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def upstream_of(inputs) -> Tensor:
    z, weight = inputs[:2]
    shape = (z.shape[0], weight.shape[1], weight.shape[3])
    return features(1, torch.Size(shape).numel(), z.dtype, z.device, 5).reshape(shape)


def compare(backend, case, dtype) -> None:
    inputs = inputs_of(case, dtype, backend.device)
    upstream = upstream_of(inputs)
    got = outcome(on(case, backend.device), inputs, upstream)
    assert got["out"].dtype == dtype
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[dtype])


@pytest.mark.parametrize(
    "case, dtype",
    [
        *itertools.product(CASES, [torch.float64]),
        *itertools.product(FEWER, [torch.float32, torch.bfloat16, torch.float16]),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "worth",
    [
        0.0,  # a product for every degree
        None,  # one for every degree of more than two nodes, the rest together
        float("inf"),  # none for any
    ],
)
def test_cpu(cpu, monkeypatch, case, dtype, worth):
    chosen = CASES[case]
    if worth is None:
        each = chosen.towers * chosen.groups * chosen.width * chosen.outputs
        worth = 2.5 * 2 * max(chosen.factors - 1, 1) * each
    monkeypatch.setattr(degree_groups, "_WORTH", worth)
    monkeypatch.setattr(degree_groups, "_NARROW", 0)
    compare(cpu, chosen, dtype)


@pytest.mark.parametrize(
    "case, dtype",
    [
        *itertools.product(CASES, [torch.float64]),
        *itertools.product(FEWER, [torch.float32, torch.bfloat16, torch.float16]),
    ],
    ids=str,
)
def test_cpu_with_all_factors_at_once(cpu, monkeypatch, case, dtype):
    monkeypatch.setattr(degree_groups, "_NARROW", float("inf"))
    compare(cpu, CASES[case], dtype)


@pytest.mark.covering(0)
@pytest.mark.parametrize("outputs", [64, 134, 190])
def test_tall_tiles(triton, monkeypatch, outputs):
    """As where there are many nodes with one factor: a tile and a part of one, of 128 each."""
    from pna.ops.triton import scaled_linear, wide_linear

    monkeypatch.setattr(scaled_linear, "MOST_ROWS", 0)
    monkeypatch.setattr(wide_linear, "_ENOUGH", 1)
    ring = Graph([(i, (i + 1) % 150) for i in range(150)], 150)
    case = Case(ring, 2, 2, 70, factors=1, outputs=outputs)
    compare(triton, case, torch.float32)


def test_cpu_products_are_one_for_each_degree_that_is_worth_it(cpu, monkeypatch):
    """Degrees 1 to 9 once each, or a ring of one degree: 9 products or 1, else one a factor."""
    monkeypatch.setattr(degree_groups, "_NARROW", 0)
    counts = {}
    for graph in ("all degrees different", "one degree"):
        inputs = inputs_of(CASES[graph], torch.float32, cpu.device)
        run = on(CASES[graph], cpu.device)
        for worth in (0.0, float("inf")):
            monkeypatch.setattr(degree_groups, "_WORTH", worth)
            through = mock.Mock(wraps=product.through)
            with (
                mock.patch.object(degree_groups, "through", through),
                mock.patch.object(product, "through", through),
            ):
                run(*inputs)
            counts[graph, worth] = through.call_count
    assert list(counts.values()) == [9, 3, 1, 3]


@pytest.fixture(params=["narrow", "few nodes", "by degree"])
def narrow(request, monkeypatch) -> None:
    """All factors at once, in a kernel or by the library, where they fit; or tiles of one degree
    throughout."""
    from pna.ops.triton import narrow_linear, scaled_linear

    if request.param != "narrow":
        monkeypatch.setattr(narrow_linear, "_LARGEST", 0)
    if request.param == "by degree":
        monkeypatch.setattr(scaled_linear, "MOST_ROWS", 0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", FEWER)
def test_triton(triton, narrow, case):
    compare(triton, CASES[case], torch.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_triton_types(triton, narrow, dtype):
    """Two tiles: sums of weights' gradients in parts, also where the result is short."""
    compare(triton, Case(RING, factors=2, width=3), dtype)


def test_triton_with_indices_of_64_bits(triton):
    case = CASES["towers"]
    inputs = inputs_of(case, torch.float32, triton.device)
    upstream = upstream_of(inputs)
    run = on(case, triton.device, widened(case.graph.adjacency(triton.device)))
    got = outcome(run, inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[torch.float32])


def test_the_definition_by_eye(device):
    """A node with three neighbours: 1·(2·10 + 4·20) + 3·(2·100 + 4·200) + 7, and with 5 added to
    the first result once, to the second for each neighbour, 1·(7·10 + 19·20) + 3·(…) + 7."""
    z = torch.tensor([2.0, 4.0], device=device).reshape(1, 2, 1, 1)
    weight = torch.tensor([10.0, 20.0, 100.0, 200.0], device=device).reshape(2, 1, 2, 1)
    factors = torch.tensor([[1.0, 3.0]], device=device)
    base, shift = (torch.full((1, 1, 1), v, device=device) for v in (7.0, 5.0))
    assert definition(z, weight, factors, base).tolist() == [[[3107.0]]]
    moved = shifted(z, shift, (1, 2), torch.tensor([3], device=device))
    assert moved.flatten().tolist() == [7, 19]
    assert definition(moved, weight, factors, base).tolist() == [[[450.0 + 3 * 4500 + 7]]]


# Views of more memory than they show: (nodes, groups, towers, width).
VIEWS = {
    "nodes last": lambda z: z.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "towers first": lambda z: z.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "every other column": lambda z: torch.stack([z, z], -1).flatten(-2)[..., ::2],
    "every other node": lambda z: torch.stack([z, z], 1).flatten(0, 1)[::2],
    "one node, expanded": lambda z: z[:1].expand_as(z),
    "one group, expanded": lambda z: z[:, :1].expand_as(z),
    "one number, expanded": lambda z: z[:1, :1, :1, :1].expand_as(z),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(fast, view):
    """Of z; all else is transposed too."""
    case = Case(MIXED, towers=2, width=3, factors=2)
    inputs = inputs_of(case, torch.float32, fast.device)
    inputs[0] = VIEWS[view](inputs[0])
    inputs[1] = inputs[1].transpose(1, 3).contiguous().transpose(1, 3)
    inputs[2] = inputs[2].t().contiguous().t()
    inputs[3:] = [part.transpose(0, 2).contiguous().transpose(0, 2) for part in inputs[3:]]
    assert not any(part.is_contiguous() for part in inputs)
    upstream = upstream_of(inputs)
    got = outcome(on(case, fast.device), inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[torch.float32])


UPSTREAMS = {
    "one number, expanded": lambda g: g[:1, :1, :1].expand_as(g),
    "one column, expanded": lambda g: g[..., :1].expand_as(g),
    "transposed": lambda g: g.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "towers first": lambda g: g.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("view", UPSTREAMS)
def test_upstream_gradients_that_are_views(fast, view):
    case = Case(MIXED, towers=2, width=3)
    inputs = inputs_of(case, torch.float32, fast.device)
    upstream = UPSTREAMS[view](upstream_of(inputs))
    assert not upstream.is_contiguous()
    got = outcome(on(case, fast.device), inputs, upstream)
    assert_near(got, expected_of(case, inputs, upstream), TOLERANCES[torch.float32])


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (1, 4), ()], ids=str)
def test_only_the_gradients_asked_for(backend, wanted):
    inputs = inputs_of(Case(MIXED), torch.float32, backend.device)
    upstream = upstream_of(inputs)
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    out = on(Case(MIXED), backend.device)(*leaves)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(upstream)
    expected = expected_of(Case(MIXED), inputs, upstream)
    got = {NAMES[i]: leaves[i].grad for i in wanted}
    assert_near(got, {n: expected[n] for n in got}, TOLERANCES[torch.float32])
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


@pytest.mark.parametrize("case", ["hub", "towers"])
def test_repeatable_to_the_bit(fast, case):
    inputs = inputs_of(CASES[case], torch.float32, fast.device)
    run, upstream = on(CASES[case], fast.device), upstream_of(inputs)
    first, second = (outcome(run, inputs, upstream) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_parameters_take_the_type_of_z(backend):
    """As under autocast: float32 weights, bfloat16 features."""
    inputs = inputs_of(Case(MIXED), torch.float32, backend.device)
    inputs[0] = inputs[0].bfloat16()
    upstream = upstream_of(inputs)
    got = outcome(on(Case(MIXED), backend.device), inputs, upstream)
    assert [t.dtype for t in got.values()] == [torch.bfloat16] * 2 + [torch.float32] * 4
    assert_near(got, expected_of(Case(MIXED), inputs, upstream), TOLERANCES[torch.bfloat16])


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("case", ["mixed", "neither"])
def test_compiled_whole(backend, case, compiled_afresh):
    inputs = inputs_of(CASES[case], torch.float32, backend.device)
    upstream = upstream_of(inputs)
    run = on(CASES[case], backend.device)
    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outcome(whole, inputs, upstream), outcome(run, inputs, upstream))


class Calls(TorchDispatchMode):
    """How often the operator and its gradient are called."""

    def __init__(self):
        super().__init__()
        self.counts = {"degree_linear": 0, "degree_linear_backward": 0}

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "pna":
            self.counts[function._opname] += 1
        return function(*arguments, **(keywords or {}))


# Which of z, weight, factors, base and shift each member has for itself, along which axis; and
# whether all members are one call, members being towers.
MEMBERS = {
    "weights": ((None, 0, None, None, None), True),
    "everything but factors": ((0, 0, None, 0, 0), True),
    "z alone": ((0, None, None, None, None), True),
    "base alone": ((None, None, None, 0, None), True),
    "shift alone": ((None, None, None, None, 1), True),
    "weights along their last axis": ((None, 4, None, None, None), True),
    "factors too": ((0, 0, 0, None, 0), False),
    "factors alone": ((None, None, 1, None, None), False),
}


@pytest.mark.covering(0)
@pytest.mark.parametrize("members", MEMBERS)
def test_vmap_is_a_loop_in_one_call(backend, members):
    """Outputs, and the gradients of one ordinary backward() after it."""
    axes, at_once = MEMBERS[members]
    case = Case(MIXED, towers=2)
    inputs = inputs_of(case, torch.float32, backend.device)
    stacked = [
        tensor if axis is None else torch.stack([tensor, -2 * tensor, tensor + 1], axis)
        for tensor, axis in zip(inputs, axes, strict=True)
    ]
    stacked = [tensor.requires_grad_() for tensor in stacked]
    run = on(case, backend.device)
    with Calls() as calls:
        out = torch.vmap(run, axes)(*stacked)
        together = torch.autograd.grad(out.square().sum(), stacked)
    once = 1 if at_once and backend.name != "reference" else 0
    assert calls.counts == {"degree_linear": once, "degree_linear_backward": once}
    alone = [
        run(*[t if a is None else t.select(a, i) for t, a in zip(stacked, axes, strict=True)])
        for i in range(3)
    ]
    torch.testing.assert_close(out, torch.stack(alone))
    expected = torch.autograd.grad(torch.stack(alone).square().sum(), stacked)
    assert_near(
        dict(zip(NAMES, together, strict=True)),
        dict(zip(NAMES, [g.double() for g in expected], strict=True)),
        TOLERANCES[torch.float32],
    )


def test_vmap_of_a_derivative(backend):
    case = Case(MIXED, factors=2)
    inputs = inputs_of(case, torch.float32, backend.device)
    run = on(case, backend.device)

    def loss(weight):
        return run(inputs[0], weight, *inputs[2:]).square().sum()

    weights = torch.stack([inputs[1], -inputs[1]])
    together = torch.vmap(torch.func.grad(loss))(weights)
    alone = torch.stack([torch.func.grad(loss)(weight) for weight in weights])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5 * float(alone.abs().max()))


@pytest.mark.parametrize("worth", [0.0, float("inf")])
def test_gradcheck(cpu, monkeypatch, worth):
    monkeypatch.setattr(degree_groups, "_WORTH", worth)
    case = Case(GRAPHS["isolated"], towers=2, width=2, outputs=2)
    inputs = inputs_of(case, torch.float64, cpu.device)
    # factors may not be moved one at a time, nodes of one degree share theirs
    leaves = [t.requires_grad_(name != "factors") for name, t in zip(NAMES, inputs, strict=True)]
    assert gradcheck(on(case, cpu.device), leaves)


@pytest.mark.parametrize("case", ["towers", "neither"])
def test_second_derivatives(fast, case):
    """Of a function of all gradients, by everything."""
    case = replace(CASES[case], factors=2, width=3)
    inputs = inputs_of(case, torch.float32, fast.device)
    names = [name for name, t in zip(NAMES, inputs, strict=True) if t is not None]

    def second(run, dtype):
        given = [None if t is None else t.detach().to(dtype).requires_grad_() for t in inputs]
        leaves = [t for t in given if t is not None]
        out = run(*given).pow(3).sum()
        first = torch.autograd.grad(out, leaves, create_graph=True)
        found = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        return dict(zip(names, found, strict=True))

    def defined(z, weight, factors, base, shift):
        degree = case.graph.adjacency(fast.device).degree
        return definition(shifted(z, shift, case.times, degree), weight, factors, base)

    got = second(on(case, fast.device), torch.float32)
    assert_near(got, second(defined, torch.float64), 10 * TOLERANCES[torch.float32])


def operator_arguments(fast, case):
    inputs = inputs_of(replace(case, factors=2), torch.float32, fast.device)
    adjacency = case.graph.adjacency(fast.device)
    inputs[0].requires_grad_()
    z, weight, factors, base, shift = inputs
    product = Product(
        z, weight, factors, shift, list(case.times), adjacency.indptr, adjacency.by_degree
    )
    return *pack(product), base, fast.name


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("case", ["mixed", "neither"])
def test_opcheck(fast, case):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    arguments = operator_arguments(fast, CASES[case])
    torch.library.opcheck(torch.ops.pna.degree_linear.default, arguments)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize(
    "needs",
    [(True, True, True, True), (False, True, False, False), (False, False, False, True)],
    ids=str,
)
def test_opcheck_of_the_gradient(fast, needs):
    z, weight, *rest, _, name = operator_arguments(fast, CASES["mixed"])
    upstream = upstream_of((z, weight))
    arguments = (upstream, list(needs), z.detach(), weight, *rest, name)
    torch.library.opcheck(torch.ops.pna.degree_linear_backward.default, arguments)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(triton):
    case = CASES["hub"]
    inputs = inputs_of(case, torch.float32, triton.device)
    run, upstream = on(case, triton.device), upstream_of(inputs)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        outcome(run, inputs, upstream)  # kernels are compiled here, not captured
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = outcome(run, inputs, upstream)
    inputs[0].copy_(
        features(1, inputs[0].numel(), torch.float32, triton.device, 7).view_as(inputs[0])
    )
    captured.replay()
    expected = outcome(run, inputs, upstream)
    assert all(torch.equal(results[name], expected[name]) for name in expected)
