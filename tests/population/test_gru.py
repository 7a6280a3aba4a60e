"""`gru_cell` on every backend against `torch.nn.GRUCell` in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pna.population import gru
from tests.ops.cases import features
from tests.population.test_linears import Calls, assert_near

# torch says so of processors that multiply no short numbers
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")

NAMES = ("x", "h", "weight_ih", "weight_hh", "bias_ih", "bias_hh")


def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh, *rest):
    """`gru.gru_cell` as a function of single tensors."""
    return gru.gru_cell(x, h, (weight_ih, weight_hh, bias_ih, bias_hh), *rest)


@dataclass(frozen=True)
class Case:
    """x is (rows, inputs), h (rows, hidden)."""

    rows: int = 37
    inputs: int = 5
    hidden: int = 7


CASES = {
    "as in a layer": Case(inputs=16, hidden=16),
    "no rows": Case(rows=0),
    "one row": Case(rows=1),
    "tiles of rows and a part of one": Case(rows=1000, inputs=2, hidden=3),
    "one of everything": Case(1, 1, 1),
    "a wide input": Case(inputs=32, hidden=3),
    "a wide state": Case(inputs=2, hidden=20),
    "more than kernels take": Case(rows=3, inputs=33, hidden=4),
    "no inputs": Case(inputs=0),
}

#: Relative to the largest number of a result. In plain torch, gates of the short types are rounded.
TOLERANCES = {
    torch.float64: 1e-13,
    torch.float32: 2e-6,
    torch.bfloat16: 2**-5,
    torch.float16: 2**-8,
}


def inputs_of(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    gates = 3 * case.hidden
    shapes = (
        (case.rows, case.inputs),
        (case.rows, case.hidden),
        (gates, case.inputs),
        (gates, case.hidden),
        (gates,),
        (gates,),
    )
    return [
        features(1, torch.Size(shape).numel(), dtype, device, seed).reshape(shape)
        for seed, shape in enumerate(shapes)
    ]


def upstream_of(case: Case, like: Tensor, *lead: int) -> Tensor:
    shape = (*lead, case.rows, case.hidden)
    return features(1, torch.Size(shape).numel(), like.dtype, like.device, 9).reshape(shape)


def defined(x, h, weight_ih, weight_hh, bias_ih, bias_hh) -> Tensor:
    cell = torch.nn.GRUCell(x.shape[1], h.shape[1], device=x.device, dtype=x.dtype)
    given = dict(zip(NAMES[2:], (weight_ih, weight_hh, bias_ih, bias_hh), strict=True))
    return torch.func.functional_call(cell, given, (x, h))


def outcome(function, inputs, upstream) -> list[Tensor]:
    """The next state, then the gradients of all inputs."""
    leaves = [i.detach().requires_grad_() for i in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def expected_of(inputs, upstream) -> list[Tensor]:
    return outcome(defined, [i.double() for i in inputs], upstream.double())


def compare(backend, case: Case, dtype: torch.dtype) -> None:
    inputs = inputs_of(case, dtype, backend.device)
    upstream = upstream_of(case, inputs[0])
    got = outcome(gru_cell, inputs, upstream)
    assert all(part.dtype == dtype for part in got)
    assert_near(got, expected_of(inputs, upstream), TOLERANCES[dtype])


@pytest.mark.parametrize("case", CASES)
def test_next_state_and_gradients(backend, case):
    compare(backend, CASES[case], torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_types(backend, dtype):
    """Two tiles of rows, so that the parameters' gradients are sums of two."""
    compare(backend, Case(rows=70), dtype)


