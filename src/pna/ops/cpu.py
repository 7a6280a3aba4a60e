"""CPU kernels of the fused statistics: cpu.c, called through ctypes on Python threads.

Every kernel works on a range of rows and a range of tiles (features that fit a cache line). A row
and tile have one owner and a fixed order of summation, so that results do not depend on how many
threads share the work.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pna.adjacency import Adjacency, Rows
from pna.ops.statistics import KINDS, Request, Saved, wide_type

_REMEDY = "install a C compiler and reinstall pna"

#: Kernels, tile width and edge forms, numbered as in cpu.c.
_FORWARD, _CENTRE, _SLOPES, _SENDERS, _EXTREMA, _EDGES, _COEFFICIENTS = range(7)
_LINE = 64
_NO_EDGE, _DENSE, _TABLE, _COEFFICIENT_FORM = range(4)

#: What a row costs beside its slots, as in cpu.c, and the least work worth a thread, in messages
#: of one feature.
_ROW_COST = 4
_LEAST_WORK = 2**17

_Piece = tuple[int, int, int, int]  # first row, end of rows, first tile, end of tiles
_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Problem(ctypes.Structure):
    """`struct problem` of cpu.c, which says what each field is."""

    _fields_ = (
        *[(name, _INTEGER) for name in ("is_double", "is_long_index")],
        *[(name, _INTEGER) for name in ("num_receivers", "num_senders", "num_edges")],
        *[(name, _POINTER) for name in ("indptr", "senders", "long_rank", "edge_ids")],
        *[(name, _POINTER) for name in ("out_indptr", "receivers", "out_ranks")],
        *[(name, _INTEGER) for name in ("features", "x_stride")],
        ("x", _POINTER),
        *[(name, _INTEGER) for name in ("edge_form", "edge_stride", "edge_rows")],
        *[(name, _POINTER) for name in ("edge", "at", "weight")],
        ("num_kinds", _INTEGER),
        ("place", _INTEGER * len(KINDS)),
        ("clamp", _INTEGER),
        ("epsilon", ctypes.c_double),
        ("mean_stride", _INTEGER),
        *[(name, _POINTER) for name in ("out", "mean", "places", "long_places")],
        ("grad", _POINTER),
        ("slopes_stride", _INTEGER),
        *[(name, _POINTER) for name in ("centre", "slopes")],
        *[(name, _POINTER) for name in ("grad_x", "grad_edge", "grad_at", "totals")],
    )


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library made from cpu.c, or the reason why there is none."""
    spec = importlib.util.find_spec("pna.ops._cpu")
    if spec is None or spec.origin is None:
        reason = "the C kernel was not built: no compiler was found when pna was installed"
        return None, f"{reason}; {_REMEDY}"
    try:
        library = ctypes.CDLL(spec.origin)
        library.pna_problem_size.restype = _INTEGER
        same = library.pna_problem_size() == ctypes.sizeof(_Problem)
    except (OSError, AttributeError) as error:
        return None, f"the C kernel {spec.origin} cannot be loaded: {error}; {_REMEDY}"
    if not same:
        return None, f"the C kernel {spec.origin} belongs to another version of pna; {_REMEDY}"
    library.pna_run.argtypes = [_INTEGER, ctypes.POINTER(_Problem)] + [_INTEGER] * 4
    library.pna_run.restype = None
    library.pna_split.argtypes = [_POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER]
    library.pna_split.restype = _INTEGER
    return library, None


_library, _reason = _load()


def unavailable() -> str | None:
    """Why the C kernels cannot run here, with the remedy; None where they can."""
    return _reason


def forward(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
) -> None:
    """Write the statistics of the messages to `saved`."""
    task = _Task(x, edge, at, adjacency, request)
    out = task.wide(saved.out, read=False)
    task.point(out=out, places=saved.places, long_places=saved.long_places)
    if saved.mean.shape[0] > 0:
        task.point(mean=saved.mean)
        task.problem.mean_stride = x.shape[1]
    task.run(_FORWARD, adjacency.incoming)
    if out is not saved.out:
        saved.out.copy_(out)


def backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Adjacency,
    request: Request,
    saved: Saved,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write to `grads` the gradients of x, edge and at; those of no length are not needed."""
    task = _Task(x, edge, at, adjacency, request)
    rows, features = adjacency.num_receivers, x.shape[1]
    out = task.wide(saved.out)
    task.point(grad=task.wide(grad), out=out, places=saved.places, long_places=saved.long_places)
    centre = x.new_zeros(task.tiles * task.lanes, dtype=task.dtype)
    task.point(centre=centre)
    if request.needs_spread:
        own = saved.mean.shape[0] > 0
        task.point(mean=saved.mean if own else out[:, request.place("mean")])
        task.problem.mean_stride = features * (1 if own else len(request.kinds))
        _share(_CENTRE, task.problem, [(0, rows, 0, task.tiles)], 1)
    parts = 1 + request.needs_spread + ("normalised_mean" in request.kinds)
    task.point(slopes=x.new_empty((rows, parts, centre.shape[0]), dtype=task.dtype))
    task.problem.slopes_stride = centre.shape[0]
    task.run(_SLOPES, adjacency.incoming)

    results = [task.wide(g, read=False) for g in grads]
    grad_x, grad_edge, grad_at = results
    if grad_x.numel() > 0:
        task.point(grad_x=grad_x)
        task.run(_SENDERS, adjacency.outgoing)
        if request.needs_extrema:
            task.run(_EXTREMA, adjacency.incoming)
    if grad_edge.numel() > 0 and at is None:
        task.point(grad_edge=grad_edge)
        task.run(_EDGES, adjacency.incoming)
    elif grad_edge.numel() > 0:
        totals = torch.zeros(grad_edge.shape, dtype=torch.float64)
        task.point(totals=totals)
        task.run(_EDGES, adjacency.incoming)
        grad_edge.copy_(totals)
    if grad_at.numel() > 0:
        task.point(grad_at=grad_at)
        task.run(_COEFFICIENTS, adjacency.incoming)
    for result, g in zip(results, grads, strict=True):
        if result is not g:
            g.copy_(result)


class _Task:
    """A problem as the kernels see it, and the tensors that must outlive their calls."""

    def __init__(
        self,
        x: Tensor,
        edge: Tensor | None,
        at: Tensor | None,
        adjacency: Adjacency,
        request: Request,
    ) -> None:
        self.dtype = wide_type(x.dtype)
        self.lanes = _LINE // self.dtype.itemsize
        self.tiles = -(-x.shape[1] // self.lanes)
        self.tensors: list[Tensor] = []
        index = adjacency.indptr.dtype
        self.problem = _Problem(
            is_double=self.dtype == torch.float64,
            is_long_index=index == torch.int64,
            num_receivers=adjacency.num_receivers,
            num_senders=adjacency.num_senders,
            num_edges=adjacency.num_edges,
            features=x.shape[1],
            num_kinds=len(request.kinds),
            place=tuple(request.place(kind) for kind in KINDS),
            clamp=request.clamp,
            epsilon=request.epsilon,
        )
        incoming, outgoing = adjacency.incoming, adjacency.outgoing
        self.point(
            indptr=incoming.indptr,
            senders=incoming.neighbours,
            long_rank=incoming.long_rank,
            edge_ids=adjacency.edge_ids,
            out_indptr=outgoing.indptr,
            receivers=outgoing.neighbours,
            out_ranks=adjacency.out_ranks,
        )
        x = _rows(x.to(self.dtype))
        self.point(x=x)
        self.problem.x_stride = x.stride(0)
        if edge is not None:
            self._take_edge(edge, at, index)
        if "normalised_mean" in request.kinds:
            degree = adjacency.out_degree.clamp(min=1)
            self.point(weight=degree.to(self.dtype).rsqrt())

    def _take_edge(self, edge: Tensor, at: Tensor | None, index: torch.dtype) -> None:
        edge = _rows(edge.to(self.dtype))
        self.point(edge=edge)
        self.problem.edge_stride = edge.stride(0)
        self.problem.edge_rows = edge.shape[0]
        self.problem.edge_form = _DENSE
        if at is None:
            return
        if at.is_floating_point():
            self.problem.edge_form = _COEFFICIENT_FORM
            self.point(at=at.to(self.dtype).contiguous())
        else:
            _check_table(at, edge.shape[0])
            self.problem.edge_form = _TABLE
            self.point(at=at.to(index).contiguous())

    def point(self, **tensors: Tensor) -> None:
        """Let fields of the problem point at tensors, and keep those alive."""
        for name, tensor in tensors.items():
            setattr(self.problem, name, tensor.data_ptr())
            self.tensors.append(tensor)

    def wide(self, tensor: Tensor, read: bool = True) -> Tensor:
        """The tensor, contiguous and of the type that the kernels compute in."""
        if read or tensor.dtype == self.dtype:
            return tensor.to(self.dtype).contiguous()
        return torch.empty_like(tensor, dtype=self.dtype)

    def run(self, kernel: int, rows: Rows) -> None:
        """Run a kernel over all rows and tiles, shared by the threads of torch."""
        threads = torch.get_num_threads()
        work = (rows.neighbours.shape[0] + _ROW_COST * rows.num_rows) * self.problem.features
        pieces = [(0, rows.num_rows, 0, self.tiles)]
        if threads > 1 and work >= 2 * _LEAST_WORK:
            pieces = self._cut(kernel, rows, min(4 * threads, work // _LEAST_WORK), threads)
        _share(kernel, self.problem, pieces, threads)

    def _cut(self, kernel: int, rows: Rows, parts: int, threads: int) -> list[_Piece]:
        """Pieces of about equal work: of rows, or of tiles where these have the one owner."""
        assert _library is not None
        bounds = (_INTEGER * (parts + 1))(0, rows.num_rows)
        by_tile = kernel == _EXTREMA or (kernel == _EDGES and self.problem.edge_form != _DENSE)
        largest = 0
        if by_tile:
            parts = 1
        else:
            indptr, is_long = rows.indptr.data_ptr(), self.problem.is_long_index
            largest = _library.pna_split(indptr, is_long, rows.num_rows, parts, bounds)
        work = rows.neighbours.shape[0] + _ROW_COST * rows.num_rows
        hub = largest * parts > 2 * work and kernel != _COEFFICIENTS
        bands = min(threads, self.tiles) if by_tile or hub else 1
        edges = [self.tiles * band // bands for band in range(bands + 1)]
        return [
            (bounds[part], bounds[part + 1], edges[band], edges[band + 1])
            for part in range(parts)
            for band in range(bands)
        ]


def _share(kernel: int, problem: _Problem, pieces: Sequence[_Piece], threads: int) -> None:
    """Run a kernel on every piece; the calling thread works too."""
    assert _library is not None
    run, reference, waiting = _library.pna_run, ctypes.byref(problem), deque(pieces)

    def take_pieces() -> None:
        while waiting:
            try:
                piece = waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            run(kernel, reference, *piece)

    helpers = [_pool().submit(take_pieces) for _ in range(min(threads, len(pieces)) - 1)]
    try:
        take_pieces()
    finally:  # whatever happens, memory must not be given back while a helper writes to it
        for helper in helpers:
            if not helper.cancel():
                helper.result()


_threads: ThreadPoolExecutor | None = None


def _pool() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="pna")
    return _threads


def _forget_pool() -> None:
    global _threads
    _threads = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def _check_table(at: Tensor, length: int) -> None:
    if at.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(at))
    if low >= 0 and high < length:
        return
    edge = int(((at < 0) | (at >= length)).nonzero()[0])
    raise ValueError(
        f"got row {int(at[edge])} of the edge table in edge {edge}, expected 0 to {length - 1} "
        f"(the table has {length} rows); correct the index or lengthen the table"
    )
