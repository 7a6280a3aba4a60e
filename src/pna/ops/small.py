"""The inputs of U on a small graph, and their gradients, as operators for `torch.compile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.operators import gradient_operator, operator
from pna.ops.request import Request, wide_type
from pna.ops.vmap_rules import one_by_one

#: The most rows of an edge table whose gradient is a product with the kinds of all edges.
_KINDS = 256


@dataclass(frozen=True)
class SmallLayer:
    """What the inputs of U are made of: x_i, and every scaler times every aggregate of messages."""

    products: Tensor  # (nodes, towers × width × 2): the receivers' and senders' part of M in turn
    bias: Tensor  # (towers × width,) of M
    x: Tensor  # (nodes, width)
    factors: Tensor  # (nodes, scalers)
    edge: Tensor | None  # the edge term of M, as in `Messages`
    at: Tensor | None
    adjacency: Adjacency
    request: Request
    times: Sequence[int]  # for each aggregate, how often the receivers' part is added to it


class InputsOfU(NamedTuple):
    out: Tensor  # (nodes, towers × (1 + scalers × aggregates) × width)
    kept: Tensor  # for the backward pass


def kernels_of(
    request: Request, times: Sequence[int], factors: Tensor, x: Tensor, columns: int,
    edge: Tensor | None, at: Tensor | None,
) -> Any:  # fmt: skip
    """The kernels for such a layer, which has `columns` columns in all towers together."""
    from pna.ops.triton.small import depth_of, small_kernels

    scalers, width = int(factors.shape[1]), int(x.shape[1])
    return small_kernels(
        request, tuple(times), scalers, width, columns // width, x.dtype, depth_of(edge, at)
    )


def _kernels(layer: SmallLayer) -> Any:
    return kernels_of(
        layer.request, layer.times, layer.factors, layer.x, int(layer.bias.shape[0]), layer.edge,
        layer.at,
    )  # fmt: skip


def _forward(layer: SmallLayer) -> InputsOfU:
    made = _allocate(layer)
    _kernels(layer).forward(
        layer.products, layer.bias, layer.x, layer.factors, layer.adjacency,
        (layer.edge, layer.at), *made,
    )  # fmt: skip
    return made


def _allocate(layer: SmallLayer) -> InputsOfU:
    nodes, columns = layer.x.shape[0], layer.bias.shape[0]
    blocks = 1 + layer.factors.shape[1] * len(layer.request.kinds)
    wide = wide_type(layer.x.dtype)
    kept = layer.x.new_empty((nodes, _kernels(layer).kept, columns), dtype=wide)
    return InputsOfU(layer.x.new_empty((nodes, columns * blocks)), kept)


def _write_gradients(
    grad: Tensor, layer: SmallLayer, kept: Tensor, gradients: tuple[Tensor, Tensor]
) -> None:
    _kernels(layer).backward(
        grad.contiguous(), kept, layer.products, layer.factors, layer.adjacency,
        (layer.edge, layer.at), *gradients,
    )  # fmt: skip


def _empty_gradients(products: Tensor, bias: Tensor, edge_ids: Tensor) -> tuple[Tensor, Tensor]:
    edges, columns = edge_ids.shape[0], bias.shape[0]
    return torch.empty_like(products), products.new_empty((edges, columns))


small_gradients = gradient_operator(
    "small_gradients",
    _write_gradients,
    tangent="got a second derivative of the PNA layer in compiled code, expected a first one; "
    "call the layer outside of torch.compile",
    allocate=_empty_gradients,
)


def _gradients(grad: Tensor, needs: Sequence[bool], layer: SmallLayer, kept: Tensor) -> Any:
    """The gradients of the products, the bias, x, edge and at."""
    of_products, of_messages = small_gradients(grad, layer, kept)
    nodes, width = layer.x.shape
    towers = layer.bias.shape[0] // width
    of_bias = of_products.view(nodes, -1, 2)[:, :, 0].sum(0)
    of_x = grad.view(nodes, towers, -1)[:, :, :width].sum(1)
    of_edge, of_at = edge_gradients(of_messages, layer.edge, layer.at, needs[4])
    return of_products, of_bias, of_x, of_edge, of_at


def edge_gradients(
    of_messages: Tensor, edge: Tensor | None, at: Tensor | None, for_at: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of an edge term as in `Messages`, from those of all messages."""
    if edge is None or at is None:
        return (None if edge is None else of_messages), None
    if at.is_floating_point():
        return at.t() @ of_messages, of_messages @ edge.t() if for_at else None
    if edge.shape[0] <= _KINDS:
        kinds = torch.arange(edge.shape[0], device=at.device, dtype=at.dtype)
        return (at == kinds[:, None]).to(of_messages.dtype) @ of_messages, None
    none = torch.zeros_like(edge)
    return none.index_put((at.long(),), of_messages, accumulate=True), None


def _vmap(*given: Any) -> Any:
    return one_by_one(torch.ops.pna.small_inputs.default)(*given)


small_inputs = operator(
    "small_inputs",
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=("products", "bias", "x", "edge", "at"),
    vmap=_vmap,
)
