"""Who sends to whom: the one description of a graph that every operation here reads."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pna.sharing import send_by_value

#: Rows with more slots than this are cut into segments of this length, so that a hub is
#: shared by many workers. Kernels keep a place in a shorter row in one byte, 255 meaning none.
SEGMENT = 255

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class Rows:
    """Compressed rows: one direction of an `Adjacency`, with its long rows cut in segments.

    Row i owns the slots ``indptr[i]`` to ``indptr[i+1]``; slot s leads to ``neighbours[s]``.
    Four fields describe the rows of more than `SEGMENT` slots. They may be longer than needed
    where their length could not be known without waiting for the device: spare entries of
    `long_rows` hold the number of rows, those of `segment_owner` the number of long rows, as
    many as fit in `long_rows`.
    """

    indptr: Tensor  # (rows + 1,)
    neighbours: Tensor  # (edges,)
    long_rows: Tensor  # (long,) which rows are long
    long_rank: Tensor  # (rows,) place of a row in long_rows, or -1
    long_indptr: Tensor  # (long + 1,) first segment of each long row
    segment_owner: Tensor  # (segments,) place in long_rows of the row a segment belongs to
    order: Tensor  # (rows,) rows of about equal length side by side, within windows

    @property
    def num_rows(self) -> int:
        return self.indptr.shape[0] - 1


@dataclass(frozen=True, eq=False)
class Adjacency:
    """In-neighbours of every receiver, and the transpose that the backward pass walks.

    Edges are sorted by receiver and, within a receiver, kept in the order they were given;
    a place in that order is a *slot*. Repeated edges and self-loops are edges like any other,
    nodes may have none, and there may be no nodes at all. Immutable, tensors only.
    """

    incoming: Rows  # by receiver: neighbours are senders
    outgoing: Rows  # by sender: neighbours are receivers
    edge_ids: Tensor  # (edges,) slot -> place of the edge as it was given
    out_ranks: Tensor  # (edges,) place in outgoing -> place in the receiver's row
    by_degree: Tensor  # (receivers,) receivers sorted by their degree, those of one in order

    @staticmethod
    def from_edge_index(
        edge_index: Tensor, num_nodes: int | tuple[int, int] | None = None
    ) -> Adjacency:
        """Build from ``edge_index`` (2, edges), where ``edge_index[0]`` sends to ``edge_index[1]``.

        `num_nodes` is the number of nodes, or (senders, receivers) of a bipartite graph; PyG's
        `EdgeIndex` may know it. Any integer type, any order. Indices are checked, except while
        compiling or capturing, when their values cannot be seen.
        """
        if num_nodes is None and hasattr(edge_index, "sparse_size"):
            known = edge_index.sparse_size()
            num_nodes = None if None in known else known
        edge_index = _plain(edge_index)
        num_senders, num_receivers = _sizes(num_nodes)
        _check_edge_index(edge_index, num_senders, num_receivers)
        index = _index_type(edge_index.shape[1], num_senders, num_receivers)
        senders, receivers = edge_index[0].to(index), edge_index[1].to(index)
        receivers, edge_ids = torch.sort(receivers, stable=True)
        edge_ids = edge_ids.to(index)
        indptr = _starts(receivers, num_receivers)
        cut = _cut_exactly if values_visible() else _cut_within_bounds
        senders = senders[edge_ids]
        transpose = _transpose(indptr, senders, receivers, num_senders)
        return _build(indptr, senders, transpose, edge_ids, cut)

    @staticmethod
    def from_csr(
        indptr: Tensor,
        senders: Tensor,
        num_senders: int | None = None,
        *,
        max_degree: int = -1,
        transpose: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Adjacency:
        """Build from rows already sorted by receiver; trusts its caller and never synchronises.

        A true upper bound `max_degree` on in- and out-degrees of at most `SEGMENT` spares the
        room kept for long rows. Who knows the `transpose` spares the sort of the edges: the first
        place of every sender, (senders + 1,), and of every place its receiver and its rank in
        the receiver's row, (edges,) each, ordered by sender and then by slot.
        """
        num_receivers = indptr.shape[0] - 1
        num_senders = num_receivers if num_senders is None else num_senders
        index = _index_type(senders.shape[0], num_senders, num_receivers)
        indptr, senders = indptr.to(index), senders.to(index)
        if transpose is None:
            receivers = _row_of_slot(indptr, senders.shape[0])
            transpose = _transpose(indptr, senders, receivers, num_senders)
        out_indptr, out_receivers, out_ranks = (part.to(index) for part in transpose)
        edge_ids = torch.arange(senders.shape[0], dtype=index, device=senders.device)
        cut = _cut_nothing if 0 <= max_degree <= SEGMENT else _cut_within_bounds
        return _build(indptr, senders, (out_indptr, out_receivers, out_ranks), edge_ids, cut)

    @staticmethod
    def from_sparse(matrix: Tensor) -> Adjacency:
        """Build from a torch sparse CSR or COO matrix A as in A @ x: row receives from column.

        Values are ignored; entries repeated in an uncoalesced COO matrix are repeated edges.
        """
        layout = getattr(matrix, "layout", None)
        if layout is torch.sparse_csr and matrix.dim() == 2:
            indptr, senders = matrix.crow_indices(), matrix.col_indices()
            edge_index = torch.stack([senders, _row_of_slot(indptr, senders.shape[0])])
        elif layout is torch.sparse_coo and matrix.sparse_dim() == 2:
            edge_index = matrix._indices().flip(0)
        else:
            raise TypeError(
                f"got a {type(matrix).__name__} of layout {layout} and shape "
                f"{tuple(getattr(matrix, 'shape', ()))}, expected a matrix of layout "
                "torch.sparse_csr or torch.sparse_coo; convert it with matrix.to_sparse_csr()"
            )
        return Adjacency.from_edge_index(edge_index, (matrix.shape[1], matrix.shape[0]))

    @staticmethod
    def disjoint_union(parts: Sequence[Adjacency]) -> Adjacency:
        """One graph from many side by side, nodes and edges numbered on; no edge is sorted."""
        if len(parts) == 0:
            raise ValueError("got an empty list, expected at least one Adjacency to join")
        if len(parts) == 1:
            return parts[0]
        incoming, outgoing = [p.incoming for p in parts], [p.outgoing for p in parts]
        num_edges = [p.num_edges for p in parts]
        counts = [r.num_rows for r in outgoing], [r.num_rows for r in incoming], num_edges
        index, device = _index_type(*map(sum, counts)), parts[0].device
        senders, receivers, edges = (_number_on(count, index, device) for count in counts)
        joined = _join_rows(incoming, receivers, senders, edges)
        return Adjacency(
            incoming=joined,
            outgoing=_join_rows(outgoing, senders, receivers, edges),
            edge_ids=torch.cat([p.edge_ids for p in parts]) + edges.shift(edges),
            out_ranks=torch.cat([p.out_ranks for p in parts]).to(index),
            by_degree=_by_degree(joined.indptr),
        )

    @property
    def num_receivers(self) -> int:
        """How many nodes may receive, isolated ones too."""
        return self.incoming.num_rows

    @property
    def num_senders(self) -> int:
        """How many nodes may send, isolated ones too."""
        return self.outgoing.num_rows

    @property
    def num_edges(self) -> int:
        """How many edges there are, repeated ones and self-loops too."""
        return self.edge_ids.shape[0]

    @property
    def device(self) -> torch.device:
        """Where all its tensors are."""
        return self.edge_ids.device

    @property
    def indptr(self) -> Tensor:
        """First slot of every receiver, and the end of the last: (receivers + 1,)."""
        return self.incoming.indptr

    @property
    def senders(self) -> Tensor:
        """Sender of every slot, (edges,)."""
        return self.incoming.neighbours

    @property
    def receivers(self) -> Tensor:
        """Receiver of every slot, (edges,), ascending."""
        return _row_of_slot(self.indptr, self.num_edges)

    @property
    def edge_index(self) -> Tensor:
        """Sender and receiver of every edge in the order they were given, (2, edges)."""
        slots = torch.stack([self.senders, self.receivers])
        return torch.empty_like(slots).index_copy(1, self.edge_ids.long(), slots)

    @property
    def out_slots(self) -> Tensor:
        """Slot of every place in `outgoing`, (edges,)."""
        return self.indptr[self.outgoing.neighbours] + self.out_ranks

    @property
    def degree(self) -> Tensor:
        """In-degree of every receiver, (receivers,)."""
        return self.incoming.indptr.diff()

    @property
    def out_degree(self) -> Tensor:
        """Out-degree of every sender, (senders,)."""
        return self.outgoing.indptr.diff()

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Adjacency:
        """A copy on another device; itself if it is there already."""
        if torch.device(device) == self.device:
            return self
        return _map(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    # PyG moves a graph by these too, and says nothing of an attribute that has them not.
    def cpu(self) -> Adjacency:
        return self.to("cpu")

    def cuda(self, device: str | int = "cuda", non_blocking: bool = False) -> Adjacency:
        return self.to(device, non_blocking)

    def pin_memory(self) -> Adjacency:
        return _map(self, Tensor.pin_memory)

    def __repr__(self) -> str:
        return (
            f"Adjacency({self.num_senders} senders, {self.num_receivers} receivers, "
            f"{self.num_edges} edges, {self.device})"
        )


# As inputs of compiled and exported code, in files, and between processes.
torch.export.register_dataclass(Rows, serialized_type_name="pna.Rows")
torch.export.register_dataclass(Adjacency, serialized_type_name="pna.Adjacency")
torch.serialization.add_safe_globals([Rows, Adjacency])
send_by_value(Rows, Adjacency)


def as_adjacency(
    edges: Adjacency | Sequence[Adjacency] | Tensor, num_nodes: int | tuple[int, int]
) -> Adjacency:
    """The Adjacency meant by whatever a layer was given.

    A bare ``edge_index`` is built once and remembered for as long as that tensor lives and torch
    knows of no write to it, as it does not of one by way of numpy or ``.data``; a list (what a PyG
    loader makes of one Adjacency per graph) is joined.
    """
    if isinstance(edges, Adjacency):
        return edges
    if isinstance(edges, Sequence) and all(isinstance(part, Adjacency) for part in edges):
        return Adjacency.disjoint_union(edges)
    if not isinstance(edges, Tensor):
        raise TypeError(
            f"got edges of type {type(edges).__name__}, expected an edge_index tensor (2, edges), "
            "a sparse matrix or a pna.Adjacency"
        )
    if not values_visible():
        return _from_tensor(edges, num_nodes)
    cacheable = not edges.is_inference()  # such a tensor does not tell when it is written to
    key = (_sizes(num_nodes), edges._version, _plain(edges)._version) if cacheable else None
    known = _remembered.get(edges)
    if known is not None and known[0] == key:
        return known[1]
    with torch.inference_mode(False):  # what is remembered may be wanted for training
        adjacency = _from_tensor(edges, num_nodes)
    if cacheable and not torch._C._functorch.is_functorch_wrapped_tensor(adjacency.edge_ids):
        _remembered[edges] = (key, adjacency)
    return adjacency


_remembered: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _from_tensor(edges: Tensor, num_nodes: int | tuple[int, int]) -> Adjacency:
    if edges.layout is not torch.strided:
        return Adjacency.from_sparse(edges)
    return Adjacency.from_edge_index(edges, num_nodes)


def _transpose(
    indptr: Tensor, senders: Tensor, receivers: Tensor, num_senders: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Starts, receivers and ranks of sorted edges in the order of their senders."""
    by_sender, out_slots = torch.sort(senders, stable=True)
    out_slots = out_slots.to(indptr.dtype)
    out_receivers = receivers[out_slots]
    return _starts(by_sender, num_senders), out_receivers, out_slots - indptr[out_receivers]


