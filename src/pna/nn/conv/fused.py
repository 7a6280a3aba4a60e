"""The usual PNA layer as one step of autograd: what `PNAConv` does, with its gradients by hand.

Torch keeping track of each product costs more, on a graph of 100,000 edges or less, than the
products; and a backward pass that is written out adds gradients up where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.split import Form, Parts, Weights, split, split_gradients
from pna.ops.beside import Beside
from pna.ops.linears import gradients_in, takes_towers, tower_linears
from pna.ops.operators import room
from pna.ops.request import Request, Saved
from pna.ops.statistics import request_arguments
from pna.ops.untransposed import linear


@dataclass(frozen=True)
class Plan:
    """What there is to do, apart from tensors."""

    form: Form
    request: Request  # the statistics, in the order of the layer's aggregators
    times: tuple[int, ...]  # how often each is shifted by what the receiver contributes
    shares: int  # into how many shares x is divided
    backend: str


def project(x: Tensor, weight: Tensor, bias: Tensor | None, shares: int) -> Tensor:
    """x through a weight (towers, outputs, inputs): (nodes, towers, outputs)."""
    if shares == 1:
        flat = linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return flat.view(x.shape[0], *weight.shape[:2])
    return tower_linears(x.unflatten(1, (shares, -1)), [weight], [bias])[0]


def project_each(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], shares: int
) -> Iterator[Tensor]:
    """`project` with one after another, each when it is asked for; where kernels take them all at
    once, with all."""
    if shares > 1:
        divided = x.unflatten(1, (shares, -1))
        if takes_towers(divided, weights):
            yield from tower_linears(divided, weights, biases)
            return
    for weight, bias in zip(weights, biases, strict=True):
        yield project(x, weight, bias, shares)


def _project_backward(
    grad: Tensor, x: Tensor, weight: Tensor, shares: int, grad_x: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient of x, added to `grad_x` in place if there is one, and that of weight."""
    if shares == 1:
        flat, matrix = grad.flatten(1), weight.flatten(0, 1)
        grad_x = flat @ matrix if grad_x is None else grad_x.addmm_(flat, matrix)
        return grad_x, (flat.t() @ x).view(weight.shape)
    of_x = torch.einsum("nto,toi->nti", grad, weight).flatten(1)
    of_weight = torch.einsum("nto,nti->toi", grad, x.unflatten(1, (shares, -1)))
    return of_x if grad_x is None else grad_x.add_(of_x), of_weight


