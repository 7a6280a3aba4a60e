"""`dropout` on every backend against its definition: outputs, gradients, members."""

from __future__ import annotations

import pytest
import torch

from pna.population.dropout import definition, dropout
from tests.ops.cases import features

P = 0.3


def numbers(*values: int, device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device).squeeze()


def graph_and_position(rows: int, device, graphs: bool = True, positions: bool = True):
    """Where rows stand, large numbers among them, which 64 bits overflow."""
    graph = torch.arange(rows, device=device) * 2**40 // 3 if graphs else None
    position = torch.arange(rows, device=device) % 5 if positions else None
    return graph, position


def outcome(function, x, *given):
    """What is left of x, and of a gradient."""
    leaf = x.detach().requires_grad_()
    out = function(leaf, *given)
    upstream = features(1, out.numel(), out.dtype, out.device, seed=3).view_as(out)
    return out.detach(), *torch.autograd.grad(out, leaf, upstream)


@pytest.mark.covering(2)
@pytest.mark.parametrize("rows, width", [(37, 6), (1, 1), (0, 3), (5, 0), (40, 130)], ids=str)
@pytest.mark.parametrize("positions", [True, False], ids=["with positions", "without"])
@pytest.mark.parametrize("graphs", [True, False], ids=["with graphs", "without"])
def test_outputs_and_gradients(backend, rows, width, graphs, positions):
    """Rows and features in several blocks, the last not full."""
    x = features(rows, width, torch.float32, backend.device)
    given = (P, numbers(2**62 - 1, device=x.device), numbers(3, device=x.device), 2)
    given = (*given, *graph_and_position(rows, x.device, graphs, positions))
    got, expected = outcome(dropout, x, *given), outcome(definition, x, *given)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one == 0, other == 0)
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_types(backend, dtype):
    x = features(20, 7, dtype, backend.device)
    seed = numbers(1, device=x.device)
    got = outcome(dropout, x, P, seed, seed)
    expected = outcome(definition, x, P, seed, seed, 0, None, None)
    assert all(part.dtype == dtype for part in got)
    torch.testing.assert_close(got, expected)


def test_views(backend):
    x = features(12, 40, torch.float32, backend.device)
    seed = numbers(1, device=x.device)
    for view in (x[:, ::2], x[::2], x.t(), x[:, :1].expand(-1, 5)):
        got = outcome(dropout, view, P, seed, seed)
        torch.testing.assert_close(got, outcome(definition, view, P, seed, seed, 0, None, None))


@pytest.mark.parametrize("own", ["x", "seed", "x, seed and passes"])
def test_members_are_models_alone(backend, own):
    """Each with what it has alone, in one call; then one ordinary backward pass."""
    x = features(9, 6, torch.float32, backend.device)
    xs = (torch.stack([x, x + 1, 2 * x]) if "x" in own.split(", ")[0] else x).requires_grad_()
    seeds = numbers(5, 7, 2**61, device=x.device) if "seed" in own else numbers(5, device=x.device)
    passes = numbers(1, 2, 3, device=x.device) if "passes" in own else numbers(1, device=x.device)
    axes = tuple(0 if t.dim() > d else None for t, d in ((xs, 2), (seeds, 0), (passes, 0)))
    rows = graph_and_position(9, x.device)
    together = torch.vmap(lambda x, s, p: dropout(x, P, s, p, 1, *rows), axes)(xs, seeds, passes)
    upstream = features(3, 54, torch.float32, x.device, seed=3).view_as(together)
    (gradient,) = torch.autograd.grad(together, xs, upstream)

    def alone(i):
        given = [t if a is None else t[i] for t, a in zip((xs, seeds, passes), axes, strict=True)]
        return definition(given[0], P, *given[1:], 1, *rows)

    expected = torch.stack([alone(i) for i in range(3)])
    torch.testing.assert_close(together, expected)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected, xs, upstream))


def test_rows_of_members_may_stand_elsewhere(backend):
    x = features(9, 6, torch.float32, backend.device)
    seed = numbers(1, device=x.device)
    graph = torch.stack([torch.arange(9), torch.arange(9) + 4]).to(x.device)
    together = torch.vmap(lambda g: dropout(x, P, seed, seed, 0, g))(graph)
    alone = [dropout(x, P, seed, seed, 0, g) for g in graph]
    torch.testing.assert_close(together, torch.stack(alone))


def test_gradients_are_of_the_pass_that_was(backend):
    """Also where the next one has begun."""
    x = features(9, 6, torch.float32, backend.device).requires_grad_()
    passes = numbers(1, device=x.device)
    out = dropout(x, P, numbers(1, device=x.device), passes)
    passes += 1
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient, (out.detach() != 0) / (1 - P))


def test_second_derivatives(backend):
    x = features(9, 6, torch.float32, backend.device).requires_grad_()
    seed = numbers(1, device=x.device)
    out = dropout(x, P, seed, seed)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, 2 * (out.detach() != 0) / (1 - P) ** 2)


@pytest.mark.covering(0, always=True)
def test_compiled_whole(backend):
    x = features(9, 6, torch.float32, backend.device)
    seed = numbers(1, device=x.device)
    torch._dynamo.reset()
    whole = torch.compile(lambda x: dropout(x, P, seed, seed), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outcome(whole, x), outcome(lambda x: dropout(x, P, seed, seed), x))
    torch._dynamo.reset()


@pytest.mark.covering(0)
@pytest.mark.parametrize("given", [True, False], ids=["with places", "without"])
def test_opcheck(triton, given):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    x = features(6, 4, torch.float32, triton.device).reshape(6, 2, 2).requires_grad_()
    seed, passes = (numbers(*pair, device=triton.device) for pair in ((1, 2), (3, 4)))
    where = graph_and_position(6, triton.device, given, given)
    torch.library.opcheck(torch.ops.pna.dropout.default, (x, P, seed, passes, 0, *where))
    torch.library.opcheck(torch.ops.pna.dropout_again.default, (x, P, seed, *where))