def _build(
    indptr: Tensor,
    senders: Tensor,
    transpose: tuple[Tensor, Tensor, Tensor],
    edge_ids: Tensor,
    cut: Callable[[Tensor, Tensor], Rows],
) -> Adjacency:
    """Finish an Adjacency from its sorted edges and their transpose: long rows are cut."""
    out_indptr, out_receivers, out_ranks = transpose
    return Adjacency(
        incoming=cut(indptr, senders),
        outgoing=cut(out_indptr, out_receivers),
        edge_ids=edge_ids,
        out_ranks=out_ranks,
        by_degree=_by_degree(indptr),
    )


def _by_degree(indptr: Tensor) -> Tensor:
    return torch.sort(indptr.diff(), stable=True).indices.to(indptr.dtype)


def _cut_exactly(indptr: Tensor, neighbours: Tensor) -> Rows:
    degree = indptr.diff()
    is_long = degree > SEGMENT
    pieces = torch.where(is_long, (degree + (SEGMENT - 1)) // SEGMENT, 0)
    num_long, num_segments = torch.stack([is_long.sum(), pieces.sum()]).tolist()
    return _cut(indptr, neighbours, num_long, num_segments)


def _cut_within_bounds(indptr: Tensor, neighbours: Tensor) -> Rows:
    """Each long row has more than SEGMENT slots, and one segment at most is not full."""
    edges = neighbours.shape[0]
    num_long, num_segments = edges // (SEGMENT + 1), 2 * (edges // SEGMENT)
    if torch.compiler.is_compiling():  # a length of 0 or 1 would have a program of its own
        num_long, num_segments = num_long + 2, num_segments + 2
    return _cut(indptr, neighbours, num_long, num_segments)


def _cut_nothing(indptr: Tensor, neighbours: Tensor) -> Rows:
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
    spare = torch.where(is_long, rank, num_long)  # short rows all write to one place past the end
    numbers = torch.arange(rows, dtype=index, device=indptr.device)
    long_rows = indptr.new_full((num_long + 1,), rows)
    long_rows = long_rows.scatter(0, spare.long(), numbers)[:num_long]
    padded_degree = torch.cat([degree, degree.new_zeros(1)])
    pieces = (padded_degree[long_rows] + (SEGMENT - 1)) // SEGMENT
    long_indptr = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)]).to(index)
    places = torch.arange(num_segments, dtype=index, device=indptr.device)
    segment_owner = (torch.searchsorted(long_indptr, places, right=True) - 1).to(index)
    segment_owner = torch.where(places < long_indptr[-1], segment_owner, num_long)
    return Rows(
        indptr, neighbours, long_rows, long_rank, long_indptr, segment_owner, _order(degree)
    )


