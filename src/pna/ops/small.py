"""The PNA layer on a small graph of a GPU, with few launches, and its gradients.

`small_forward` and `small_backward` are for eager mode, `small_layer` is for `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.operators import gradient_operator, operator
from pna.ops.precision import is_exact
from pna.ops.request import Request, wide_type
from pna.ops.vmap_rules import one_by_one
from pna.rows import search_receivers

if TYPE_CHECKING:
    from pna.ops.triton.small import SmallLaunches

#: The most rows of an edge table whose gradient is a product with the kinds of all edges.
_KINDS = 256


@dataclass(frozen=True)
class SmallLayer:
    """A layer and its inputs. All tensors are contiguous."""

    x: Tensor  # (nodes, width)
    pre: Tensor  # (towers, width, 2 × width): the receivers' and senders' part of M
    bias: Tensor  # (towers, width) of M
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


class SmallResults(NamedTuple):
    """The result of a layer, and what its gradients need."""

    out: Tensor  # (nodes, towers × outputs)
    hidden: Tensor  # the result before the mixing layer; without elements if there is none
    products: Tensor  # (nodes, towers × width × 2): x times both parts of M


def launches_of(layer: SmallLayer) -> SmallLaunches:
    """The launches for such a layer."""
    from pna.ops.triton.small import SmallKind, WeightSizes, small_launches

    edge, at, mixing, factors = layer.edge, layer.at, layer.mixing, layer.factors
    mixed = 0 if mixing is None else mixing.shape[0]
    towers, width, _ = layer.pre.shape
    sizes = WeightSizes(*map(int, (*layer.post.shape, 2 * towers * width, width, mixed)))
    depth = None
    if edge is not None:
        depth = -2 if at is None else int(edge.shape[0]) if at.is_floating_point() else -1
    return small_launches(
        SmallKind(
            layer.request, tuple(layer.times), int(factors.shape[1]), sizes, layer.x.dtype,
            factors.dtype, layer.adjacency.edge_ids.dtype, depth, None if at is None else at.dtype,
            is_exact(),
        )
    )  # fmt: skip


def _inputs(layer: SmallLayer) -> list[Tensor | None]:
    """The tensors that `FORWARD` and `BACKWARD` of `pna.ops.triton.small` begin with."""
    graph = layer.adjacency
    return [
        layer.x, layer.pre, layer.bias, layer.post, layer.post_bias, layer.mixing,
        layer.mixing_bias, layer.factors, layer.edge, layer.at, graph.incoming.indptr,
        graph.incoming.neighbours, graph.edge_ids,
    ]  # fmt: skip


def _outgoing(layer: SmallLayer) -> list[Tensor | None]:
    """The tensors that follow in `BACKWARD`."""
    graph = layer.adjacency
    return [graph.outgoing.indptr, graph.outgoing.neighbours, graph.out_ranks]


def _numbers(launches: SmallLaunches, layer: SmallLayer) -> dict[str, int]:
    types = 0 if layer.edge is None else layer.edge.shape[0]
    return launches.numbers(layer.x.shape[0], layer.adjacency.edge_ids.shape[0], types)


def _allocate(layer: SmallLayer) -> SmallResults:
    (nodes, _), (towers, outputs, _) = layer.x.shape, layer.post.shape
    new, columns = layer.x.new_empty, layer.bias.numel()
    return SmallResults(
        out=new((nodes, towers * outputs)),
        hidden=new(0 if layer.mixing is None else (nodes, towers * outputs)),
        products=new((nodes, 2 * columns)),
    )


def _made_again(layer: SmallLayer) -> tuple[Tensor, Tensor]:
    """Memory for statistics of the messages, and for the inputs of U."""
    (nodes, _), (towers, _, inputs), new = layer.x.shape, layer.post.shape, layer.x.new_empty
    statistics = (nodes, launches_of(layer).kept, layer.bias.numel())
    return new(statistics, dtype=wide_type(layer.x.dtype)), new((nodes, towers * inputs))


def _forward(layer: SmallLayer) -> SmallResults:
    from pna.ops.triton.small import FORWARD

    launches, made = launches_of(layer), _allocate(layer)
    out, *kept = made
    every = (*_inputs(layer), *kept, *_made_again(layer), out)
    given = dict(zip(FORWARD, every, strict=True))
    with _on_device(layer.x):
        launches.forward.run(given | _numbers(launches, layer))
    return made


def small_forward(layer: SmallLayer, launches: SmallLaunches) -> tuple[Tensor, Tensor]:
    """Compute the layer in eager mode: its result, and a buffer for its gradients."""
    from pna.ops.triton.small import FORWARD

    x = layer.x
    numbers = _numbers(launches, layer)
    offsets = launches.buffer.offsets(numbers)
    out = x.new_empty((x.shape[0], launches.sizes.towers * launches.sizes.outputs))
    buffer = x.new_empty(offsets.pop(), dtype=torch.uint8)
    within = launches.scratch.offsets(numbers)
    inputs, scratch = _inputs(layer), x.new_empty(within.pop(), dtype=torch.uint8)
    with _on_device(x):
        if launches.is_ready(x.device) and (addresses := _addresses(inputs)) is not None:
            begin, own = buffer.data_ptr(), scratch.data_ptr()
            kept = [begin + offset for offset in offsets]
            made = [own + offset for offset in within]
            values = (*addresses, *kept, *made, out.data_ptr(), *numbers.values())
            launches.forward.launch(x.device.index, values)
        else:
            parts = launches.buffer.tensors(buffer, numbers)
            parts |= launches.scratch.tensors(scratch, numbers)
            given = dict(zip(FORWARD, (*inputs, *parts.values(), out), strict=True))
            launches.forward.run(given | numbers)
    return out, buffer


def _on_device(x: Tensor) -> Any:
    """A context in which the device of x is the current one."""
    from pna.ops.triton import launcher

    return launcher.on_device(x)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int] | None:
    """The addresses of all tensors, 0 without one; None if a kernel must be compiled anew, because
    an address is not a multiple of 16."""
    found, bits = [], 0
    for tensor in tensors:
        address = 0 if tensor is None else tensor.data_ptr()
        found.append(address)
        bits |= address
    return None if bits & 15 else found


class SmallGradients(NamedTuple):
    """The gradients of a layer. That of x has no elements if it is not needed."""

    x: Tensor
    messages: Tensor  # in the order of slots, or with an edge term in the given order
    weights: Tensor  # of all weights and biases, one after another


def small_backward(
    grad: Tensor, for_x: bool, layer: SmallLayer, launches: SmallLaunches, buffer: Tensor
) -> SmallGradients:
    """Compute the gradients in eager mode."""
    from pna.ops.triton.small import BACKWARD

    x, grad = layer.x, grad.contiguous()
    numbers = _numbers(launches, layer)
    at, offsets = launches.buffer.offsets(numbers), launches.workspace.offsets(numbers)
    workspace = x.new_empty(offsets.pop(), dtype=torch.uint8)
    of_weights = x.new_empty(launches.sizes.total)
    of_x = torch.empty_like(x) if for_x else x.new_empty(0)
    inputs, steps = _inputs(layer) + _outgoing(layer), launches.backward(for_x)
    last: list[Tensor | None] = [grad, of_weights, of_x]
    with _on_device(x):
        if launches.is_ready(x.device) and (addresses := _addresses(inputs + last)) is not None:
            kept = [buffer.data_ptr() + offset for offset in at[:-1]]
            work = [workspace.data_ptr() + offset for offset in offsets]
            if layer.mixing is None:
                work[0] = addresses[-3]  # the gradient is that of the result of U
            values = (*addresses[:-3], *kept, *work, *addresses[-3:], *numbers.values())
            steps.launch(x.device.index, values)
        else:
            kept_parts = launches.buffer.tensors(buffer, numbers)
            parts = launches.workspace.tensors(workspace, numbers)
            if layer.mixing is None:
                parts["above"] = grad
            every = (*inputs, *kept_parts.values(), *parts.values(), *last)
            steps.run(dict(zip(BACKWARD, every, strict=True)) | numbers)
    messages = x.new_empty(0)
    if layer.edge is not None:
        messages = launches.workspace.tensors(workspace, numbers)["of_messages"]
    return SmallGradients(of_x, messages, of_weights)


def _write_gradients(
    grad: Tensor, needs: Sequence[bool], layer: SmallLayer, hidden: Tensor, products: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Write `SmallGradients`."""
    from pna.ops.triton.small import BACKWARD

    of_x, of_messages, of_weights = gradients
    launches, x, grad = launches_of(layer), layer.x, grad.contiguous()
    numbers = _numbers(launches, layer)
    above = grad if layer.mixing is None else torch.empty_like(hidden)
    partial = x.new_empty((numbers["splits"], launches.sizes.total), dtype=torch.float32)
    statistics, of_u = _made_again(layer)
    every = (
        *_inputs(layer), *_outgoing(layer), hidden, products, statistics, above, of_u,
        torch.empty_like(of_u), torch.empty_like(products), of_messages, partial, grad, of_weights,
        of_x,
    )  # fmt: skip
    with _on_device(x):
        launches.backward(needs[0]).run(dict(zip(BACKWARD, every, strict=True)) | numbers)


