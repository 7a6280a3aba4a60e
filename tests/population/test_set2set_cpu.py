"""`set2set` in C, against plain torch in float64; what all backends share is in test_set2set.py."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

pytest.importorskip("hypothesis", reason="properties are looked for with hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from pna.ops import cpu as extension
from pna.population import set2set as module
from pna.population import set2set_cpu
from tests.population.test_linears import assert_near
from tests.population.test_set2set import Case, inputs_of, on, outcome, upstream_of

pytestmark = pytest.mark.skipif(
    set2set_cpu._kernel is None, reason=f"set2set.c was not built: {extension.unavailable()}"
)

CPU = torch.device("cpu")

#: Two chunks of graphs, for two threads, and a block that is not full.
MANY = Case(tuple(i % 7 for i in range(100)), tuple(i % 5 for i in range(100)), width=16)


def results(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    inputs = [t / 4 for t in inputs_of(case, dtype, CPU)]
    return list(outcome(on(case, CPU), inputs, upstream_of(case, dtype, CPU)).values())


def expected_of(case: Case) -> list[torch.Tensor]:
    with mock.patch.object(set2set_cpu, "built", False):
        return results(case, torch.float64)


graphs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=40)


@settings(max_examples=30)
@given(
    graphs=graphs,
    width=st.sampled_from([8, 16, 24, 64]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_graphs(graphs, width, dtype):
    sizes, steps = zip(*graphs, strict=True)
    case = Case(sizes, steps, width)
    with mock.patch.object(module, "definition", side_effect=AssertionError("not in C")):
        got = results(case, dtype)
    assert_near(got, expected_of(case), 2e-5 if dtype == torch.float32 else 1e-12)


def test_the_same_on_any_number_of_threads():
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(results(MANY, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert_near(found[0], expected_of(MANY), 2e-5)


def test_members_are_each_as_alone():
    x, *weights = (t / 4 for t in inputs_of(MANY, torch.float32, CPU))
    stacked = [torch.stack([w, -w, w / 2]).requires_grad_() for w in weights]
    run = on(MANY, CPU)
    together = torch.vmap(run, (None, 0, 0, 0, 0))(x, *stacked)
    got = torch.autograd.grad(together.square().sum(), stacked)
    for member in range(3):
        alone = [t[member].detach().requires_grad_() for t in stacked]
        expected = torch.autograd.grad(run(x, *alone).square().sum(), alone)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a[member], b)


@pytest.mark.parametrize("width", [7, 12, 72])
def test_the_rest_is_left_to_torch(width):
    case = Case((3, 4), (2, 3), width)
    with mock.patch.object(module, "definition", wraps=module.definition) as definition:
        on(case, CPU)(*inputs_of(case, torch.float32, CPU))
    assert definition.called


def test_the_operator_refuses_what_it_has_no_kernel_for():
    """It would write past the end of its arrays."""
    case = Case((3, 4), (2, 3), 12)
    x, *_ = inputs_of(case, torch.float32, CPU)
    weight, bias = torch.zeros(1, 48, 24), torch.zeros(1, 48)
    with pytest.raises(ValueError, match=r"got 12 features of torch\.float32, expected a multiple"):
        torch.ops.pna.set2set(x[:, None], *case.graph(CPU), weight, bias, 3, "cpu")


def test_without_the_library():
    """As where there was no compiler: torch does it."""
    case = Case((3, 4), (2, 3), 8)
    got = results(case, torch.float32)
    with mock.patch.object(set2set_cpu, "built", False):
        assert_near(results(case, torch.float32), got, 1e-5)
