"""Sums over rows by a Triton kernel."""

import pytest
import torch

pytest.importorskip("triton")
from pna.ops.triton import sums


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 70, 4), (513, 33, 64), (1100, 5, 130)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_column_sums(triton, shape, dtype):
    rows, *widths = shape
    generator = torch.Generator().manual_seed(0)
    both = [torch.randn(rows, width, generator=generator).to(dtype) for width in widths]
    got = sums.column_sums(*(matrix.to(triton.device) for matrix in both))
    for each, matrix in zip(got, both, strict=True):
        assert each.dtype == dtype
        torch.testing.assert_close(
            each.double().cpu(), matrix.double().sum(0), rtol=2**-7,
            atol=1e-2 if dtype != torch.float32 else 1e-4,
        )  # fmt: skip


def test_column_sums_of_a_slice_and_of_a_transpose(triton):
    matrix = torch.arange(60.0, device=triton.device).view(6, 10)
    of_slice, of_all = sums.column_sums(matrix[:, 2:5], matrix)
    assert torch.equal(of_slice, matrix[:, 2:5].sum(0)) and torch.equal(of_all, matrix.sum(0))
    of_transpose, of_columns = sums.column_sums(matrix.t(), matrix.t()[:, ::2])
    assert torch.equal(of_transpose, matrix.sum(1)) and torch.equal(of_columns, matrix[::2].sum(1))
