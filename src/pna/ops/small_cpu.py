"""The inputs of U on a small graph, and their gradient, on a CPU: small.c, called through ctypes.

The kernels take float32, indices of 32 bits, and edge terms for each edge or from a table.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops import cpu
from pna.ops.request import KINDS, Request, check_table

#: Forms of edge terms, and the statistics, numbered as in small.c; the columns that a thread takes
#: are a multiple of the last.
_NONE, _DENSE, _TABLE = range(3)
_KINDS = KINDS[:6]
_BAND = 16

_INTEGER, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Problem(ctypes.Structure):
    """`struct small` of small.c, which documents the fields."""

    _fields_ = (
        *[(name, _INTEGER) for name in ("columns", "width", "scalers", "groups")],
        *[(name, _INTEGER * len(_KINDS)) for name in ("place", "times")],
        *[(name, _INTEGER) for name in ("clamp", "edge_form", "is_long_at")],
        ("epsilon", ctypes.c_double),
        *[(name, _INTEGER) for name in ("nodes", "edges", "edge_rows")],
        *[(name, _POINTER) for name in ("indptr", "senders", "edge_ids", "products", "edge")],
        *[(name, _POINTER) for name in ("at", "factors", "order", "bias", "x", "inputs")],
        *[(name, _POINTER) for name in ("grad", "totals", "of_products", "of_bias")],
        *[(name, _POINTER) for name in ("of_edge", "of_table")],
    )


_kernel = cpu.kernel("small", _Problem, 5, interface=1)
built = _kernel is not None


class SmallShape(NamedTuple):
    """The layer, apart from its weights."""

    request: Request
    times: tuple[int, ...]  # how often the receivers' part is added to each aggregate
    scalers: int
    width: int  # features of a tower
    columns: int  # towers × width


class SmallKernelsInC:
    """The kernels for one shape of layer."""

    def __init__(self, shape: SmallShape) -> None:
        request, columns = shape.request, shape.columns
        place = [request.index(kind) for kind in _KINDS]
        numbers = _INTEGER * len(_KINDS)
        self._layer = (
            columns, shape.width, shape.scalers, len(request.kinds), numbers(*place),
            numbers(*[0 if k < 0 else shape.times[k] for k in place]), request.clamp,
        )  # fmt: skip
        self._epsilon = request.epsilon
        self._columns = columns
        self._inputs = columns * (1 + shape.scalers * len(request.kinds))

    def forward(
        self, products: Tensor, bias: Tensor, x: Tensor, factors: Tensor | None, graph: Adjacency,
        edge: Tensor | None, at: Tensor | None,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The inputs of U, (nodes, inputs). The backward pass needs nothing else.

        `products` (nodes, 2 × columns) hold the receivers' and the senders' part of a column next
        to each other. All tensors are contiguous. If there are no factors, the only scaler is the
        identity, and the rows of the inputs are in the order of `graph.by_degree`.
        """
        if any(t.dtype != torch.float32 for t in (products, bias, x)):
            raise TypeError(f"got {products.dtype}, {bias.dtype} and {x.dtype}, expected float32")
        if edge is not None and at is not None:
            check_table(at, edge.shape[0])
        at = _as_index(at)
        inputs = products.new_empty((x.shape[0], self._inputs))
        problem = self._problem(products, factors, graph, edge, at)
        problem.bias, problem.x = bias.data_ptr(), x.data_ptr()
        problem.inputs = inputs.data_ptr()
        self._run(problem, 0)
        return inputs, None

    def backward(
        self, grad: Tensor, kept: None, products: Tensor, factors: Tensor | None, graph: Adjacency,
        edge: Tensor | None, at: Tensor | None, for_edge: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
        """The gradients of the products, of edge if needed, and of the bias."""
        of_edge, at = None, _as_index(at)
        of_products, of_bias = torch.empty_like(products), products.new_empty(self._columns)
        totals = products.new_empty((products.shape[0], self._columns), dtype=torch.float64)
        problem = self._problem(products, factors, graph, edge, at)
        problem.grad, problem.totals = grad.data_ptr(), totals.data_ptr()
        problem.of_products, problem.of_bias = of_products.data_ptr(), of_bias.data_ptr()
        if edge is not None and for_edge:
            of_edge = torch.empty_like(edge, dtype=None if at is None else torch.float64)
            setattr(problem, "of_edge" if at is None else "of_table", of_edge.data_ptr())
        self._run(problem, 1)
        if of_edge is not None:
            of_edge = of_edge.to(products.dtype)
        return of_products, of_edge, of_bias

    def _problem(
        self, products: Tensor, factors: Tensor | None, graph: Adjacency, edge: Tensor | None,
        at: Tensor | None,
    ) -> _Problem:  # fmt: skip
        ids, incoming = graph.edge_ids, graph.incoming
        form, rows, values, index, is_long = _NONE, 0, None, None, False
        if edge is not None:
            form, rows, values = _DENSE, edge.shape[0], edge.data_ptr()
            if at is not None:
                form, index, is_long = _TABLE, at.data_ptr(), at.dtype == torch.int64
        return _Problem(
            *self._layer, form, is_long, self._epsilon, products.shape[0], ids.shape[0], rows,
            incoming.indptr.data_ptr(), incoming.neighbours.data_ptr(), ids.data_ptr(),
            products.data_ptr(), values, index, *self._rows(factors, graph),
        )  # fmt: skip

    @staticmethod
    def _rows(factors: Tensor | None, graph: Adjacency) -> tuple[int | None, int | None]:
        """Pointers to the factors and to the order of rows."""
        if factors is None:
            return None, graph.by_degree.data_ptr()
        return factors.data_ptr(), None

    def _run(self, problem: _Problem, backward: int) -> None:
        """Compute all rows, on as many threads as torch uses. A thread takes some columns."""
        assert _kernel is not None
        threads, nodes = torch.get_num_threads(), problem.nodes
        work = (nodes + problem.edges) * self._columns
        if threads == 1 or not cpu.is_shared(work):
            _kernel(problem, backward, 0, nodes, 0, self._columns)
            return
        # one band for each thread: every band reads the graph anew
        width = _BAND * math.ceil(self._columns / (_BAND * threads))
        starts = range(0, self._columns, width)
        pieces = [(backward, 0, nodes, k, min(k + width, self._columns)) for k in starts]
        cpu.share(pieces, lambda *piece: _kernel(problem, *piece), work)


def _as_index(at: Tensor | None) -> Tensor | None:
    return at if at is None or at.dtype in (torch.int32, torch.int64) else at.long()


small_kernels = cache(SmallKernelsInC)