@pytest.mark.parametrize("swapped", [False, True], ids=["h stays", "x stays"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_that_stay_as_they_are(backend, swapped, dtype):
    """From their step on; others take it, as those of members in a vmap do."""
    inputs = inputs_of(Case(rows=70, inputs=7), dtype, backend.device)
    upstream = upstream_of(Case(rows=70, inputs=7), inputs[0])
    until = torch.arange(70, device=backend.device) % 5

    def stepped(*leaves):
        return gru_cell(*leaves, until, 2, swapped)

    def expected(*leaves):
        stays = leaves[0] if swapped else leaves[1]
        return torch.where((until > 2)[:, None], defined(*leaves), stays)

    wanted = outcome(expected, [i.double() for i in inputs], upstream.double())
    assert_near(outcome(stepped, inputs, upstream), wanted, TOLERANCES[dtype])
    stacked = [torch.stack([t, t]) for t in inputs]
    for axes in ((0,) * 6, (0, 0, *[None] * 4)):
        given = [s if a == 0 else t for s, t, a in zip(stacked, inputs, axes, strict=True)]
        for out in torch.vmap(stepped, axes)(*given):
            assert_near([out], wanted[:1], TOLERANCES[dtype])


def test_the_definition_by_eye(backend):
    """All but the state's own weight is 0: r = z = ½, n = tanh(½ · 2), h' = (n + 1) / 2."""
    one, none = torch.ones(1, 1, device=backend.device), torch.zeros(1, 1, device=backend.device)
    weight_hh = torch.tensor([[0.0], [0.0], [2.0]], device=backend.device)
    bias = torch.zeros(3, device=backend.device)
    got = gru_cell(none, one, torch.zeros_like(weight_hh), weight_hh, bias, bias)
    assert float(got) == pytest.approx((0.7615941559557649 + 1) / 2)


@pytest.mark.parametrize("size", [1e-30, 1e-4, 0.3, 0.62, 0.63, 3.0, 20.0, 1e4, 1e30])
def test_small_and_large_states_keep_their_digits(backend, size):
    """z = 0 and x passes through n alone: h' is tanh of it."""
    x = torch.tensor([[size], [-size]], device=backend.device)
    weight_ih = torch.tensor([[0.0], [0.0], [1.0]], device=backend.device)
    bias = torch.tensor([0.0, -100.0, 0.0], device=backend.device)
    got = gru_cell(x, torch.zeros_like(x), weight_ih, weight_ih, bias, torch.zeros_like(bias))
    torch.testing.assert_close(got, torch.tanh(x), rtol=3e-7, atol=0)


VIEWS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: torch.stack([t, t], -1).flatten(-2)[:, ::2],
    "one row, expanded": lambda t: t[:1].expand_as(t),
    "one number, expanded": lambda t: t[:1, :1].expand_as(t),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(fast, view):
    inputs = inputs_of(Case(), torch.float32, fast.device)
    upstream = VIEWS[view](upstream_of(Case(), inputs[0]))
    inputs[:4] = [VIEWS[view](t / 4) for t in inputs[:4]]  # gates that are not all but shut
    assert not any(t.is_contiguous() for t in (*inputs[:4], upstream))
    got = outcome(gru_cell, inputs, upstream)
    assert_near(got, expected_of(inputs, upstream), TOLERANCES[torch.float32])


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (5,), (0, 1), (1, 3, 4), ()], ids=str)
def test_only_the_gradients_asked_for(backend, wanted):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    upstream = upstream_of(Case(), inputs[0])
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    out = gru_cell(*leaves)
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.backward(upstream)
    expected = expected_of(inputs, upstream)[1:]
    assert_near([leaves[i].grad for i in wanted], [expected[i] for i in wanted], 2e-6)
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


def member_axes() -> dict[str, tuple[int | None, ...]]:
    """Every choice of what of x, h, weights and biases each member has for itself."""
    names = ("x", "h", "weights", "biases")
    every = itertools.product((None, 0), repeat=4)
    named = {
        ", ".join(n for n, a in zip(names, e, strict=True) if a == 0): (*e[:2], e[2], *e[2:], e[3])
        for e in every
    }
    del named[""]
    return named | {
        "all, along other axes": (1, 2, 1, 2, 1, 1),
        "one weight": (None,) * 3 + (0, None, None),
    }


