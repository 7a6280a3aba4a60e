"""`batch_norm` on every backend against the formula, and `torch.nn.BatchNorm1d`, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pna.population.batch_norm import Norm, batch_norm
from tests.ops.cases import features
from tests.population.test_linears import Calls, assert_near

MOMENTUM, EPS = 0.1, 1e-5


@dataclass(frozen=True)
class Case:
    """x is (rows, width), and these of its rows are `real`."""

    rows: int = 37
    width: int = 5
    real: str = "some"


MASKS = {
    "all": lambda row: row >= 0,
    "none": lambda row: row < 0,
    "some": lambda row: row % 3 != 1,
    "two": lambda row: (row == 1) | (row == row[-1]),
    "one": lambda row: row == row[-1],
}

CASES = {
    "some rows": Case(),
    "all rows": Case(real="all"),
    "no row: running statistics": Case(real="none"),
    "one row: running statistics": Case(real="one"),
    "two rows, of which the variance is little": Case(real="two"),
    "no rows at all": Case(rows=0),
    "one row that is all": Case(rows=1, real="all"),
    "one column": Case(width=1),
    "no columns": Case(width=0),
    "as wide as a block": Case(width=32),
    "blocks of columns and a part of one": Case(width=75),
    "tiles of rows and a part of one, each of another program": Case(rows=1000, width=3),
    "more tiles than programs": Case(rows=64 * 66, width=17),
    "a first tile of padding": Case(rows=200, width=2, real="one"),
}

#: Relative to the largest number of a result.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}


def real_of(case: Case, device: torch.device) -> Tensor:
    if case.rows == 0:
        return torch.zeros(0, dtype=torch.bool, device=device)
    return MASKS[case.real](torch.arange(case.rows, device=device))


def inputs_of(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """x, weight and bias, the latter in float32 where x is shorter; about 2, not about 0."""
    own = dtype if dtype == torch.float64 else torch.float32
    x = 2 + features(case.rows, case.width, dtype, device, 0)
    return [x, *(features(1, case.width, own, device, seed)[0] for seed in (1, 2))]


def running_of(case: Case, like: Tensor) -> list[Tensor]:
    mean = features(1, case.width, like.dtype, like.device, 3)[0]
    return [mean, features(1, case.width, like.dtype, like.device, 4)[0].abs() + 0.5]


def upstream_of(x: Tensor) -> Tensor:
    return features(1, x.numel(), x.dtype, x.device, 9).reshape(x.shape)


def run(x, real, weight, bias, mean, var, relu=False, factors=None) -> Tensor:
    return batch_norm(x, real, Norm(weight, bias, mean, var, MOMENTUM, EPS), relu, factors)


def defined(x, real, weight, bias, mean, var) -> Tensor:
    own = x[real]
    if len(own) > 1 and x.shape[1] > 0:  # of no numbers, torch warns
        running, (mean, var) = (mean, var), (own.mean(0), own.var(0, correction=0))
        for kept, new in zip(running, (mean, own.var(0)), strict=True):
            kept += MOMENTUM * (new.detach() - kept)
    return (x - mean) / (var + EPS).sqrt() * weight + bias


def run_with_relu(*inputs) -> Tensor:
    return run(*inputs, relu=True)


def defined_with_relu(*inputs) -> Tensor:
    return torch.relu(defined(*inputs))


def factors_of(x: Tensor) -> Tensor:
    """Of every row, some of them negative."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.linspace(-0.5, 2, x.shape[0], dtype=dtype, device=x.device)


def run_with_both(x, *others) -> Tensor:
    return run(x, *others, relu=True, factors=factors_of(x))


def defined_with_both(x, *others) -> Tensor:
    return torch.relu(defined(x * factors_of(x)[:, None], *others))


#: What is run, and what it is compared with.
FORMS = {
    "plain": (run, defined),
    "relu": (run_with_relu, defined_with_relu),
    "factors and relu": (run_with_both, defined_with_both),
}


def outcome(function, inputs, real, running, upstream) -> list[Tensor]:
    """y, then the gradients of x, weight and bias, then the running statistics."""
    leaves = [i.detach().requires_grad_() for i in inputs]
    running = [r.clone() for r in running]
    y = function(leaves[0], real, *leaves[1:], *running)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream), *running]


def expected_of(inputs, real, running, upstream, function=defined) -> list[Tensor]:
    doubles = [i.double() for i in inputs], [r.double() for r in running]
    return outcome(function, doubles[0], real, doubles[1], upstream.double())


