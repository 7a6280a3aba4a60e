"""Sums over neighbours, weighted by both ends, and the node itself, as a `torch.library` operator:

    out_i = f_i Σ_{j→i} f_j x_j + c_i x_i

with numbers f and c of nodes that have no gradient. Its gradient is the same along the edges
turned round, so that it can be taken any number of times, by the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency, Rows
from pna.ops.aggregate import aggregate
from pna.ops.backend import choose
from pna.ops.operators import Function, below_autograd, differentiate, library
from pna.ops.request import wide_type


def neighbour_sum(
    x: Tensor, adjacency: Adjacency, factor: Tensor | None = None, own: Tensor | None = None
) -> Tensor:
    """f_i Σ_{j→i} f_j x_j + c_i x_i of x (nodes, features): `factor` is f (nodes,), `own` is c
    (nodes,), and each is 1 where it is None. No gradient reaches them."""
    if not x.shape[0] == adjacency.num_senders == adjacency.num_receivers:
        raise ValueError(
            f"got x of {x.shape[0]} nodes and {adjacency!r}, expected as many senders and receivers"
        )
    if choose(x.device) != "triton" or not fast_paths.is_on("neighbour_sum"):
        return definition(x, adjacency, factor, own)
    wide = wide_type(x.dtype)
    given = [None if t is None else t.to(wide).contiguous() for t in (factor, own)]
    return torch.ops.pna.neighbour_sum(x, *given, *graph_arguments(adjacency))


def definition(
    x: Tensor, adjacency: Adjacency, factor: Tensor | None, own: Tensor | None
) -> Tensor:
    """The same by `aggregate`."""
    factor, own = (None if t is None else t.detach()[:, None].to(x.dtype) for t in (factor, own))
    total = aggregate(x if factor is None else factor * x, adjacency, ["sum"])[:, 0]
    total = total if factor is None else factor * total
    return x + total if own is None else torch.addcmul(total, own, x)


_ROWS = [field.name for field in fields(Rows)]
_GRAPH = ", ".join(f"Tensor {side}_{name}" for side in ("in", "out") for name in _ROWS)
library.define(f"neighbour_sum(Tensor x, Tensor? factor, Tensor? own, {_GRAPH}) -> Tensor")


def graph_arguments(adjacency: Adjacency) -> list[Tensor]:
    """What the operator takes of a graph."""
    sides = (adjacency.incoming, adjacency.outgoing)
    return [getattr(side, name) for side in sides for name in _ROWS]


@torch.library.impl(library, "neighbour_sum", "CompositeExplicitAutograd")
def _forward(x: Tensor, factor: Tensor | None, own: Tensor | None, *graph: Tensor) -> Tensor:
    from pna.baselines.triton import neighbour_sum as kernels

    out = x.new_empty(x.shape)
    if out.numel() > 0:
        kernels.neighbour_sum(x, factor, own, Rows(*graph[: len(_ROWS)]), out)
    return out


@torch.library.register_fake("pna::neighbour_sum", lib=library)
def _(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


class _Differentiable(Function):
    """The operator, whose gradient is its transpose."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs[1:])
        return below_autograd(torch.ops.pna.neighbour_sum.default, keyset, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        factor, own, *graph = ctx.saved_tensors
        turned = graph[len(_ROWS) :] + graph[: len(_ROWS)]
        to_x = torch.ops.pna.neighbour_sum(grad, factor, own, *turned)
        return None, to_x, *[None] * (len(graph) + 2)


differentiate("neighbour_sum", _Differentiable)


@torch.library.register_vmap("pna::neighbour_sum", lib=library)
def _(info: Any, in_dims: Sequence[Any], x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    """Members side by side in the features, in which layout they stay."""
    if any(dim is not None for dim in in_dims[1:]):
        raise ValueError("got a vmapped graph or factors, expected what all members share")
    x = x.movedim(in_dims[0], 1)
    out = torch.ops.pna.neighbour_sum(x.flatten(1), *rest)
    return out.unflatten(1, x.shape[1:]), 1
