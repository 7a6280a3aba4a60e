"""The yardstick of the GPU benchmark: a kernel that only sums the rows that senders send."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency


@triton.jit
def _sum_kernel(
    x, indptr, senders, out, num_rows, features,
    BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = row < num_rows
    begin = tl.load(indptr + row, mask=live, other=0)
    end = tl.load(indptr + row + 1, mask=live, other=0)
    total = tl.zeros([BLOCK_R, BLOCK_F], tl.float32)
    for step in range(0, tl.max(end - begin), 4):
        for ahead in tl.static_range(4):
            slot = begin + step + ahead
            more = slot < end
            sender = tl.load(senders + slot, mask=more, other=0).to(tl.int64)
            place = x + sender[:, None] * features + feature[None, :]
            total += tl.load(place, mask=more[:, None], other=0)
    tl.store(out + row[:, None] * features + feature[None, :], total, mask=live[:, None])


def sum_of_rows(x: Tensor, adjacency: Adjacency, block: int) -> Tensor:
    """Σ x_j, each program owning `block` features of 128 // block rows; block divides features.

    With all features in one block this is one program a row; with narrow blocks the columns being
    read stay in cache.
    """
    rows, features = adjacency.num_receivers, x.shape[1]
    out = torch.empty(rows, features, device=x.device)
    tall = max(128 // block, 1)
    _sum_kernel[(triton.cdiv(rows, tall), features // block)](
        x, adjacency.indptr, adjacency.senders, out, rows, features,
        BLOCK_R=tall, BLOCK_F=block, num_warps=1,
    )  # fmt: skip
    return out
