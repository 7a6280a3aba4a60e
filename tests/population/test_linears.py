"""`linears` on every backend against `torch.nn.functional.linear` in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pna.population.linears import linear, linears, tower_linears
from tests.ops.cases import features

# torch says so of processors that multiply no short numbers
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")


@dataclass(frozen=True)
class Case:
    """x is (rows, inputs), the k-th weight (outputs[k], inputs); biases[k] says if it has one."""

    rows: int = 37
    inputs: int = 5
    outputs: tuple[int, ...] = (3, 16)
    biases: tuple[bool, ...] = (True, False, True, True, True)


CASES = {
    "as in a layer": Case(inputs=16, outputs=(16, 16, 16)),
    "one weight": Case(outputs=(48,)),
    "no rows": Case(rows=0),
    "one row": Case(rows=1),
    "tiles of rows and a part of one": Case(rows=1000, inputs=2, outputs=(3,)),
    "one of everything": Case(rows=1, inputs=1, outputs=(1,)),
    "unlike weights": Case(outputs=(1, 3, 48)),
    "more weights than a kernel takes": Case(outputs=(1, 2, 3, 4, 5)),
    "more outputs than a kernel takes backward": Case(inputs=75, outputs=(100, 30)),
    "a block and a rest, of inputs and of outputs": Case(inputs=75, outputs=(90,)),
    "wider than a program keeps": Case(rows=70, inputs=130, outputs=(2, 140)),
    "several blocks of outputs": Case(rows=5, inputs=3, outputs=(190, 256)),
    "more than kernels take": Case(rows=3, inputs=260, outputs=(2, 270)),
    "more than kernels take of what is odd": Case(rows=3, inputs=131, outputs=(2,)),
    "no outputs": Case(outputs=(0, 3)),
    "no inputs": Case(inputs=0),
    "no biases": Case(biases=(False, False)),
}

#: Relative to the largest number of a result.
TOLERANCES = {
    torch.float64: 1e-14,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}


def make(seed: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return features(1, torch.Size(shape).numel(), dtype, device, seed).reshape(shape)


def inputs_of(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """x, then the weights, then such biases as there are."""
    at = {"dtype": dtype, "device": device}
    weights = [make(k, n, case.inputs, **at) for k, n in enumerate(case.outputs, 1)]
    biases = [make(k + 9, n, **at) for k, n in enumerate(case.outputs) if case.biases[k]]
    return [make(0, case.rows, case.inputs, **at), *weights, *biases]


def parameters_of(case: Case, parameters) -> tuple[list[Tensor], list[Tensor | None]]:
    count = len(case.outputs)
    rest = iter(parameters[count:])
    return list(parameters[:count]), [next(rest) if case.biases[k] else None for k in range(count)]


def run(case: Case):
    return lambda x, *parameters: linears(x, *parameters_of(case, parameters))


def defined(case: Case):
    def outputs(x, *parameters):
        pairs = zip(*parameters_of(case, parameters), strict=True)
        return [F.linear(x, weight, bias) for weight, bias in pairs]

    return outputs


def upstreams(case: Case, like: Tensor, *lead: int) -> list[Tensor]:
    at = {"dtype": like.dtype, "device": like.device}
    return [make(k + 20, *lead, case.rows, n, **at) for k, n in enumerate(case.outputs)]


def outcome(function, inputs, upstream) -> list[Tensor]:
    """The outputs, then the gradients of all inputs."""
    leaves = [i.detach().requires_grad_() for i in inputs]
    outputs = function(*leaves)
    return [o.detach() for o in outputs] + list(torch.autograd.grad(outputs, leaves, upstream))


def assert_near(got, expected, tolerance) -> None:
    assert len(got) == len(expected)
    for i, (value, wide) in enumerate(zip(got, expected, strict=True)):
        scale = float(wide.detach().abs().max()) if wide.numel() > 0 else 0.0
        torch.testing.assert_close(
            value.double(),
            wide.double(),
            rtol=0,
            atol=tolerance * scale,
            msg=lambda m, i=i: f"{i}: {m}",
        )


def compare(backend, case: Case, dtype: torch.dtype) -> None:
    inputs = inputs_of(case, dtype, backend.device)
    upstream = upstreams(case, inputs[0])
    got = outcome(run(case), inputs, upstream)
    assert all(part.dtype == dtype for part in got)
    assert all(out.is_contiguous() for out in got[: len(case.outputs)])
    expected = outcome(defined(case), [i.double() for i in inputs], [u.double() for u in upstream])
    assert_near(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(backend, case):
    compare(backend, CASES[case], torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_types(backend, dtype):
    """Two tiles of rows, so that the weights' gradients are sums of two."""
    compare(backend, Case(rows=70, inputs=2, outputs=(3, 1)), dtype)


