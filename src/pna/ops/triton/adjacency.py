"""The arrays of an `Adjacency`, made on the device with few launches.

Of few edges, the place of each is the number of edges that come before it. Every edge is compared
with every other, which is faster than the launches of a sort. Two kernels make all arrays. Of many
edges, three sorts of torch and five kernels make them.

Indices are clamped to existing nodes before anything reads or writes by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pna.adjacency import MOST_RANKED
from pna.native import Built
from pna.ops.tracing import is_tracing
from pna.ops.triton.launcher import Kernel, PreparedKernel, cdiv, on_device

_BLOCK, _BLOCK_S, _WIDE = 8, 256, 1024

#: Arrays begin at multiples of this many integers, 128 bytes.
_UNIT = 32

_LONG = ("num_long", "num_segments", "out_num_long", "out_num_segments")
_SIZES = ("stride_end", "stride_edge", "num_edges", "num_senders", "num_receivers")


@triton.jit
def _existing(sender, receiver, live, num_senders, num_receivers):
    """Sender and receiver of every edge, clamped to existing nodes, and whether both exist."""
    sender, receiver = sender.to(tl.int64), receiver.to(tl.int64)
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
    last = num_edges - 1
    if tl.program_id(1) == 1:
        last = tl.maximum(num_senders, num_receivers)
    if tl.program_id(0) * BLOCK > last:
        return
    own = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.zeros([BLOCK, BLOCK_S], tl.int32)  # edges before the own ones, by column
    starts = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    places = tl.zeros([BLOCK, BLOCK_S], tl.int32)
    if tl.program_id(1) == 0:
        live = own < num_edges
        at = edges + own.to(tl.int64) * stride_edge
        sender, receiver, _own_exist = _existing(
            tl.load(at, mask=live, other=0), tl.load(at + stride_end, mask=live, other=0), live,
            num_senders, num_receivers,
        )  # fmt: skip
        first_key = receiver * num_edges
        key = first_key + own
        for first in range(0, num_edges, BLOCK_S):
            other = first + tl.arange(0, BLOCK_S)
            mask = other < num_edges
            there = edges + other.to(tl.int64) * stride_edge
            s, r, _exist = _existing(
                tl.load(there, mask=mask, other=0),
                tl.load(there + stride_end, mask=mask, other=0), mask, num_senders, num_receivers,
            )  # fmt: skip
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
            there = edges + other.to(tl.int64) * stride_edge
            s, r, exist = _existing(
                tl.load(there, mask=mask, other=0),
                tl.load(there + stride_end, mask=mask, other=0), mask, num_senders, num_receivers,
            )  # fmt: skip
            fine = tl.where(exist, fine, 0)
            starts += _is_before(tl.where(mask, r, num_receivers), own)
            places += _is_before(tl.where(mask, s, num_senders), own)
        tl.store(indptr + own, tl.sum(starts, 1), mask=own <= num_receivers)
        tl.store(out_indptr + own, tl.sum(places, 1), mask=own <= num_senders)
        if tl.program_id(0) == 0:
            tl.store(all_exist, tl.min(fine, 0))


@partial(Kernel, unspecialised=("num_receivers", "num_senders", "num_long", "num_segments"))
def _rank_rows_kernel(
    indptr, long_rows, long_rank, long_indptr, segment_owner, order,
    out_indptr, out_long_rows, out_long_rank, out_long_indptr, out_segment_owner, out_order,
    by_degree, degree, num_receivers, num_senders, num_long, num_segments,
    SEGMENT: tl.constexpr, WINDOW_BITS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Sort rows by length, within windows and over all, and cut those of more than SEGMENT slots.

    Programs of the first row own some receivers, those of the second some senders. The first
    program of each fills the spare entries. The key, length × rows + row, is an int32.
    """
    rows = num_receivers
    if tl.program_id(1) == 1:
        indptr, order, rows = out_indptr, out_order, num_senders
        long_rows, long_rank, long_indptr = out_long_rows, out_long_rank, out_long_indptr
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
    tl.store(long_rows + rank, row, mask=own)
    tl.store(long_indptr + rank, begin, mask=own)
    cuts = tl.where(own, (length + SEGMENT - 1) // SEGMENT, 0)
    for piece in range(0, tl.max(cuts, 0)):
        tl.store(segment_owner + begin + piece, rank, mask=piece < cuts)
    if tl.program_id(0) == 0:
        used, cut = tl.sum(every_long, 0), tl.sum(every_segment, 0)
        for first in range(0, tl.maximum(num_long + 1, num_segments), BLOCK_S):
            spare = first + tl.arange(0, BLOCK_S)
            tl.store(long_indptr + spare, cut, mask=(spare >= used) & (spare <= num_long))
            tl.store(long_rows + spare, rows, mask=(spare >= used) & (spare < num_long))
            tl.store(segment_owner + spare, num_long, mask=(spare >= cut) & (spare < num_segments))


@partial(Kernel, unspecialised=_SIZES)
def _read_edges_kernel(
    edges, stride_end, stride_edge, num_edges, num_senders, num_receivers,
    senders, receivers, all_exist, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the ends of some edges, clamped to existing nodes. Clears `all_exist` if one was not."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = edge < num_edges
    at = edges + edge.to(tl.int64) * stride_edge
    sender, receiver, exist = _existing(
        tl.load(at, mask=live, other=0), tl.load(at + stride_end, mask=live, other=0), live,
        num_senders, num_receivers,
    )  # fmt: skip
    tl.store(senders + edge, sender, mask=live)
    tl.store(receivers + edge, receiver, mask=live)
    if tl.min(exist.to(tl.int32), 0) == 0:
        tl.store(all_exist, 0)


@triton.jit
def _store_starts(indptr, sorted_rows, row, num_rows, num_edges, halvings):
    """Write the first slot of each row, the number of slots of smaller rows, by binary search."""
    live = row <= num_rows
    low = tl.zeros_like(row)
    high = low + num_edges
    for _ in range(0, halvings):
        searching = live & (low < high)
        middle = (low + high) // 2
        smaller = tl.load(sorted_rows + middle, mask=searching, other=0) < row
        low = tl.where(searching & smaller, middle + 1, low)
        high = tl.where(searching & (smaller == 0), middle, high)
    tl.store(indptr + row, low.to(tl.int32), mask=live)


@partial(Kernel, unspecialised=("num_edges", "num_receivers", "halvings"))
def _slots_kernel(
    by_receiver, ids, given_senders, edge_ids, senders, indptr, num_edges, num_receivers, halvings,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Edge and sender of some slots, and first slots of some receivers."""
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = own < num_edges
    edge = tl.load(ids + own, mask=live, other=0)
    tl.store(edge_ids + own, edge.to(tl.int32), mask=live)
    tl.store(senders + own, tl.load(given_senders + edge, mask=live, other=0), mask=live)
    if tl.program_id(0) * BLOCK <= num_receivers:
        _store_starts(indptr, by_receiver, own, num_receivers, num_edges, halvings)


@partial(Kernel, unspecialised=("num_edges", "num_senders", "halvings"))
def _transpose_kernel(
    by_sender, slots, by_receiver, indptr, receivers, out_ranks, out_indptr, num_edges,
    num_senders, halvings, BLOCK: tl.constexpr,
):  # fmt: skip
    """Receiver and rank of some edges in the order of their senders, and first of some senders."""
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = own < num_edges
    slot = tl.load(slots + own, mask=live, other=0)
    receiver = tl.load(by_receiver + slot, mask=live, other=0)
    first = tl.load(indptr + receiver, mask=live, other=0)
    tl.store(receivers + own, receiver, mask=live)
    tl.store(out_ranks + own, (slot - first).to(tl.int32), mask=live)
    if tl.program_id(0) * BLOCK <= num_senders:
        _store_starts(out_indptr, by_sender, own, num_senders, num_edges, halvings)


@partial(Kernel, unspecialised=("num_receivers", "num_senders"))
def _row_keys_kernel(
    indptr, out_indptr, degree, keys, counts, num_receivers, num_senders,
    SEGMENT: tl.constexpr, WINDOW_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Degrees; keys by which to sort receivers by degree, then receivers and senders by length
    within windows; and for each receiver and sender 1 if its row is long, plus 2^32 × segments."""
    rows, before = num_receivers, tl.program_id(1) * num_receivers
    if tl.program_id(1) == 1:
        indptr, rows = out_indptr, num_senders
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    length = tl.load(indptr + row + 1, mask=live, other=0)
    length -= tl.load(indptr + row, mask=live, other=0)
    if tl.program_id(1) == 0:
        tl.store(degree + row, length, mask=live)
        tl.store(keys + row, length - 2147483647, mask=live)  # negative: before all others
    window = (row >> WINDOW_BITS) + tl.program_id(1) * ((num_receivers >> WINDOW_BITS) + 1)
    key = window * (SEGMENT + 2) + tl.minimum(length, SEGMENT + 1)
    tl.store(keys + num_receivers + before + row, key.to(tl.int32), mask=live)
    pieces = ((length + SEGMENT - 1) // SEGMENT).to(tl.int64)
    tl.store(counts + before + row, tl.where(length > SEGMENT, 1 + (pieces << 32), 0), mask=live)


@partial(Kernel, unspecialised=("num_receivers", "num_senders", "halvings", *_LONG))
def _cut_rows_kernel(
    indptr, long_rows, long_rank, long_indptr, segment_owner, order,
    out_indptr, out_long_rows, out_long_rank, out_long_indptr, out_segment_owner, out_order,
    by_degree, by_key, counts, num_receivers, num_senders, num_long, num_segments, out_num_long,
    out_num_segments, halvings, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the order of rows, given by the sort of their keys, and cut long rows, given the
    cumulative sums of their counts. A program owns some rows, long rows and segments."""
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rows, before = num_receivers, tl.program_id(1) * num_receivers
    if tl.program_id(1) == 0:
        first = tl.load(by_key + own, mask=own < rows, other=0)
        tl.store(by_degree + own, first.to(tl.int32), mask=own < rows)
    if tl.program_id(1) == 1:
        indptr, order, rows = out_indptr, out_order, num_senders
        long_rows, long_rank, long_indptr = out_long_rows, out_long_rank, out_long_indptr
        segment_owner, num_long, num_segments = out_segment_owner, out_num_long, out_num_segments
    live = own < rows
    place = num_receivers + before
    found = tl.load(by_key + place + own, mask=live, other=0) - place
    tl.store(order + own, found.to(tl.int32), mask=live)
    length = tl.load(indptr + own + 1, mask=live, other=0)
    length -= tl.load(indptr + own, mask=live, other=0)
    base = tl.load(counts + before - 1, mask=before > 0, other=0)
    count = tl.load(counts + before + own, mask=live, other=0) - base
    rank = count.to(tl.int32) - 1
    begin = (count >> 32) - (length + SEGMENT - 1) // SEGMENT
    is_long = live & (length > SEGMENT)
    tl.store(long_rank + own, tl.where(is_long, rank, -1), mask=live)
    tl.store(long_rows + rank, own.to(tl.int32), mask=is_long)
    tl.store(long_indptr + rank, begin.to(tl.int32), mask=is_long)
    total = tl.load(counts + before + rows - 1, mask=before + rows > 0, other=0) - base
    spare = own >= total.to(tl.int32)
    cut = total >> 32
    tl.store(long_rows + own, rows, mask=spare & (own < num_long))
    tl.store(long_indptr + own, cut.to(tl.int32), mask=spare & (own <= num_long))
    if tl.program_id(0) * BLOCK < num_segments:
        low = tl.zeros_like(own)
        high = low + rows
        for _ in range(0, halvings):  # the first row that ends after the segment
            searching = low < high
            middle = (low + high) // 2
            ends = (tl.load(counts + before + middle, mask=searching, other=0) - base) >> 32
            low = tl.where(searching & (ends <= own), middle + 1, low)
            high = tl.where(searching & (ends > own), middle, high)
        count = tl.load(counts + before + low, mask=low < rows, other=0) - base
        owner = tl.where(own < cut, count.to(tl.int32) - 1, num_long)
        tl.store(segment_owner + own, owner, mask=own < num_segments)


class Sizes(NamedTuple):
    """Numbers of edges and nodes, and how rows are cut and ordered."""

    edges: int
    senders: int
    receivers: int
    segment: int  # longer rows are cut into segments of this length
    window_bits: int  # rows are sorted by length within windows of 2^window_bits rows

    @property
    def nodes(self) -> int:
        return max(self.senders, self.receivers)


#: The lengths of `long_rows` and `segment_owner`, which may have spare entries.
Long = tuple[int, int]


def build(edge_index: Tensor, sizes: Sizes, bounds: Long | None) -> tuple[Built, Tensor]:
    """All arrays of the Adjacency of edge_index (2, edges) in int32; and 1 if all indices exist.

    There must be nodes, if there are edges. Without `bounds` of the numbers of long rows and
    segments, wait for the device to count them.
    """
    with on_device(edge_index):
        if bounds is not None and max(sizes.edges, sizes.nodes) <= MOST_RANKED:
            return _rank(edge_index, sizes, bounds)
        return _sort(edge_index, sizes, bounds)


def rank_edges(
    edge_index: Tensor, num_senders: Any, num_receivers: Any, arrays: Sequence[Tensor],
    all_exist: Tensor,
) -> None:  # fmt: skip
    """Write the fields of `RankedEdges` to `arrays`, and to all_exist 1 if all indices exist."""
    edges = edge_index.shape[1]
    if is_tracing():  # a maximum of symbols would be a guard
        work = edges + num_senders + num_receivers + 1
    else:
        work = max(edges, num_senders + 1, num_receivers + 1)
    launch = _prepared_edges(edge_index.dtype, _BLOCK)
    launch(
        (cdiv(work, _BLOCK), 2), edge_index, *edge_index.stride(), edges, num_senders,
        num_receivers, *arrays, all_exist,
    )  # fmt: skip


@cache
def _prepared_edges(dtype: torch.dtype, block: int) -> PreparedKernel:
    return PreparedKernel(_rank_edges_kernel, BLOCK=block, BLOCK_S=_BLOCK_S, num_warps=4)


@cache
def _prepared_rows(segment: int, window_bits: int, block: int) -> PreparedKernel:
    return PreparedKernel(
        _rank_rows_kernel, SEGMENT=segment, WINDOW_BITS=window_bits, BLOCK=block,
        BLOCK_S=_BLOCK_S, num_warps=4,
    )  # fmt: skip


def _rank(edge_index: Tensor, sizes: Sizes, long: Long) -> tuple[Built, Tensor]:
    built, all_exist = _allocate(edge_index, sizes)
    _make_room(built, (long, long))
    incoming, outgoing, (edge_ids, out_ranks, by_degree, degree) = built
    arrays = (*incoming[:2], *outgoing[:2], edge_ids, out_ranks)
    rank_edges(edge_index, sizes.senders, sizes.receivers, arrays, all_exist)
    _prepared_rows(sizes.segment, sizes.window_bits, _BLOCK)(
        _grid(sizes.nodes, _BLOCK, 2), *_without_neighbours(incoming),
        *_without_neighbours(outgoing), by_degree, degree, sizes.receivers, sizes.senders, *long,
    )  # fmt: skip
    return built, all_exist


def _sort(edge_index: Tensor, sizes: Sizes, bounds: Long | None) -> tuple[Built, Tensor]:
    num_edges, num_senders, num_receivers = sizes[:3]
    built, all_exist = _allocate(edge_index, sizes)
    incoming, outgoing, (edge_ids, out_ranks, by_degree, degree) = built
    (indptr, senders), (out_indptr, receivers) = incoming[:2], outgoing[:2]
    tile = dict(BLOCK=_WIDE, num_warps=4)
    grid, halvings = _grid(max(num_edges, sizes.nodes + 1), _WIDE), num_edges.bit_length()
    all_exist.fill_(1)
    # The given senders and receivers lie in arrays that get their own contents later.
    _read_edges_kernel[grid](
        edge_index, *edge_index.stride(), *sizes[:3], out_ranks, receivers, all_exist, **tile
    )
    by_receiver, ids = torch.sort(receivers, stable=True)
    _slots_kernel[grid](
        by_receiver, ids, out_ranks, edge_ids, senders, indptr, num_edges, num_receivers, halvings,
        **tile,
    )  # fmt: skip
    by_sender, slots = torch.sort(senders, stable=True)
    _transpose_kernel[grid](
        by_sender, slots, by_receiver, indptr, receivers, out_ranks, out_indptr, num_edges,
        num_senders, halvings, **tile,
    )  # fmt: skip
    del by_receiver, ids, by_sender, slots  # their memory serves the rest
    keys = degree.new_empty(2 * num_receivers + num_senders)
    counts = degree.new_empty(num_receivers + num_senders, dtype=torch.int64)
    _row_keys_kernel[_grid(sizes.nodes, _WIDE, 2)](
        indptr, out_indptr, degree, keys, counts, num_receivers, num_senders,
        SEGMENT=sizes.segment, WINDOW_BITS=sizes.window_bits, **tile,
    )  # fmt: skip
    by_key, counts = torch.sort(keys, stable=True).indices, counts.cumsum(0)
    long = _read_counts(counts, sizes) if bounds is None else (bounds, bounds)
    _make_room(built, long)
    most = max(sizes.nodes, *(length for each in long for length in (each[0] + 1, each[1])))
    _cut_rows_kernel[_grid(most, _WIDE, 2)](
        *_without_neighbours(incoming), *_without_neighbours(outgoing), by_degree, by_key, counts,
        num_receivers, num_senders, *long[0], *long[1], sizes.nodes.bit_length(),
        SEGMENT=sizes.segment, **tile,
    )  # fmt: skip
    return built, all_exist


def _grid(work: int, block: int, rows: int = 1) -> tuple[int, int]:
    return max(cdiv(work, block), 1), rows


def _without_neighbours(rows: list[Tensor]) -> list[Tensor]:
    return [rows[0], *rows[2:]]


def _read_counts(counts: Tensor, sizes: Sizes) -> tuple[Long, Long]:
    """The numbers of long rows and segments of receivers and of senders, from cumulative sums."""
    first, both = counts[sizes.receivers - 1 :: sizes.senders].tolist()
    return _unpacked(first), _unpacked(both - first)


def _unpacked(count: int) -> Long:
    return count & 0xFFFFFFFF, count >> 32


def _aligned(like: Tensor, lengths: list[int]) -> list[Tensor]:
    """Arrays of int32 in one piece of memory, each of them aligned.

    They are not made known to autograd as views, which would take twice as long.
    """
    padded = [part for length in lengths for part in (length, -length % _UNIT)]
    memory = like.new_empty(sum(padded), dtype=torch.int32)
    return list(memory.unsafe_split_with_sizes(padded)[::2])


def _allocate(like: Tensor, sizes: Sizes) -> tuple[Built, Tensor]:
    """The arrays without those of long rows, and one more integer."""
    edges, senders, receivers = sizes[:3]
    each = [[rows + 1, edges, rows, rows] for rows in (receivers, senders)]
    parts = _aligned(like, [*each[0], *each[1], edges, edges, receivers, receivers, 1])
    return Built(parts[:4], parts[4:8], parts[8:12]), parts[12]


def _make_room(built: Built, long: tuple[Long, Long]) -> None:
    """Insert the arrays of long rows of receivers and senders."""
    lengths = [part for longs, segments in long for part in (longs, longs + 1, segments)]
    parts = _aligned(built.rest[0], lengths)
    for rows, first in ((built.incoming, 0), (built.outgoing, 3)):
        rows.insert(2, parts[first])
        rows[4:4] = parts[first + 1 : first + 3]