#: Rows are put side by side by length within windows of 2^12 = 4096, which stay near each other.
_WINDOW_BITS = 12


def _order(degree: Tensor) -> Tensor:
    """Rows sorted by length within windows, so that those a worker walks together end together."""
    rows = torch.arange(degree.shape[0], dtype=degree.dtype, device=degree.device)
    length = degree.clamp(max=SEGMENT + 1)
    # A shift: of arange(n) // 4096, Inductor computes on a CPU only the first n // 4096 windows.
    window = rows >> _WINDOW_BITS
    key = window * (SEGMENT + 2) + length
    return torch.sort(key, stable=True).indices.to(degree.dtype)


@dataclass(frozen=True)
class _Numbering:
    """How the senders, receivers or edges of many graphs are numbered on in their union."""

    part: Tensor  # (all,) which graph each belongs to
    before: Tensor  # (graphs,) how many there are in the graphs before

    def shift(self, other: _Numbering) -> Tensor:
        """What to add to numbers of these that each of the `other` holds."""
        return self.before.index_select(0, other.part)


def _number_on(counts: list[int], index: torch.dtype, device: torch.device) -> _Numbering:
    count = torch.tensor(counts, dtype=index, device=device)
    part = torch.repeat_interleave(count, output_size=sum(counts))
    return _Numbering(part, count.cumsum(0, dtype=index) - count)


