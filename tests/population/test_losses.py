"""`summed_errors` in kernels against the losses of training, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pna.population.losses import KINDS, summed_errors, takes
from tests.ops.cases import features
from tests.population.test_linears import Calls, assert_near

DEFINITIONS = {
    "mse": lambda p, y: (p - y).square(),
    "mae": lambda p, y: (p - y).abs(),
    "huber": lambda p, y: F.smooth_l1_loss(p, y, reduction="none"),
    "bce": lambda p, y: F.softplus(p) - p * y,
}


@dataclass(frozen=True)
class Case:
    """Outputs are (rows, tasks), every so manyeth of which has no target."""

    rows: int = 9
    tasks: int = 3
    unknown: int = 4


CASES = {
    "some": Case(),
    "one row": Case(rows=1),
    "one task": Case(tasks=1),
    "no target at all": Case(unknown=1),
    "a full block of rows": Case(rows=64),
    "blocks of rows and a part of one": Case(rows=1100, tasks=2),
}


def inputs_of(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, some of them far off and one met exactly; targets from 0 to 1; which are known."""
    outputs = 3 * features(case.rows, case.tasks, torch.float32, device, 0)
    values = features(case.rows, case.tasks, torch.float32, device, 1).sigmoid()
    number = torch.arange(case.rows * case.tasks, device=device).view_as(outputs)
    outputs = torch.where(number == 5, values, outputs)
    return outputs, values, number % case.unknown != case.unknown - 1


def defined(outputs: Tensor, values: Tensor, known: Tensor, kind: str) -> Tensor:
    outputs = torch.where(known, outputs.double(), values.double())
    return (DEFINITIONS[kind](outputs, values.double()) * known).sum(0)


def outcome(function, outputs, values, known, kind, upstream) -> list[Tensor]:
    leaf = outputs.detach().requires_grad_()
    sums = function(leaf, values, known, kind)
    return [sums.detach(), *torch.autograd.grad(sums, leaf, upstream.to(sums.dtype))]


def upstream_of(case: Case, device: torch.device) -> Tensor:
    return features(1, case.tasks, torch.float32, device, 2)[0]


@pytest.mark.covering(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_gradients(triton, kind, case):
    case = CASES[case]
    inputs, upstream = inputs_of(case, triton.device), upstream_of(case, triton.device)
    assert takes(*inputs[:2])
    got = outcome(summed_errors, *inputs, kind, upstream)
    assert got[0].dtype == got[1].dtype == torch.float32
    assert_near(got, outcome(defined, *inputs, kind, upstream), 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_far_off(triton, kind):
    """Errors grow as they are defined to, and gradients with them; nothing overflows."""
    outputs = torch.tensor([[-1e4], [-90.0], [0.0], [90.0], [1e4]], device=triton.device)
    inputs = outputs, torch.ones_like(outputs), torch.ones_like(outputs, dtype=torch.bool)
    upstream = torch.ones(1, device=triton.device)
    expected = outcome(defined, *inputs, kind, upstream)
    assert_near(outcome(summed_errors, *inputs, kind, upstream), expected, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number(triton, kind):
    """Of padding it is not looked at; of the rest it is passed on."""
    outputs, values, known = inputs_of(Case(), triton.device)
    upstream = upstream_of(Case(), triton.device)
    expected = outcome(summed_errors, outputs, values, known, kind, upstream)
    padded = torch.where(known, outputs, torch.nan), torch.where(known, values, torch.nan)
    got = outcome(summed_errors, *padded, known, kind, upstream)
    assert all(map(torch.equal, got, expected))
    outputs[0, 1] = torch.nan
    sums, gradient = outcome(summed_errors, outputs, values, known, kind, upstream)
    assert sums.isnan().tolist() == [False, True, False]
    assert gradient.isnan().nonzero().tolist() == [[0, 1]]


def test_views(triton):
    """One column of wider outputs and targets, and one mask for all tasks."""
    outputs, values, _ = inputs_of(Case(tasks=4), triton.device)
    known = (torch.arange(9, device=triton.device) % 2 == 0)[:, None].expand(9, 2)
    inputs, upstream = (outputs[:, 1:3], values[:, ::2], known), torch.ones(2)
    upstream = upstream.to(triton.device)
    expected = outcome(defined, *inputs, "mae", upstream)
    assert_near(outcome(summed_errors, *inputs, "mae", upstream), expected, 2e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_members_in_one_call(triton, kind, axis):
    outputs, values, known = inputs_of(Case(), triton.device)
    every = torch.stack([outputs, 2 * outputs, -outputs], axis)
    upstream = torch.stack([upstream_of(Case(), triton.device) * k for k in (1, 2, 3)])
    leaf = every.requires_grad_()
    with Calls() as calls:
        sums = torch.vmap(lambda o: summed_errors(o, values, known, kind), axis)(leaf)
        (gradient,) = torch.autograd.grad(sums, leaf, upstream)
    assert calls.own == ["summed_errors", "summed_errors_backward"]
    expected = [
        outcome(defined, every.select(axis, k), values, known, kind, upstream[k]) for k in range(3)
    ]
    alone = [torch.stack(e, a) for e, a in zip(zip(*expected, strict=True), (0, axis), strict=True)]
    assert_near([sums.detach(), gradient], alone, 2e-6)


def test_vmap_of_a_derivative(triton):
    outputs, values, known = inputs_of(Case(), triton.device)

    def jacobian(function):
        return torch.func.jacrev(lambda o: function(o, values, known, "huber"))(outputs)

    assert_near([jacobian(summed_errors)], [jacobian(defined)], 2e-6)


def test_targets_of_their_own_are_refused(triton):
    inputs = [torch.stack([t, t]) for t in inputs_of(Case(), triton.device)]
    with pytest.raises(ValueError, match="all members share"):
        torch.vmap(lambda o, v, k: summed_errors(o, v, k, "mae"))(*inputs)


def test_second_derivatives_say_what_to_do(triton):
    outputs, values, known = inputs_of(Case(), triton.device)
    sums = summed_errors(outputs.requires_grad_(), values, known, "mse")
    (gradient,) = torch.autograd.grad(sums.square().sum(), outputs, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivative.*pna\.backend\('reference'\)"):
        gradient.sum().backward()


@pytest.mark.parametrize("members", [1, 2])
def test_opcheck(triton, members):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    outputs, values, known = inputs_of(Case(), triton.device)
    every = torch.stack([outputs] * members, 1).requires_grad_()
    torch.library.opcheck(torch.ops.pna.summed_errors.default, (every, values, known, "mae"))
    grad = torch.ones(members, 3, device=triton.device)
    arguments = (grad, every.detach())
    torch.library.opcheck(torch.ops.pna.summed_errors_backward.default, arguments)


def test_what_has_no_kernel(triton):
    outputs, values, _ = inputs_of(Case(), triton.device)
    tall = outputs[:1].expand(5000, -1)
    assert not takes(outputs, values.double())
    assert not takes(outputs[:0], values[:0])
    assert not takes(outputs[:, :0], values[:, :0])
    assert not takes(tall, tall)


def test_elsewhere_there_is_none():
    outputs, values, _ = inputs_of(Case(), torch.device("cpu"))
    assert not takes(outputs, values)
