"""Sums over rows by a Triton kernel."""

import pytest
import torch

pytest.importorskip("triton")
from pna.ops.triton import sums


@pytest.mark.parametrize("shape", [(1, 1), (3, 70), (513, 33), (1100, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_column_sums(triton, shape, dtype):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    matrix = matrix.to(triton.device)
    got = sums.column_sums(matrix)
    assert got.dtype == dtype
    expected = matrix.double().sum(0)
    torch.testing.assert_close(
        got.double(), expected, rtol=2**-7, atol=1e-2 if got.dtype != torch.float32 else 1e-4
    )


def test_column_sums_of_a_slice_and_of_a_transpose(triton):
    matrix = torch.arange(60.0, device=triton.device).view(6, 10)
    assert torch.equal(sums.column_sums(matrix[:, 2:5]), matrix[:, 2:5].sum(0))
    assert torch.equal(sums.column_sums(matrix.t()), matrix.sum(1))