def _empty_gradients(layer: SmallLayer, needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    x, edges = layer.x, layer.adjacency.edge_ids.shape[0]
    return (
        x.new_empty(x.shape if needs[0] else 0),
        x.new_empty((edges, layer.bias.numel())),
        x.new_empty(launches_of(layer).sizes.total),
    )


small_gradients = gradient_operator(
    "small_gradients",
    _write_gradients,
    tangent="got a second derivative of the PNA layer in compiled code, expected a first one; "
    "call the layer outside of torch.compile",
    allocate=_empty_gradients,
)


def _gradients(
    grad: Tensor, needs: Sequence[bool], layer: SmallLayer, hidden: Tensor, products: Tensor
) -> Any:
    """The gradients of x, pre, bias, post, post_bias, mixing, mixing_bias, edge and at."""
    of_x, of_messages, weights = small_gradients(grad, [needs[0]], layer, hidden, products)
    of_edge, of_at = edge_gradients(of_messages, layer.edge, layer.at, needs[8])
    return of_x, *weight_gradients(layer, weights), of_edge, of_at


def weight_gradients(layer: SmallLayer, weights: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of pre, bias, post, post_bias, mixing and mixing_bias."""
    post, pre, mixing = layer.post, layer.pre, layer.mixing
    (towers, outputs, inputs), (_, width, both) = post.shape, pre.shape
    of_pre, mixed = towers * outputs * inputs, 0 if mixing is None else mixing.shape[0]
    of_mixing = of_pre + towers * width * both
    of_post_bias = of_mixing + mixed * mixed
    of_bias = of_post_bias + towers * outputs
    view = weights.as_strided  # faster than to split and to reshape
    every = (
        view((towers, width, both), (width * both, both, 1), of_pre),
        view((towers, width), (width, 1), of_bias),
        view((towers, outputs, inputs), (outputs * inputs, inputs, 1), 0),
        view((towers, outputs), (outputs, 1), of_post_bias),
    )
    if mixing is None:
        return *every, None, None
    end = of_bias + towers * width
    return *every, view((mixed, mixed), (mixed, 1), of_mixing), view((mixed,), (1,), end)


def small_definition(layer: SmallLayer, extrema: dict[str, Tensor]) -> Tensor:
    """The layer in plain torch, which has derivatives of every order: (nodes, towers × outputs).

    `extrema` are the slots of max and min, (nodes, columns). The host needs less time for these few
    operations than for the operators of large graphs.
    """
    x, graph, request, wide = layer.x, layer.adjacency, layer.request, wide_type(layer.x.dtype)
    (nodes, width), towers = x.shape, len(layer.post)
    slots = torch.arange(graph.num_edges, device=x.device, dtype=graph.indptr.dtype)
    # slots that belong to no receiver are summed in a row of their own
    rows = search_receivers(graph.indptr, slots)
    degree = graph.incoming.lengths.to(wide)[:, None]
    share = degree.clamp(min=1).reciprocal()
    to_receiver, to_sender = layer.pre.split(width, 2)
    own = F.linear(x, to_receiver.flatten(0, 1), layer.bias.flatten()).to(wide)
    message = F.linear(x, to_sender.flatten(0, 1)).index_select(0, graph.senders)
    if layer.edge is not None:
        message = message + _edge_term(layer, layer.edge)
    message = message.to(wide)
    nothing = message.new_zeros((nodes + 1, message.shape[1]))

    def total(values: Tensor) -> Tensor:
        return nothing.index_add(0, rows, values)[:nodes]

    found = {"sum": total(message)}
    found["mean"] = found["sum"] * share
    if request.needs_spread:
        away = message - found["mean"].index_select(0, rows.clamp(max=nodes - 1))
        found["var"] = var = total(away.square()) * share
        if "std" in request.kinds:
            least = request.epsilon
            found["std"] = (F.threshold(var, least, least) if request.clamp else var + least).sqrt()
    if extrema:
        picked = message.gather(0, torch.cat(list(extrema.values())))
        found |= dict(zip(extrema, picked.split(nodes), strict=True))
    kinds = zip(request.kinds, layer.times, strict=True)
    shifts = {1: own, 2: degree * own if 2 in layer.times else own}
    results = torch.stack([found[k] + shifts[n] if n else found[k] for k, n in kinds], 1)
    results = torch.where(degree[:, :, None] > 0, results, 0)  # NaN of others must not get there
    # scaled after the product: of all that is kept, only the results have many columns
    scalers, outputs = layer.factors.shape[1], layer.post.shape[1]
    keep, mix = layer.post.split([width, layer.post.shape[2] - width], 2)
    mix, results = mix.reshape(towers, outputs * scalers, -1), results.to(x.dtype)
    if towers == 1:
        each = F.linear(results.flatten(1), mix.flatten(0, 1))
    else:
        of_towers = results.unflatten(2, (towers, width)).permute(2, 0, 1, 3).flatten(2)
        each = (of_towers @ mix.mT).transpose(0, 1)
    each = each.reshape(nodes, towers * outputs, scalers)
    scaled = (each * layer.factors[:, None]).sum(2).to(x.dtype)
    out = F.linear(x, keep.flatten(0, 1), layer.post_bias.flatten()) + scaled
    return out if layer.mixing is None else F.linear(out, layer.mixing, layer.mixing_bias)


def _edge_term(layer: SmallLayer, edge: Tensor) -> Tensor:
    """The edge term of every slot."""
    at, ids = layer.at, layer.adjacency.edge_ids
    if at is None:
        return edge.index_select(0, ids)
    at = at.index_select(0, ids)
    return at @ edge if at.is_floating_point() else edge.index_select(0, at.long())


def extremal_slots(request: Request, launches: SmallLaunches, buffer: Tensor, nodes: int) -> Any:
    """The slots of max and min that the forward pass has found, by name: (nodes, columns)."""
    from pna.ops.triton.small import kept_of

    names, numbers = kept_of(request), launches.numbers(nodes, 0, 0)
    kept = launches.buffer.tensors(buffer, numbers)["statistics"]
    parts = kept.view(nodes, len(names), -1).view(torch.int32)
    return {name: parts[:, i].long() for i, name in enumerate(names) if name in ("max", "min")}


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
    _forward,
    fake=_allocate,
    backward=_gradients,
    differentiable=(
        "x", "pre", "bias", "post", "post_bias", "mixing", "mixing_bias", "edge", "at"
    ),
    vmap=_vmap,
)  # fmt: skip
