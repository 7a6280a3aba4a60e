"""What of a table's gradient goes to the table and to the layer that encodes it.

Five products and sums of a few thousand numbers, each of which would wait for the one before it:
here they are one program's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The most rows of the table, and the most features of it and of what it is encoded to.
_ROWS, _WIDEST = 8, 128

#: How many products a program has at a time.
_PRODUCTS = 2**14


@triton.jit
def _edge_table_kernel(
    grad, weight, w_row, table, encoder, of_encoder, of_bias, of_table,
    rows, inputs, width, features,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """grad (rows, inputs) through weight (inputs, width), the gradient of what the table (rows,
    features) was encoded to, and from there to the encoder (width, features) and the table."""
    row, w, f = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_F)
    live_row, live_w, live_f = row < rows, w < width, f < features
    total = tl.zeros([BLOCK_R, BLOCK_K, BLOCK_W], tl.float32)
    for first in range(0, inputs, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        live = k < inputs
        above = tl.load(
            grad + row[:, None] * inputs + k[None, :],
            mask=live_row[:, None] & live[None, :], other=0,
        )  # fmt: skip
        place = weight + k[:, None] * w_row + w[None, :]
        part = tl.load(place, mask=live[:, None] & live_w[None, :], other=0)
        total += above.to(tl.float32)[:, :, None] * part.to(tl.float32)[None, :, :]
    encoded = tl.sum(total, 1)
    tl.store(of_bias + w, tl.sum(encoded, 0), mask=live_w)
    place = row[:, None] * features + f[None, :]
    mask = live_row[:, None] & live_f[None, :]
    given = tl.load(table + place, mask=mask, other=0).to(tl.float32)
    where = w[:, None] * features + f[None, :]
    inside = live_w[:, None] & live_f[None, :]
    products = encoded[:, :, None] * given[:, None, :]
    tl.store(of_encoder + where, tl.sum(products, 0), mask=inside)
    own = tl.load(encoder + where, mask=inside, other=0).to(tl.float32)
    tl.store(of_table + place, tl.sum(encoded[:, :, None] * own[None, :, :], 1), mask=mask)


def takes(table: Tensor, encoder: Tensor) -> bool:
    """Whether a program has room for table (rows, features) and encoder (width, features)."""
    few = 0 < table.shape[0] <= _ROWS and 0 < min(encoder.shape)
    return few and max(encoder.shape) <= _WIDEST


def gradients(
    grad: Tensor, weight: Tensor, table: Tensor, encoder: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the encoder, its bias, and the table, from that (rows, inputs) of what weight
    (inputs, width) makes of the encoded table."""
    rows, inputs = grad.shape
    width, features = encoder.shape
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    of_encoder, of_bias = encoder.new_empty((width, features)), encoder.new_empty(width)
    of_table = table.new_empty((rows, features))
    blocks = [triton.next_power_of_2(n) for n in (rows, width, features)]
    with torch.cuda.device_of(grad):
        _edge_table_kernel[(1,)](
            grad, weight, weight.stride(0), table.contiguous(), encoder.contiguous(),
            of_encoder, of_bias, of_table, rows, inputs, width, features, BLOCK_R=blocks[0],
            BLOCK_K=min(64, max(1, _PRODUCTS // (blocks[0] * blocks[1]))),
            BLOCK_W=blocks[1], BLOCK_F=blocks[2], num_warps=16,
        )  # fmt: skip
    return of_encoder, of_bias, of_table