def compare(backend, case: Case, dtype: torch.dtype, form: str) -> None:
    ours, theirs = FORMS[form]
    inputs = inputs_of(case, dtype, backend.device)
    arguments = real_of(case, backend.device), running_of(case, inputs[1]), upstream_of(inputs[0])
    got = outcome(ours, inputs, *arguments)
    assert [t.dtype for t in got] == [dtype] * 2 + [inputs[1].dtype] * 4
    assert_near(got, expected_of(inputs, *arguments, theirs), TOLERANCES[dtype])


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_results_gradients_and_running_statistics(backend, case, form):
    compare(backend, CASES[case], torch.float32, form)


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_types(backend, dtype, form):
    """Padding too has gradients above it, which the statistics of real rows feel."""
    compare(backend, Case(rows=150), dtype, form)


def test_relu_takes_no_kernel_of_its_own(triton, monkeypatch):
    inputs = inputs_of(Case(), torch.float32, triton.device)
    real, running = real_of(Case(), triton.device), running_of(Case(), inputs[1])
    monkeypatch.setattr(torch, "relu", None)
    y, *_ = outcome(run_with_relu, inputs, real, running, upstream_of(inputs[0]))
    assert (y >= 0).all() and (y == 0).any() and (y > 0).any()


def test_relu_keeps_what_is_not_a_number(backend):
    """A run that has failed must be seen to have; of 0 there is no gradient, as in torch."""
    x, weight, bias = inputs_of(Case(), torch.float32, backend.device)
    real, running = real_of(Case(), backend.device), running_of(Case(), weight)
    x[0, 1], weight[2], bias[2] = torch.nan, 0, 0
    y, grad, *_ = outcome(run_with_relu, [x, weight, bias], real, running, torch.ones_like(x))
    assert y[:, 1].isnan().all() and grad[:, 1].isnan().all()
    assert not y[:, 2].any() and not grad[:, 2].any()
    assert y[:, [0, 3, 4]].isfinite().all()


def test_it_is_that_of_torch_on_the_real_rows(backend):
    """Over some batches; padding is large, and has no loss."""
    case = Case(rows=90)
    inputs, real = inputs_of(case, torch.float32, backend.device), real_of(case, backend.device)
    theirs = nn.BatchNorm1d(case.width, device=backend.device).double()
    with torch.no_grad():
        theirs.weight.copy_(inputs[1])
        theirs.bias.copy_(inputs[2])
    running = [theirs.running_mean.float(), theirs.running_var.float()]
    upstream = upstream_of(inputs[0]) * real[:, None]
    for step in range(3):
        x = torch.where(real[:, None], inputs[0] * (step + 1), 1e6)
        y, *rest = outcome(run, [x, *inputs[1:]], real, running, upstream)
        gradients, running = rest[:3], rest[3:]
        assert not gradients[0][~real].any() and y.isfinite().all()
        gradients[0] = gradients[0][real]
        alone = x[real].double().requires_grad_()
        expected = theirs(alone)
        leaves = (alone, theirs.weight, theirs.bias)
        wanted = torch.autograd.grad(expected, leaves, upstream[real].double())
        moved = [theirs.running_mean, theirs.running_var]
        assert_near([y[real], *gradients, *running], [expected, *wanted, *moved], 1e-5)


def test_the_definition_by_eye(backend):
    """Of 1, 3 and padding 7: mean 2, variance 1, of which the unbiased is 2."""
    x = torch.tensor([[1.0], [7.0], [3.0]], device=backend.device)
    real = torch.tensor([True, False, True], device=backend.device)
    one, none = torch.ones(1, device=backend.device), torch.zeros(1, device=backend.device)
    mean, var = none.clone(), one.clone()
    got = batch_norm(x, real, Norm(2 * one, one, mean, var, 0.5, 0.0))
    assert got.flatten().tolist() == pytest.approx([-1, 11, 3])
    assert (mean.tolist(), var.tolist()) == ([1.0], pytest.approx([1.5]))


def test_far_from_zero(triton):
    """A mean of 10,000 and a deviation of a tenth: lost is what its own rounding takes."""
    case = Case(rows=3000, width=4)
    generator = torch.Generator().manual_seed(0)
    x = (1e4 + 0.1 * torch.randn(3000, 4, generator=generator)).to(triton.device)
    ones, zeros = torch.ones(4, device=triton.device), torch.zeros(4, device=triton.device)
    arguments = real_of(case, triton.device), [zeros, ones], upstream_of(x)
    got = outcome(run, [x, ones, zeros], *arguments)
    expected = expected_of([x, ones, zeros], *arguments)
    rounding = 2 ** (13 - 24) / 0.1  # half the distance of numbers near 10,000, over the deviation
    assert (got[0] - expected[0]).abs().max() < 1.5 * rounding
    for k, tolerance in ((1, 0.02), (4, 1e-6), (5, 1e-6)):
        assert_near(got[k : k + 1], expected[k : k + 1], tolerance)


