"""The PNA layer on a small graph of a GPU, with few launches.

The host needs longer to launch a kernel than the GPU to run it on a small graph. So this is one
step of autograd that stores what a large graph has no memory for: the inputs of U, and the gradient
of every message.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.nn.conv.fused import differentiable_gradients, edge_term, layer_in_steps
from pna.nn.conv.split import Form, LayerPlan, Weights, split
from pna.ops.derivatives import no_autocast, refuse_batch
from pna.ops.operators import no_forward_mode
from pna.ops.small import SmallLayer, edge_gradients, kernels_of, small_inputs
from pna.ops.streams import DeferredJoins
from pna.torch_internals import SingleLevelFunction, is_exporting, needed_now

#: The most elements of the inputs of U, and the most edges, of a small graph.
_INPUTS, _EDGES = 2**24, 2**17


def is_small(plan: LayerPlan, x: Tensor, adjacency: Adjacency) -> bool:
    """Whether `small_layer` computes the layer. In a captured training step it is not faster."""
    if plan.backend != "triton" or plan.shares > 1 or "normalised_mean" in plan.request.kinds:
        return False
    if torch.compiler.is_compiling():
        if is_exporting():  # a program for graphs of all sizes
            return False
    elif DeferredJoins.is_active():
        return False
    size = (plan.form, x.shape[0], adjacency.num_edges)
    return is_small_size(*size) and fast_paths.is_on("small")


def is_small_size(form: Form, num_nodes: int, num_edges: int) -> bool:
    inputs = form.width * (1 + form.scalers * form.aggregators)
    return 0 < num_nodes * inputs <= _INPUTS and 0 < num_edges <= _EDGES


def small_layer(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Tensor | None,
    at: Tensor | None,
    factors: Tensor,
    weights: Weights,
) -> Tensor:
    """Compute the layer: (nodes, towers × outputs). The arguments are those of `pna_layer`."""
    if torch.compiler.is_compiling():
        return _in_steps(plan, x, adjacency, edge, at, factors, weights)
    apply: Any = _Layer.apply  # type: ignore[attr-defined]
    return apply(plan, adjacency, factors, x, edge, at, *weights)


def _in_steps(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Tensor | None,
    at: Tensor | None,
    factors: Tensor,
    weights: Weights,
) -> Tensor:
    """The layer for `torch.compile`, which launches its kernels and finds the gradients itself."""
    x, width = x.contiguous(), plan.form.width
    bias, values, at, _ = _edge_term(weights, width, edge, at)
    products = F.linear(x, _node_weights(weights.pre, width))
    layer = SmallLayer(products, bias, x, factors, values, at, adjacency, plan.request, plan.times)
    given, _ = small_inputs(layer)
    towers, outputs, inputs = weights.post.shape
    if towers == 1:
        out = F.linear(given, weights.post.view(outputs, inputs), weights.post_bias.view(-1))
    else:
        each = given.view(-1, towers, inputs).transpose(0, 1)
        out = torch.baddbmm(weights.post_bias[:, None], each, weights.post.mT)
        out = out.transpose(0, 1).flatten(1)
    if weights.mixing is None:
        return out
    return F.linear(out, weights.mixing, weights.mixing_bias)


def _edge_term(
    weights: Weights, width: int, edge: Tensor | None, at: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, EdgeWeights | None]:
    """The bias of M, the edge term as in `Messages`, and the weights for edges."""
    bias = weights.pre_bias.view(-1)
    if weights.pre.shape[2] == 2 * width:
        return bias, None, None, None
    to_edge = EdgeWeights(weights, width)
    values = to_edge.weight.t()
    values = values.contiguous() if edge is None else edge @ values
    return to_edge.bias(bias), values, None if at is None else at.contiguous(), to_edge


class EdgeWeights:
    """The part of M for edges: edge features e add C e, or C (E e + f) with an encoder."""

    def __init__(self, weights: Weights, width: int) -> None:
        self._own = weights.pre.flatten(0, 1)[:, 2 * width :]
        self._encoder, self._shift = weights.encoder, weights.encoder_bias
        self.weight = self._own if self._encoder is None else self._own @ self._encoder

    def bias(self, bias: Tensor) -> Tensor:
        return bias if self._shift is None else torch.addmv(bias, self._own, self._shift)

    def gradients(self, grad: Tensor, of_bias: Tensor) -> tuple[Tensor, Tensor | None, Any]:
        """The gradients of C, E and f, from those of the product C E and of the bias of M."""
        if self._encoder is None or self._shift is None:
            return grad, None, None
        of_own = torch.addr(grad @ self._encoder.t(), of_bias, self._shift)
        return of_own, self._own.t() @ grad, torch.mv(self._own.t(), of_bias)


class _Layer(SingleLevelFunction):
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(
        ctx: Any,
        plan: LayerPlan,
        adjacency: Adjacency,
        factors: Tensor,
        x: Tensor,
        edge: Tensor | None,
        at: Tensor | None,
        *given: Any,
    ) -> Tensor:
        weights, width, leaves = Weights(*given), plan.form.width, (x, edge, at)
        x = x.contiguous()
        bias, values, at, _ = _edge_term(weights, width, edge, at)
        towers, outputs, inputs = weights.post.shape
        kernels = kernels_of(plan.request, plan.times, factors, x, towers * width, values, at)
        products = F.linear(x, _node_weights(weights.pre, width))
        of_u = products.new_empty((x.shape[0], towers * inputs))
        kept = products.new_empty((x.shape[0], kernels.kept, towers * width), dtype=kernels.wide)
        kernels.forward(products, bias, x, factors, adjacency, (values, at), of_u, kept)
        if towers == 1:
            out = F.linear(of_u, weights.post.view(outputs, inputs), weights.post_bias.view(-1))
        else:
            out = x.new_empty((x.shape[0], towers * outputs))
            each = of_u.view(-1, towers, inputs).transpose(0, 1)
            to = out.view(-1, towers, outputs).transpose(0, 1)
            torch.baddbmm(weights.post_bias[:, None], each, weights.post.mT, out=to)
        ctx.plan, ctx.adjacency, ctx.kernels = plan, adjacency, kernels
        mixing = weights.mixing
        ctx.save_for_backward(
            factors, *leaves, values, products, of_u, kept, None if mixing is None else out, *given
        )
        return out if mixing is None else F.linear(out, mixing, weights.mixing_bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_batch([grad], "the PNA layer")
        if torch.is_grad_enabled():
            return _gradients_in_steps(ctx, grad)
        with no_autocast(grad.device):
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Any:
    factors, x, edge, at, values, products, of_u, kept, out, *given = ctx.saved_tensors
    weights, kernels, width = Weights(*given), ctx.kernels, ctx.plan.form.width
    x, at = x.contiguous(), None if at is None else at.contiguous()
    for_x, for_edge, for_at = ctx.needs_input_grad[3:6]
    pre, post, mixing = weights.pre, weights.post, weights.mixing
    towers, outputs, inputs = post.shape
    grad = grad.contiguous()
    summed: tuple[Tensor, ...] = (grad,)
    of_mixing = of_mixing_bias = None
    if mixing is not None:
        of_mixing, grad = grad.t() @ out, grad @ mixing
        summed = (grad, *summed)
    if towers == 1:
        grad_u = grad @ post.view(outputs, inputs)
        of_post = (grad.t() @ of_u).view(post.shape)
    else:
        each = grad.view(-1, towers, outputs).transpose(0, 1)
        grad_u = torch.empty_like(of_u)
        torch.bmm(each, post, out=grad_u.view(-1, towers, inputs).transpose(0, 1))
        of_post = torch.bmm(each.mT, of_u.view(-1, towers, inputs).transpose(0, 1))
    of_products = torch.empty_like(products)
    of_messages = products.new_empty((ctx.adjacency.num_edges, towers * width))
    kernels.backward(
        grad_u, kept, products, factors, ctx.adjacency, (values, at), of_products, of_messages
    )
    of_bias, of_post_bias, *rest = kernels.sums(of_products, *summed)
    if mixing is not None:
        of_mixing_bias = rest[0]
    grad_x = grad_edge = grad_at = of_encoder = of_encoder_bias = None
    if for_x:
        own = grad_u.view(-1, towers, inputs)[:, :, :width]
        own = own[:, 0] if towers == 1 else own.sum(1)
        grad_x = torch.addmm(own, of_products, _node_weights(pre, width))
    of_pre = (of_products.t() @ x).view(towers, width, 2 * width)
    if values is not None:
        to_edge = EdgeWeights(weights, width)
        of_values, grad_at = edge_gradients(of_messages, values, at, for_at)
        assert of_values is not None
        of_weight = of_values.t() if edge is None else of_values.t() @ edge
        if edge is not None and for_edge:
            grad_edge = of_values @ to_edge.weight
        of_own, of_encoder, of_encoder_bias = to_edge.gradients(of_weight, of_bias)
        of_pre = torch.cat([of_pre, of_own.view(towers, width, -1)], 2)
    return (
        None, None, None, grad_x, grad_edge, grad_at, of_pre, of_bias.view(towers, width),
        of_post, of_post_bias.view(towers, outputs), of_mixing, of_mixing_bias, of_encoder,
        of_encoder_bias,
    )  # fmt: skip


def _gradients_in_steps(ctx: Any, grad: Tensor) -> Any:
    """The gradients of all inputs of `_Layer`, which autograd can differentiate again."""
    plan, adjacency = ctx.plan, ctx.adjacency
    factors, x, edge, at, _, _, _, _, _, *given = ctx.saved_tensors

    def run(x: Tensor, edge: Tensor | None, at: Tensor | None, *given: Any) -> Tensor:
        weights = Weights(*given)
        parts = split(plan.form, weights._replace(mixing=None, mixing_bias=None))
        term = edge_term(edge, at, parts.edge)
        out = layer_in_steps(plan, x, adjacency, term, factors, parts).flatten(1)
        mixing = weights.mixing
        return out if mixing is None else F.linear(out, mixing, weights.mixing_bias)

    inputs, needs = (x, edge, at, *given), needed_now(ctx)[3:]
    return None, None, None, *differentiable_gradients(run, inputs, needs, grad)


def _node_weights(pre: Tensor, width: int) -> Tensor:
    """The receivers' and senders' part of M, (2 × towers × width, width), row by row."""
    if pre.shape[2] > 2 * width:
        pre = pre[:, :, : 2 * width].contiguous()
    return pre.view(-1, width)
