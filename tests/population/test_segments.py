"""Sums and maxima over segments against a loop over them: outputs and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pna.population.segments import segment_max, segment_sum, spread
from tests.ops.cases import features

KINDS = {"sum": segment_sum, "max": segment_max}

SIZES = {
    "sizes": (3, 1, 4),
    "no segments": (),
    "no rows": (0, 0),
    "one without rows": (2, 0, 3),
    "first and last without rows": (0, 2, 0),
    "long": (1000, 2),
}


def starts(sizes, device, index=torch.int64):
    ends = list(itertools.accumulate(sizes, initial=0))
    return torch.tensor(ends, dtype=index, device=device)


def in_a_loop(kind, x, sizes):
    parts = x.split(sizes)
    if kind == "sum":
        results = [part.sum(0) for part in parts]
    else:
        results = [part.amax(0) if len(part) > 0 else part.sum(0) for part in parts]
    return torch.stack(results) if results else x.sum(0) * x.new_zeros(0, *[1] * (x.dim() - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_each_segment(device, kind, sizes, shape, index):
    sizes = SIZES[sizes]
    rows, each = sum(sizes), torch.Size(shape).numel()
    x = features(rows, each, torch.float64, device, 0).reshape(rows, *shape).requires_grad_()
    out = KINDS[kind](x, starts(sizes, device, index))
    expected = in_a_loop(kind, x, sizes)
    upstream = torch.randn(out.shape, dtype=out.dtype, device=device)
    torch.testing.assert_close(out, expected)
    got, wanted = (torch.autograd.grad(r, x, upstream)[0] for r in (out, expected))
    torch.testing.assert_close(got, wanted)


def test_equal_maxima_share_the_gradient(device):
    x = torch.tensor([3.0, 3.0, 1.0, 3.0], device=device, requires_grad=True)
    segment_max(x, starts((3, 1), device)).backward(torch.tensor([4.0, 7.0], device=device))
    assert x.grad.tolist() == [2, 2, 0, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_short_types_are_summed_in_a_longer_one(device, kind):
    x = torch.ones(1000, 2, dtype=torch.bfloat16, device=device)
    out = KINDS[kind](x, starts((1000,), device))
    assert out.dtype == torch.bfloat16
    assert out.tolist() == [[1000.0 if kind == "sum" else 1.0] * 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_is_a_loop(device, kind, axis):
    x = features(3, 10, torch.float64, device, 0).reshape(3, 5, 2).movedim(0, axis)
    x, indptr = x.detach().requires_grad_(), starts((2, 0, 3), device)
    out = torch.vmap(lambda each: KINDS[kind](each, indptr), axis)(x)
    alone = torch.stack([KINDS[kind](each, indptr) for each in x.unbind(axis)])
    torch.testing.assert_close(out, alone)
    got, wanted = (torch.autograd.grad(r.square().sum(), x)[0] for r in (out, alone))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_any_order(device, kind):
    x = features(5, 2, torch.float64, device, 0).requires_grad_()
    indptr = starts((2, 0, 3), device)
    assert gradcheck(lambda x: KINDS[kind](x, indptr), x)
    assert gradgradcheck(lambda x: KINDS[kind](x, indptr).square(), x)


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(device, kind):
    x = features(5, 2, torch.float32, device, 0).requires_grad_()
    arguments = (x, starts((2, 0, 3), device), kind)
    torch.library.opcheck(torch.ops.pna.segment_reduce.default, arguments)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 70)], ids=str)
def test_spread_in_kernels(triton, sizes, shape):
    """And back: one is the gradient of the other."""
    sizes = SIZES[sizes]
    indptr, rows = starts(sizes, triton.device, torch.int32), sum(sizes)
    values = torch.randn(len(sizes), *shape, device=triton.device, requires_grad=True)
    out = spread(values, indptr, rows)
    expected = torch.repeat_interleave(values, indptr.diff(), dim=0)
    assert torch.equal(out, expected)
    upstream = torch.randn_like(out)
    got, wanted = (torch.autograd.grad(r, values, upstream)[0] for r in (out, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_spread_under_vmap_and_opcheck(device):
    values, indptr = features(3, 4, torch.float32, device, 0), starts((2, 0, 1), device)
    got = torch.vmap(lambda each: spread(each, indptr, 3), 1)(values)
    assert torch.equal(got, values[[0, 0, 2]].t())
    arguments = (values.requires_grad_(), indptr, 3)
    torch.library.opcheck(torch.ops.pna.segment_spread.default, arguments)


def test_spread(device):
    values = torch.tensor([[1, 2], [3, 4], [5, 6]], device=device)
    assert spread(values, starts((2, 0, 1), device), 3).tolist() == [[1, 2], [1, 2], [5, 6]]
