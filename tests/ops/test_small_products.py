"""Products of a small graph against torch's, in float64."""

from __future__ import annotations

import pytest
import torch

from pna.ops.triton.launcher import cdiv
from pna.ops.triton.sequence import LaunchSequence
from pna.ops.triton.small_products import ROWS, RowProduct, SmallProducts, WeightSizes

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
    bias, both = numbers(towers * outputs, **given), numbers(rows, 2, towers * outputs, **given)
    each = a.double().view(rows, towers, inputs)
    expected = torch.einsum("nti,toi->nto", each, weight.double()).flatten(1)
    by, tolerance = SmallProducts(dtype, True, sizes), 1e-5 if dtype == torch.float32 else 2e-2
    values = dict(a=a, bias=bias, both=both, rows=rows, row_tiles=cdiv(rows, ROWS))
    width = towers * outputs
    bases = (
        (dict(), 0),
        (dict(base="bias"), bias.double()),
        (dict(base="both", bases=2, base_row=2 * width, base_step=width), both.double().sum(1)),
    )
    for base, added in bases:
        for transposed in (False, True):
            values["weight"] = weight if transposed else weight.mT.contiguous()
            out = values["out"] = a.new_full((rows, width), torch.nan)
            ends = (towers, inputs, outputs)
            step = by.rows(RowProduct("a", "weight", "out", *ends, transposed, **base))
            LaunchSequence([step], {}, []).run(values)
            difference = (out.double() - expected - added).norm() / (expected + added).norm()
            assert difference < tolerance


@pytest.mark.parametrize(("rows", "splits"), [(1, 1), (200, 3)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_weights(triton, sizes, rows, splits, dtype):
    given, sizes = dict(device=triton.device, dtype=dtype), WeightSizes(*sizes)
    towers, outputs, inputs, products, width, mixed = sizes
    values = dict(
        above=numbers(rows, towers * outputs, **given),
        of_u=numbers(rows, towers * inputs, **given),
        of_products=numbers(rows, products, **given), x=numbers(rows, width, **given),
        grad=numbers(rows, mixed, **given), hidden=numbers(rows, mixed, **given).flip(0),
    )  # fmt: skip
    a, b, c, d, e, f = (tensor.double() for tensor in values.values())
    out = values["of_weights"] = a.new_full((sizes.total,), torch.nan, dtype=dtype)
    values["partial"] = a.new_full((splits, sizes.total), torch.nan, dtype=torch.float32)
    values |= dict(rows=rows, splits=splits)
    LaunchSequence(SmallProducts(dtype, True, sizes).weights(), {}, []).run(values)
    of_post = torch.einsum("nto,nti->toi", a.view(rows, towers, -1), b.view(rows, towers, -1))
    sums = a.sum(0), c[:, ::2].sum(0), e.sum(0)
    expected = (of_post, c.t() @ d, e.t() @ f, *sums)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for got, exact in zip(out.split(sizes.lengths), expected, strict=True):
        exact = exact.flatten()
        assert (got.double() - exact).norm() <= tolerance * exact.norm()
