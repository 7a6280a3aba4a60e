"""CPU kernels of the fused statistics: cpu.c, called through ctypes from Python threads.

A kernel works on a range of rows and a range of tiles (features that fill a cache line). Every
result has one owner and a fixed order of summation, so that it does not depend on the number of
threads.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.native import OTHER_VERSION, find_library, size_of
from pna.ops.request import (
    BASIS,
    DENSE,
    KINDS,
    NO_EDGE,
    TABLE,
    WEIGHTS,
    Messages,
    Request,
    Saved,
    check_table,
    wide_type,
)
from pna.rows import Rows

#: Kernels, numbered as in cpu.c, and the bytes in a tile.
_FORWARD, _SLOPES, _SENDERS, _EXTREMA, _EDGES, _COEFFICIENTS = range(6)
_LINE = 64

#: The least work that is worth a thread, in elements read.
_LEAST_WORK = 2**17

_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p
_Piece = tuple[int, int, int, int]  # first row, end row, first tile, end tile


class _Problem(ctypes.Structure):
    """`struct problem` of cpu.c, which documents the fields."""

    _fields_ = (
        *[(name, _INTEGER) for name in ("is_double", "is_long_index")],
        *[(name, _INTEGER) for name in ("num_receivers", "num_senders", "num_edges")],
        *[(name, _POINTER) for name in ("indptr", "senders", "long_rank", "edge_ids")],
        *[(name, _POINTER) for name in ("out_indptr", "receivers", "out_ranks")],
        *[(name, _INTEGER) for name in ("features", "x_stride")],
        ("x", _POINTER),
        *[(name, _INTEGER) for name in ("edge_form", "product", "edge_stride", "edge_rows")],
        *[(name, _POINTER) for name in ("edge", "at", "weight")],
        ("num_kinds", _INTEGER),
        ("place", _INTEGER * len(KINDS)),
        ("clamp", _INTEGER),
        ("epsilon", ctypes.c_double),
        ("mean_stride", _INTEGER),
        *[(name, _POINTER) for name in ("out", "mean", "argmax", "long_argmax", "grad")],
        ("slopes_stride", _INTEGER),
        *[(name, _POINTER) for name in ("slopes", "far")],
        *[(name, _POINTER) for name in ("grad_x", "grad_edge", "grad_at", "totals")],
    )


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library built from cpu.c, or the reason why it is missing."""
    library, reason = find_library()
    if library is None:
        return None, reason
    if size_of(library, "problem") != ctypes.sizeof(_Problem):
        return None, OTHER_VERSION
    library.pna_run.argtypes = (_INTEGER, ctypes.POINTER(_Problem), *[_INTEGER] * 4)
    library.pna_run.restype = None
    library.pna_split.argtypes = [_POINTER, _INTEGER, _INTEGER, _INTEGER, _POINTER]
    library.pna_split.restype = ctypes.c_double
    return library, None


_library, _reason = _load()


def structure(numbers: Sequence[str], pointers: Sequence[str]) -> type[ctypes.Structure]:
    """A C struct with these fields, integers first."""
    fields = [(name, _INTEGER) for name in numbers] + [(name, _POINTER) for name in pointers]
    return type("Problem", (ctypes.Structure,), {"_fields_": fields})


def kernel(
    name: str, problem: type[ctypes.Structure], numbers: int, interface: int
) -> Callable[..., None] | None:
    """The function `pna_<name>`, which takes a problem and a number of integers. None if it was not
    built, or was built with another interface than its caller expects."""
    try:
        built = getattr(_library, f"pna_{name}_interface")
        found: Callable[..., None] = getattr(_library, f"pna_{name}")
    except AttributeError:
        return None
    built.restype = _INTEGER
    if built() != (interface << 16) + ctypes.sizeof(problem):
        return None
    found.argtypes = (ctypes.POINTER(problem), *[_INTEGER] * numbers)  # type: ignore[attr-defined]
    found.restype = None  # type: ignore[attr-defined]
    return found


def unavailable() -> str | None:
    """Why the C kernels cannot run here, and the remedy; None if they can run."""
    return _reason


