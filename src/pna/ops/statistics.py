"""mean, sum, var, std, max, min and normalised mean in one pass, as `torch.library` operators.

`pna::statistics` and `pna::statistics_backward` hand tensors to the kernels of one backend and
carry what torch needs to see through them: shapes, gradients, and the folding of a vmapped axis
into the feature axis, so that many models cost one pass over the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pna.adjacency import Adjacency, Rows
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    library,
    one_by_one,
    room,
)
from pna.ops.request import Request, Saved, wide_type


def statistics(
    x: Tensor,
    adjacency: Adjacency,
    request: Request,
    edge: Tensor | None,
    at: Tensor | None,
    backend: str,
) -> Tensor:
    """The requested statistics of x (senders, features): (receivers, kinds, features)."""
    arguments = request_arguments(adjacency, request, backend)
    return torch.ops.pna.statistics(x, edge, at, *arguments)[0]


def request_arguments(adjacency: Adjacency, request: Request, backend: str) -> list[Any]:
    """What follows the inputs in the arguments of both operators."""
    kinds = ",".join(request.kinds)
    return [*_flatten(adjacency), kinds, request.epsilon, request.clamp, backend]


# An operator takes tensors one by one: a list of them would cost more than a small graph's kernel.
_ROWS = [field.name for field in fields(Rows)]
_NAMES = [f"{side}_{name}" for side in ("in", "out") for name in _ROWS] + [
    "edge_ids",
    "out_ranks",
    "by_degree",
]
_GRAPH = "".join(f"Tensor {name}, " for name in _NAMES)
_REQUEST = "str kinds, float epsilon, bool clamp, str backend"
_INPUTS = "Tensor x, Tensor? edge, Tensor? at"


def _flatten(adjacency: Adjacency) -> list[Tensor]:
    sides = (adjacency.incoming, adjacency.outgoing)
    rows = [getattr(side, name) for side in sides for name in _ROWS]
    return [*rows, adjacency.edge_ids, adjacency.out_ranks, adjacency.by_degree]


def _unflatten(tensors: Sequence[Tensor]) -> Adjacency:
    width = len(_ROWS)
    incoming, outgoing = Rows(*tensors[:width]), Rows(*tensors[width : 2 * width])
    return Adjacency(incoming, outgoing, *tensors[2 * width :])


def _read(rest: Sequence[Any]) -> tuple[Adjacency, Request, str]:
    """The graph, the request and the backend, from the arguments that follow the inputs."""
    *tensors, kinds, epsilon, clamp, backend = rest
    return _unflatten(tensors), Request(tuple(kinds.split(",")), epsilon, clamp), backend


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from pna.ops import triton

        return triton
    from pna.ops import cpu

    return cpu


library.define(f"statistics({_INPUTS}, {_GRAPH}{_REQUEST}) -> (Tensor, Tensor, Tensor, Tensor)")
library.define(
    f"statistics_backward(Tensor grad, {_INPUTS}, Tensor out, Tensor mean, Tensor places, "
    f"Tensor long_places, bool[] needs, {_GRAPH}{_REQUEST}) -> (Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "statistics", "CompositeExplicitAutograd")
def _forward(
    x: Tensor, edge: Tensor | None, at: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    adjacency, request, backend = _read(rest)
    saved = _allocate(x, adjacency, request, backend)
    if saved.out.numel() > 0:
        _kernels(backend).forward(x, edge, at, adjacency, request, saved)
    return saved.out, saved.mean, saved.places, saved.long_places


def _allocate(x: Tensor, adjacency: Adjacency, request: Request, backend: str) -> Saved:
    """Room for the results of the forward pass."""
    rows, features = adjacency.num_receivers, x.shape[1]
    exact = "mean" in request.kinds and x.dtype == wide_type(x.dtype)
    own_mean = request.needs_spread and not exact
    places = request.needs_extrema and backend == "cpu"
    long = adjacency.incoming.long_rows.shape[0] if places else 0
    return Saved(
        out=x.new_empty((rows, len(request.kinds), features)),
        mean=x.new_empty((rows if own_mean else 0, features), dtype=wide_type(x.dtype)),
        places=x.new_empty((rows if places else 0, 2, features), dtype=torch.uint8),
        long_places=x.new_empty((long, 2, features), dtype=torch.int32),
    )


@torch.library.register_fake("pna::statistics", lib=library)
def _(
    x: Tensor, edge: Tensor | None, at: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    saved = _allocate(x, *_read(rest))
    return saved.out, saved.mean, saved.places, saved.long_places


@torch.library.impl(library, "statistics_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    out: Tensor,
    mean: Tensor,
    places: Tensor,
    long_places: Tensor,
    needs: Sequence[bool],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, edge and at; empty where `needs` does not ask for one."""
    adjacency, request, backend = _read(rest)
    grads = _empty_gradients(x, edge, at, needs)
    if grad.numel() == 0 or adjacency.num_edges == 0:
        for gradient in grads:
            gradient.zero_()
        return grads
    saved = Saved(out, mean, places, long_places)
    _kernels(backend).backward(grad, x, edge, at, adjacency, request, saved, grads)
    return grads