def _join_rows(
    parts: list[Rows], rows: _Numbering, neighbours: _Numbering, edges: _Numbering
) -> Rows:
    # Of each indptr all but the first entry, which is where the part before it ended.
    ends = torch.arange(1, rows.part.shape[0] + 1, device=rows.part.device) + rows.part
    ends = torch.cat([p.indptr for p in parts]).index_select(0, ends) + edges.shift(rows)
    return _cut(
        torch.cat([ends.new_zeros(1), ends]),
        torch.cat([p.neighbours for p in parts]) + neighbours.shift(edges),
        sum(p.long_rows.shape[0] for p in parts),
        sum(p.segment_owner.shape[0] for p in parts),
    )


def _starts(sorted_rows: Tensor, num_rows: int) -> Tensor:
    """First place of every row in a sorted list of rows, and its end: (rows + 1,)."""
    rows = torch.arange(num_rows + 1, dtype=sorted_rows.dtype, device=sorted_rows.device)
    if sorted_rows.shape[0] <= 1:  # over so few, Inductor's search does not compile for a GPU
        return (rows[:, None] > sorted_rows).sum(1).to(sorted_rows.dtype)
    return torch.searchsorted(sorted_rows, rows).to(sorted_rows.dtype)


def _row_of_slot(indptr: Tensor, num_edges: int) -> Tensor:
    rows = torch.arange(indptr.shape[0] - 1, dtype=indptr.dtype, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=num_edges)


