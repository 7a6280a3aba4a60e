"""Host side of the launches: tile sizes, grids, and common kernel arguments."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.request import BASIS, NO_EDGE, TABLE, WEIGHTS, Messages, Request
from pna.ops.tracing import is_tracing
from pna.ops.triton.alignment import unit_of
from pna.ops.triton.launcher import cdiv, next_power_of_2
from pna.rows import Rows


def block_of(features: int, widest: int) -> int:
    """Features in the block of a program."""
    block = min(widest, max(next_power_of_2(features), 4))
    while block > 32 and 4 * cdiv(features, block) * block > 5 * features:
        block //= 2  # otherwise more than a fifth of the threads would be idle
    return block


class Tiles:
    """Tiles of rows and features; a program owns one.

    Each thread owns four adjacent features of one row. Narrow blocks of many rows keep the columns
    being read in cache; wide blocks of few rows spend fewer instructions per edge. If rows are
    `short`, a tile has more of them. This keeps as many loads in flight as long rows do by
    unrolling over slots. `strides` are the row strides of inputs and outputs, where they may differ
    from `features`; the width of vector loads depends on them.
    """

    def __init__(
        self, features: int, widest: int, short: bool = False, strides: Sequence[int] = ()
    ) -> None:
        features = int(features)  # a constant of the kernels, also while they are traced
        block = block_of(features, widest)
        warps = 4 if short else 1
        self.features, self.block, self.tall = features, block, max(128 // block, 1) * warps
        self.unroll = 1 if short else 4
        self.tile = dict(
            BLOCK_R=self.tall, BLOCK_F=block, EVEN=features % block == 0,
            UNIT=unit_of(features, *strides), num_warps=warps,
        )  # fmt: skip

    def grid(self, rows: int) -> tuple[int, int]:
        """The grid for this many rows; all rows of one block of features come before the next."""
        return cdiv(rows, self.tall), cdiv(self.features, self.block)


@functools.lru_cache(1024)
def _cached_tiles(*arguments: Any) -> Tiles:
    return Tiles(*arguments)


def tiles_of(features: int, widest: int, short: bool = False, strides: Sequence[int] = ()) -> Tiles:
    """`Tiles`, remembered: they depend on the layer alone, and not on the batch."""
    make = Tiles if is_tracing() else _cached_tiles
    return make(features, widest, short, tuple(strides))


class MergeTiles:
    """Tiles for merging segments: a program owns one long row and a block of features."""

    def __init__(self, features: int) -> None:
        features = int(features)
        block = min(32, next_power_of_2(features))
        self.blocks = cdiv(features, block)
        self.tile = dict(BLOCK_S=256, BLOCK_F=block, num_warps=8)


def message_arguments(messages: Messages) -> dict[str, Any]:
    """Arguments from which kernels that walk the slots of receivers load a message."""
    x, adjacency = messages.x, messages.adjacency
    return dict(
        x=x,
        x_stride=x.stride(0),
        indptr=adjacency.indptr,
        senders=adjacency.senders,
        num_edges=adjacency.num_edges,
        features=x.shape[1],
        WIDE_INDEX=wide_index(x),
        **edge_arguments(messages),
    )


def edge_arguments(messages: Messages) -> dict[str, Any]:
    """The edge term as kernel arguments; unused pointers refer to `edge_ids`. EDGE is its form,
    negative if it multiplies x."""
    edge, at, ids = messages.edge, messages.at, messages.adjacency.edge_ids
    if edge is None:
        return dict(edge=ids, at=ids, edge_ids=ids, types=0, EDGE=NO_EDGE, DEPTH=0)
    form = messages.form
    return dict(
        edge=edge.contiguous(),
        at=ids if at is None else at.contiguous(),
        edge_ids=ids,
        types=edge.shape[0] if form == TABLE else 0,
        EDGE=-form if messages.is_product else form,
        DEPTH={BASIS: edge.shape[0], WEIGHTS: edge.shape[1]}.get(form, 0),
    )


def output_indices(request: Request) -> dict[str, int]:
    """The index of each statistic in the output, or -1, under the names of the kernels."""
    names = ("mean", "sum", "var", "std", "max", "min")
    indices = {name.upper(): request.index(name) for name in names}
    return indices | {"NORM": request.index("normalised_mean")}


@functools.cache
def std_constants(request: Request, dtype: torch.dtype) -> dict[str, float]:
    """ε, the std of equal messages (LEAST), and the next number above it (NEXT).

    Every other std is at least NEXT, so LEAST tells the backward pass that messages are equal and
    have no gradient. Computed, that gradient would be a difference of two large numbers. In PyG's
    convention (`clamp`), the std of equal messages is 0.
    """
    if request.clamp:
        return dict(EPSILON=request.epsilon, LEAST=0.0, NEXT=0.0)
    least = _rounded(math.sqrt(request.epsilon), dtype)
    above = _rounded(least * (1 + 0.75 * torch.finfo(dtype).eps), dtype)
    return dict(EPSILON=request.epsilon, LEAST=least, NEXT=above)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """The nearest number of this dtype. Computed without torch, as a compiler may be tracing."""
    if dtype == torch.float64:
        return value
    packed = struct.pack("f", value)
    if dtype == torch.float16:
        packed = struct.pack("e", *struct.unpack("f", packed))
        return float(struct.unpack("e", packed)[0])
    if dtype == torch.bfloat16:  # the upper half of float32, rounded to even
        bits: int = struct.unpack("I", packed)[0]
        packed = struct.pack("I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000)
    return float(struct.unpack("f", packed)[0])


def long_arguments(rows: Rows) -> dict[str, Tensor]:
    return dict(
        long_rows=rows.long_rows, long_indptr=rows.long_indptr, segment_owner=rows.segment_owner
    )


def sender_weights(adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
    return adjacency.out_degree.clamp(min=1).to(dtype).rsqrt()


def wide_index(*tensors: Tensor) -> bool:
    """Whether offsets into these tensors need 64 bits."""
    if not is_tracing() and all(t.is_contiguous() for t in tensors):
        return any(t.numel() > 2**31 for t in tensors)
    return any(
        sum(abs(t.stride(d)) * (t.shape[d] - 1) for d in range(t.dim())) >= 2**31 for t in tensors
    )


def unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def with_unit_stride(messages: Messages) -> Messages:
    """The messages with x as the kernels read it: each row contiguous."""
    x = unit_stride(messages.x)
    return messages if x is messages.x else replace(messages, x=x)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
