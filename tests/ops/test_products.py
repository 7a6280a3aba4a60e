"""Numbers as sums of three short ones."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from pna.ops.triton.products import thirds  # noqa: E402


@triton.jit
def _thirds_kernel(a, out, size, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    high, middle, low = thirds(tl.load(a + place, mask=place < size, other=0))
    tl.store(out + place, high.to(tl.float32), mask=place < size)
    tl.store(out + size + place, middle.to(tl.float32), mask=place < size)
    tl.store(out + 2 * size + place, low.to(tl.float32), mask=place < size)


def parts_of(a, device):
    out = torch.empty(3, len(a), device=device)
    _thirds_kernel[(1,)](a.to(device), out, len(a), BLOCK=triton.next_power_of_2(len(a)))
    return out.cpu()


def test_thirds_are_the_number(device):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1000, generator=generator) * 10 ** torch.linspace(-20, 20, 1000)
    a = torch.cat([a, torch.tensor([0.0, -0.0, 1.0, -1.0, 1.00390625, 3.0e38, 2.0**-100])])
    parts = parts_of(a, device)
    torch.testing.assert_close(parts.double().sum(0), a.double(), rtol=0, atol=0)
    # each is at most what a rounding to 8 bits leaves
    assert (parts[1].abs() <= a.abs() * 2**-8).all()
    assert (parts[2].abs() <= a.abs() * 2**-16).all()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_thirds_of_what_is_not_finite(device, number):
    """NaN comes of them, as of inf − inf; and of the number beside them itself."""
    parts = parts_of(torch.tensor([number, 1.5]), device)
    assert not parts[:, 0].sum().isfinite()
    assert parts[:, 1].sum() == 1.5