def _index_type(*sizes: int) -> torch.dtype:
    return torch.int32 if max(sizes) < 2**31 - 1 else torch.int64


def values_visible() -> bool:
    """Whether tensor values may be read now: not while compiling, nor while capturing."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def values_readable() -> bool:
    """The same of tensors that torch.func's transforms may wrap."""
    return values_visible() and not torch._C._are_functorch_transforms_active()


def _plain(edge_index: Tensor) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            f"got edge_index of type {type(edge_index).__name__}, expected an integer tensor "
            "(2, edges); wrap it in torch.as_tensor"
        )
    return edge_index.as_tensor() if hasattr(edge_index, "as_tensor") else edge_index


def _sizes(num_nodes: int | tuple[int, int] | None) -> tuple[int, int]:
    if num_nodes is None:
        raise ValueError(
            "got no num_nodes, expected the number of nodes or (senders, receivers): the largest "
            "index cannot tell of isolated nodes; pass num_nodes=x.shape[0]"
        )
    pair = num_nodes if isinstance(num_nodes, tuple | list) else (num_nodes, num_nodes)
    try:
        senders, receivers = [
            size if isinstance(size, int | torch.SymInt) else operator.index(size) for size in pair
        ]
    except (TypeError, ValueError):
        raise TypeError(
            f"got num_nodes={num_nodes!r}, expected a whole number or a pair of them: "
            "(senders, receivers)"
        ) from None
    if any(isinstance(size, int) and size < 0 for size in (senders, receivers)):
        raise ValueError(f"got num_nodes={num_nodes!r}, expected a count of at least 0")
    return senders, receivers


def _check_edge_index(edge_index: Tensor, num_senders: int, num_receivers: int) -> None:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(
            f"got edge_index of shape {tuple(edge_index.shape)}, expected (2, edges): row 0 the "
            "senders, row 1 the receivers"
        )
    if edge_index.dtype not in _INTEGERS:
        raise TypeError(
            f"got edge_index of dtype {edge_index.dtype}, expected int64, int32, int16, int8 or "
            "uint8; convert it with edge_index.long()"
        )
    if edge_index.shape[1] == 0 or not values_visible():
        return
    low, high = torch.aminmax(edge_index, dim=1)
    bounds = torch.stack([low, high]).tolist()
    for row, (role, size) in enumerate([("sender", num_senders), ("receiver", num_receivers)]):
        if bounds[0][row] >= 0 and bounds[1][row] < size:
            continue
        indices = edge_index[row].long()  # in which size can be said, unlike in int8
        edge = int(((indices < 0) | (indices >= size)).nonzero()[0])
        raise ValueError(
            f"got {role} {int(indices[edge])} in edge {edge}, expected a node, counted "
            f"from 0 (num_nodes is {size}); renumber the nodes or correct num_nodes"
        )


def _map(value: Any, function: Any) -> Any:
    """A copy of a dataclass of tensors with `function` applied to each of them."""
    if isinstance(value, Tensor):
        return function(value)
    parts = {f.name: _map(getattr(value, f.name), function) for f in fields(value)}
    return type(value)(**parts)
