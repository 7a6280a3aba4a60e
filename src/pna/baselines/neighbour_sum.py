"""Weighted sums over neighbours and the node itself, as a `torch.library` operator:

    out_i = f_i Σ_{j→i} f_j x_j + c_i x_i

The factors f and c of nodes have no gradient. The gradient of x is the same operation along the
reversed edges, so the same kernel computes derivatives of any order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.aggregate import aggregate
from pna.ops.backend import choose
from pna.ops.operators import operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold
from pna.rows import Rows


def neighbour_sum(
    x: Tensor, adjacency: Adjacency, factor: Tensor | None = None, own: Tensor | None = None
) -> Tensor:
    """Return f_i Σ_{j→i} f_j x_j + c_i x_i for x (nodes, features).

    `factor` is f (nodes,) and `own` is c (nodes,); None means 1. They receive no gradient.
    """
    if not x.shape[0] == adjacency.num_senders == adjacency.num_receivers:
        raise ValueError(
            f"got x of {x.shape[0]} nodes and {adjacency!r}, expected as many senders and receivers"
        )
    if choose(x.device) != "triton" or not fast_paths.is_on("neighbour_sum"):
        return definition(x, adjacency, factor, own)
    wide = wide_type(x.dtype)
    given = [None if t is None else t.to(wide).contiguous() for t in (factor, own)]
    return _neighbour_sum(x, *given, Sides(adjacency.incoming, adjacency.outgoing))


def definition(
    x: Tensor, adjacency: Adjacency, factor: Tensor | None, own: Tensor | None
) -> Tensor:
    """`neighbour_sum` by `aggregate`."""
    factor, own = (None if t is None else t.detach()[:, None].to(x.dtype) for t in (factor, own))
    total = aggregate(x if factor is None else factor * x, adjacency, ["sum"])[:, 0]
    total = total if factor is None else factor * total
    return x + total if own is None else torch.addcmul(total, own, x)


class Sides(NamedTuple):
    incoming: Rows
    outgoing: Rows


def _forward(x: Tensor, factor: Tensor | None, own: Tensor | None, graph: Sides) -> Tensor:
    from pna.baselines.triton import neighbour_sum as kernels

    out = _allocate(x)
    if out.numel() > 0:
        kernels.neighbour_sum(x, factor, own, graph.incoming, out)
    return out


def _allocate(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _backward(grad: Tensor, factor: Tensor | None, own: Tensor | None, graph: Sides) -> Tensor:
    """Apply the operator along the reversed edges."""
    return _neighbour_sum(grad, factor, own, Sides(graph.outgoing, graph.incoming))


_neighbour_sum = operator(
    "neighbour_sum",
    _forward,
    fake=_allocate,
    backward=_backward,
    differentiable=("x",),
    vmap=Fold({"x": 1}, results=(1,)),
)