VIEWS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: torch.stack([t, t], -1).flatten(-2)[:, ::2],
    "part of a wider one": lambda t: torch.cat([t, t], 1)[:, t.shape[1] :],
    "one row, expanded": lambda t: t[:1].expand_as(t),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(fast, view):
    case = Case()
    inputs = inputs_of(case, torch.float32, fast.device)
    inputs[0] = VIEWS["transposed"](inputs[0]) if "expanded" in view else VIEWS[view](inputs[0])
    upstream = VIEWS[view](upstream_of(inputs[0]))
    real = torch.stack([real_of(case, fast.device)] * 2, 1)[:, 0]
    assert not any(t.is_contiguous() for t in (inputs[0], upstream, real))
    arguments = real, running_of(case, inputs[1]), upstream
    expected = expected_of(inputs, *arguments)
    assert_near(outcome(run, inputs, *arguments), expected, TOLERANCES[torch.float32])


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2), ()], ids=str)
def test_only_the_gradients_asked_for(backend, wanted):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    real, upstream = real_of(Case(), backend.device), upstream_of(inputs[0])
    running = running_of(Case(), inputs[1])
    expected = expected_of(inputs, real, running, upstream)[1:4]
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(inputs)]
    y = run(leaves[0], real, *leaves[1:], *running)
    assert y.requires_grad == bool(wanted)
    if wanted:
        y.backward(upstream)
    assert_near([leaves[i].grad for i in wanted], [expected[i] for i in wanted], 1e-5)
    assert all(leaf.grad is None for i, leaf in enumerate(leaves) if i not in wanted)