def edge_term(
    edge: Tensor | None, at: Tensor | None, weight: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """C e of every edge as `statistics` takes it, from (features, None), (table, index), (basis,
    coefficients), or (None, coefficients), whose basis is the weight itself."""
    if weight is None:
        return None, None
    return (weight.t() if edge is None else F.linear(edge, weight)), at


def _takes_encoded(edge: Tensor | None, at: Tensor | None, weights: Weights) -> bool:
    """Whether the rows of a table are encoded first: where they are fewer than those of C."""
    if weights.encoder is None or edge is None or at is None or at.is_floating_point():
        return False
    return edge.shape[0] <= weights.encoder.shape[0]


#: Up to so many nodes the products of x are one: it needs more memory, and is sooner done.
_FEW_NODES = 2**15


def _is_joined(plan: Plan, x: Tensor) -> bool:
    return plan.shares == 1 and plan.backend == "triton" and x.shape[0] <= _FEW_NODES


def _is_divided(plan: Plan, x: Tensor, parts: Parts) -> bool:
    """Whether one kernel takes the products of x, of every tower with its share, and another all
    their gradients."""
    if plan.shares == 1 or plan.backend != "triton" or x.shape[0] > _FEW_NODES:
        return False
    return takes_towers(x, [parts.sender, parts.receiver, parts.keep])


def _join(parts: Parts) -> tuple[Tensor, Tensor]:
    """Weight and bias of all products of x side by side: what is sent, shifts, and is kept."""
    weights = (parts.sender, parts.receiver, parts.keep)
    none = torch.zeros_like(parts.bias)
    biases = (none, parts.bias, parts.keep_bias)
    return torch.cat([w.flatten(0, 1) for w in weights]), torch.cat([b.flatten() for b in biases])


def _disjoin(every: Tensor, form: Form, towers: int) -> list[Tensor]:
    """The products of x, (nodes, towers, …) each, from all side by side."""
    width = towers * form.width
    parts = every.split([width, width, every.shape[1] - 2 * width], 1)
    return [part.unflatten(1, (towers, -1)) for part in parts]


def _products(parts: Parts) -> tuple[list[Tensor], list[Tensor | None]]:
    """Weights and biases of all products of x: what is sent, shifts, and is kept."""
    weights = [parts.sender, parts.receiver, parts.keep]
    return weights, [None, parts.bias, parts.keep_bias]


def _divided_gradients(
    grads: list[Tensor], x: Tensor, parts: Parts, shares: int
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The gradient of x, and those of the weight and bias of every product of it."""
    weights, _ = _products(parts)
    grad_x, flat = torch.ops.pna.linears_backward(
        grads, [True, True], x.unflatten(1, (shares, -1)), weights
    )
    return grad_x.flatten(1), gradients_in(flat, weights)


def _gradients_side_by_side(
    plan: Plan,
    adjacency: Adjacency,
    grad: Tensor,
    products: tuple[Tensor, Tensor],
    mix: Tensor,
    factors: Tensor,
    edge: tuple[Tensor | None, Tensor | None],
    outputs: Sequence[Tensor],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all products of x side by side, and those of both parts of the edge term, empty
    where not needed. Kernels write each where it belongs, so that none is copied."""
    from pna.ops import triton
    from pna.ops.triton import degree_linear

    sent, own = products
    towers, outputs_each = grad.shape[1:]
    width = towers * (2 * plan.form.width + outputs_each)
    together = grad.new_empty((grad.shape[0], width))
    of_sent, of_own, of_kept = _disjoin(together, plan.form, towers)
    of_kept.copy_(grad)
    results = outputs[0].unflatten(2, sent.shape[1:])
    of_results = torch.empty_like(results)
    if grad.numel() > 0:
        degree_linear.backward(
            grad, results, mix, factors, own, plan.times, adjacency.indptr, adjacency.by_degree,
            of_results, grad.new_empty(0), of_own,
        )  # fmt: skip
    of_values, of_place = (room(t, n, sent) for t, n in zip(edge, needs, strict=True))
    triton.backward(
        of_results.flatten(2), sent.flatten(1), *edge, adjacency, plan.request, Saved(*outputs),
        (of_sent.flatten(1), of_values, of_place),
    )  # fmt: skip
    return together, of_values, of_place


def _with_ones(x: Tensor) -> Tensor:
    """x and a column of ones, with which gradients of biases are part of those of weights."""
    return torch.cat([x, x.new_ones((x.shape[0], 1))], 1)


def _join_gradients(
    together: Tensor, with_ones: Tensor, shapes: Sequence[torch.Size]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of every weight and bias from those of all products of x, side by side."""
    total = together.t() @ with_ones
    sizes = [math.prod(shape) for shape in shapes]
    of_weights = total[:, :-1].split(sizes)
    of_biases = total[:, -1].contiguous().split(sizes)
    return (
        [part.unflatten(0, shape) for part, shape in zip(of_weights, shapes, strict=True)],
        [part.view(shape) for part, shape in zip(of_biases, shapes, strict=True)],
    )


def _by_tower(grad: Tensor, weight: Tensor, towers: int) -> Tensor:
    """grad @ weight, (rows, towers × …) @ (towers × …, width), for few rows: a sum over towers is
    found by more of a GPU than one long product."""
    each = grad.unflatten(1, (towers, -1)).transpose(0, 1)
    return torch.bmm(each, weight.unflatten(0, (towers, -1))).sum(0)


class _MixingLayer(torch.autograd.Function):
    """A linear layer of few nodes, whose gradients are found beside one another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        works = Beside(x.device), Beside(x.device, 1)
        with works[0]:
            grad_weight = grad.t() @ x
        with works[1]:
            grad_bias = grad.sum(0)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        for work in works:
            work.join()
        return grad_x, grad_weight, grad_bias


def mixing_layer(plan: Plan | None, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The linear layer behind `pna_layer`, (nodes, outputs), where there is a plan for that."""
    if plan is None or not _is_joined(plan, x):
        return linear(x, weight, bias)
    return _MixingLayer.apply(x, weight, bias)


def pna_layer(
    plan: Plan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Tensor | None,
    at: Tensor | None,
    factors: Tensor,
    weights: Weights,
) -> Tensor:
    """(nodes, towers, outputs)."""
    return _Layer.apply(plan, adjacency, factors, x, edge, at, *weights)


def _saves_elsewhere() -> bool:
    """Whether what is kept for the backward pass goes to a CPU, say, or is not kept at all."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _no_autocast(device: torch.device) -> Any:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        adjacency: Adjacency,
        factors: Tensor,
        x: Tensor,
        edge: Tensor | None,
        at: Tensor | None,
        *given: Any,
    ) -> Tensor:
        weights, form = Weights(*given), plan.form
        encoded = _takes_encoded(edge, at, weights)
        joined = _is_joined(plan, x)
        with torch._C._AutoDispatchBelowAutograd():
            parts = split(form, weights, encoded)
            divided = _is_divided(plan, x, parts)
            features, matrix = edge, None
            beside = Beside(x.device)
            with beside:
                if encoded:
                    assert edge is not None and weights.encoder is not None
                    features = F.linear(edge, weights.encoder, weights.encoder_bias)
                values, place = edge_term(features, at, parts.edge)
            if joined:
                matrix, bias = _join(parts)
                every = F.linear(x, matrix, bias)
                sent, own, base = _disjoin(every, form, weights.pre.shape[0])
            elif divided:
                weights_of_x, biases_of_x = _products(parts)
                shares = x.unflatten(1, (plan.shares, -1))
                every, own, base = torch.ops.pna.linears(shares, weights_of_x, biases_of_x)
                sent = every
            else:
                every = sent = project(x, parts.sender, None, plan.shares)
            beside.join()
            graph = request_arguments(adjacency, plan.request, plan.backend)
            outputs = torch.ops.pna.statistics(sent.flatten(1), values, place, *graph)
            results = outputs[0].unflatten(2, sent.shape[1:])
            if not joined and not divided:
                own = project(x, parts.receiver, parts.bias, plan.shares)
                base = project(x, parts.keep, parts.keep_bias, plan.shares)
            rest = (adjacency.indptr, adjacency.by_degree, plan.backend)
            mix = parts.mixes[0]
            out = torch.ops.pna.degree_linear(results, mix, factors, base, own, plan.times, *rest)
        ctx.plan, ctx.adjacency, ctx.parts, ctx.matrix = plan, adjacency, parts, matrix
        ctx.own = None if joined or _saves_elsewhere() else own
        ctx.save_for_backward(factors, x, edge, features, every, values, place, *outputs, *given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "got a second derivative of the PNA layer, which its fast kernels do not have; "
                "run it inside `with pna.backend('reference'):`"
            )
        plan, adjacency, parts, matrix = ctx.plan, ctx.adjacency, ctx.parts, ctx.matrix
        factors, x, edge, features, sent, values, place, *saved = ctx.saved_tensors
        outputs, mix, weights = saved[:4], parts.mixes[0], Weights(*saved[4:])
        encoded = _takes_encoded(edge, place, weights)
        for_x, for_edge, for_at, *for_weights = ctx.needs_input_grad[3:]
        with _no_autocast(x.device), torch._C._AutoDispatchBelowAutograd():
            own, ctx.own = ctx.own, None  # the memory is wanted below
            if matrix is not None:
                sent, own, _ = _disjoin(sent, plan.form, grad.shape[1])
            elif own is None:  # a second time, or not kept
                own = project(x, parts.receiver, parts.bias, plan.shares)
            results = outputs[0].unflatten(2, sent.shape[1:])
            rest = (adjacency.indptr, adjacency.by_degree, plan.backend)
            inputs = (results, mix, factors, own, plan.times, *rest)
            beside, edges_beside = Beside(x.device), Beside(x.device, 1)
            for_term = [parts.edge is not None, bool(for_at)]
            if matrix is None:
                wanted = [True, any(for_weights), False, True]
                grad_results, grad_mix, _, grad_own = torch.ops.pna.degree_linear_backward(
                    grad, wanted, *inputs
                )
                del own, inputs
                divided = _is_divided(plan, x, parts)
                if not divided:
                    grad_x, grad_keep = _project_backward(grad, x, parts.keep, plan.shares, None)
                    grad_x, grad_receiver = _project_backward(
                        grad_own, x, parts.receiver, plan.shares, grad_x
                    )
                    grad_bias, grad_keep_bias = grad_own.sum(0), grad.sum(0)
                    del grad_own
                graph = request_arguments(adjacency, plan.request, plan.backend)
                grad_sent, grad_values, grad_place = torch.ops.pna.statistics_backward(
                    grad_results.flatten(2), sent.flatten(1), values, place, *outputs,
                    [True, *for_term], *graph,
                )  # fmt: skip
                del grad_results
                grad_sent = grad_sent.view(sent.shape)
                if divided:
                    grad_x, of_products = _divided_gradients(
                        [grad_sent, grad_own, grad], x, parts, plan.shares
                    )
                    (grad_sender, _), (grad_receiver, grad_bias), of_kept = of_products
                    grad_keep, grad_keep_bias = of_kept
                else:
                    grad_x, grad_sender = _project_backward(
                        grad_sent, x, parts.sender, plan.shares, grad_x
                    )
            else:  # nothing waits for the gradients of weights
                with beside:
                    with_ones = _with_ones(x)
                    wanted = [False, any(for_weights), False, False]
                    grad_mix = torch.ops.pna.degree_linear_backward(grad, wanted, *inputs)[1]
                together, grad_values, grad_place = _gradients_side_by_side(
                    plan, adjacency, grad, (sent, own), mix, factors, (values, place), outputs,
                    for_term,
                )  # fmt: skip
                with beside:
                    shapes = [sent.shape[1:], own.shape[1:], grad.shape[1:]]
                    of_weights, of_biases = _join_gradients(together, with_ones, shapes)
                    grad_sender, grad_receiver, grad_keep = of_weights
                    _, grad_bias, grad_keep_bias = of_biases
            grad_edge, of_edge, of_encoder = None, [], None
            with edges_beside:
                if parts.edge is not None:
                    of_edge = [grad_values.t() if features is None else grad_values.t() @ features]
                if encoded:
                    assert parts.edge is not None and weights.encoder is not None
                    of_table = _by_tower(grad_values, parts.edge, grad.shape[1])
                    of_encoder = (of_table.t() @ edge, of_table.sum(0))
                    grad_edge = of_table @ weights.encoder if for_edge else None
                elif parts.edge is not None and for_edge:
                    grad_edge = grad_values @ parts.edge
            if matrix is not None:
                grad_x = together @ matrix
            beside.join()
            edges_beside.join()
            by_part = (grad_receiver, grad_sender, grad_bias, grad_keep, grad_keep_bias)
            of_parts = (*by_part, *of_edge, grad_mix)
            of_layer = split_gradients(plan.form, weights, of_parts, encoded)
            if of_encoder is not None:
                of_layer = (*of_layer[:-2], *of_encoder)
        return (
            None, None, None, grad_x if for_x else None, grad_edge,
            grad_place if for_at else None, *of_layer,
        )  # fmt: skip
