"""The library of C kernels, if it was built, and the `Adjacency` arrays that it makes."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p

_REMEDY = "install a C compiler and reinstall pna"
OTHER_VERSION = f"the C kernel belongs to another version of pna; {_REMEDY}"

#: The fields of `Rows`; those of fixed size, and those whose size depends on the long rows.
_ROWS = (
    "indptr", "neighbours", "long_rows", "long_rank", "long_indptr", "segment_owner", "order"
)  # fmt: skip
_FIXED = ("indptr", "neighbours", "long_rank", "order")
_LONG = ("long_rows", "long_indptr", "segment_owner")

#: The other fields of `Adjacency`.
_REST = ("edge_ids", "out_ranks", "by_degree", "degree")


class _Build(ctypes.Structure):
    """`struct build` of adjacency.c, which documents the fields."""

    _fields_ = (
        *[(name, _INTEGER) for name in ("num_edges", "num_senders", "num_receivers", "segment")],
        *[(name, _POINTER) for name in ("senders", "receivers")],
        *[(f"{side}_{name}", _POINTER) for side in ("in", "out") for name in _ROWS],
        *[(name, _POINTER) for name in _REST],
        ("is_bad", _INTEGER),
        ("longs", _INTEGER * 2),
        ("segments", _INTEGER * 2),
    )


class Built(NamedTuple):
    """The fields of an `Adjacency`, in order: those of both directions, then the others."""

    incoming: list[Tensor]
    outgoing: list[Tensor]
    rest: list[Tensor]


def find_library() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or the reason why it is missing."""
    spec = importlib.util.find_spec("pna.ops._cpu")
    if spec is None or spec.origin is None:
        reason = "the C kernel was not built: no compiler was found when pna was installed"
        return None, f"{reason}; {_REMEDY}"
    try:
        return ctypes.CDLL(spec.origin), None
    except OSError as error:
        return None, f"the C kernel {spec.origin} cannot be loaded ({error}); {_REMEDY}"


def size_of(library: ctypes.CDLL, name: str) -> int | None:
    """The size of a struct as the library was built; None if it does not have it."""
    try:
        found = getattr(library, f"pna_{name}_size")
    except AttributeError:
        return None
    found.restype = _INTEGER
    return int(found())


def build(edge_index: Tensor, num_senders: int, num_receivers: int, segment: int) -> Built | None:
    """All arrays of the Adjacency of edge_index (2, edges) on the CPU, in int32.

    Returns None if an index is out of range, or if tensors have no memory, as fake ones. Rows of
    more than `segment` slots are cut. All sizes must be below 2^31.
    """
    assert _library is not None
    given, edges = edge_index.to(torch.int64).contiguous(), edge_index.shape[1]
    names, sizes = list[str](), list[int]()
    for side, rows in (("in", num_receivers), ("out", num_senders)):
        names += [f"{side}_{name}" for name in _FIXED]
        sizes += [rows + 1, edges, rows, rows]
    names += _REST
    sizes += [edges, edges, num_receivers, num_receivers]
    memory = given.new_empty(sum(sizes), dtype=torch.int32)
    if type(given) is not Tensor or type(memory) is not Tensor:
        return None
    problem = _Build(edges, num_senders, num_receivers, segment, given.data_ptr())
    problem.receivers = given.data_ptr() + 8 * edges
    _point(problem, names, memory, sizes)
    _library.pna_count(problem)
    if problem.is_bad:
        return None
    parts = dict(zip(names, memory.split(sizes), strict=True))
    for k, side in enumerate(("in", "out")):
        names = [f"{side}_{name}" for name in _LONG]
        sizes = [problem.longs[k], problem.longs[k] + 1, problem.segments[k]]
        memory = given.new_empty(sum(sizes), dtype=torch.int32)
        _point(problem, names, memory, sizes)
        parts.update(zip(names, memory.split(sizes), strict=True))
    if _library.pna_fill(problem) != 0:
        raise MemoryError(f"no memory to sort {edges} edges; use a smaller graph")
    incoming, outgoing = ([parts[f"{side}_{name}"] for name in _ROWS] for side in ("in", "out"))
    return Built(incoming, outgoing, [parts[name] for name in _REST])


def _point(problem: _Build, names: list[str], memory: Tensor, sizes: list[int]) -> None:
    place = memory.data_ptr()
    for name, size in zip(names, sizes, strict=True):
        setattr(problem, name, place)
        place += 4 * size


def can_build() -> bool:
    """Whether the library can make an Adjacency."""
    return _library is not None


def _load() -> ctypes.CDLL | None:
    library, _ = find_library()
    if library is None or size_of(library, "build") != ctypes.sizeof(_Build):
        return None
    library.pna_count.argtypes = library.pna_fill.argtypes = [ctypes.POINTER(_Build)]
    library.pna_count.restype, library.pna_fill.restype = None, _INTEGER
    return library


_library = _load()
