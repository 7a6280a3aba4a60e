"""Batch normalisation against torch's, and with padding among the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from pna.nn.batch_context import batch_context
from pna.nn.norm import BatchNorm
from pna.population.batch_norm import Norm, definition
from tests.nn.cases import numbers, outcome
from tests.nn.graph_cases import graphs

WIDTH = 3


def both(dtype=torch.float64, relu=False):
    ours, theirs = BatchNorm(WIDTH, relu=relu).to(dtype), nn.BatchNorm1d(WIDTH).to(dtype)
    with torch.no_grad():
        for parameter, seed in ((ours.weight, 1), (ours.bias, 2)):
            parameter.copy_(numbers(WIDTH, dtype=dtype, device="cpu", seed=seed))
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)
    return ours, theirs


def run(norm, x, relu=False):
    leaves = {"x": x.clone(), "weight": norm.weight, "bias": norm.bias}
    return outcome(lambda: torch.relu(norm(leaves["x"])) if relu else norm(leaves["x"]), leaves)


@pytest.mark.parametrize(
    ("rows", "dtype", "tolerance"),
    [(2, torch.float64, 1e-9), (9, torch.float64, 1e-9), (9, torch.float32, 1e-4)],
    ids=str,
)
@pytest.mark.parametrize("relu", [False, True])
def test_it_is_that_of_torch(rows, dtype, tolerance, relu):
    """Results, gradients and running statistics, over some batches and in use."""
    ours, theirs = both(dtype, relu)
    for seed in range(3):
        x = 3 + 2 * numbers(rows, WIDTH, dtype=dtype, device="cpu", seed=seed)
        expected = run(theirs, x, relu)
        torch.testing.assert_close(run(ours, x), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    expected = run(theirs, x, relu)
    torch.testing.assert_close(run(ours, x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.covering(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("relu", [False, True])
def test_padding_is_left_out(backend, level, dtype, relu):
    """Results and gradients of real rows, and statistics, are those without padding."""
    batch = replace(graphs().batch([0, 2, 1]), real=torch.tensor([True, False, True]))
    batch = batch.to(backend.device)
    count = batch.num_nodes if level == "node" else batch.num_graphs
    real = batch.real_nodes if level == "node" else batch.real
    x = numbers(count, WIDTH, dtype=dtype, device=backend.device)
    x[~real] = 1e6
    padded, plain = (BatchNorm(WIDTH, level, relu=relu).to(backend.device, dtype) for _ in range(2))
    upstream = numbers(count, WIDTH, dtype=dtype, device=backend.device, seed=5)
    upstream[~real] = 0  # padding has no loss
    given, alone = x.clone().requires_grad_(), x[real].clone().requires_grad_()
    with batch_context(batch):
        got = padded(given)
        gradients = torch.autograd.grad(got, [given, *padded.parameters()], upstream)
    expected = plain(alone)
    wanted = torch.autograd.grad(expected, [alone, *plain.parameters()], upstream[real])
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(got[real], expected, **near)
    torch.testing.assert_close(gradients[0][real], wanted[0], **near)
    assert not gradients[0][~real].any()
    torch.testing.assert_close(gradients[1:], wanted[1:], **near)
    torch.testing.assert_close(dict(padded.named_buffers()), dict(plain.named_buffers()))


@pytest.mark.parametrize("rows", [0, 1])
def test_a_row_alone_is_normalised_by_the_running_statistics(rows):
    """And leaves them as they are; torch refuses it."""
    norm, _ = both()
    norm(numbers(6, WIDTH, dtype=torch.float64, device="cpu"))
    before = norm.running_mean.clone(), norm.running_var.clone()
    x = numbers(rows, WIDTH, dtype=torch.float64, device="cpu", seed=3)
    got = run(norm, x)
    assert (norm.running_mean.equal(before[0]), norm.running_var.equal(before[1])) == (True, True)
    torch.testing.assert_close(got, run(norm.eval(), x))


def test_only_padding_changes_nothing():
    norm = BatchNorm(WIDTH)
    batch = replace(graphs().batch([0]), real=torch.tensor([False]))
    with batch_context(batch):
        assert norm(torch.full((5, WIDTH), 7.0)).isfinite().all()
    assert not norm.running_mean.any() and norm.running_var.tolist() == [1.0] * WIDTH


def test_half_precision_is_normalised_in_the_type_of_the_weights():
    norm, x = BatchNorm(WIDTH), 100 + torch.randn(50, WIDTH)
    got = norm(x.bfloat16())
    assert got.dtype == torch.bfloat16 and norm.running_mean.dtype == torch.float32
    expected = nn.BatchNorm1d(WIDTH)(x.bfloat16().float())
    torch.testing.assert_close(got.float(), expected, atol=0.02, rtol=0.02)


def test_many_rows_of_a_half_precision_model():
    """Their sum is no float16, and there is padding among them."""
    torch.manual_seed(0)
    x = 20 + torch.randn(5_001, WIDTH)
    ours, theirs = BatchNorm(WIDTH).half(), nn.BatchNorm1d(WIDTH)
    real = torch.arange(len(x)) < len(x) - 1
    state = (ours.weight, ours.bias, ours.running_mean, ours.running_var)
    found = definition(x.half(), real, Norm(*state, ours.momentum, ours.eps))
    torch.testing.assert_close(found[:-1].float(), theirs(x[:-1]), atol=0.03, rtol=0)
    torch.testing.assert_close(ours.running_mean.float(), theirs.running_mean, atol=0.01, rtol=0)


def test_members_of_a_vmap_have_their_own_statistics():
    from torch.func import functional_call, vmap

    x = numbers(3, 6, WIDTH, dtype=torch.float32, device="cpu")
    state = {"running_mean": torch.zeros(3, WIDTH), "running_var": torch.ones(3, WIDTH)}
    norm = BatchNorm(WIDTH)
    got = vmap(lambda held, x: functional_call(norm, held, (x,)))(state, x)
    for k in range(3):
        alone = nn.BatchNorm1d(WIDTH)
        torch.testing.assert_close(got[k], alone(x[k]))
        torch.testing.assert_close(state["running_mean"][k], alone.running_mean)
        torch.testing.assert_close(state["running_var"][k], alone.running_var)


def test_beginning_again():
    norm = BatchNorm(WIDTH)
    norm(torch.randn(5, WIDTH))
    norm.weight.data.fill_(3), norm.bias.data.fill_(3)
    norm.reset_parameters()
    for name, value in norm.state_dict().items():
        assert torch.equal(value, BatchNorm(WIDTH).state_dict()[name]), name
    assert repr(norm) == "BatchNorm(3, level='node')"
    assert repr(BatchNorm(3, relu=True)) == "BatchNorm(3, level='node', relu)"
