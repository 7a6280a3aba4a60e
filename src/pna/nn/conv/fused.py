"""The usual PNA layer as one step of autograd: what `PNAConv` does, with its gradients by hand.

Torch keeping track of each product costs more, on a graph of 100,000 edges or less, than the
products; and a backward pass that is written out adds gradients up where they are made.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.split import Form, Weights, split, split_gradients
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
        with torch._C._AutoDispatchBelowAutograd():
            parts = split(form, weights)
            sent = project(x, parts.sender, None, plan.shares)
            values, place = edge_term(edge, at, parts.edge)
            graph = request_arguments(adjacency, plan.request, plan.backend)
            outputs = torch.ops.pna.statistics(sent.flatten(1), values, place, *graph)
            results = outputs[0].unflatten(2, sent.shape[1:])
            own = project(x, parts.receiver, parts.bias, plan.shares)
            base = project(x, parts.keep, parts.keep_bias, plan.shares)
            rest = (adjacency.indptr, adjacency.by_degree, plan.backend)
            mix = parts.mixes[0]
            out = torch.ops.pna.degree_linear(results, mix, factors, base, own, plan.times, *rest)
        ctx.plan, ctx.adjacency, ctx.parts = plan, adjacency, parts
        ctx.own = None if _saves_elsewhere() else own
        ctx.save_for_backward(factors, x, edge, sent, values, place, *outputs, *given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "got a second derivative of the PNA layer, which its fast kernels do not have; "
                "run it inside `with pna.backend('reference'):`"
            )
        plan, adjacency, parts = ctx.plan, ctx.adjacency, ctx.parts
        factors, x, edge, sent, values, place, *saved = ctx.saved_tensors
        outputs, mix, weights = saved[:4], parts.mixes[0], Weights(*saved[4:])
        for_x, for_edge, for_at, *for_weights = ctx.needs_input_grad[3:]
        with _no_autocast(x.device), torch._C._AutoDispatchBelowAutograd():
            own, ctx.own = ctx.own, None  # the memory is wanted below
            if own is None:  # a second time, or not kept
                own = project(x, parts.receiver, parts.bias, plan.shares)
            results = outputs[0].unflatten(2, sent.shape[1:])
            rest = (adjacency.indptr, adjacency.by_degree, plan.backend)
            grad_results, grad_mix, _, grad_own = torch.ops.pna.degree_linear_backward(
                grad, [True, any(for_weights), False, True],
                results, mix, factors, own, plan.times, *rest,
            )  # fmt: skip
            del own
            grad_x, grad_keep = _project_backward(grad, x, parts.keep, plan.shares, None)
            grad_x, grad_receiver = _project_backward(
                grad_own, x, parts.receiver, plan.shares, grad_x
            )
            grad_bias = grad_own.sum(0)
            del grad_own
            encoded = parts.edge is not None
            graph = request_arguments(adjacency, plan.request, plan.backend)
            grad_sent, grad_values, grad_place = torch.ops.pna.statistics_backward(
                grad_results.flatten(2), sent.flatten(1), values, place, *outputs,
                [True, encoded, bool(for_at)], *graph,
            )  # fmt: skip
            del grad_results
            grad_x, grad_sender = _project_backward(
                grad_sent.view_as(sent), x, parts.sender, plan.shares, grad_x
            )
            grad_edge, grad_encoded = None, []
            if parts.edge is not None:
                if edge is None:
                    grad_encoded = [grad_values.t()]
                else:
                    grad_encoded = [grad_values.t() @ edge]
                    grad_edge = grad_values @ parts.edge if for_edge else None
            by_part = (grad_receiver, grad_sender, grad_bias, grad_keep, grad.sum(0))
            of_weights = split_gradients(plan.form, weights, (*by_part, *grad_encoded, grad_mix))
        return (
            None, None, None, grad_x if for_x else None, grad_edge,
            grad_place if for_at else None, *of_weights,
        )  # fmt: skip