VIEWS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: torch.stack([t, t], -1).flatten(-2)[:, ::2],
    "every other row": lambda t: torch.stack([t, t], 1).flatten(0, 1)[::2],
    "one row, expanded": lambda t: t[:1].expand_as(t),
    "one number, expanded": lambda t: t[:1, :1].expand_as(t),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(fast, view):
    case = Case(inputs=16, outputs=(3, 16))
    inputs = inputs_of(case, torch.float32, fast.device)
    upstream = [VIEWS[view](u) for u in upstreams(case, inputs[0])]
    inputs[:3] = [VIEWS[view](t) for t in inputs[:3]]
    assert not any(t.is_contiguous() for t in (*inputs[:3], *upstream))
    expected = outcome(defined(case), [i.double() for i in inputs], [u.double() for u in upstream])
    assert_near(outcome(run(case), inputs, upstream), expected, TOLERANCES[torch.float32])


@pytest.mark.parametrize("lead", [(), (4, 3), (2, 0)], ids=str)
def test_leading_axes(backend, lead):
    at = {"dtype": torch.float32, "device": backend.device}
    x, weight, bias = make(0, *lead, 5, **at), make(1, 3, 5, **at), make(2, 3, **at)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 3), (1, 2), ()], ids=str)
def test_only_the_gradients_asked_for(backend, wanted):
    case = Case()
    inputs = inputs_of(case, torch.float32, backend.device)
    upstream = upstreams(case, inputs[0])
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    outputs = run(case)(*leaves)
    if not wanted:
        assert not any(o.requires_grad for o in outputs)
        return
    torch.autograd.backward([o for o in outputs if o.requires_grad], [
        u for u, o in zip(upstream, outputs, strict=True) if o.requires_grad
    ])  # fmt: skip
    expected = outcome(defined(case), inputs, upstream)[len(outputs) :]
    assert_near([leaves[i].grad for i in wanted], [expected[i] for i in wanted], 1e-6)
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2)], ids=str)
def test_unused_outputs(backend, used):
    """Their weights have no gradient, as where `F.linear` was not called."""
    case = Case(outputs=(3, 4, 2), biases=(True,) * 3)
    inputs = [t.requires_grad_() for t in inputs_of(case, torch.float32, backend.device)]
    upstream = upstreams(case, inputs[0])
    grads = [
        torch.autograd.grad(
            [function(case)(*inputs)[k] for k in used],
            inputs,
            [upstream[k] for k in used],
            allow_unused=True,
        )
        for function in (run, defined)
    ]
    assert [g is None for g in grads[0]] == [g is None for g in grads[1]]
    assert_near(*([g for g in gs if g is not None] for gs in grads), 1e-6)


class Calls(TorchDispatchMode):
    """Which operators of this package are called."""

    def __init__(self):
        super().__init__()
        self.own: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "pna":
            self.own.append(function._opname)
        return function(*arguments, **(keywords or {}))


def member_axes() -> dict[str, tuple[int | None, ...]]:
    """Every choice of what of x, two weights and a bias each member has for itself."""
    names = ("x", "weight 0", "weight 1", "bias")
    every = itertools.product((None, 0), repeat=4)
    named = {", ".join(n for n, a in zip(names, e, strict=True) if a == 0): e for e in every}
    del named[""]
    return named | {"all, along other axes": (1, 2, 1, 1)}


@pytest.mark.parametrize("members", member_axes())
def test_vmap_is_a_loop_in_one_call(backend, members):
    """Outputs, and the gradients of one ordinary backward() after it."""
    axes, case = member_axes()[members], Case()
    inputs = inputs_of(case, torch.float32, backend.device)
    stacked = [
        (t if a is None else torch.stack([t, -2 * t, t + 1], a)).requires_grad_()
        for t, a in zip(inputs, axes, strict=True)
    ]
    upstream = upstreams(case, inputs[0], 3)
    with Calls() as calls:
        together = torch.vmap(run(case), axes)(*stacked)
        gradients = torch.autograd.grad(together, stacked, upstream)
    once = ["linears", "linears_backward"] if backend.name == "triton" else []
    assert calls.own == once
    wide = [t.detach().double().requires_grad_() for t in stacked]
    alone = [
        defined(case)(
            *[t if a is None else t.select(a, i) for t, a in zip(wide, axes, strict=True)]
        )
        for i in range(3)
    ]
    alone = [torch.stack(member) for member in zip(*alone, strict=True)]
    expected = torch.autograd.grad(alone, wide, [u.double() for u in upstream])
    assert_near([*together, *gradients], [*alone, *expected], 2e-6)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("inputs", [5, 130])
def test_towers_are_linear_maps_side_by_side(backend, inputs, members, dtype):
    """With weights that are columns of a wider one, as those of a layer; alone and vmapped."""
    at, lead = {"dtype": dtype, "device": backend.device}, (members,) if members else ()
    x = make(0, *lead, 37, 2, inputs, **at)
    wide, bias = make(1, *lead, 2, 3, 2 * inputs, **at), make(2, *lead, 2, 3, **at)

    def maps(run):
        def of(x, wide, bias):
            return run(x, [wide[..., :inputs], wide[..., inputs:]], [None, bias])

        return torch.vmap(of) if members else of

    def each(x, weights, biases):
        products = [torch.einsum("nti,toi->nto", x, w) for w in weights]
        return [p if b is None else p + b for p, b in zip(products, biases, strict=True)]

    upstream = [make(k, *lead, 37, 2, 3, **at) for k in (3, 4)]
    got = outcome(maps(tower_linears), (x, wide, bias), upstream)
    given = [t.double() for t in (x, wide, bias)], [u.double() for u in upstream]
    assert_near(got, outcome(maps(each), *given), 4 * TOLERANCES[dtype])


