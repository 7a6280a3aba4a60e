"""Sums and maxima over the nodes of every graph. The nodes of a graph are consecutive rows.

`torch.segment_reduce` computes them, deterministically and without synchronisation. The operators
add what torch lacks: a vmap rule, and gradients that gather and never scatter. An exported program
has none of these operators: it must run where this package is not installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pna.ops.operators import operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold
from pna.torch_internals import is_exporting


def segment_sum(x: Tensor, indptr: Tensor) -> Tensor:
    """Sum the rows indptr[i]..indptr[i+1] of x (rows, …): (segments, …); empty segments give 0."""
    if is_exporting():
        return _zeros(x, indptr).index_add(0, segment_of_row(indptr, x.shape[0]), x)
    return _segment_reduce(x, indptr, "sum")


def segment_max(x: Tensor, indptr: Tensor) -> Tensor:
    """Maximum over segments, as `segment_sum`. Tied rows share the gradient evenly."""
    if is_exporting():
        at = segment_of_row(indptr, x.shape[0]).reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
        return _zeros(x, indptr).scatter_reduce(0, at, x, "amax", include_self=False)
    return _segment_reduce(x, indptr, "max")


def spread(values: Tensor, indptr: Tensor, rows: int) -> Tensor:
    """Repeat the value of each segment for all its rows: (segments, …) to (rows, …)."""
    if is_exporting():
        return values.index_select(0, segment_of_row(indptr, rows))
    return _segment_spread(values, indptr, rows)


def segment_of_row(indptr: Tensor, rows: int) -> Tensor:
    """The segment of every row, (rows,), by operations that every compiler of programs has."""
    ends = indptr[1:-1].long()
    return ends.new_zeros(rows + 1).index_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]


def _zeros(x: Tensor, indptr: Tensor) -> Tensor:
    return x.new_zeros((indptr.shape[0] - 1, *x.shape[1:]))


def _reduce(x: Tensor, indptr: Tensor, kind: str) -> Tensor:
    out = _allocate(x, indptr)
    if out.numel() == 0 or x.shape[0] == 0:
        return out.zero_()
    rows = x.reshape(x.shape[0], -1)
    rows = rows.to(wide_type(x.dtype)).contiguous()
    result = torch.segment_reduce(rows, kind, offsets=indptr.contiguous(), axis=0, unsafe=True)
    if kind == "max":
        result = result.masked_fill((indptr.diff() == 0)[:, None], 0)
    return out.copy_(result.view_as(out))


def _allocate(x: Tensor, indptr: Tensor) -> Tensor:
    return x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))


def _reduce_backward(grad: Tensor, x: Tensor, out: Tensor, indptr: Tensor, kind: str) -> Tensor:
    rows = x.shape[0]
    if kind == "sum":
        return spread(grad, indptr, rows)
    here = (x == spread(out, indptr, rows)).to(grad.dtype)
    share = grad / segment_sum(here, indptr).clamp(min=1)
    return spread(share, indptr, rows) * here


def _spread(values: Tensor, indptr: Tensor, rows: torch.SymInt) -> Tensor:
    return torch.repeat_interleave(values, indptr.diff(), dim=0, output_size=rows)


def _allocate_rows(values: Tensor, rows: torch.SymInt) -> Tensor:
    return values.new_empty((rows, *values.shape[1:]))


def _spread_backward(grad: Tensor, indptr: Tensor) -> Any:
    return segment_sum(grad, indptr)


_segment_reduce = operator(
    "segment_reduce",
    _reduce,
    fake=_allocate,
    backward=_reduce_backward,
    differentiable=("x",),
    vmap=Fold({"x": 1}, results=(1,), join=False),
    opaque=True,
)
_segment_spread = operator(
    "segment_spread",
    _spread,
    fake=_allocate_rows,
    backward=_spread_backward,
    differentiable=("values",),
    vmap=Fold({"values": 1}, results=(1,), join=False),
    opaque=True,
)
