"""The usual PNA layer as one step of autograd: what `PNAConv` does, with its gradients by hand.

Torch keeping track of each product costs more, on a graph of 100,000 edges or less, than the
products; and a backward pass that is written out adds gradients up where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.split import Form, Parts, Weights, split, split_gradients
from pna.ops.beside import Beside
from pna.ops.request import Request
from pna.ops.statistics import request_arguments


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
        flat = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return flat.view(x.shape[0], *weight.shape[:2])
    product = torch.einsum("nti,toi->nto", x.unflatten(1, (shares, -1)), weight)
    return product if bias is None else product + bias


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
    """C e of every edge as `statistics` takes it, from (features, None), (table, index), or
    (None, coefficients), whose basis is the weight itself."""
    if weight is None:
        return None, None
    return (weight.t() if edge is None else F.linear(edge, weight)), at


def _takes_encoded(edge: Tensor | None, at: Tensor | None, weights: Weights) -> bool:
    """Whether the rows of a table are encoded first: where they are fewer than those of C."""
    if weights.encoder is None or edge is None or at is None:
        return False
    return edge.shape[0] <= weights.encoder.shape[0]


#: Up to so many nodes the products of x are one: it needs more memory, and is sooner done.
_FEW_NODES = 2**15


def _is_joined(plan: Plan, x: Tensor) -> bool:
    return plan.shares == 1 and plan.backend == "triton" and x.shape[0] <= _FEW_NODES


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


def _join_gradients(
    together: Tensor, x: Tensor, shapes: Sequence[torch.Size]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of every weight and bias from those of all products of x, side by side.

    A column of ones beside x makes the gradients of the biases part of that product.
    """
    with_ones = torch.cat([x, x.new_ones((x.shape[0], 1))], 1)
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
    """A linear layer of few nodes, whose bias's gradient is part of that of its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        beside = Beside(x.device)
        with beside:
            of_weights, of_biases = _join_gradients(grad, x, [grad.shape[1:]])
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        beside.join()
        return grad_x, of_weights[0], of_biases[0]


def mixing_layer(plan: Plan | None, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The linear layer behind `pna_layer`, (nodes, outputs), where there is a plan for that."""
    if plan is None or not _is_joined(plan, x):
        return F.linear(x, weight, bias)
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
            else:
                every = sent = project(x, parts.sender, None, plan.shares)
            beside.join()
            graph = request_arguments(adjacency, plan.request, plan.backend)
            outputs = torch.ops.pna.statistics(sent.flatten(1), values, place, *graph)
            results = outputs[0].unflatten(2, sent.shape[1:])
            if not joined:
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
            beside = Beside(x.device)
            grad_mix = None
            if matrix is not None:  # nothing waits for the gradients of weights
                with beside:
                    wanted = [False, any(for_weights), False, False]
                    grad_mix = torch.ops.pna.degree_linear_backward(grad, wanted, *inputs)[1]
            wanted = [True, matrix is None and any(for_weights), False, True]
            grad_results, of_mix, _, grad_own = torch.ops.pna.degree_linear_backward(
                grad, wanted, *inputs
            )
            grad_mix = of_mix if grad_mix is None else grad_mix
            if matrix is None:
                del own, inputs
                grad_x, grad_keep = _project_backward(grad, x, parts.keep, plan.shares, None)
                grad_x, grad_receiver = _project_backward(
                    grad_own, x, parts.receiver, plan.shares, grad_x
                )
                grad_bias, grad_keep_bias = grad_own.sum(0), grad.sum(0)
                del grad_own
            graph = request_arguments(adjacency, plan.request, plan.backend)
            grad_sent, grad_values, grad_place = torch.ops.pna.statistics_backward(
                grad_results.flatten(2), sent.flatten(1), values, place, *outputs,
                [True, parts.edge is not None, bool(for_at)], *graph,
            )  # fmt: skip
            del grad_results
            grad_sent = grad_sent.view(sent.shape)
            if matrix is None:
                grad_x, grad_sender = _project_backward(
                    grad_sent, x, parts.sender, plan.shares, grad_x
                )
            else:
                grads = (grad_sent, grad_own, grad)
                together = torch.cat([g.flatten(1) for g in grads], 1)
                with beside:
                    shapes = [g.shape[1:] for g in grads]
                    of_weights, of_biases = _join_gradients(together, x, shapes)
                    grad_sender, grad_receiver, grad_keep = of_weights
                    _, grad_bias, grad_keep_bias = of_biases
                grad_x = together @ matrix
            grad_edge, of_edge = None, []
            if parts.edge is not None:
                of_edge = [grad_values.t() if features is None else grad_values.t() @ features]
                if encoded:
                    grad_edge = _by_tower(grad_values, parts.edge, grad.shape[1])
                elif for_edge:
                    grad_edge = grad_values @ parts.edge
            beside.join()
            by_part = (grad_receiver, grad_sender, grad_bias, grad_keep, grad_keep_bias)
            of_parts = (*by_part, *of_edge, grad_mix)
            of_layer = split_gradients(plan.form, weights, of_parts, encoded)
            if encoded:
                assert grad_edge is not None and weights.encoder is not None
                of_encoder = (grad_edge.t() @ edge, grad_edge.sum(0))
                of_layer = (*of_layer[:-2], *of_encoder)
                grad_edge = grad_edge @ weights.encoder if for_edge else None
        return (
            None, None, None, grad_x if for_x else None, grad_edge,
            grad_place if for_at else None, *of_layer,
        )  # fmt: skip
