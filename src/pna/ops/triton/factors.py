"""The factors of the standard scalers for every receiver, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import torch
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv, on_device

_BLOCK = 128


@partial(Kernel, unspecialised=("rows",))
def _factors_kernel(
    degree, indptr, mean_log, mean, out, rows, CODES: tl.constexpr, COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Factors of a block of receivers; 0 for a receiver without edges. Three bits of CODES
    encode each scaler: 0 the identity, 1 log(d + 1) / δ, 2 its inverse, 3 d / δ, 4 its inverse.
    Computed in float64, which costs little here and makes logarithms exact to the last bit."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    begin = tl.load(indptr + row, mask=live, other=0)
    reached = tl.load(indptr + row + 1, mask=live, other=0) > begin
    counted = tl.maximum(tl.load(degree + row, mask=live, other=0), 1).to(tl.float64)
    log_share = tl.log(counted + 1) / tl.load(mean_log).to(tl.float64)
    share = counted / tl.load(mean).to(tl.float64)
    for r in tl.static_range(COUNT):
        factor = tl.full([BLOCK], 1, tl.float64)
        if (CODES >> (3 * r)) & 7 == 1:
            factor = log_share
        if (CODES >> (3 * r)) & 7 == 2:
            factor = 1 / log_share
        if (CODES >> (3 * r)) & 7 == 3:
            factor = share
        if (CODES >> (3 * r)) & 7 == 4:
            factor = 1 / share
        factor = tl.where(reached, factor, 0.0)
        tl.store(out + row * COUNT + r, factor.to(tl.float32), mask=live)


def factors(adjacency: Adjacency, mean_log: Tensor, mean: Tensor, codes: Sequence[int]) -> Tensor:
    """(receivers, scalers) float32."""
    degree, indptr, rows = adjacency.degree, adjacency.indptr, adjacency.num_receivers
    out = torch.empty((rows, len(codes)), dtype=torch.float32, device=degree.device)
    if rows > 0:
        with on_device(degree):
            launch = _prepared(tuple(codes), degree.dtype, mean_log.dtype, mean.dtype)
            launch((cdiv(rows, _BLOCK),), degree, indptr, mean_log, mean, out, rows)
    return out


@cache
def _prepared(codes: tuple[int, ...], *_: torch.dtype) -> PreparedKernel:
    bits = sum(code << (3 * r) for r, code in enumerate(codes))
    return PreparedKernel(_factors_kernel, CODES=bits, COUNT=len(codes), BLOCK=_BLOCK, num_warps=4)
