"""`gru_cell` in C, against its definition in float64; what all backends share is in test_gru.py."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

pytest.importorskip("hypothesis", reason="properties are looked for with hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from pna.ops import cpu as extension
from pna.population import gru, gru_cpu
from tests.population.test_gru import Case, gru_cell, inputs_of, outcome, upstream_of
from tests.population.test_linears import assert_near

pytestmark = pytest.mark.skipif(
    gru_cpu._kernel is None, reason=f"gru.c was not built: {extension.unavailable()}"
)

CPU = torch.device("cpu")

#: Two chunks of rows, for two threads, and a block that is not full.
MANY = Case(rows=1000, inputs=12, hidden=10)


def problem_of(case: Case, dtype: torch.dtype, seed: int = 0):
    """Inputs of gates that are not all but shut, and an upstream."""
    x, h, *parameters = inputs_of(case, dtype, CPU)
    turned = [t.roll(seed, 0) for t in (x, h)]
    return [*turned, *[p / 4 for p in parameters]], upstream_of(case, x)


def expected_of(inputs, upstream):
    return outcome(gru.definition, [t.double() for t in inputs], upstream.double())


@settings(max_examples=40, deadline=None)
@given(
    case=st.builds(
        Case, rows=st.integers(0, 90), inputs=st.integers(0, 64), hidden=st.integers(1, 64)
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9),
)
def test_any_shape(case, dtype, seed):
    inputs, upstream = problem_of(case, dtype, seed)
    with mock.patch.object(gru, "definition", side_effect=AssertionError("C was not used")):
        got = outcome(gru_cell, inputs, upstream)
    tolerance = 5e-6 if dtype == torch.float32 else 1e-13
    assert_near(got, expected_of(inputs, upstream), tolerance)


def test_the_same_on_any_number_of_threads():
    inputs, upstream = problem_of(MANY, torch.float32)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(outcome(gru_cell, inputs, upstream))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert_near(found[0], expected_of(inputs, upstream), 5e-6)


def test_members_have_chunks_of_their_own():
    inputs, _ = problem_of(MANY, torch.float32)
    stacked = [torch.stack([t, -t]).requires_grad_() for t in inputs]
    together = torch.vmap(gru_cell)(*stacked)
    got = torch.autograd.grad(together.square().sum(), stacked)
    for member in range(2):
        alone = [t[member].detach().requires_grad_() for t in stacked]
        expected = torch.autograd.grad(gru_cell(*alone).square().sum(), alone)
        assert all(torch.equal(a[member], b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_odd_numbers_stay_in_their_row(value, dtype):
    (x, *rest), _ = problem_of(Case(), dtype)
    x[3, 1] = value
    got, expected = gru_cell(x, *rest), gru.definition(x, *rest)
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert got.isfinite().all(1).sum() >= len(x) - 1


def test_nothing_is_kept_without_gradients():
    inputs, _ = problem_of(Case(), torch.float32)
    stacked = [inputs[0][:, None], inputs[1][:, None], *[p[None] for p in inputs[2:]]]
    for keep, width in ((True, 4 * 8), (False, 0)):
        assert torch.ops.pna.gru_cell_cpu(*stacked, keep)[1].shape == (37, 1, width)
    with torch.no_grad(), mock.patch.object(gru_cpu, "_allocate", wraps=gru_cpu._allocate) as made:
        torch.testing.assert_close(gru_cell(*inputs), gru.definition(*inputs))
    assert made.call_args.args[-1] is False


@pytest.mark.parametrize(
    "case, dtype",
    [
        (Case(inputs=65), torch.float32),  # wider than C has room for
        (Case(hidden=65), torch.float64),
        (Case(), torch.bfloat16),
    ],
)
def test_the_rest_is_left_to_torch(case, dtype):
    inputs, _ = problem_of(case, dtype)
    with mock.patch.object(gru, "definition", wraps=gru.definition) as definition:
        gru_cell(*inputs)
    assert definition.called


def test_without_the_library(monkeypatch):
    """As where there was no compiler: torch does it."""
    inputs, upstream = problem_of(Case(), torch.float32)
    monkeypatch.setattr(gru_cpu, "built", False)
    with mock.patch.object(gru, "definition", wraps=gru.definition) as definition:
        got = outcome(gru_cell, inputs, upstream)
    assert definition.called
    assert_near(got, expected_of(inputs, upstream), 5e-6)


def operator_arguments():
    x, h, *parameters = problem_of(Case(), torch.float32)[0]
    stacked = [torch.stack([t, -t], 1).requires_grad_() for t in (x, h)]
    return *stacked, *[torch.stack([p, -p]) for p in parameters]


@pytest.mark.parametrize("keep", [True, False])
def test_opcheck(keep):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    arguments = operator_arguments()
    if not keep:
        arguments = tuple(t.detach() for t in arguments)
    torch.library.opcheck(torch.ops.pna.gru_cell_cpu.default, (*arguments, keep))


@pytest.mark.parametrize(
    "needs", [[True] * 6, [True] + [False] * 5, [False] * 2 + [True] * 4], ids=str
)
def test_opcheck_of_the_gradient(needs):
    x, h, w_i, w_h, *biases = (t.detach() for t in operator_arguments())
    _, gates = torch.ops.pna.gru_cell_cpu(x, h, w_i, w_h, *biases, True)
    arguments = (torch.ones_like(h), needs, x, h, w_i, w_h, *biases, gates)
    torch.library.opcheck(torch.ops.pna.gru_cell_cpu_backward.default, arguments)
