"""The kernel of `pna.population.dropout`: it drops elements by a hash of their position."""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from pna.ops.triton.launch import block_of
from pna.ops.triton.launcher import Kernel, cdiv, on_device
from pna.ops.triton.products import unit_stride

_MIX = tl.constexpr(0x45D9F3B3335B369)  # the constants of `pna.ops.hashing`
_GOLDEN = tl.constexpr(0x1E3779B97F4A7C15)

_TILE = 1024  # elements of a tile


@triton.jit
def _scramble(numbers):
    numbers = (numbers + 1) * _GOLDEN
    numbers = (numbers ^ (numbers >> 29)) * _MIX
    numbers = (numbers ^ (numbers >> 32)) * _MIX
    return numbers ^ (numbers >> 30)


@partial(Kernel, unspecialised=["time"])
def _dropout_kernel(
    x, x_row, x_member, out, seed, passes, key, graph, position, num_rows, members, features,
    time,
    LEAST: tl.constexpr, FACTOR: tl.constexpr, AGAIN: tl.constexpr, GRAPH: tl.constexpr,
    POSITION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """Drop elements of a tile (rows, features) for all members in a loop.

    The positions are hashed once for all members. The keys of the masks are written, or, if AGAIN,
    read.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    feature = tl.program_id(1).to(tl.int64) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = row < num_rows
    mask = live[:, None] & (feature < features)[None, :]
    number = row
    if GRAPH:
        number = tl.load(graph + row, mask=live, other=0).to(tl.int64)
    number = _scramble(number)
    if POSITION:
        number += tl.load(position + row, mask=live, other=0)
    at = _scramble(number)[:, None] + (feature * _GOLDEN)[None, :]
    x += row[:, None] * x_row + feature[None, :]
    out += row[:, None] * members * features + feature[None, :]
    for member in range(members):
        if AGAIN:
            when = tl.load(key + member)
        else:
            when = _scramble(_scramble(tl.load(seed + member)) + tl.load(passes + member))
            when = _scramble(when + time)
            if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
                tl.store(key + member, when)
        kept = (_scramble(when + at) & 0xFFFFFF) >= LEAST
        given = tl.load(x + tl.cast(member, tl.int64) * x_member, mask=mask).to(tl.float32)
        tl.store(out + member * features, tl.where(kept, given * FACTOR, 0), mask=mask)


def drop(
    x: Tensor,
    out: Tensor,
    p: float,
    key: Tensor,
    of_key: tuple[Tensor, Tensor, int] | None,
    graph: Tensor | None,
    position: Tensor | None,
) -> None:
    """Write x (rows, members, features) with dropped elements to out.

    `of_key` contains seed, passes and time. They are hashed to key (members,), which is written
    too. If `of_key` is None, key is read instead.
    """
    x = unit_stride(x)
    rows, members, features = x.shape
    seed, passes, time = (key, key, 0) if of_key is None else of_key
    block = block_of(features, 128)
    tall = _TILE // block
    with on_device(x):
        _dropout_kernel[(cdiv(rows, tall), cdiv(features, block))](
            x, x.stride(0), x.stride(1), out, seed, passes, key,
            key if graph is None else graph, key if position is None else position, rows, members,
            features, time, LEAST=int(p * 2**24), FACTOR=1 / (1 - p), AGAIN=of_key is None,
            GRAPH=graph is not None, POSITION=position is not None, BLOCK_R=tall, BLOCK_F=block,
            num_warps=4,
        )  # fmt: skip
