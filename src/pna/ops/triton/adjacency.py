"""The arrays of an `Adjacency` on the device, without waiting for it.

Of few edges, the place of each is the number of edges that come before it. Every edge is compared
with every other, which is faster than the launches of a sort. Two kernels make all arrays.

Indices are clamped to existing nodes before anything reads or writes by them.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.native import Built
from pna.ops.triton.launcher import Kernel, on_device

#: The most edges, and the most nodes, that are compared with each other.
MOST_RANKED = 2**14

_BLOCK, _BLOCK_S, _READ_AT_ONCE = 8, 256, 1024

#: Arrays begin at multiples of this many integers, 128 bytes.
_UNIT = 32

_SIZES = ("stride_end", "stride_edge", "num_edges", "num_senders", "num_receivers")


@triton.jit
def _load_ends(edges, stride_end, stride_edge, edge, live, num_senders, num_receivers):
    """Sender and receiver of every edge, clamped to existing nodes, and whether both exist."""
    place = edges + edge.to(tl.int64) * stride_edge
    sender = tl.load(place, mask=live, other=0).to(tl.int64)
    receiver = tl.load(place + stride_end, mask=live, other=0).to(tl.int64)
    exist = (sender >= 0) & (sender < num_senders) & (receiver >= 0) & (receiver < num_receivers)
    exist = exist | (live == 0)
    sender = tl.minimum(tl.maximum(sender, 0), num_senders - 1)
    receiver = tl.minimum(tl.maximum(receiver, 0), num_receivers - 1)
    return sender.to(tl.int32), receiver.to(tl.int32), exist


@triton.jit
def _is_before(key, own):
    """1 where a key of the columns is smaller than the own key of a row, (rows, columns)."""
    return (key[None, :] < own[:, None]).to(tl.int32)


@partial(Kernel, unspecialised=_SIZES)
def _rank_edges_kernel(
    edges, stride_end, stride_edge, num_edges, num_senders, num_receivers,
    indptr, senders, out_indptr, out_receivers, edge_ids, out_ranks, all_exist,
    BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Sort edges by (receiver, edge), and by (sender, receiver, edge) for the transpose.

    Programs of the first row own some edges, those of the second some entries of both indptrs.
    The key, receiver × edges + edge, is an int32.
    """
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.zeros([BLOCK, BLOCK_S], tl.int32)  # edges before the own ones, by column
    starts = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    places = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    if tl.program_id(1) == 0:
        live = own < num_edges
        sender, receiver, _own_exist = _load_ends(
            edges, stride_end, stride_edge, own, live, num_senders, num_receivers
        )
        first_key = receiver * num_edges
        key = first_key + own
        for first in range(0, num_edges, BLOCK_S):
            other = first + tl.arange(0, BLOCK_S)
            mask = other < num_edges
            s, r, _exist = _load_ends(
                edges, stride_end, stride_edge, other, mask, num_senders, num_receivers
            )
            s = tl.where(mask, s, num_senders)  # after all others
            other_key = tl.where(mask, r * num_edges + other, 2147483647)
            before = _is_before(other_key, key)
            slots += before
            starts += _is_before(other_key, first_key)
            places += tl.where(s[None, :] == sender[:, None], before, _is_before(s, sender))
        slot, place = tl.sum(slots, 1), tl.sum(places, 1)
        tl.store(edge_ids + slot, own, mask=live)
        tl.store(senders + slot, sender, mask=live)
        tl.store(out_receivers + place, receiver, mask=live)
        tl.store(out_ranks + place, slot - tl.sum(starts, 1), mask=live)
    else:
        fine = tl.full([BLOCK_S], 1, tl.int32)
        for first in range(0, num_edges, BLOCK_S):
            other = first + tl.arange(0, BLOCK_S)
            mask = other < num_edges
            s, r, exist = _load_ends(
                edges, stride_end, stride_edge, other, mask, num_senders, num_receivers
            )
            fine = tl.where(exist, fine, 0)
            starts += _is_before(tl.where(mask, r, num_receivers), own)
            places += _is_before(tl.where(mask, s, num_senders), own)
        tl.store(indptr + own, tl.sum(starts, 1), mask=own <= num_receivers)
        tl.store(out_indptr + own, tl.sum(places, 1), mask=own <= num_senders)
        if tl.program_id(0) == 0:
            tl.store(all_exist, tl.min(fine, 0))


