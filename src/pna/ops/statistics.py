"""mean, sum, var, std, max, min and normalised mean in one pass, as `torch.library` operators.

`pna::statistics` and `pna::statistics_backward` hand tensors to the kernels of one backend and
carry what torch needs to see through them: shapes, gradients, and the folding of a vmapped axis
into the feature axis, so that many models cost one pass over the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pna.adjacency import Adjacency

#: The statistics that the kernels know, in the order in which they number them.
KINDS = ("mean", "sum", "var", "std", "max", "min", "normalised_mean")


@dataclass(frozen=True)
class Request:
    """What is computed: which statistics, in which order, and the convention of std."""

    kinds: tuple[str, ...]
    epsilon: float
    clamp: bool

    def place(self, kind: str) -> int:
        """Where a statistic stands in the output, or -1."""
        return self.kinds.index(kind) if kind in self.kinds else -1

    @property
    def needs_spread(self) -> bool:
        return "var" in self.kinds or "std" in self.kinds

    @property
    def needs_extrema(self) -> bool:
        return "max" in self.kinds or "min" in self.kinds


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs of the forward pass besides its inputs.

    An extremum is remembered by the place of its edge in the receiver's row: in one byte for
    rows of at most 255 slots, with 255 for none; a longer row keeps the lower byte there and the
    whole number, or -1, in `long_places`.
    """

    out: Tensor  # (receivers, kinds, features)
    mean: Tensor  # (receivers, features) in float32 or better; empty where `out` has it exactly
    places: Tensor  # (receivers, 2, features) uint8, of the maximum and of the minimum; or empty
    long_places: Tensor  # (long rows, 2, features) int32; or empty


def statistics(
    x: Tensor,
    adjacency: Adjacency,
    request: Request,
    edge: Tensor | None,
    at: Tensor | None,
    backend: str,
) -> Tensor:
    """The requested statistics of x (senders, features): (receivers, kinds, features)."""
    tensors, _ = pytree.tree_flatten(adjacency)
    arguments = (",".join(request.kinds), request.epsilon, request.clamp, backend)
    return _forward(x, edge, at, tensors, *arguments)[0]


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums are kept."""
    return torch.promote_types(dtype, torch.float32)


def _kernels(backend: str) -> ModuleType:
    if backend == "triton":
        from pna.ops import triton

        return triton
    from pna.ops import cpu

    return cpu


def _adjacency(tensors: Sequence[Tensor]) -> Adjacency:
    return pytree.tree_unflatten(list(tensors), _STRUCTURE)


_STRUCTURE = pytree.tree_structure(
    Adjacency.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 0)
)


@torch.library.custom_op("pna::statistics", mutates_args=())
def _forward(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Sequence[Tensor],
    kinds: str,
    epsilon: float,
    clamp: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    saved = allocate(x, _adjacency(adjacency), Request(tuple(kinds.split(",")), epsilon, clamp))
    request = Request(tuple(kinds.split(",")), epsilon, clamp)
    if saved.out.numel() > 0:
        _kernels(backend).forward(x, edge, at, _adjacency(adjacency), request, saved)
    return saved.out, saved.mean, saved.places, saved.long_places


def allocate(x: Tensor, adjacency: Adjacency, request: Request) -> Saved:
    """Room for the results of the forward pass."""
    rows, features = adjacency.num_receivers, x.shape[1]
    exact = "mean" in request.kinds and x.dtype == wide_type(x.dtype)
    own_mean = request.needs_spread and not exact
    extrema = request.needs_extrema
    long = adjacency.incoming.long_rows.shape[0] if extrema else 0
    return Saved(
        out=x.new_empty((rows, len(request.kinds), features)),
        mean=x.new_empty((rows if own_mean else 0, features), dtype=wide_type(x.dtype)),
        places=x.new_empty((rows if extrema else 0, 2, features), dtype=torch.uint8),
        long_places=x.new_empty((long, 2, features), dtype=torch.int32),
    )


@_forward.register_fake
def _(
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    adjacency: Sequence[Tensor],
    kinds: str,
    epsilon: float,
    clamp: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    saved = allocate(x, _adjacency(adjacency), Request(tuple(kinds.split(",")), epsilon, clamp))
    return saved.out, saved.mean, saved.places, saved.long_places


@torch.library.custom_op("pna::statistics_backward", mutates_args=())
def _backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    out: Tensor,
    mean: Tensor,
    places: Tensor,
    long_places: Tensor,
    adjacency: Sequence[Tensor],
    kinds: str,
    epsilon: float,
    clamp: bool,
    backend: str,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, edge and at; empty where `needs` does not ask for one."""
    request = Request(tuple(kinds.split(",")), epsilon, clamp)
    grads = _empty_gradients(x, edge, at, needs)
    if grad.numel() == 0 or x.shape[0] == 0 or adjacency[0].shape[0] == 1:
        return tuple(g.zero_() for g in grads)  # type: ignore[return-value]
    saved = Saved(out, mean, places, long_places)
    _kernels(backend).backward(grad, x, edge, at, _adjacency(adjacency), request, saved, grads)
    return grads


def _empty_gradients(
    x: Tensor, edge: Tensor | None, at: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for a gradient of each input; of no length where it is not needed."""

    def room(tensor: Tensor | None, needed: bool) -> Tensor:
        if tensor is None or not needed:
            return x.new_empty(0)
        return torch.empty_like(tensor, memory_format=torch.contiguous_format)

    return room(x, needs[0]), room(edge, needs[1]), room(at, needs[2])


@_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(x, edge, at, rest[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, edge, at, adjacency, *ctx.arguments = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, edge, at, *output, *adjacency)


def _differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    x, edge, at, out, mean, places, long_places, *adjacency = ctx.saved_tensors
    wanted = [
        needed and (tensor is not None and tensor.is_floating_point())
        for tensor, needed in zip((x, edge, at), ctx.needs_input_grad[:3], strict=True)
    ]
    nothing = ([None] * len(adjacency), None, None, None, None)
    if grad is None or not any(wanted):
        return (None, None, None, *nothing)
    grads = _backward(
        grad, x, edge, at, out, mean, places, long_places, adjacency, *ctx.arguments, wanted
    )
    given = [g if w else None for g, w in zip(grads, wanted, strict=True)]
    return (*given, *nothing)


_forward.register_autograd(_differentiate, setup_context=_save)


def _refuse_second(ctx: Any, *_: Any) -> tuple[Any, ...]:
    raise RuntimeError(
        "got a second derivative of pna.aggregate, which its fast kernels do not have; "
        "run it inside `with pna.backend('reference'):`"
    )


_backward.register_autograd(_refuse_second, setup_context=lambda ctx, inputs, output: None)


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
    return _fold(torch.stack([e[a] for e, a in zip(edge, at, strict=True)]), 0, batch), None


@_forward.register_vmap
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
    results = [_unfold(result, batch) for result in _forward(folded, edge, at, *rest)]
    return tuple(r for r, _ in results), tuple(d for _, d in results)