def test_members_stay_between_rows_and_features(triton):
    """Results of one layer are read by the next as they lie."""
    case = Case(outputs=(5,), biases=(True,))
    x, *parameters = inputs_of(case, torch.float32, triton.device)
    stacked = [torch.stack([p, -p]) for p in parameters]
    strides = []

    def layers(weight, bias):
        h = linear(linear(x, weight, bias).relu(), weight, bias)
        strides.append(torch._C._functorch.get_unwrapped(h).stride())
        return h

    torch.vmap(layers)(*stacked)
    assert strides == [(10, 5, 1)]  # (rows, members, features)


def test_members_without_rows(backend):
    weights = torch.zeros(3, 4, 5, device=backend.device)
    x = torch.zeros(0, 5, device=backend.device)
    assert torch.vmap(linear, (None, 0))(x, weights).shape == (3, 0, 4)
    assert torch.vmap(linear, (0, None))(x.expand(2, 0, 5), weights[0]).shape == (2, 0, 4)


def test_vmap_of_vmap(backend):
    at = {"dtype": torch.float32, "device": backend.device}
    x, weight = make(0, 7, 5, **at), make(1, 2, 3, 4, 5, **at)
    nested = torch.vmap(torch.vmap(linear, (None, 0)), (None, 0))
    torch.testing.assert_close(nested(x, weight), torch.einsum("ri,aboi->abro", x, weight))


def test_vmap_of_a_derivative(backend):
    case = Case()
    x, *parameters = inputs_of(case, torch.float32, backend.device)
    stacked = [torch.stack([p, -p]) for p in parameters]

    def loss(function):
        return torch.func.grad(lambda *p: sum(y.square().sum() for y in function(case)(x, *p)))

    torch.testing.assert_close(
        torch.vmap(loss(run))(*stacked), torch.vmap(loss(defined))(*stacked), rtol=1e-5, atol=1e-4
    )


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.covering(0, always=True)
def test_compiled_whole(backend, compiled_afresh):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    upstream = upstreams(Case(), inputs[0])
    whole = torch.compile(run(Case()), fullgraph=True, backend="aot_eager")
    expected = outcome(run(Case()), inputs, upstream)
    torch.testing.assert_close(outcome(whole, inputs, upstream), expected)


def test_autocast(backend):
    """Types are those of `F.linear`: the result short, gradients as their leaves."""
    inputs = inputs_of(Case(), torch.float32, backend.device)
    with torch.autocast(backend.device.type, torch.bfloat16):
        upstream = upstreams(Case(), inputs[0].bfloat16())
        got = outcome(run(Case()), inputs, upstream)
    assert [t.dtype for t in got] == [torch.bfloat16] * 2 + [torch.float32] * 4
    wide = [t.double() for t in inputs], [u.double() for u in upstream]
    assert_near(got, outcome(defined(Case()), *wide), 2**-6)


def test_repeatable_to_the_bit(fast):
    case = Case(rows=200)
    inputs = inputs_of(case, torch.float32, fast.device)
    upstream = upstreams(case, inputs[0])
    first, second = (outcome(run(case), inputs, upstream) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("used", [1, 2])
@pytest.mark.parametrize("wanted", [(0,), (1, 2, 3), (0, 1, 2, 3)], ids=str)
def test_second_derivatives(triton, wanted, used):
    """Of a function of gradients. x is constant if it holds the kinds of an embedding."""
    case = Case()
    inputs = inputs_of(case, torch.float32, triton.device)

    def second(function, dtype):
        given = [t.to(dtype).requires_grad_(i in wanted) for i, t in enumerate(inputs)]
        leaves = [given[i] for i in wanted]
        total = sum(out.pow(3).sum() for out in function(*given)[:used])
        how = dict(allow_unused=True, materialize_grads=True)
        first = torch.autograd.grad(total, leaves, create_graph=True, **how)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves, **how)

    got = second(run(case), torch.float32)
    assert_near(got, second(defined(case), torch.float64), 1e-5)


def operator_arguments(triton):
    x, *parameters = inputs_of(Case(), torch.float32, triton.device)
    weights, biases = parameters_of(Case(), parameters)
    weights = [torch.stack([w, -w]).requires_grad_() for w in weights]
    biases = [None if b is None else torch.stack([b, -b]) for b in biases]
    return torch.stack([x, -x], 1), weights, biases


def test_opcheck(triton):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    torch.library.opcheck(torch.ops.pna.linears.default, operator_arguments(triton))


@pytest.mark.covering(0)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_opcheck_of_the_gradient(triton, needs):
    x, weights, _ = operator_arguments(triton)
    grads = [torch.ones(*x.shape[:2], w.shape[1], device=x.device) for w in weights]
    arguments = (grads, list(needs), x, [w.detach() for w in weights])
    torch.library.opcheck(torch.ops.pna.linears_backward.default, arguments)
