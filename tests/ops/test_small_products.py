"""Products of a small graph against torch's, in float64."""

from __future__ import annotations

import pytest
import torch

from pna.ops.triton.small_products import WeightSizes, products_of

#: towers, outputs, inputs, products, width, mixed; odd, and more than a block of 64.
SIZES = [
    (1, 64, 832, 128, 64, 64),
    (2, 5, 21, 12, 3, 0),
    (1, 70, 130, 10, 65, 70),
    (3, 4, 8, 24, 4, 12),
]


def numbers(*shape, device, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(device, dtype)


@pytest.mark.parametrize("rows", [1, 45])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_times_a_weight(triton, sizes, rows, dtype):
    given, sizes = dict(device=triton.device, dtype=dtype), WeightSizes(*sizes)
    towers, outputs, inputs = sizes[:3]
    a, weight = numbers(rows, towers * inputs, **given), numbers(towers, outputs, inputs, **given)
    bias = numbers(towers * outputs, **given)
    wide = numbers(rows, 2 * towers * outputs, **given)
    each = a.double().view(rows, towers, inputs)
    expected = torch.einsum("nti,toi->nto", each, weight.double()).flatten(1)
    by, tolerance = products_of(a, sizes), 1e-5 if dtype == torch.float32 else 2e-2
    for base in (None, bias, wide[:, : towers * outputs]):
        added = 0 if base is None else base.double()
        for transposed in (False, True):
            out = a.new_full((rows, towers * outputs), torch.nan)
            by.multiply(a, weight if transposed else weight.mT.contiguous(), out, base, transposed)
            difference = (out.double() - expected - added).norm() / (expected + added).norm()
            assert difference < tolerance


@pytest.mark.parametrize("rows", [1, 700])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_weights(triton, sizes, rows, dtype):
    given, sizes = dict(device=triton.device, dtype=dtype), WeightSizes(*sizes)
    towers, outputs, inputs, products, width, mixed = sizes
    above, of_u = numbers(rows, towers * outputs, **given), numbers(rows, towers * inputs, **given)
    of_products, x = numbers(rows, products, **given), numbers(rows, width, **given)
    mixing = numbers(rows, mixed, **given), numbers(rows, mixed, **given).flip(0)
    out = above.new_full((sizes.total,), torch.nan)
    products_of(x, sizes).gradients(above, of_u, of_products, x, mixing, sizes, out)
    a, b, c, d, e, f = (t.double() for t in (above, of_u, of_products, x, *mixing))
    of_post = torch.einsum("nto,nti->toi", a.view(rows, towers, -1), b.view(rows, towers, -1))
    sums = a.sum(0), c[:, ::2].sum(0), e.sum(0)
    expected = (of_post, c.t() @ d, e.t() @ f, *sums)
    for got, exact in zip(out.split(sizes.lengths), expected, strict=True):
        exact = exact.flatten()
        assert (got.double() - exact).norm() <= (1e-5 if dtype == torch.float32 else 2e-2) * (
            exact.norm()
        )
