"""mean, sum, var, std, max, min and normalised mean in one pass, as `torch.library` operators.

`pna::statistics` and `pna::statistics_backward` pass tensors to the kernels of one backend. A
vmapped axis is folded into the feature axis, so that many models take one pass over the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pna.ops.operators import gradient_operator, operator
from pna.ops.request import Messages, Request, Saved, wide_type
from pna.ops.vmap_rules import Fold


def statistics(messages: Messages, request: Request, backend: str) -> Tensor:
    """The requested statistics of the messages: (receivers, kinds, features)."""
    return statistics_operator(messages, request, backend)[0]


def kernels_of(backend: str) -> ModuleType:
    """The module with the kernels `forward` and `backward` of a backend."""
    if backend == "triton":
        from pna.ops import triton

        return triton
    from pna.ops import cpu

    return cpu


def _forward(messages: Messages, request: Request, backend: str) -> Saved:
    saved = _allocate(messages, request, backend)
    if saved.out.numel() > 0:
        kernels_of(backend).forward(messages, request, saved)
    return saved


def _allocate(messages: Messages, request: Request, backend: str) -> Saved:
    x, adjacency = messages.x, messages.adjacency
    rows, features = adjacency.num_receivers, messages.features
    exact = "mean" in request.kinds and x.dtype == wide_type(x.dtype)
    own_mean = request.needs_spread and not exact
    argmax = request.needs_extrema and backend == "cpu"
    long = adjacency.incoming.long_rows.shape[0] if argmax else 0
    return Saved(
        out=x.new_empty((rows, len(request.kinds), features)),
        mean=x.new_empty((rows if own_mean else 0, features), dtype=wide_type(x.dtype)),
        argmax=x.new_empty((rows if argmax else 0, 2, features), dtype=torch.uint8),
        long_argmax=x.new_empty((long, 2, features), dtype=torch.int32),
    )


def _backward(
    grad: Tensor,
    needs: Sequence[bool],
    messages: Messages,
    saved: Saved,
    request: Request,
    backend: str,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    if messages.adjacency.num_edges > 0:
        kernels_of(backend).backward(grad, messages, request, saved, gradients)
        return
    for gradient in gradients:
        gradient.zero_()


def _tangent(
    messages: Messages,
    saved: Saved,
    request: Request,
    backend: str,
    tangents: Sequence[Tensor | None],
) -> Tensor:
    from pna.ops.statistics_tangent import statistics_tangent  # which needs this module

    return statistics_tangent(messages, tangents, saved, request, backend)


def _vmap(
    info: Any,
    in_dims: Sequence[Any],
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    *rest: Any,
) -> Any:
    """Fold; if each member has its own `at`, the edge terms (edges, features) are materialised."""
    if edge is not None and at is not None and in_dims[2] is not None:
        edge = edge.expand(info.batch_size, *edge.shape) if in_dims[1] is None else edge
        edge = edge if in_dims[1] is None else edge.movedim(in_dims[1], 0)
        at = at.movedim(in_dims[2], 0)
        if at.is_floating_point():
            edge = at @ edge
        else:  # as int64: a uint8 index would be a mask
            edge = torch.stack([e[a] for e, a in zip(edge, at.long(), strict=True)])
        at, in_dims = None, (in_dims[0], 0, None, *in_dims[3:])
    return _folded(info, in_dims, x, edge, at, *rest)


statistics_backward = gradient_operator(
    "statistics_backward", _backward, tangent=_tangent, like=("x", "edge", "at")
)
statistics_operator = operator(
    "statistics",
    _forward,
    fake=_allocate,
    backward=statistics_backward,
    differentiable=("x", "edge", "at"),
    vmap=_vmap,
)
_folded = Fold({"x": 1, "edge": 1}, results=(2, 1, 2, 2)).rule(statistics_operator)
