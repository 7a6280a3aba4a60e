"""The PNA layer as one autograd function, with hand-written gradients.

On graphs of up to about 100,000 edges, the overhead of autograd for each product costs more than
the product. A hand-written backward pass also accumulates gradients in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.nn.conv import few_nodes
from pna.nn.conv.split import LayerPlan, Parts, Weights, split, split_gradients
from pna.nn.conv.wide_edges import WideEdges, blocks_of
from pna.ops.degree_linear import degree_linear_backward, degree_linear_operator
from pna.ops.derivatives import gradients_of, no_autocast, refuse_batch
from pna.ops.operators import empty_gradient, no_forward_mode
from pna.ops.product import Product
from pna.ops.request import Messages, Saved
from pna.ops.statistics import kernels_of, statistics_backward, statistics_operator
from pna.ops.streams import DeferredJoins, SideStream
from pna.population.linears import gradients_in, takes_towers, tower_linears
from pna.torch_internals import (
    SingleLevelFunction,
    below_autograd,
    needed_now,
    saved_tensor_hooks,
)


def project(x: Tensor, weight: Tensor, bias: Tensor | None, shares: int) -> Tensor:
    """Multiply x (nodes, features) by a weight (towers, outputs, inputs): (nodes, towers, outputs).

    Each tower sees all of x if `shares` is 1, otherwise its own share of the features.
    """
    if shares == 1:
        flat = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return flat.view(x.shape[0], *weight.shape[:2])
    return tower_linears(x.unflatten(1, (shares, -1)), [weight], [bias])[0]


def project_each(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], shares: int
) -> Iterator[Tensor]:
    """Yield `project` for each weight. The products are computed lazily, or all at once if kernels
    support that."""
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
    """Return the gradients of x and of the weight. The first is added to `grad_x` in place, if
    given."""
    if shares == 1:
        flat, matrix = grad.flatten(1), weight.flatten(0, 1)
        grad_x = flat @ matrix if grad_x is None else grad_x.addmm_(flat, matrix)
        return grad_x, (flat.t() @ x).view(weight.shape)
    of_x = torch.einsum("nto,toi->nti", grad, weight).flatten(1)
    of_weight = torch.einsum("nto,nti->toi", grad, x.unflatten(1, (shares, -1)))
    return of_x if grad_x is None else grad_x.add_(of_x), of_weight


def _sums_over_nodes(plan: LayerPlan, *grads: Tensor) -> list[Tensor]:
    """Return the sums of two gradients (nodes, towers, features) over nodes."""
    if plan.backend != "triton" or grads[0].shape[0] == 0 or not fast_paths.is_on("add_up"):
        return [grad.sum(0) for grad in grads]
    from pna.ops.triton.sums import column_sums

    sums = column_sums(*[grad.flatten(1) for grad in grads])
    return [each.view(grad.shape[1:]) for each, grad in zip(sums, grads, strict=True)]


def edge_term(
    edge: Tensor | None, at: Tensor | None, weight: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return C e of every edge, as `statistics` expects it.

    (edge, at) is (features, None), (table, index), (basis, coefficients), or (None, coefficients);
    in the last case the basis is the weight itself.
    """
    if weight is None:
        return None, None
    return (weight.t() if edge is None else F.linear(edge, weight)), at


def _takes_encoded(edge: Tensor | None, at: Tensor | None, weights: Weights) -> bool:
    """Return whether to encode the table before the product with C, instead of multiplying the
    encoder into C: if the table has at most as many rows as the encoder."""
    if weights.encoder is None or edge is None or at is None or at.is_floating_point():
        return False
    return edge.shape[0] <= weights.encoder.shape[0]


def _wide_edges(
    adjacency: Adjacency, edge: Tensor | None, at: Tensor | None, parts: Parts
) -> WideEdges | None:
    """Return wide edge features if they are so many that C e is computed in blocks."""
    if edge is None or at is not None or parts.edge is None:
        return None
    blocks = blocks_of(adjacency.num_edges, parts.edge.shape[0], edge.device.type)
    return WideEdges(edge, parts.edge, adjacency, blocks) if blocks else None


#: Up to this number of nodes, work runs on several streams. It is faster but needs more memory.
FEW_NODES = 2**15


