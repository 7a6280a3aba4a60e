"""The PNA layer on a small graph of a GPU, with few launches, and its gradients.

Both are functions for eager mode, and operators for `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.operators import gradient_operator, operator
from pna.ops.request import Request, wide_type
from pna.ops.vmap_rules import one_by_one

if TYPE_CHECKING:
    from pna.ops.triton.small import SmallKernels
    from pna.ops.triton.small_products import WeightSizes

#: The most rows of an edge table whose gradient is a product with the kinds of all edges.
_KINDS = 256


@dataclass(frozen=True)
class SmallLayer:
    """A layer and its inputs. All tensors are contiguous."""

    x: Tensor  # (nodes, width)
    pre: Tensor  # (towers × width × 2, width): the receivers' and senders' part of M in turn
    bias: Tensor  # (towers × width,) of M
    post: Tensor  # (towers, outputs, inputs) of U
    post_bias: Tensor  # (towers, outputs)
    mixing: Tensor | None  # (towers × outputs, the same)
    mixing_bias: Tensor | None
    edge: Tensor | None  # the edge term of M, as in `Messages`
    at: Tensor | None
    factors: Tensor  # (nodes, scalers)
    adjacency: Adjacency
    request: Request
    times: Sequence[int]  # for each aggregate, how often the receivers' part is added to it

    @property
    def sizes(self) -> WeightSizes:
        from pna.ops.triton.small_products import WeightSizes

        mixed = 0 if self.mixing is None else self.mixing.shape[0]
        return WeightSizes(*map(int, (*self.post.shape, *self.pre.shape, mixed)))


class SmallResults(NamedTuple):
    """The result of a layer, and what its gradients need."""

    out: Tensor  # (nodes, towers × outputs)
    hidden: Tensor  # the result before the mixing layer; without elements if there is none
    products: Tensor  # (nodes, towers × width × 2): x times both parts of M
    of_u: Tensor  # (nodes, towers × inputs): the inputs of U
    kept: Tensor  # statistics of messages


def _kernels(layer: SmallLayer) -> SmallKernels:
    from pna.ops.triton.small import depth_of, small_kernels

    scalers, width, towers = map(int, (layer.factors.shape[1], layer.x.shape[1], len(layer.post)))
    depth, times = depth_of(layer.edge, layer.at), tuple(layer.times)
    return small_kernels(layer.request, times, scalers, width, towers, layer.x.dtype, depth)


def _allocate(layer: SmallLayer) -> SmallResults:
    (nodes, _), (towers, outputs, inputs) = layer.x.shape, layer.post.shape
    new, columns = layer.x.new_empty, layer.bias.shape[0]
    return SmallResults(
        out=new((nodes, towers * outputs)),
        hidden=new(0 if layer.mixing is None else (nodes, towers * outputs)),
        products=new((nodes, 2 * columns)),
        of_u=new((nodes, towers * inputs)),
        kept=new((nodes, _kernels(layer).kept, columns), dtype=wide_type(layer.x.dtype)),
    )


def small_forward(layer: SmallLayer) -> SmallResults:
    """Compute the layer."""
    from pna.ops.triton.small_products import products_of

    made, x, mixing = _allocate(layer), layer.x, layer.mixing
    by = products_of(x, layer.sizes)
    by.multiply(x, layer.pre[None], made.products, transposed=True)
    _kernels(layer).forward(
        made.products, layer.bias, x, layer.factors, layer.adjacency, (layer.edge, layer.at),
        made.of_u, made.kept,
    )  # fmt: skip
    of_update = made.out if mixing is None else made.hidden
    by.multiply(made.of_u, layer.post, of_update, layer.post_bias.view(-1), transposed=True)
    if mixing is not None:
        by.multiply(of_update, mixing[None], made.out, layer.mixing_bias, transposed=True)
    return made


class SmallGradients(NamedTuple):
    """The gradients of x, of every message, and of all weights and biases one after another."""

    x: Tensor  # without elements if it is not needed
    messages: Tensor
    weights: Tensor


def write_gradients(
    grad: Tensor, needs: Sequence[bool], layer: SmallLayer, hidden: Tensor, products: Tensor,
    of_u: Tensor, kept: Tensor, gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Write `SmallGradients`."""
    from pna.ops.triton.small_products import products_of

    of_x, of_messages, of_weights = gradients
    x, post, sizes = layer.x, layer.post, layer.sizes
    above = grad = grad.contiguous()
    by = products_of(x, sizes)
    if layer.mixing is not None:
        above = torch.empty_like(hidden)
        by.multiply(grad, layer.mixing[None], above)
    grad_u, of_products = torch.empty_like(of_u), torch.empty_like(products)
    by.multiply(above, post, grad_u)
    _kernels(layer).backward(
        grad_u, kept, products, layer.factors, layer.adjacency, (layer.edge, layer.at), of_products,
        of_messages,
    )  # fmt: skip
    if needs[0]:
        own = grad_u[:, : sizes.width]
        if sizes.towers > 1:
            own = grad_u.view(-1, sizes.towers, sizes.inputs)[:, :, : sizes.width].sum(1)
        by.multiply(of_products, layer.pre[None], of_x, own)
    by.gradients(above, of_u, of_products, x, (grad, hidden), sizes, of_weights)


def empty_gradients(layer: SmallLayer, needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate `SmallGradients`."""
    x, edges = layer.x, layer.adjacency.edge_ids.shape[0]
    return (
        x.new_empty(x.shape if needs[0] else 0),
        x.new_empty((edges, layer.bias.shape[0])),
        x.new_empty(layer.sizes.total),
    )


small_gradients = gradient_operator(
    "small_gradients",
    write_gradients,
    tangent="got a second derivative of the PNA layer in compiled code, expected a first one; "
    "call the layer outside of torch.compile",
    allocate=empty_gradients,
)


def _gradients(
    grad: Tensor, needs: Sequence[bool], layer: SmallLayer, hidden: Tensor, products: Tensor,
    of_u: Tensor, kept: Tensor,
) -> Any:  # fmt: skip
    """The gradients of x, pre, bias, post, post_bias, mixing, mixing_bias, edge and at."""
    of_x, of_messages, weights = small_gradients(
        grad, [needs[0]], layer, hidden, products, of_u, kept
    )
    of_edge, of_at = edge_gradients(of_messages, layer.edge, layer.at, needs[8])
    return of_x, *weight_gradients(layer, weights), of_edge, of_at


def weight_gradients(layer: SmallLayer, weights: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of pre, bias, post, post_bias, mixing and mixing_bias."""
    post, pre, mixing, post_bias, bias, mixing_bias = weights.split(layer.sizes.lengths)
    every = (
        pre.view(layer.pre.shape), bias, post.view(layer.post.shape),
        post_bias.view(layer.post_bias.shape),
    )  # fmt: skip
    if layer.mixing is None:
        return *every, None, None
    return *every, mixing.view(layer.mixing.shape), mixing_bias


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
    return one_by_one(torch.ops.pna.small_layer.default)(*given)


small_layer = operator(
    "small_layer",
    small_forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=(
        "x", "pre", "bias", "post", "post_bias", "mixing", "mixing_bias", "edge", "at"
    ),
    vmap=_vmap,
)  # fmt: skip