#: Where members stand in x, real, weight, bias and the running statistics.
MEMBERS = {
    "all but the mask": (0, None, 0, 0, 0, 0),
    "members between rows and columns": (1, None, 0, 0, 0, 0),
    "along other axes": (2, None, 1, 1, 1, 1),
    "one weight": (0, None, None, 0, 0, 0),
    "one input": (None, None, 0, 0, 0, 0),
    "one of everything that does not change": (None, None, None, None, 0, 0),
    "masks of their own": (0, 0, 0, 0, 0, 0),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("members", MEMBERS)
def test_vmap_is_a_loop_in_one_call(backend, members, form):
    """Results, the gradients of one ordinary backward() after it, and running statistics."""
    axes, (ours, theirs) = MEMBERS[members], FORMS[form]
    x, weight, bias = inputs_of(Case(), torch.float32, backend.device)
    real, running = real_of(Case(), backend.device), running_of(Case(), weight)
    given = [x, real, weight, bias, *running]
    own = [
        t if a is None else torch.stack([t, ~t, t] if t is real else [t, t * 2, t + 1], a)
        for t, a in zip(given, axes, strict=True)
    ]

    def leaves_of(tensors):
        return [t.requires_grad_() for i, t in enumerate(tensors) if i in (0, 2, 3)]

    def member(tensors, i):
        return [t if a is None else t.select(a, i) for t, a in zip(tensors, axes, strict=True)]

    upstream = upstream_of(torch.stack([x] * 3))
    wide = [t.clone() if t.dtype == torch.bool else t.double() for t in own]
    with Calls() as calls:
        leaves = leaves_of(own)
        together = torch.vmap(ours, axes)(*own)
        gradients = torch.autograd.grad(together, leaves, upstream)
    if axes[1] is None:
        once = ["batch_norm", "batch_norm_backward"] if backend.name == "triton" else []
        assert calls.own == once
    wanted = leaves_of(wide)
    alone = torch.stack([theirs(*member(wide, i)) for i in range(3)])
    expected = torch.autograd.grad(alone, wanted, upstream.double())
    assert_near([together, *gradients, *own[4:]], [alone, *expected, *wide[4:]], 2e-5)


def test_factors_of_members_and_with_gradients(backend):
    """Neither is what a batch has, but what anyone may give."""
    x, weight, bias = inputs_of(Case(), torch.float32, backend.device)
    real, running = real_of(Case(), backend.device), running_of(Case(), weight)
    several = torch.stack([factors_of(x), 1 + factors_of(x)]).requires_grad_()
    state = [torch.stack([r, 2 * r]) for r in running]
    together = torch.vmap(
        lambda f, mean, var: run(x, real, weight, bias, mean, var, factors=f)
    )(several.detach(), *[r.clone() for r in state])  # fmt: skip
    alone = torch.stack([
        run(x, real, weight, bias, *[r[i].clone() for r in state], factors=several[i])
        for i in range(2)
    ])  # fmt: skip
    wide = several.detach().double().requires_grad_()
    expected = torch.stack([
        defined(x.double() * wide[i][:, None], real, weight, bias, *[r[i].double() for r in state])
        for i in range(2)
    ])  # fmt: skip
    upstream = upstream_of(expected)
    got = torch.autograd.grad(alone, several, upstream.float())
    wanted = torch.autograd.grad(expected, wide, upstream)
    assert_near([together, alone, *got], [expected, expected, *wanted], 2e-5)


def test_running_statistics_that_members_share_are_refused(triton):
    x, weight, bias = inputs_of(Case(), torch.float32, triton.device)
    real, running = real_of(Case(), triton.device), running_of(Case(), weight)
    with pytest.raises(ValueError, match="one for every member"):
        torch.vmap(lambda x: run(x, real, weight, bias, *running))(torch.stack([x, x]))


def test_vmap_of_a_derivative(backend):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    stacked = [torch.stack([t, 2 * t]) for t in inputs]
    real = real_of(Case(), backend.device)
    zeros, ones = (torch.full((2, 5), v, device=backend.device) for v in (0.0, 1.0))

    def gradients(function):
        def loss(x, weight, bias, mean, var):
            return function(x, real, weight, bias, mean, var).square().sum()

        return torch.func.grad(loss, (0, 1, 2))

    together = torch.vmap(gradients(run))(*stacked, zeros, ones)
    state = [torch.zeros(5).double().to(zeros.device), torch.ones(5).double().to(zeros.device)]
    alone = [gradients(defined)(*[t[i].double() for t in stacked], *state) for i in range(2)]
    assert_near(together, [torch.stack(g) for g in zip(*alone, strict=True)], 4e-5)


@pytest.fixture
def compiled_afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.covering(0, always=True)
def test_compiled_whole(backend, compiled_afresh):
    inputs = inputs_of(Case(), torch.float32, backend.device)
    arguments = (
        real_of(Case(), backend.device),
        running_of(Case(), inputs[1]),
        upstream_of(inputs[0]),
    )
    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected = outcome(run, inputs, *arguments)
    torch.testing.assert_close(outcome(whole, inputs, *arguments), expected)


def test_repeatable_to_the_bit(fast):
    case = Case(rows=200)
    inputs = inputs_of(case, torch.float32, fast.device)
    arguments = real_of(case, fast.device), running_of(case, inputs[1]), upstream_of(inputs[0])
    first, second = (outcome(run, inputs, *arguments) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_second_derivatives_say_what_to_do(triton):
    x, *parameters = inputs_of(Case(), torch.float32, triton.device)
    running = running_of(Case(), parameters[0])
    y = run(x.requires_grad_(), real_of(Case(), triton.device), *parameters, *running)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative.*pna\.backend\('reference'\)"):
        gradient.sum().backward()


def operator_arguments(triton):
    x, weight, bias = inputs_of(Case(), torch.float32, triton.device)
    parameters = [torch.stack([p, -p]).requires_grad_() for p in (weight, bias)]
    running = [torch.stack([r, 2 * r]) for r in running_of(Case(), weight)]
    x = torch.stack([x, -x], 1).requires_grad_()
    factors = factors_of(x.detach())
    return x, real_of(Case(), triton.device), *parameters, *running, MOMENTUM, EPS, True, factors


def test_opcheck(triton):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    torch.library.opcheck(torch.ops.pna.batch_norm.default, operator_arguments(triton))


@pytest.mark.covering(0)
@pytest.mark.parametrize(
    "needs", [(True, True, True), (True, False, False), (False, True, False)], ids=str
)
def test_opcheck_of_the_gradient(triton, needs):
    x, real, weight, bias, *_ = (
        t.detach() if isinstance(t, Tensor) else t for t in operator_arguments(triton)
    )
    moments = torch.ones(3, *x.shape[1:], device=x.device)
    arguments = (torch.ones_like(x), list(needs), x, real, weight, bias, moments, True, None)
    torch.library.opcheck(torch.ops.pna.batch_norm_backward.default, arguments)