def _empty_gradients(
    x: Tensor, edge: Tensor | None, at: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for a gradient of each input; of no length where it is not needed."""
    return room(x, needs[0], x), room(edge, needs[1], x), room(at, needs[2], x)


@torch.library.register_fake("pna::statistics_backward", lib=library)
def _(grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, edge, at, _, _, _, _, needs, *_ = rest
    return _empty_gradients(x, edge, at, needs)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        output = below_autograd(torch.ops.pna.statistics.default, keyset, inputs)
        x, edge, at, *rest = inputs
        ctx.request = rest[len(_NAMES) :]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, edge, at, *output, *rest[: len(_NAMES)])
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        x, edge, at, out, mean, places, long_places, *graph = ctx.saved_tensors
        wanted = [
            needed and tensor is not None and tensor.is_floating_point()
            for tensor, needed in zip((x, edge, at), ctx.needs_input_grad[1:4], strict=True)
        ]
        grads: Sequence[Tensor | None] = (None, None, None)
        if grad is not None and any(wanted):
            saved = (out, mean, places, long_places)
            grads = torch.ops.pna.statistics_backward(
                grad, x, edge, at, *saved, wanted, *graph, *ctx.request
            )
        given = [g if w else None for g, w in zip(grads, wanted, strict=True)]
        return (None, *given, *[None] * (len(graph) + len(ctx.request)))


differentiate("statistics", _Differentiable)
differentiate_once("statistics_backward", "pna.aggregate")


def _fold(tensor: Tensor | None, dim: int | None, batch: int) -> Tensor | None:
    """(…, features) with a batch axis somewhere, to (…, batch × features)."""
    if tensor is None:
        return None
    if dim is None:
        tensor = tensor.unsqueeze(-2).expand(*tensor.shape[:-1], batch, tensor.shape[-1])
    else:
        tensor = tensor.movedim(dim, -2)
    return tensor.flatten(-2)


def _unfold(tensor: Tensor, batch: int) -> tuple[Tensor, int | None]:
    """The inverse of `_fold`, with the place of the batch axis; none in a tensor without rows."""
    if tensor.dim() < 2:
        return tensor, None
    tensor = tensor.unflatten(-1, (batch, tensor.shape[-1] // batch))
    return tensor, tensor.dim() - 2


def _fold_edge(
    edge: Tensor | None, at: Tensor | None, dims: Sequence[int | None], batch: int
) -> tuple[Tensor | None, Tensor | None]:
    """Fold e_ij; where each member has its own `at`, into a term for every edge."""
    if edge is None or at is None or dims[1] is None:
        return _fold(edge, dims[0], batch), at
    edge = edge.expand(batch, *edge.shape) if dims[0] is None else edge.movedim(dims[0], 0)
    at = at.movedim(dims[1], 0)
    if at.is_floating_point():
        return _fold(at @ edge, 0, batch), None
    rows = torch.stack([e[a] for e, a in zip(edge, at.long(), strict=True)])  # bytes are a mask
    return _fold(rows, 0, batch), None


@torch.library.register_vmap("pna::statistics", lib=library)
def _(
    info: Any,
    in_dims: Sequence[Any],
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    *rest: Any,
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    batch = info.batch_size
    edge, at = _fold_edge(edge, at, in_dims[1:3], batch)
    folded = _fold(x, in_dims[0], batch)
    assert folded is not None
    outputs = torch.ops.pna.statistics(folded, edge, at, *rest)
    results = [_unfold(output, batch) for output in outputs]
    return tuple(r for r, _ in results), tuple(d for _, d in results)


torch.library.register_vmap(
    "pna::statistics_backward", one_by_one("statistics_backward"), lib=library
)
