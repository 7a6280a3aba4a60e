"""Sums and maxima over the nodes of every graph, of which the nodes stand together.

`torch.segment_reduce` does it, repeatably and without asking the device, though a row after
another: sums on a GPU have a kernel, and so has the way back. The operators add what it lacks: a
vmap rule, and gradients that are gathered, never scattered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.ops.backend import choose
from pna.ops.operators import Function, below_autograd, differentiate, library
from pna.ops.request import wide_type


def segment_sum(x: Tensor, indptr: Tensor) -> Tensor:
    """Σ of the rows indptr[i]..indptr[i+1] of x (rows, …): (segments, …); 0 of no rows."""
    return torch.ops.pna.segment_reduce(x, indptr, "sum")


def segment_max(x: Tensor, indptr: Tensor) -> Tensor:
    """The same for the maximum. Where several rows have it, they share the gradient evenly."""
    return torch.ops.pna.segment_reduce(x, indptr, "max")


def spread(values: Tensor, indptr: Tensor, rows: int) -> Tensor:
    """Of every row what its segment has: (segments, …) to (rows, …)."""
    return torch.ops.pna.segment_spread(values, indptr, rows)


library.define("segment_reduce(Tensor x, Tensor indptr, str kind) -> Tensor")
library.define("segment_spread(Tensor values, Tensor indptr, SymInt rows) -> Tensor")


@torch.library.impl(library, "segment_reduce", "CompositeExplicitAutograd")
def _forward(x: Tensor, indptr: Tensor, kind: str) -> Tensor:
    out = _allocate(x, indptr)
    if out.numel() == 0 or x.shape[0] == 0:
        return out.zero_()
    rows = x.reshape(x.shape[0], -1)
    if kind == "sum" and x.dtype != torch.float64 and _has_kernels(x):
        from pna.population.triton import segments as kernels

        kernels.segment_sum(rows.contiguous(), indptr.contiguous(), out.view(out.shape[0], -1))
        return out
    rows = rows.to(wide_type(x.dtype)).contiguous()
    result = torch.segment_reduce(rows, kind, offsets=indptr.contiguous(), axis=0, unsafe=True)
    if kind == "max":
        result = result.masked_fill((indptr.diff() == 0)[:, None], 0)
    return out.copy_(result.view_as(out))


def _has_kernels(x: Tensor) -> bool:
    return choose(x.device) == "triton" and fast_paths.is_on("segments")


def _allocate(x: Tensor, indptr: Tensor) -> Tensor:
    return x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))


@torch.library.register_fake("pna::segment_reduce", lib=library)
def _(x: Tensor, indptr: Tensor, kind: str) -> Tensor:
    return _allocate(x, indptr)


class _Differentiable(Function):
    """The operator and its gradients, which are plain torch and have gradients themselves."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, x: Tensor, indptr: Tensor, kind: str) -> Any:
        inputs = (x, indptr, kind)
        out = below_autograd(torch.ops.pna.segment_reduce.default, keyset, inputs)
        ctx.rows = x.shape[0]
        ctx.save_for_backward(indptr, *((x, out) if kind == "max" else ()))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        indptr, *extremes = ctx.saved_tensors
        if not extremes:
            return None, spread(grad, indptr, ctx.rows), None, None
        x, out = extremes
        here = (x == spread(out, indptr, ctx.rows)).to(grad.dtype)
        share = grad / segment_sum(here, indptr).clamp(min=1)
        return None, spread(share, indptr, ctx.rows) * here, None, None


differentiate("segment_reduce", _Differentiable)


@torch.library.register_vmap("pna::segment_reduce", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], x: Tensor, indptr: Tensor, kind: str
) -> tuple[Tensor, int]:
    """Members stand side by side in every row."""
    if in_dims[1] is not None:
        raise ValueError("got a vmapped indptr, expected one that all members share")
    return torch.ops.pna.segment_reduce(x.movedim(in_dims[0], 1), indptr, kind), 1


@torch.library.impl(library, "segment_spread", "CompositeExplicitAutograd")
def _spread(values: Tensor, indptr: Tensor, rows: int) -> Tensor:
    out = values.new_empty((rows, *values.shape[1:]))
    if out.numel() == 0 or not _has_kernels(values):
        return torch.repeat_interleave(values, indptr.diff(), dim=0, output_size=rows)
    from pna.population.triton import segments as kernels

    flat = values.reshape(values.shape[0], -1).contiguous()
    kernels.spread(flat, indptr.contiguous(), out.view(rows, -1))
    return out


@torch.library.register_fake("pna::segment_spread", lib=library)
def _(values: Tensor, indptr: Tensor, rows: int) -> Tensor:
    return values.new_empty((rows, *values.shape[1:]))


class _DifferentiableSpread(Function):
    """The operator and its gradient, the sum over every segment."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, values: Tensor, indptr: Tensor, rows: int) -> Any:
        ctx.save_for_backward(indptr)
        inputs = (values, indptr, rows)
        return below_autograd(torch.ops.pna.segment_spread.default, keyset, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, segment_sum(grad, *ctx.saved_tensors), None, None


differentiate("segment_spread", _DifferentiableSpread)


@torch.library.register_vmap("pna::segment_spread", lib=library)
def _(
    info: Any, in_dims: Sequence[Any], values: Tensor, indptr: Tensor, rows: int
) -> tuple[Tensor, int]:
    """As for sums."""
    if in_dims[1] is not None:
        raise ValueError("got a vmapped indptr, expected one that all members share")
    return torch.ops.pna.segment_spread(values.movedim(in_dims[0], 1), indptr, rows), 1