def forward(messages: Messages, request: Request, saved: Saved) -> None:
    """Write the statistics of the messages to `saved`."""
    task = _Task(messages, request)
    out = task.room_for(saved.out)
    task.point(out=out, argmax=saved.argmax, long_argmax=saved.long_argmax)
    if saved.mean.shape[0] > 0:
        task.point(mean=saved.mean)
        task.problem.mean_stride = saved.mean.shape[1]
    task.run(_FORWARD, messages.adjacency.incoming)
    if out is not saved.out:
        saved.out.copy_(out)


def backward(
    grad: Tensor,
    messages: Messages,
    request: Request,
    saved: Saved,
    grads: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of x, edge and at; a gradient without elements is not needed."""
    adjacency, at = messages.adjacency, messages.at
    task = _Task(messages, request)
    task.point(argmax=saved.argmax, long_argmax=saved.long_argmax)
    task.point(grad=grad.to(task.dtype).contiguous())
    _differentiate_statistics(task, adjacency, request, saved)
    results = [task.room_for(gradient) for gradient in grads]
    grad_x, grad_edge, grad_at = results
    if grad_x.numel() > 0:
        task.point(grad_x=grad_x)
        task.run(_SENDERS, adjacency.outgoing)
        if request.needs_extrema:
            task.run(_EXTREMA, adjacency.incoming)
    if messages.form == WEIGHTS:
        grad_edge, grad_at = grad_at, grad_edge  # which the same kernel writes
    if grad_edge.numel() > 0:
        totals = torch.zeros(0 if at is None else grad_edge.shape, dtype=torch.float64)
        task.point(grad_edge=grad_edge, totals=totals)
        task.run(_EDGES, adjacency.incoming)
        if at is not None:
            grad_edge.copy_(totals)
    if grad_at.numel() > 0:
        task.point(grad_at=grad_at)
        task.run(_COEFFICIENTS, adjacency.incoming)
    for result, gradient in zip(results, grads, strict=True):
        if result is not gradient:
            gradient.copy_(result)


def _differentiate_statistics(
    task: _Task, adjacency: Adjacency, request: Request, saved: Saved
) -> None:
    """Compute the part of the gradient that all messages of a receiver share (`slopes`)."""
    out = saved.out.to(task.dtype).contiguous()
    stride = task.tiles * task.lanes
    parts = 1 + request.needs_spread + ("normalised_mean" in request.kinds)
    task.point(
        out=out,
        slopes=out.new_empty((adjacency.num_receivers, parts, stride)),
        far=torch.empty((adjacency.num_receivers, task.tiles), dtype=torch.uint8),
    )
    task.problem.slopes_stride = stride
    if request.needs_spread:
        own = saved.mean.shape[0] > 0
        mean = saved.mean if own else out[:, request.index("mean")]
        task.point(mean=mean)
        task.problem.mean_stride = mean.stride(0)
    task.run(_SLOPES, adjacency.incoming)


class _Task:
    """A problem as passed to the kernels, and the tensors that must outlive their calls."""

    def __init__(self, messages: Messages, request: Request) -> None:
        x, adjacency = messages.x, messages.adjacency
        self.dtype = wide_type(x.dtype)
        self.lanes = _LINE // self.dtype.itemsize
        self.tiles = -(-x.shape[1] // self.lanes)
        self.tensors: list[Tensor] = []
        self.problem = _Problem(
            is_double=self.dtype == torch.float64,
            is_long_index=adjacency.edge_ids.dtype == torch.int64,
            num_receivers=adjacency.num_receivers,
            num_senders=adjacency.num_senders,
            num_edges=adjacency.num_edges,
            features=x.shape[1],
            num_kinds=len(request.kinds),
            place=tuple(request.index(kind) for kind in KINDS),
            clamp=request.clamp,
            epsilon=request.epsilon,
        )
        self.point(
            indptr=adjacency.incoming.indptr,
            senders=adjacency.incoming.neighbours,
            long_rank=adjacency.incoming.long_rank,
            edge_ids=adjacency.edge_ids,
            out_indptr=adjacency.outgoing.indptr,
            receivers=adjacency.outgoing.neighbours,
            out_ranks=adjacency.out_ranks,
        )
        x = _with_rows(x.to(self.dtype))
        self.point(x=x)
        self.problem.x_stride = x.stride(0)
        if messages.edge is not None:
            self._take_edge(messages)
        if "normalised_mean" in request.kinds:
            self.point(weight=adjacency.out_degree.clamp(min=1).to(self.dtype).rsqrt())

    def _take_edge(self, messages: Messages) -> None:
        form, at = messages.form, messages.at
        assert messages.edge is not None
        edge = _with_rows(messages.edge.to(self.dtype))
        rows = edge.shape[1] if form == WEIGHTS else edge.shape[0]
        if form == BASIS:
            if rows == 0 and not messages.is_product:
                form = NO_EDGE
            assert at is not None
            self.point(at=at.to(self.dtype).contiguous())
        elif form == TABLE:
            assert at is not None
            check_table(at, rows)
            self.point(at=at.to(messages.adjacency.edge_ids.dtype).contiguous())
        self.point(edge=edge)
        self.problem.edge_form = form
        self.problem.product = messages.is_product
        self.problem.edge_stride = edge.stride(0)
        self.problem.edge_rows = rows

    def point(self, **tensors: Tensor) -> None:
        """Set pointers of the problem to tensors, and keep these alive."""
        for name, tensor in tensors.items():
            setattr(self.problem, name, tensor.data_ptr())
            self.tensors.append(tensor)

    def room_for(self, result: Tensor) -> Tensor:
        """Where a kernel writes a result: the tensor, or a temporary one if it has another dtype or
        is not contiguous."""
        fits = result.dtype == self.dtype and result.is_contiguous()
        return result if fits else result.new_empty(result.shape, dtype=self.dtype)

    def run(self, kernel: int, rows: Rows) -> None:
        """Run a kernel over all rows and tiles, on as many threads as torch uses."""
        assert _library is not None
        run, problem = _library.pna_run, ctypes.byref(self.problem)
        threads = torch.get_num_threads()
        work = (rows.neighbours.shape[0] + rows.num_rows) * self.problem.features
        if threads == 1 or not is_shared(work):
            run(kernel, problem, 0, rows.num_rows, 0, self.tiles)
            return
        pieces = self._pieces(kernel, rows, min(4 * threads, work // _LEAST_WORK), threads)
        share(pieces, lambda *piece: run(kernel, problem, *piece), work)

    def _pieces(self, kernel: int, rows: Rows, parts: int, threads: int) -> list[_Piece]:
        """Split the work by rows; by tiles if each tile needs one owner; by both if one row has
        most of the work."""
        assert _library is not None
        if kernel == _EXTREMA or (kernel == _EDGES and self.problem.edge_form != DENSE):
            return [(0, rows.num_rows, *band) for band in _bands(self.tiles, threads)]
        bounds = (_INTEGER * (parts + 1))()
        excess = _library.pna_split(
            rows.indptr.data_ptr(), self.problem.is_long_index, rows.num_rows, parts, bounds
        )
        bands = _bands(self.tiles, threads if excess > 2 and kernel != _COEFFICIENTS else 1)
        return [(bounds[k], bounds[k + 1], *band) for k in range(parts) for band in bands]


def share(pieces: Sequence[tuple[int, ...]], call: Callable[..., None], work: int) -> None:
    """Call `call` on every piece, on as many threads as torch uses if there is enough `work`."""
    left, threads = deque(pieces), torch.get_num_threads()

    def take_pieces() -> None:
        while left:
            try:
                piece = left.popleft()
            except IndexError:  # another thread took the last piece
                return
            call(*piece)

    count = min(threads, len(left)) if is_shared(work) else 1
    helpers = [_threads().submit(take_pieces) for _ in range(count - 1)]
    try:
        take_pieces()
    finally:  # also after an error: no memory is freed while a helper writes to it
        for helper in helpers:
            if not helper.cancel():
                helper.result()


def is_shared(work: int) -> bool:
    """Whether reading this many elements is enough work for several threads."""
    return work >= 2 * _LEAST_WORK


def _bands(tiles: int, count: int) -> list[tuple[int, int]]:
    count = min(tiles, count)
    return [(tiles * k // count, tiles * (k + 1) // count) for k in range(count)]


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="pna")
    return _pool


def _forget_threads() -> None:
    """Drop the pool: threads do not survive a fork, so a child process starts its own."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _with_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied unless its rows are contiguous."""
    return tensor if tensor.stride(1) == 1 or tensor.shape[1] == 1 else tensor.contiguous()
