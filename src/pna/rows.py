"""`Rows`: edges sorted and grouped by one of their ends, with long rows cut into segments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: A row with more slots than this is cut into segments of this length, so that many workers share
#: a hub. Kernels store an index into a shorter row in one byte; 255 means none.
SEGMENT = 255


@dataclass(frozen=True, eq=False)
class Rows:
    """Compressed sparse rows: one direction of an `Adjacency`, with long rows cut into segments.

    Row i owns the slots ``indptr[i]`` to ``indptr[i+1]``; slot s leads to ``neighbours[s]``.
    Four fields describe the rows of more than `SEGMENT` slots. They may be longer than needed, if
    their length cannot be known without waiting for the device. Spare entries of `long_rows` then
    hold the number of rows, and spare entries of `segment_owner` the length of `long_rows`.
    """

    indptr: Tensor  # (rows + 1,)
    neighbours: Tensor  # (edges,)
    long_rows: Tensor  # (long,) indices of the long rows
    long_rank: Tensor  # (rows,) index of a row in long_rows, or -1
    long_indptr: Tensor  # (long + 1,) first segment of each long row
    segment_owner: Tensor  # (segments,) index in long_rows of the row of a segment
    order: Tensor  # (rows,) rows sorted by length within windows

    @property
    def num_rows(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def lengths(self) -> Tensor:
        """Number of slots of every row, (rows,)."""
        return self.indptr.diff()


def transposed(
    indptr: Tensor, senders: Tensor, receivers: Tensor, num_senders: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The indptr, receivers and ranks of sorted edges in the order of their senders."""
    by_sender, out_slots = torch.sort(senders, stable=True)
    out_slots = out_slots.to(indptr.dtype)
    out_receivers = receivers[out_slots]
    return indptr_of(by_sender, num_senders), out_receivers, out_slots - indptr[out_receivers]


def cut_exactly(indptr: Tensor, neighbours: Tensor) -> Rows:
    degree = indptr.diff()
    is_long = degree > SEGMENT
    pieces = torch.where(is_long, (degree + (SEGMENT - 1)) // SEGMENT, 0)
    num_long, num_segments = torch.stack([is_long.sum(), pieces.sum()]).tolist()
    return _cut(indptr, neighbours, num_long, num_segments)


def segment_bounds(edges: int, least: int = 0) -> tuple[int, int]:
    """The most long rows and segments: a long row has more than SEGMENT slots, and at most one of
    its segments is not full."""
    return max(edges // (SEGMENT + 1), least), max(2 * (edges // SEGMENT), least)


def cut_within_bounds(indptr: Tensor, neighbours: Tensor, least: int = 0) -> Rows:
    edges = neighbours.shape[0]
    if torch.compiler.is_compiling():  # as above, and a maximum would be a guard
        return _cut(indptr, neighbours, edges // (SEGMENT + 1) + 2, 2 * (edges // SEGMENT) + 2)
    return _cut(indptr, neighbours, *segment_bounds(edges, least))


def cut_nothing(indptr: Tensor, neighbours: Tensor) -> Rows:
    return _cut(indptr, neighbours, 0, 0)


def _cut(indptr: Tensor, neighbours: Tensor, num_long: int, num_segments: int) -> Rows:
    """Rows with room for this many long rows and segments."""
    rows, index = indptr.shape[0] - 1, indptr.dtype
    degree = indptr.diff()
    is_long = degree > SEGMENT
    if isinstance(num_long, int) and num_long == 0:
        long_rank = torch.full_like(degree, -1)
        none = indptr.new_zeros(0)
        return Rows(indptr, neighbours, none, long_rank, indptr.new_zeros(1), none, _order(degree))
    rank = (is_long.cumsum(0) - 1).to(index)
    long_rank = torch.where(is_long, rank, -1)
    spare = torch.where(is_long, rank, num_long)  # short rows all write past the end
    numbers = torch.arange(rows, dtype=index, device=indptr.device)
    long_rows = indptr.new_full((num_long + 1,), rows)
    long_rows = long_rows.scatter(0, spare.long(), numbers)[:num_long]
    padded_degree = torch.cat([degree, degree.new_zeros(1)])
    pieces = (padded_degree[long_rows] + (SEGMENT - 1)) // SEGMENT
    long_indptr = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)]).to(index)
    segments = torch.arange(num_segments, dtype=index, device=indptr.device)
    segment_owner = (torch.searchsorted(long_indptr, segments, right=True) - 1).to(index)
    segment_owner = torch.where(segments < long_indptr[-1], segment_owner, num_long)
    return Rows(
        indptr, neighbours, long_rows, long_rank, long_indptr, segment_owner, _order(degree)
    )


