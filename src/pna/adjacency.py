"""`Adjacency`: the edges of a graph, as every operation of the package reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pna import fast_paths, native
from pna.converters import dgl_edges, networkx_edges, remedy, scipy_edges
from pna.edge_checks import (
    both_sizes,
    check_degree,
    check_degree_form,
    check_edge_index,
    check_form,
    plain,
)
from pna.rows import (
    SEGMENT,
    WINDOW_BITS,
    Rows,
    cut_exactly,
    cut_nothing,
    cut_within_bounds,
    index_type,
    indptr_of,
    join_rows,
    number_on,
    row_of_slot,
    search_receivers,
    segment_bounds,
    transposed,
)
from pna.sharing import map_tensors, send_by_value
from pna.torch_internals import assert_async, in_transform, is_exporting, is_wrapped
from pna.visible import outside_inference, values_readable, values_visible

#: Bytes of an Adjacency for each edge and for each node, below 2^31 of them.
BYTES_PER_EDGE, BYTES_PER_NODE = 4 * 4, 7 * 4

#: With more edges than this, `from_edge_index` waits for a GPU to count the long rows. Spare
#: entries would cost memory: kernels reserve it for 2 segments of every 255 edges. With 128
#: features these are 6 MB for 2^18 edges, and 38 MB for 1.6 million, in the forward pass alone.
MOST_SPARE = 2**18

#: The most edges, and the most nodes, that a kernel orders by comparing all of them on a GPU.
MOST_RANKED = 2**14

#: Of a device-side assertion, which can give no numbers.
_BAD_INDEX = (
    "edge_index has an index that is no node: call pna.check(edge_index, num_nodes), which says "
    "which one"
)

_BAD_DEGREE = (
    "degree has one that is less than the number of the node's edges: call pna.check(edge_index, "
    "num_nodes, degree), which says which one"
)

#: The end of an error inside TorchScript.
WITHOUT_TORCHSCRIPT = (
    "expected torch.compile(model), or torch.export.export(model, …) for a program to save: "
    "TorchScript cannot hold the kernels and the sorted edges of this package"
)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The in-neighbours of every receiver, and the transpose for the backward pass. Immutable.

    Edges are sorted by receiver, in their given order within a receiver; an index in this order is
    a *slot*. Repeated edges and self-loops are allowed. Nodes may have no edges, and a graph may
    have no nodes.
    """

    incoming: Rows  # by receiver: neighbours are senders
    outgoing: Rows  # by sender: neighbours are receivers
    edge_ids: Tensor  # (edges,) slot -> index of the edge in the given order
    out_ranks: Tensor  # (edges,) index in outgoing -> index in the receiver's row
    by_degree: Tensor  # (receivers,) receivers sorted by `reached_degree`, stable
    #: In-degree of every receiver, (receivers,), for scalers: see `with_degree`.
    degree: Tensor

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        num_nodes: int | tuple[int, int] | None = None,
        degree: Tensor | None = None,
    ) -> Adjacency:
        """Build from ``edge_index`` (2, edges), where ``edge_index[0]`` sends to ``edge_index[1]``.

        `num_nodes` is the number of nodes, or (senders, receivers) of a bipartite graph; PyG's
        `EdgeIndex` may hold it. Edges may have any integer type and order. With `degree`, these are
        some of the edges of a graph whose in-degrees are known: see `with_degree`.

        Indices are checked, except in compiled or captured code, which cannot read their values. A
        bad index raises at once on a CPU. On a GPU it raises at the latest at the next
        synchronisation, without saying which index it was: see `pna.check`.
        """
        adjacency = _of_edge_index(edge_index, num_nodes)
        return adjacency if degree is None else adjacency.with_degree(degree)

    @staticmethod
    def from_csr(
        indptr: Tensor,
        senders: Tensor,
        num_senders: int | None = None,
        *,
        max_degree: int = -1,
        transpose: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Adjacency:
        """Build from rows sorted by receiver, without checks.

        Many edges wait for the device, to count the long rows; few do not.

        If `max_degree`, an upper bound on in- and out-degrees, is at most `SEGMENT`, no memory is
        reserved for long rows. A known `transpose` saves a sort: the indptr by sender (senders +
        1,), then the receiver of every edge and its rank in the receiver's row, (edges,) each,
        ordered by sender and then by slot.
        """
        num_receivers = indptr.shape[0] - 1
        num_senders = num_receivers if num_senders is None else num_senders
        index = index_type(senders.shape[0], num_senders, num_receivers)
        indptr, senders = indptr.to(index), senders.to(index)
        if transpose is None:
            receivers = row_of_slot(indptr, senders.shape[0])
            transpose = transposed(indptr, senders, receivers, num_senders)
        out_indptr, out_receivers, out_ranks = (part.to(index) for part in transpose)
        edge_ids = torch.arange(senders.shape[0], dtype=index, device=senders.device)
        cut: Callable[[Tensor, Tensor], Rows] = cut_within_bounds
        if 0 <= max_degree <= SEGMENT:
            cut = cut_nothing
        elif values_readable() and not senders.is_meta and senders.shape[0] > MOST_SPARE:
            cut = cut_exactly
        return _build(indptr, senders, (out_indptr, out_receivers, out_ranks), edge_ids, cut)

    @staticmethod
    def from_sparse(matrix: Tensor) -> Adjacency:
        """Build from a torch sparse CSR or COO matrix A as in A @ x: row receives from column.

        Values are ignored; entries repeated in an uncoalesced COO matrix are repeated edges.
        """
        layout = getattr(matrix, "layout", None)
        if layout is torch.sparse_csr and matrix.dim() == 2:
            indptr, senders = matrix.crow_indices(), matrix.col_indices()
            edge_index = torch.stack([senders, row_of_slot(indptr, senders.shape[0])])
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
    def from_networkx(graph: Any, nodes: Iterable[Any] | None = None) -> Adjacency:
        """Build from a NetworkX graph of any kind: directed or not, with repeated edges or not.

        Node i is the i-th of ``graph.nodes``, or of `nodes`, which must list every node once. An
        undirected edge becomes one edge in each direction, a self-loop one edge. Edges are in the
        order of ``graph.to_directed().edges``.
        """
        edge_index, _ = networkx_edges(graph, nodes)
        return Adjacency.from_edge_index(edge_index, len(graph))

    @staticmethod
    def from_scipy(matrix: Any) -> Adjacency:
        """Build from a SciPy sparse matrix A of any format as in A @ x: row receives from column.

        Edges are the stored entries, in the order of ``matrix.tocoo()``; their values are ignored.
        Entries that are stored twice are repeated edges (see ``matrix.sum_duplicates()``).
        """
        return Adjacency.from_edge_index(scipy_edges(matrix), (matrix.shape[1], matrix.shape[0]))

    @staticmethod
    def from_dgl(graph: Any) -> Adjacency:
        """Build from a DGL graph, or a block, with one type of nodes and edges.

        Nodes and edges keep their numbers, on the device of the graph. The senders and receivers of
        a block are its source and destination nodes.
        """
        return Adjacency.from_edge_index(*dgl_edges(graph))

    @staticmethod
    def disjoint_union(parts: Sequence[Adjacency]) -> Adjacency:
        """One graph from many, with consecutive numbers of nodes and edges. No edge is sorted."""
        if len(parts) == 0:
            raise ValueError("got an empty list, expected at least one Adjacency to join")
        if len(parts) == 1:
            return parts[0]
        incoming, outgoing = [p.incoming for p in parts], [p.outgoing for p in parts]
        num_edges = [p.num_edges for p in parts]
        counts = [r.num_rows for r in outgoing], [r.num_rows for r in incoming], num_edges
        index, device = index_type(*map(sum, counts)), parts[0].device
        senders, receivers, edges = (number_on(count, index, device) for count in counts)
        degree = torch.cat([p.degree for p in parts]).to(index)
        joined = join_rows(incoming, receivers, senders, edges)
        return Adjacency(
            incoming=joined,
            outgoing=join_rows(outgoing, senders, receivers, edges),
            edge_ids=torch.cat([p.edge_ids for p in parts]) + edges.shift(edges),
            out_ranks=torch.cat([p.out_ranks for p in parts]).to(index),
            by_degree=_by_degree(_where_reached(degree, joined)),
            degree=degree,
        )

    def with_degree(self, degree: Tensor) -> Adjacency:
        """The same edges, of receivers that have these in-degrees in a larger graph, (receivers,).

        A neighbour-sampled batch lacks edges. Scalers need the degrees of the whole graph:
        ``degree = full_degree[batch.n_id]`` in PyG. Scalers, `pna.nn.GCNConv` and
        `pna.nn.MoNetConv` use them. All aggregators, including normalised_mean, take the edges that
        are present. The aggregates of a receiver without edges are 0, whatever its degree.

        A degree below the number of edges that are present raises at once on a CPU. On a GPU it
        raises at the latest at the next synchronisation, without saying which it was: see
        `pna.check`.
        """
        check_degree_form(degree, self.num_receivers, self.device)
        if values_readable():
            if degree.device.type == "cpu":
                check_degree(degree, self.incoming.lengths)
            else:
                assert_async((degree >= self.incoming.lengths).all(), _BAD_DEGREE)
        degree = degree.to(self.edge_ids.dtype, copy=True)
        by_degree = _by_degree(_where_reached(degree, self.incoming))
        return Adjacency(
            self.incoming, self.outgoing, self.edge_ids, self.out_ranks, by_degree, degree
        )

    @property
    def reached_degree(self) -> Tensor:
        """`degree`, but 0 without edges, (receivers,): equal ones have equal factors of scalers."""
        return _where_reached(self.degree, self.incoming)

    @property
    def num_receivers(self) -> int:
        """Number of receivers, including isolated ones."""
        return self.incoming.num_rows

    @property
    def num_senders(self) -> int:
        """Number of senders, including isolated ones."""
        return self.outgoing.num_rows

    @property
    def num_edges(self) -> int:
        """Number of edges, including repeated ones and self-loops."""
        return self.edge_ids.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
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
        return row_of_slot(self.indptr, self.num_edges)

    @property
    def edge_index(self) -> Tensor:
        """Sender and receiver of every edge in the given order, (2, edges)."""
        slots = torch.stack([self.senders, self.receivers])
        return torch.empty_like(slots).index_copy(1, self.edge_ids.long(), slots)

    @property
    def out_slots(self) -> Tensor:
        """Slot of every edge of `outgoing`, (edges,)."""
        return self.indptr[self.outgoing.neighbours] + self.out_ranks

    @property
    def out_degree(self) -> Tensor:
        """Out-degree of every sender, (senders,)."""
        return self.outgoing.indptr.diff()

    def reversed(self) -> Adjacency:
        """The graph with all edges turned round: senders receive. Edges keep their order. Degrees
        are the numbers of edges, also if this Adjacency has others (`with_degree`).

        It is made once, unless in compiled code, and kept while this Adjacency lives.
        """
        known = None if torch.compiler.is_compiling() else _reversed.get(self)
        if known is None and not values_visible():
            return _turn(self)
        if known is None:
            with outside_inference():
                known = _reversed[self] = _turn(self)
        return known

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Adjacency:
        """A copy on another device; itself if it is already there."""
        if torch.device(device) == self.device:
            return self
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), self)

    # PyG moves a graph by these methods too, and silently skips an attribute without them.
    def cpu(self) -> Adjacency:
        return self.to("cpu")

    def cuda(self, device: str | int = "cuda", non_blocking: bool = False) -> Adjacency:
        return self.to(device, non_blocking)

    def pin_memory(self) -> Adjacency:
        return map_tensors(Tensor.pin_memory, self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "degree" not in state:  # a file of an earlier version
            self.__dict__["degree"] = self.indptr.diff()

    def __repr__(self) -> str:
        return (
            f"Adjacency({self.num_senders} senders, {self.num_receivers} receivers, "
            f"{self.num_edges} edges, {self.device})"
        )


# For inputs of compiled and exported code, in files, and to send between processes.
torch.export.register_dataclass(Rows, serialized_type_name="pna.Rows")
torch.export.register_dataclass(Adjacency, serialized_type_name="pna.Adjacency")
torch.serialization.add_safe_globals([Rows, Adjacency])
send_by_value(Rows, Adjacency)


def as_adjacency(
    edges: Adjacency | Sequence[Adjacency] | Tensor, num_nodes: int | tuple[int, int]
) -> Adjacency:
    """The Adjacency of the edges that were given to a layer.

    A list, which a PyG loader makes of one Adjacency per graph, is joined. The Adjacency of an
    ``edge_index`` is cached while the tensor lives and torch knows of no write to it. Torch does
    not know of writes through numpy or ``.data``. A `SparseTensor` of torch_sparse is converted at
    every call.
    """
    refuse_tracing()
    if isinstance(edges, Adjacency):
        return edges
    if isinstance(edges, Sequence) and all(isinstance(part, Adjacency) for part in edges):
        return Adjacency.disjoint_union(edges)
    if is_sparse_tensor(edges):
        indptr, senders, _ = edges.csr()
        return Adjacency.from_csr(indptr, senders, edges.sparse_sizes()[1])
    if not isinstance(edges, Tensor):
        raise TypeError(
            f"got edges of type {type(edges).__name__}, expected an edge_index tensor (2, edges), "
            f"a torch sparse matrix or a pna.Adjacency; {remedy(edges)}"
        )
    if not values_visible():
        return _from_tensor(edges, num_nodes)
    cacheable = not edges.is_inference()  # such a tensor has no version counter
    key = (both_sizes(num_nodes), edges._version, plain(edges)._version) if cacheable else None
    known = _cache.get(edges)
    if known is not None and known[0] == key:
        return known[1]
    with outside_inference():  # training may use the cached value
        adjacency = _from_tensor(edges, num_nodes)
    if cacheable and not is_wrapped(adjacency.edge_ids):
        _cache[edges] = (key, adjacency)
    return adjacency


def is_sparse_tensor(edges: object) -> TypeGuard[Any]:
    """Whether this is an ``adj_t`` of torch_sparse: a row receives from its columns."""
    return type(edges).__name__ == "SparseTensor" and hasattr(edges, "csr")


def values_of(edges: Any) -> Tensor | None:
    """Features of the edges that a sparse matrix contains as values, (edges, features), as in PyG;
    None if it has none, or one number for each edge."""
    values = None
    if is_sparse_tensor(edges):
        values = edges.csr()[2]
    elif isinstance(edges, Tensor) and edges.layout is torch.sparse_coo:
        values = edges.values() if edges.is_coalesced() else edges._values()
        if edges.requires_grad and not values.requires_grad and values.dim() > 1:
            raise ValueError(
                "got edge features in a sparse matrix that is not coalesced, which gives them no "
                "gradient, expected a coalesced one; call matrix.coalesce()"
            )
    return values if values is not None and values.dim() > 1 else None


def refuse_tracing() -> None:
    """Raise inside `torch.jit.trace`, which would keep the sorted edges of its example."""
    if torch.jit.is_tracing():
        raise TypeError(f"got edges in torch.jit.trace, {WITHOUT_TORCHSCRIPT}")


_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_reversed: WeakKeyDictionary[Adjacency, Adjacency] = WeakKeyDictionary()


def _turn(adjacency: Adjacency) -> Adjacency:
    sizes = (adjacency.num_receivers, adjacency.num_senders)
    return Adjacency.from_edge_index(adjacency.edge_index.flip(0), sizes)


def _from_tensor(edges: Tensor, num_nodes: int | tuple[int, int]) -> Adjacency:
    if edges.layout is not torch.strided:
        return Adjacency.from_sparse(edges)
    return Adjacency.from_edge_index(edges, num_nodes)


def _of_edge_index(edge_index: Tensor, num_nodes: int | tuple[int, int] | None) -> Adjacency:
    if num_nodes is None and hasattr(edge_index, "sparse_size"):
        known = edge_index.sparse_size()
        num_nodes = None if None in known else known
    edge_index = plain(edge_index)
    num_senders, num_receivers = both_sizes(num_nodes)
    check_form(edge_index)
    index = index_type(edge_index.shape[1], num_senders, num_receivers)
    if _is_built_on_the_gpu(edge_index, index, num_senders, num_receivers):
        return _build_on_the_gpu(edge_index, num_senders, num_receivers)
    if _is_built_in_c(edge_index, index):
        built = native.build(edge_index, num_senders, num_receivers, SEGMENT)
        if built is not None:
            return _of_arrays(built)
    if _is_ranked(edge_index, index, num_senders, num_receivers):
        from pna.ops.ranking import rank_edges  # which needs this module

        indptr, senders, *transpose, edge_ids, ranks = rank_edges(
            edge_index, num_senders, num_receivers
        )
        return _build(indptr, senders, (*transpose, ranks), edge_ids, cut_within_bounds)
    check_edge_index(edge_index, num_senders, num_receivers)
    cut = cut_exactly if values_visible() else cut_within_bounds
    return _sort(edge_index.to(index), num_senders, num_receivers, cut)


def _is_built_in_c(edge_index: Tensor, index: torch.dtype) -> bool:
    if edge_index.device.type != "cpu" or index != torch.int32 or not values_readable():
        return False
    return native.can_build() and fast_paths.is_on("build")


def _is_built_on_the_gpu(
    edge_index: Tensor, index: torch.dtype, num_senders: int, num_receivers: int
) -> bool:
    """Whether Triton kernels make the arrays. They cannot clamp indices if there are no nodes."""
    if edge_index.device.type != "cuda" or index != torch.int32 or not values_readable():
        return False
    no_node = edge_index.shape[1] > 0 and min(num_senders, num_receivers) == 0
    if no_node or type(edge_index) is not Tensor:
        return False
    from pna.ops.backend import has_triton  # which needs this module

    return has_triton() and fast_paths.is_on("build")


def _is_ranked(
    edge_index: Tensor, index: torch.dtype, num_senders: int, num_receivers: int
) -> bool:
    """Whether a kernel orders the edges in compiled code. An exported program may run anywhere."""
    if not torch.compiler.is_compiling() or is_exporting() or in_transform():
        return False
    if index != torch.int32:
        return False
    from pna.ops.backend import choose  # which needs this module

    if choose(edge_index.device) != "triton" or not fast_paths.is_on("build"):
        return False
    return all(size <= MOST_RANKED for size in (edge_index.shape[1], num_senders, num_receivers))


def _build_on_the_gpu(edge_index: Tensor, num_senders: int, num_receivers: int) -> Adjacency:
    from pna.ops.triton import adjacency as kernels

    num_edges = edge_index.shape[1]
    # lengths of 0 and 1 would be compiled separately
    bounds = segment_bounds(num_edges, least=2) if num_edges <= MOST_SPARE else None
    sizes = kernels.Sizes(num_edges, num_senders, num_receivers, SEGMENT, WINDOW_BITS)
    built, all_exist = kernels.build(edge_index, sizes, bounds)
    assert_async(all_exist, _BAD_INDEX)
    return _of_arrays(built)


def _of_arrays(built: native.Built) -> Adjacency:
    incoming, outgoing, rest = built
    return Adjacency(Rows(*incoming), Rows(*outgoing), *rest)


def _sort(
    edge_index: Tensor, num_senders: int, num_receivers: int, cut: Callable[[Tensor, Tensor], Rows]
) -> Adjacency:
    """The definition, by torch's sorts, of edges (2, edges) in the type of indices."""
    receivers, edge_ids = torch.sort(edge_index[1], stable=True)
    edge_ids = edge_ids.to(edge_index.dtype)
    indptr, senders = indptr_of(receivers, num_receivers), edge_index[0][edge_ids]
    transpose = transposed(indptr, senders, receivers, num_senders)
    return _build(indptr, senders, transpose, edge_ids, cut)


def group_slots(
    adjacency: Adjacency, group: Tensor, groups: int, wait: bool
) -> tuple[Rows, Tensor, Tensor]:
    """The slots of every group. `group` (edges,) has that of every slot; a slot of another group
    than 0 to groups - 1 is left out. `wait` says whether it may wait for the device.

    Returns rows whose `neighbours` are receivers; the rank of each slot in the row of its receiver;
    and the slots themselves.
    """
    indptr, edges = adjacency.indptr, adjacency.num_edges
    slots = torch.arange(edges, dtype=indptr.dtype, device=indptr.device)
    receivers = search_receivers(indptr, slots)
    group = torch.where(slots < indptr[-1], group, groups).to(indptr.dtype)
    starts, receivers, ranks = transposed(indptr, group, receivers, groups)
    cut = cut_exactly if wait and edges > MOST_SPARE else cut_within_bounds
    return cut(starts, receivers), ranks, indptr[receivers] + ranks


def _build(
    indptr: Tensor,
    senders: Tensor,
    transpose: tuple[Tensor, Tensor, Tensor],
    edge_ids: Tensor,
    cut: Callable[[Tensor, Tensor], Rows],
) -> Adjacency:
    """Build an Adjacency from sorted edges and their transpose."""
    out_indptr, out_receivers, out_ranks = transpose
    degree = indptr.diff()
    return Adjacency(
        incoming=cut(indptr, senders),
        outgoing=cut(out_indptr, out_receivers),
        edge_ids=edge_ids,
        out_ranks=out_ranks,
        by_degree=_by_degree(degree),
        degree=degree,
    )


def _where_reached(degree: Tensor, rows: Rows) -> Tensor:
    return torch.where(rows.indptr[1:] > rows.indptr[:-1], degree, 0)


def _by_degree(degree: Tensor) -> Tensor:
    return torch.sort(degree, stable=True).indices.to(degree.dtype)