@pytest.mark.parametrize("members", member_axes())
def test_vmap_is_a_loop_in_one_call(backend, members):
    """The next states, and the gradients of one ordinary backward() after it."""
    axes = member_axes()[members]
    inputs = inputs_of(Case(), torch.float32, backend.device)
    stacked = [
        (t if a is None else torch.stack([t, -2 * t, t + 1], a)).requires_grad_()
        for t, a in zip(inputs, axes, strict=True)
    ]
    upstream = upstream_of(Case(), inputs[0], 3)
    with Calls() as calls:
        together = torch.vmap(gru_cell, axes)(*stacked)
        gradients = torch.autograd.grad(together, stacked, upstream)
    in_kernels = ["gru_cell", "gru_cell_backward"]
    assert calls.own == (in_kernels if backend.name == "triton" else [])
    wide = [t.detach().double().requires_grad_() for t in stacked]
    alone = torch.stack(
        [
            defined(*[t if a is None else t.select(a, i) for t, a in zip(wide, axes, strict=True)])
            for i in range(3)
        ]
    )
    expected = torch.autograd.grad(alone, wide, upstream.double())
    assert_near([together, *gradients], [alone, *expected], 4e-6)


def test_members_without_rows(backend):
    x, h, *parameters = inputs_of(Case(rows=0), torch.float32, backend.device)
    stacked = [torch.stack([p, p]) for p in parameters]
    assert torch.vmap(gru_cell, (None, None, 0, 0, 0, 0))(x, h, *stacked).shape == (2, 0, 7)
    several = h.expand(2, 0, 7)
    assert torch.vmap(gru_cell, (None, 0, *[None] * 4))(x, several, *parameters).shape == (2, 0, 7)


def test_vmap_of_a_derivative(backend):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    stacked = [torch.stack([t, -t]) for t in inputs]

    def gradients(function):
        return torch.func.grad(lambda *t: function(*t).square().sum(), tuple(range(6)))

    together = torch.vmap(gradients(gru_cell))(*stacked)
    alone = [gradients(defined)(*[t[i].double() for t in stacked]) for i in range(2)]
    assert_near(together, [torch.stack(g) for g in zip(*alone, strict=True)], 4e-6)


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.covering(0, always=True)
def test_compiled_whole(backend, compiled_afresh):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    upstream = upstream_of(Case(), inputs[0])
    whole = torch.compile(gru_cell, fullgraph=True, backend="aot_eager")
    expected = outcome(gru_cell, inputs, upstream)
    torch.testing.assert_close(outcome(whole, inputs, upstream), expected)


def test_autocast(backend):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    with torch.autocast(backend.device.type, torch.bfloat16):
        upstream = upstream_of(Case(), inputs[0].bfloat16())
        got = outcome(gru_cell, inputs, upstream)
    assert [t.dtype for t in got] == [torch.bfloat16] + [torch.float32] * 6
    assert_near(got, expected_of(inputs, upstream), TOLERANCES[torch.bfloat16])


def test_repeatable_to_the_bit(fast):
    inputs = inputs_of(Case(rows=200), torch.float32, fast.device)
    upstream = upstream_of(Case(rows=200), inputs[0])
    first, second = (outcome(gru_cell, inputs, upstream) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_second_derivatives_say_what_to_do(triton):
    x, *rest = inputs_of(Case(), torch.float32, triton.device)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(gru_cell(x, *rest).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative.*pna\.backend\('reference'\)"):
        gradient.sum().backward()


def operator_arguments(triton):
    x, h, *parameters = inputs_of(Case(), torch.float32, triton.device)
    stacked = [torch.stack([t, -t], 1).requires_grad_() for t in (x, h)]
    until = torch.arange(x.shape[0], device=x.device)
    return *stacked, *[torch.stack([p, -p]) for p in parameters], until, 2, False


def test_opcheck(triton):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    torch.library.opcheck(torch.ops.pna.gru_cell.default, operator_arguments(triton))


@pytest.mark.covering(0)
@pytest.mark.parametrize(
    "needs", [(True, True, True), (True, False, False), (False, False, True)], ids=str
)
def test_opcheck_of_the_gradient(triton, needs):
    *tensors, step, swapped = operator_arguments(triton)
    tensors = [t.detach() for t in tensors]
    arguments = (torch.ones_like(tensors[1]), list(needs), *tensors, step, swapped)
    torch.library.opcheck(torch.ops.pna.gru_cell_backward.default, arguments)