#: Rows are sorted by length within windows of 2^12 = 4096, so that they stay near each other.
WINDOW_BITS = 12


def _order(degree: Tensor) -> Tensor:
    """Rows sorted by length within windows, so that the rows of one worker have similar lengths."""
    rows = torch.arange(degree.shape[0], dtype=degree.dtype, device=degree.device)
    length = degree.clamp(max=SEGMENT + 1)
    # A shift: of arange(n) // 4096, Inductor computes only the first n // 4096 windows on a CPU.
    window = rows >> WINDOW_BITS
    key = window * (SEGMENT + 2) + length
    return torch.sort(key, stable=True).indices.to(degree.dtype)


@dataclass(frozen=True)
class Numbering:
    """The consecutive numbers of the senders, receivers or edges of many graphs in their union."""

    part: Tensor  # (all,) the graph of each
    before: Tensor  # (graphs,) their number in earlier graphs

    def shift(self, other: Numbering) -> Tensor:
        """The offset of these numbers at each of the `other`, (all of other,)."""
        return self.before.index_select(0, other.part)


def number_on(counts: list[int], index: torch.dtype, device: torch.device) -> Numbering:
    count = torch.tensor(counts, dtype=index, device=device)
    part = torch.repeat_interleave(count, output_size=sum(counts))
    return Numbering(part, count.cumsum(0, dtype=index) - count)


def join_rows(parts: list[Rows], rows: Numbering, neighbours: Numbering, edges: Numbering) -> Rows:
    # All but the first entry of each indptr, which is the end of the part before it.
    ends = torch.arange(1, rows.part.shape[0] + 1, device=rows.part.device) + rows.part
    ends = torch.cat([p.indptr for p in parts]).index_select(0, ends) + edges.shift(rows)
    return _cut(
        torch.cat([ends.new_zeros(1), ends]),
        torch.cat([p.neighbours for p in parts]) + neighbours.shift(edges),
        sum(p.long_rows.shape[0] for p in parts),
        sum(p.segment_owner.shape[0] for p in parts),
    )


def indptr_of(sorted_rows: Tensor, num_rows: int) -> Tensor:
    """The indptr of a sorted list of rows: (rows + 1,)."""
    rows = torch.arange(num_rows + 1, dtype=sorted_rows.dtype, device=sorted_rows.device)
    if sorted_rows.shape[0] <= 1:  # Inductor's searchsorted does not compile for a GPU then
        return (rows[:, None] > sorted_rows).sum(1).to(sorted_rows.dtype)
    return torch.searchsorted(sorted_rows, rows).to(sorted_rows.dtype)


def search_receivers(indptr: Tensor, slots: Tensor) -> Tensor:
    """The receiver of each of these slots, in the type of indptr. In a padded batch, slots at the
    end may belong to no receiver, and get the number of receivers.

    All of indptr is searched: in a slice, indptr[1:], Inductor may ignore where it begins on a GPU.
    """
    return torch.searchsorted(indptr, slots, right=True, out_int32=indptr.dtype == torch.int32) - 1


def row_of_slot(indptr: Tensor, num_edges: int) -> Tensor:
    rows = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=num_edges)


def index_type(*sizes: int) -> torch.dtype:
    return torch.int32 if max(sizes) < 2**31 - 1 else torch.int64