#: Elements of a product of x from which it is not kept for the backward pass but computed again.
#: On one large graph, memory is scarcer than the time for two of many products.
TO_KEEP = 2**26


def _has_few_nodes(plan: LayerPlan, x: Tensor) -> bool:
    """Return whether `few_nodes` computes the layer. Every tower must see all of x."""
    few = plan.shares == 1 and plan.backend == "triton" and x.shape[0] <= FEW_NODES
    return few and fast_paths.is_on("few_nodes")


def _statistics_gradients(
    grad: Tensor,
    needs: Sequence[bool],
    messages: Messages,
    saved: Saved,
    plan: LayerPlan,
    spare_x: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of x, edge and at. `grad`, of the statistics, may be overwritten, and
    x too if it is spare."""
    if plan.backend != "triton" or grad.numel() == 0:
        return statistics_backward(grad, needs, messages, saved, plan.request, plan.backend)
    # a program reads its row of x before it writes there
    of_x = messages.x if spare_x and messages.edge is None else torch.empty_like(messages.x)
    of_edge = empty_gradient(messages.edge, needs[1], of_x)
    gradients = (of_x, of_edge, empty_gradient(messages.at, needs[2], of_x))
    kernels_of(plan.backend).backward(grad, messages, plan.request, saved, gradients, spare=True)
    return gradients


def _is_divided(plan: LayerPlan, x: Tensor, parts: Parts) -> bool:
    """Return whether one kernel computes the products of all towers with their shares of x, and
    another kernel all gradients of these products."""
    if plan.shares == 1 or plan.backend != "triton" or x.shape[0] > FEW_NODES:
        return False
    taken = takes_towers(x, [parts.sender, parts.receiver, parts.keep])
    return taken and fast_paths.is_on("divided")


def _products(parts: Parts) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return weights and biases of all products of x: the senders', the receivers' and U's part."""
    weights = [parts.sender, parts.receiver, parts.keep]
    return weights, [None, parts.bias, parts.keep_bias]


def _divided_gradients(
    grads: list[Tensor], x: Tensor, parts: Parts, shares: int
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the gradient of x, and the gradients of the weight and bias of every product of x."""
    weights, _ = _products(parts)
    shared = x.unflatten(1, (shares, -1))
    grad_x, flat = torch.ops.pna.linears_backward(grads, [True, True], shared, weights)
    return grad_x.flatten(1), gradients_in(flat, weights)


class _MixingLayer(torch.autograd.Function):
    """A linear layer for few nodes. Its gradients are computed on several streams."""

    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.claim = DeferredJoins.claim((weight, bias))
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return grad @ weight, grad.t() @ x, grad.sum(0)
        of_weight, of_bias = SideStream(x.device), SideStream(x.device, 3)
        with of_weight:
            grad_weight = grad.t() @ x
        with of_bias:
            grad_bias = grad.sum(0)
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        ctx.claim.join(of_weight, grad, x)
        ctx.claim.join(of_bias, grad)
        return grad_x, grad_weight, grad_bias


def mixing_layer(plan: LayerPlan | None, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply the linear layer after `pna_layer`: (nodes, outputs). `plan` is None if `pna_layer` was
    not used, as in compiled code and under vmap."""
    if plan is None or torch.is_autocast_enabled(x.device.type) or not _has_few_nodes(plan, x):
        if plan is not None:
            DeferredJoins.claim((weight, bias))
        return F.linear(x, weight, bias)
    return _MixingLayer.apply(x, weight, bias)


def pna_layer(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Tensor | None,
    at: Tensor | None,
    factors: Tensor,
    weights: Weights,
) -> Tensor:
    """Compute the layer without its mixing layer: (nodes, towers, outputs).

    `edge` and `at` are those of `edge_term`, `factors` (nodes, scalers).
    """
    training = torch.is_grad_enabled()
    apply: Any = _Layer.apply  # type: ignore[attr-defined]
    return apply(plan, adjacency, training, factors, x, edge, at, *weights)


def layer_in_steps(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    term: tuple[Tensor | None, Tensor | None],
    factors: Tensor,
    parts: Parts,
) -> Tensor:
    """Compute the layer by operators that have derivatives of every order: (nodes, towers,
    outputs). `term` is the edge term, as `edge_term` gives it."""
    sent = project(x, parts.sender, None, plan.shares)
    messages = Messages(sent.flatten(1), *term, adjacency)
    results = statistics_operator(messages, plan.request, plan.backend)[0]
    own = project(x, parts.receiver, parts.bias, plan.shares)
    base = project(x, parts.keep, parts.keep_bias, plan.shares)
    degrees = (adjacency.indptr, adjacency.by_degree)
    results = results.unflatten(2, sent.shape[1:])
    product = Product(results, parts.mixes[0], factors, own, plan.times, *degrees)
    return degree_linear_operator(product, base, plan.backend)


def differentiable_gradients(
    run: Callable[..., Tensor], inputs: Sequence[Any], needs: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the result of `run`, which autograd can differentiate again."""
    with no_autocast(grad.device):
        return gradients_of(lambda *given: [run(*given)], inputs, needs, [grad], True)[1]


class _Layer(SingleLevelFunction):
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(
        ctx: Any,
        plan: LayerPlan,
        adjacency: Adjacency,
        training: bool,
        factors: Tensor,
        x: Tensor,
        edge: Tensor | None,
        at: Tensor | None,
        *given: Any,
    ) -> Tensor:
        weights, form = Weights(*given), plan.form
        encoded = _takes_encoded(edge, at, weights)
        with below_autograd():
            parts = split(form, weights, encoded)
            wide_edges = _wide_edges(adjacency, edge, at, parts)
            ctx.few_nodes = _has_few_nodes(plan, x) and wide_edges is None
            ctx.plan, ctx.adjacency, ctx.parts = plan, adjacency, parts
            features, edge_work = edge, SideStream(x.device, 1)
            with edge_work:
                if encoded:
                    assert edge is not None and weights.encoder is not None
                    features = F.linear(edge, weights.encoder, weights.encoder_bias)
                of_edge = parts.edge if wide_edges is None else None
                values, place = edge_term(features, at, of_edge)
            inputs = (factors, x, edge, features, values, place, *given)
            ctx.claim = DeferredJoins.claim(given)
            if ctx.few_nodes:
                out, kept, ctx.finding = few_nodes.forward(
                    plan, x, adjacency, (values, place), edge_work, factors, parts, training
                )
                ctx.claim.join_later(ctx.finding)
                ctx.save_for_backward(*inputs, *kept)
                return out
            edge_work.join()
            divided = _is_divided(plan, x, parts)
            if divided:
                weights_of_x, biases_of_x = _products(parts)
                shares = x.unflatten(1, (plan.shares, -1))
                sent, own, base = torch.ops.pna.linears(shares, weights_of_x, biases_of_x)
            else:
                sent = project(x, parts.sender, None, plan.shares)
            if wide_edges is None:
                messages = Messages(sent.flatten(1), values, place, adjacency)
                outputs = statistics_operator.directly(messages, plan.request, plan.backend)
            else:
                outputs = wide_edges.statistics(sent.flatten(1), plan.request, plan.backend)
            results = outputs[0].unflatten(2, sent.shape[1:])
            if not divided:
                own = project(x, parts.receiver, parts.bias, plan.shares)
                base = project(x, parts.keep, parts.keep_bias, plan.shares)
            degrees = (adjacency.indptr, adjacency.by_degree)
            product = Product(results, parts.mixes[0], factors, own, plan.times, *degrees)
            out = degree_linear_operator.directly(product, base, plan.backend)
        keep = sent.numel() <= TO_KEEP
        # hooks may move or drop what is saved for the backward pass
        ctx.own = own if keep and saved_tensor_hooks(True) is None else None
        ctx.save_for_backward(*inputs, sent if keep else None, *outputs)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_batch([grad], "the PNA layer")
        if torch.is_grad_enabled():
            return _gradients_in_steps(ctx, grad)
        plan, adjacency, parts = ctx.plan, ctx.adjacency, ctx.parts
        factors, x, edge, features, values, place, *saved = ctx.saved_tensors
        count = len(Weights._fields)
        weights, saved = Weights(*saved[:count]), saved[count:]
        encoded = _takes_encoded(edge, place, weights)
        for_x, for_edge, for_at, *for_weights = ctx.needs_input_grad[4:]
        needs = [for_x, for_edge, for_at, any(for_weights)]
        with no_autocast(x.device), below_autograd():
            if ctx.few_nodes:
                kept = few_nodes.Kept(*saved)
                ctx.finding.join()
                ctx.finding.let_go()  # ctx has saved these tensors
                inputs = few_nodes.LayerInputs(
                    adjacency, x, factors, (values, place), features, edge if encoded else None
                )
                grad_x, grad_edge, grad_place, of_layer = few_nodes.backward(
                    plan, parts, weights, inputs, kept, grad, needs, ctx.claim
                )
            else:
                own, ctx.own = ctx.own, None  # so that `del own` below frees its memory
                if own is None:  # not kept; or a second backward pass, or hooks on saved tensors
                    own = project(x, parts.receiver, parts.bias, plan.shares)
                sent, *outputs = saved
                results = outputs[0].unflatten(2, own.shape[1:])
                degrees = (adjacency.indptr, adjacency.by_degree)
                product = Product(results, parts.mixes[0], factors, own, plan.times, *degrees)
                wanted = [True, any(for_weights), False, True]
                grad_results, grad_mix, _, grad_own = degree_linear_backward.directly(
                    grad, wanted, product, plan.backend
                )
                del own, product
                divided = _is_divided(plan, x, parts)
                if not divided:
                    grad_x, grad_keep = _project_backward(grad, x, parts.keep, plan.shares, None)
                    grad_x, grad_receiver = _project_backward(
                        grad_own, x, parts.receiver, plan.shares, grad_x
                    )
                    grad_bias, grad_keep_bias = _sums_over_nodes(plan, grad_own, grad)
                    del grad_own
                spare_x = sent is None
                if sent is None:
                    sent = project(x, parts.sender, None, plan.shares)
                wide_edges = _wide_edges(adjacency, edge, place, parts)
                grad_edge = grad_place = None
                if wide_edges is None:
                    messages = Messages(sent.flatten(1), values, place, adjacency)
                    for_term = [True, parts.edge is not None, bool(for_at)]
                    grad_sent, grad_values, grad_place = _statistics_gradients(
                        grad_results.flatten(2), for_term, messages, Saved(*outputs), plan, spare_x
                    )
                else:
                    grad_sent, of_wide, grad_edge = wide_edges.gradients(
                        grad_results.flatten(2), sent.flatten(1), outputs, plan.request,
                        plan.backend, for_edge,
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
                of_edge, of_encoder = [], None
                if wide_edges is not None:
                    of_edge = [of_wide]
                elif parts.edge is not None:
                    of_edge = [grad_values.t() if features is None else grad_values.t() @ features]
                if encoded:
                    assert parts.edge is not None and weights.encoder is not None
                    of_table = grad_values @ parts.edge
                    of_encoder = (of_table.t() @ edge, of_table.sum(0))
                    grad_edge = of_table @ weights.encoder if for_edge else None
                elif parts.edge is not None and wide_edges is None and for_edge:
                    grad_edge = grad_values @ parts.edge
                by_part = (grad_receiver, grad_sender, grad_bias, grad_keep, grad_keep_bias)
                of_parts = (*by_part, *of_edge, grad_mix)
                of_layer = (None,) * len(weights)
                if any(for_weights):
                    of_layer = split_gradients(plan.form, weights, of_parts, encoded)
                if of_encoder is not None:
                    of_layer = (*of_layer[:-2], *of_encoder)
        return (
            None, None, None, None, grad_x if for_x else None, grad_edge,
            grad_place if for_at else None, *of_layer,
        )  # fmt: skip


def _gradients_in_steps(ctx: Any, grad: Tensor) -> Any:
    """Return the gradients of all inputs of `_Layer`, which autograd can differentiate again."""
    plan, adjacency = ctx.plan, ctx.adjacency
    factors, x, edge, _, _, at, *saved = ctx.saved_tensors

    def run(x: Tensor, edge: Tensor | None, at: Tensor | None, *given: Any) -> Tensor:
        parts = split(plan.form, Weights(*given))
        term = edge_term(edge, at, parts.edge)
        return layer_in_steps(plan, x, adjacency, term, factors, parts)

    inputs = (x, edge, at, *saved[: len(Weights._fields)])
    given = differentiable_gradients(run, inputs, needed_now(ctx)[4:], grad)
    return None, None, None, None, *given