@partial(Kernel, unspecialised=("num_receivers", "num_senders", "num_long", "num_segments"))
def _rank_rows_kernel(
    indptr, order, long_rank, long_rows, long_indptr, segment_owner,
    out_indptr, out_order, out_long_rank, out_long_rows, out_long_indptr, out_segment_owner,
    by_degree, degree, num_receivers, num_senders, num_long, num_segments,
    LONG: tl.constexpr, SEGMENT: tl.constexpr, WINDOW_BITS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Sort rows by length, within windows and over all, and cut those of more than SEGMENT slots.

    Programs of the first row own some receivers, those of the second some senders. The first
    program of each fills the spare entries. The key, length × rows + row, is an int32.
    """
    rows = num_receivers
    if tl.program_id(1) == 1:
        indptr, order, long_rank, rows = out_indptr, out_order, out_long_rank, num_senders
        long_rows, long_indptr = out_long_rows, out_long_indptr
        segment_owner = out_segment_owner
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    length = tl.load(indptr + row + 1, mask=live, other=0)
    length -= tl.load(indptr + row, mask=live, other=0)
    window_key = (row >> WINDOW_BITS) * (SEGMENT + 2) + tl.minimum(length, SEGMENT + 1)
    window_key = window_key * rows + row
    key = length * rows + row
    in_window = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    in_all = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    longs = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    segments = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    every_long = tl.zeros([BLOCK_S], tl.int32)
    every_segment = tl.zeros([BLOCK_S], tl.int32)
    for first in range(0, rows, BLOCK_S):
        other = first + tl.arange(0, BLOCK_S)
        mask = other < rows
        size = tl.load(indptr + other + 1, mask=mask, other=0)
        size -= tl.load(indptr + other, mask=mask, other=0)
        other_key = (other >> WINDOW_BITS) * (SEGMENT + 2) + tl.minimum(size, SEGMENT + 1)
        in_window += _is_before(tl.where(mask, other_key * rows + other, 2147483647), window_key)
        in_all += _is_before(tl.where(mask, size * rows + other, 2147483647), key)
        if LONG:
            is_long = (size > SEGMENT).to(tl.int32)
            pieces = is_long * ((size + SEGMENT - 1) // SEGMENT)
            earlier = _is_before(other, row)
            longs += earlier * is_long[None, :]
            segments += earlier * pieces[None, :]
            every_long += is_long
            every_segment += pieces
    tl.store(order + tl.sum(in_window, 1), row, mask=live)
    if tl.program_id(1) == 0:
        tl.store(by_degree + tl.sum(in_all, 1), row, mask=live)
        tl.store(degree + row, length, mask=live)
    rank, begin = tl.sum(longs, 1), tl.sum(segments, 1)
    own = live & (length > SEGMENT)
    tl.store(long_rank + row, tl.where(own, rank, -1), mask=live)
    if LONG:
        tl.store(long_rows + rank, row, mask=own)
        tl.store(long_indptr + rank, begin, mask=own)
        pieces = tl.where(own, (length + SEGMENT - 1) // SEGMENT, 0)
        for piece in range(0, tl.max(pieces, 0)):
            tl.store(segment_owner + begin + piece, rank, mask=piece < pieces)
    if tl.program_id(0) == 0:
        used, cut = tl.sum(every_long, 0), tl.sum(every_segment, 0)
        for first in range(0, num_long + 1, BLOCK_S):
            spare = first + tl.arange(0, BLOCK_S)
            tl.store(long_indptr + spare, cut, mask=(spare >= used) & (spare <= num_long))
            tl.store(long_rows + spare, rows, mask=(spare >= used) & (spare < num_long))
        for first in range(0, num_segments, BLOCK_S):
            spare = first + tl.arange(0, BLOCK_S)
            tl.store(segment_owner + spare, num_long, mask=(spare >= cut) & (spare < num_segments))


@partial(Kernel, unspecialised=_SIZES)
def _read_edges_kernel(
    edges, stride_end, stride_edge, num_edges, num_senders, num_receivers,
    senders, receivers, all_exist, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the ends of some edges, clamped to existing nodes. Clears `all_exist` if one was not."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = edge < num_edges
    sender, receiver, exist = _load_ends(
        edges, stride_end, stride_edge, edge, live, num_senders, num_receivers
    )
    tl.store(senders + edge, sender, mask=live)
    tl.store(receivers + edge, receiver, mask=live)
    if tl.min(exist.to(tl.int32), 0) == 0:
        tl.store(all_exist, 0)


def read(edge_index: Tensor, num_senders: int, num_receivers: int) -> tuple[Tensor, Tensor]:
    """The edge_index (2, edges) in int32, clamped to existing nodes; and 1 if all indices exist.

    There must be nodes, if there are edges.
    """
    ends = edge_index.new_empty(edge_index.shape, dtype=torch.int32)
    all_exist = ends.new_ones(1)
    with on_device(edge_index):
        _read_edges_kernel[(max(triton.cdiv(ends.shape[1], _READ_AT_ONCE), 1),)](
            edge_index, *edge_index.stride(), ends.shape[1], num_senders, num_receivers,
            *ends.unbind(), all_exist, BLOCK=_READ_AT_ONCE, num_warps=4,
        )  # fmt: skip
    return ends, all_exist


def can_rank(num_edges: int, num_senders: int, num_receivers: int) -> bool:
    """Whether so few edges and nodes are better compared with each other than sorted."""
    return max(num_edges, num_senders, num_receivers) <= MOST_RANKED


def rank(
    edge_index: Tensor,
    num_senders: int,
    num_receivers: int,
    long: tuple[int, int],
    segment: int,
    window_bits: int,
) -> tuple[Built, Tensor]:
    """All arrays of the Adjacency of edge_index (2, edges) in int32; and 1 if all indices exist.

    Rows of more than `segment` slots are cut; `long` has the lengths of `long_rows` and of
    `segment_owner`, which may have spare entries. There must be nodes, if there are edges.
    """
    edges, (num_long, num_segments) = edge_index.shape[1], long if long[0] > 0 else (0, 0)
    each = [(rows + 1, edges, num_long, rows, num_long + 1, num_segments, rows)
            for rows in (num_receivers, num_senders)]  # fmt: skip
    sizes = [*each[0], *each[1], edges, edges, num_receivers, num_receivers, 1]
    lengths = [length for size in sizes for length in (size, -size % _UNIT)]
    memory = edge_index.new_empty(sum(lengths), dtype=torch.int32)
    parts = memory.split(lengths)[::2]
    incoming, outgoing, rest, all_exist = parts[:7], parts[7:14], parts[14:18], parts[18]
    indptr, senders, long_rows, long_rank, long_indptr, segment_owner, order = incoming
    out_indptr, receivers, *out_long, out_order = outgoing
    edge_ids, out_ranks, by_degree, degree = rest
    nodes = max(num_senders, num_receivers)
    tile = dict(BLOCK=_BLOCK, BLOCK_S=_BLOCK_S, num_warps=4)
    with on_device(edge_index):
        _rank_edges_kernel[(triton.cdiv(max(edges, nodes + 1), _BLOCK), 2)](
            edge_index, *edge_index.stride(), edges, num_senders, num_receivers,
            indptr, senders, out_indptr, receivers, edge_ids, out_ranks, all_exist, **tile,
        )  # fmt: skip
        _rank_rows_kernel[(triton.cdiv(max(nodes, 1), _BLOCK), 2)](
            indptr, order, long_rank, long_rows, long_indptr, segment_owner,
            out_indptr, out_order, out_long[1], out_long[0], out_long[2], out_long[3],
            by_degree, degree, num_receivers, num_senders, num_long, num_segments,
            LONG=num_long > 0, SEGMENT=segment, WINDOW_BITS=window_bits, **tile,
        )  # fmt: skip
    return Built(list(incoming), list(outgoing), list(rest)), all_exist
