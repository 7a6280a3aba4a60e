"""What the host prepares for the kernels: how work is cut, and their common arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import Adjacency, Rows
from pna.ops.request import Messages, Request
from pna.ops.triton.alignment import unit_of

#: Forms of the edge term, as the kernels number them.
NONE, DENSE, TABLE, COEFFICIENTS = 0, 1, 2, 3


def block_of(features: int, widest: int) -> int:
    """How many features a program takes at a time."""
    block = min(widest, max(triton.next_power_of_2(features), 4))
    while block > 32 and 4 * triton.cdiv(features, block) * block > 5 * features:
        block //= 2  # else more than a fifth of all threads had nothing to do
    return block


class Tiles:
    """How work is cut: rows and features into blocks that a program owns.

    Each thread has four neighbouring features of one row. Narrow blocks of many rows keep the
    columns being read in cache; wide blocks of few rows spend fewer instructions on each edge.
    Where rows are short, more of them side by side keep as many reads under way as long rows do
    with several slots at a time. `strides` are by how much rows of what is read and written stand
    apart, where that need not be `features`: how many numbers are moved at a time depends on them.
    """

    def __init__(
        self, features: int, widest: int, short: bool = False, strides: Sequence[int] = ()
    ) -> None:
        block = block_of(features, widest)
        warps = 4 if short else 1
        self.features, self.block, self.tall = features, block, max(128 // block, 1) * warps
        self.unroll = 1 if short else 4
        self.tile = dict(
            BLOCK_R=self.tall, BLOCK_F=block, EVEN=features % block == 0,
            UNIT=unit_of(features, *strides), num_warps=warps,
        )  # fmt: skip

    def grid(self, rows: int) -> tuple[int, int]:
        """Programs that own this many rows, all rows of one block of features after another."""
        return triton.cdiv(rows, self.tall), triton.cdiv(self.features, self.block)


class MergeTiles:
    """How the merging of segments is cut: a program owns a long row and a block of features."""

    def __init__(self, features: int) -> None:
        block = min(32, triton.next_power_of_2(features))
        self.blocks = triton.cdiv(features, block)
        self.tile = dict(BLOCK_S=256, BLOCK_F=block, num_warps=8)


def message_arguments(messages: Messages) -> dict[str, Any]:
    """The arguments by which kernels that walk the slots of receivers find a message."""
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
    """The edge term as kernel arguments; unused ones point somewhere harmless."""
    edge, at, ids = messages.edge, messages.at, messages.adjacency.edge_ids
    if edge is None:
        return dict(edge=ids, at=ids, edge_ids=ids, types=0, EDGE=NONE, DEPTH=0)
    edge = edge.contiguous()
    if at is None:
        return dict(edge=edge, at=ids, edge_ids=ids, types=0, EDGE=DENSE, DEPTH=0)
    at = at.contiguous()
    if at.is_floating_point():
        depth = edge.shape[0]
        return dict(edge=edge, at=at, edge_ids=ids, types=0, EDGE=COEFFICIENTS, DEPTH=depth)
    return dict(edge=edge, at=at, edge_ids=ids, types=edge.shape[0], EDGE=TABLE, DEPTH=0)


def output_indices(request: Request) -> dict[str, int]:
    """The index of each statistic in the output, or -1, by the names the kernels use."""
    names = ("mean", "sum", "var", "std", "max", "min")
    indices = {name.upper(): request.index(name) for name in names}
    return indices | {"NORM": request.index("normalised_mean")}


@functools.cache
def std_constants(request: Request, dtype: torch.dtype) -> dict[str, float]:
    """ε, the std of equal messages, and the next number above it, which all other std reach.

    That of equal messages so tells the backward pass that they have no gradient: it would come
    out as the difference of two large numbers. PyG's convention has a plain 0 there.
    """
    if request.clamp:
        return dict(EPSILON=request.epsilon, LEAST=0.0, NEXT=0.0)
    least = torch.tensor(request.epsilon, dtype=torch.float64).sqrt().to(dtype).double()
    above = (least * (1 + 0.75 * torch.finfo(dtype).eps)).to(dtype)
    return dict(EPSILON=request.epsilon, LEAST=float(least), NEXT=float(above))


def long_arguments(rows: Rows) -> dict[str, Tensor]:
    return dict(
        long_rows=rows.long_rows, long_indptr=rows.long_indptr, segment_owner=rows.segment_owner
    )


def sender_weights(adjacency: Adjacency, dtype: torch.dtype) -> Tensor:
    return adjacency.out_degree.clamp(min=1).to(dtype).rsqrt()


def wide_index(*tensors: Tensor) -> bool:
    """Whether offsets into these tensors need 64 bits."""
    return any(
        sum(abs(t.stride(d)) * (t.shape[d] - 1) for d in range(t.dim())) >= 2**31 for t in tensors
    )


def unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def with_unit_stride(messages: Messages) -> Messages:
    """The messages with x as kernels read it: the numbers of a row lie together."""
    x = unit_stride(messages.x)
    return messages if x is messages.x else replace(messages, x=x)


def triton_type(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32
