"""The PNA layer on a small graph of a GPU, with few launches.

The host needs longer to launch a kernel than the GPU to run it on a small graph. So this is one
step of autograd that computes what a large graph has no memory for: the inputs of U, in both
passes, and the gradient of every message.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.nn.conv.fused import differentiable_gradients
from pna.nn.conv.split import Form, LayerPlan, Weights
from pna.ops import small
from pna.ops.derivatives import no_autocast, refuse_batch
from pna.ops.operators import no_forward_mode
from pna.ops.small import SmallLayer
from pna.ops.streams import DeferredJoins
from pna.torch_internals import SingleLevelFunction, in_forward_mode, is_exporting, needed_now

#: The most elements of the inputs of U, and the most edges, of a small graph.
_INPUTS, _EDGES = 2**24, 2**17


def is_small(plan: LayerPlan, x: Tensor, adjacency: Adjacency) -> bool:
    """Whether `small_layer` computes the layer. In a captured training step it is not faster."""
    if plan.backend != "triton" or plan.shares > 1 or "normalised_mean" in plan.request.kinds:
        return False
    if torch.compiler.is_compiling():
        if is_exporting():  # a launches for graphs of all sizes
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
    if not torch.is_grad_enabled() and not in_forward_mode():  # faster than a step of autograd
        layer, _ = _small_layer(plan, adjacency, factors, x, edge, at, weights)
        return small.small_forward(layer, small.launches_of(layer))[0]
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
    layer, _ = _small_layer(plan, adjacency, factors, x, edge, at, weights)
    out: Tensor = small.small_layer(layer)[0]
    return out


def _small_layer(
    plan: LayerPlan,
    adjacency: Adjacency,
    factors: Tensor,
    x: Tensor,
    edge: Tensor | None,
    at: Tensor | None,
    weights: Weights,
    values: Tensor | None = None,
) -> tuple[SmallLayer, EdgeWeights | None]:
    """The layer as its kernels take it, and the weights for edges. `values` is the edge term of M,
    if it is known already."""
    pre, bias, width, to_edge = weights.pre, weights.pre_bias, plan.form.width, None
    if pre.shape[2] > 2 * width:
        to_edge = EdgeWeights(weights, width)
        pre, bias = pre[:, :, : 2 * width], to_edge.bias(bias)
        if values is None:
            values = to_edge.weight.t()
            values = values.contiguous() if edge is None else edge @ values
        at = None if at is None else at.contiguous()
    layer = SmallLayer(
        x.contiguous(), pre.contiguous(), bias.contiguous(), weights.post.contiguous(),
        weights.post_bias.contiguous(), weights.mixing, weights.mixing_bias, values,
        None if to_edge is None else at, factors, adjacency, plan.request, plan.times,
    )  # fmt: skip
    return layer, to_edge


class EdgeWeights:
    """The part of M for edges: edge features e add C e, or C (E e + f) with an encoder."""

    def __init__(self, weights: Weights, width: int) -> None:
        self._own = weights.pre.flatten(0, 1)[:, 2 * width :]
        self._encoder, self._shift = weights.encoder, weights.encoder_bias
        self.weight = self._own if self._encoder is None else self._own @ self._encoder

    def bias(self, bias: Tensor) -> Tensor:
        """The bias of M (towers, width), with what the encoder adds."""
        if self._shift is None:
            return bias
        return torch.addmv(bias.flatten(), self._own, self._shift).view(bias.shape)

    def gradients(self, grad: Tensor, of_bias: Tensor) -> tuple[Tensor, Tensor | None, Any]:
        """The gradients of C, E and f, from those of the product C E and of the bias of M."""
        if self._encoder is None or self._shift is None:
            return grad, None, None
        of_bias = of_bias.flatten()
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
        layer, _ = _small_layer(plan, adjacency, factors, x, edge, at, Weights(*given))
        launches = small.launches_of(layer)
        out, buffer = small.small_forward(layer, launches)
        ctx.plan, ctx.adjacency, ctx.launches = plan, adjacency, launches
        ctx.save_for_backward(factors, x, edge, at, layer.edge, buffer, *given)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_batch([grad], "the PNA layer")
        if torch.is_grad_enabled():
            return _differentiable_gradients(ctx, grad)
        with no_autocast(grad.device):
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Any:
    factors, x, edge, at, values, buffer, *given = ctx.saved_tensors
    weights, needs = Weights(*given), ctx.needs_input_grad[3:6]
    layer, to_edge = _small_layer(ctx.plan, ctx.adjacency, factors, x, edge, at, weights, values)
    of_x, of_messages, of_weights = small.small_backward(
        grad, needs[0], layer, ctx.launches, buffer
    )
    of_pre, of_bias, *of_update = small.weight_gradients(layer, of_weights)
    assert of_pre is not None and of_bias is not None
    grad_edge = grad_at = of_encoder = of_encoder_bias = None
    if to_edge is not None:
        of_values, grad_at = small.edge_gradients(of_messages, layer.edge, layer.at, needs[2])
        assert of_values is not None
        of_weight = of_values.t() if edge is None else of_values.t() @ edge
        if edge is not None and needs[1]:
            grad_edge = of_values @ to_edge.weight
        of_own, of_encoder, of_encoder_bias = to_edge.gradients(of_weight, of_bias)
        of_pre = torch.cat([of_pre, of_own.view(*of_bias.shape, -1)], 2)
    return (
        None, None, None, of_x if needs[0] else None, grad_edge, grad_at, of_pre, of_bias,
        *of_update, of_encoder, of_encoder_bias,
    )  # fmt: skip


def _differentiable_gradients(ctx: Any, grad: Tensor) -> Any:
    """The gradients of all inputs of `_Layer`, which autograd can differentiate again."""
    plan, adjacency, launches = ctx.plan, ctx.adjacency, ctx.launches
    factors, x, edge, at, _, buffer, *given = ctx.saved_tensors
    extrema = small.extremal_slots(plan.request, launches, buffer, x.shape[0])

    def run(x: Tensor, edge: Tensor | None, at: Tensor | None, *given: Any) -> Tensor:
        layer, _ = _small_layer(plan, adjacency, factors, x, edge, at, Weights(*given))
        return small.small_definition(layer, extrema)

    inputs, needs = (x, edge, at, *given), needed_now(ctx)[3:]
    return None, None, None, *differentiable_gradients(run, inputs, needs, grad)
