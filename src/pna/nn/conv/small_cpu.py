"""The PNA layer on a small graph of a CPU, as one step of autograd.

The inputs of U are stored. If many nodes have the same degree, and so the same factors, U is
multiplied by the factors of each degree, and nodes are multiplied by U degree by degree: each
aggregate once, not once for each scaler. Otherwise the inputs have a column for each scaler.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.nn.conv.fused import differentiable_gradients, edge_term, layer_in_steps
from pna.nn.conv.split import LayerPlan, Weights, split
from pna.ops import small_cpu
from pna.ops.derivatives import refuse_batch
from pna.ops.operators import no_forward_mode
from pna.torch_internals import SingleLevelFunction, needed_now
from pna.visible import has_memory

#: Edges × columns up to which small.c is faster than cpu.c, and elements of the inputs of U up to
#: which a column for each scaler is faster than the order of large graphs.
_MESSAGES, _INPUTS = 2**22, 2**21

#: Nodes of each degree, on average, from which products are computed degree by degree, in a graph
#: of at least 8 times as many.
_FEWEST = 64


def is_small_on_cpu(
    plan: LayerPlan, x: Tensor, adjacency: Adjacency, at: Tensor | None, weights: Tensor
) -> bool:
    """Whether `small_layer_on_cpu` computes the layer; `weights` are those of U."""
    usual = plan.backend == "cpu" and plan.shares == 1 and x.dtype == torch.float32
    if x.shape[0] == 0 or not has_memory(x):
        return False
    if torch.is_autocast_enabled("cpu") or (at is not None and at.is_floating_point()):
        return False
    if not usual or "normalised_mean" in plan.request.kinds or torch.compiler.is_compiling():
        return False
    towers, _, inputs = weights.shape
    if adjacency.edge_ids.dtype != torch.int32 or not small_cpu.built:
        return False
    if adjacency.num_edges * towers * plan.form.width > _MESSAGES:
        return False
    few = x.shape[0] * towers * inputs <= _INPUTS or _bounds(plan, adjacency) is not None
    return few and fast_paths.is_on("small_cpu")


def _bounds(plan: LayerPlan, adjacency: Adjacency) -> list[int] | None:
    """Where each degree begins in the order of degrees, and the end; None if there are many."""
    nodes = adjacency.num_receivers
    if plan.form.scalers == 1 or nodes < max(8 * _FEWEST, 1) or not fast_paths.is_on("grouped"):
        return None
    counts = [count for count in torch.bincount(adjacency.reached_degree).tolist() if count]
    return [0, *accumulate(counts)] if nodes >= _FEWEST * len(counts) else None


def _is_composed(x: Tensor, post: Tensor) -> bool:
    """Whether to multiply the mixing layer by U first: one product of every node instead of two."""
    towers, _, inputs = post.shape
    return towers == 1 and x.shape[0] > 2 * inputs


def small_layer_on_cpu(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Tensor | None,
    at: Tensor | None,
    factors: Tensor,
    weights: Weights,
) -> Tensor:
    """Compute the layer: (nodes, towers × outputs). The arguments are those of `pna_layer`."""
    width = plan.form.width
    pre, bias, values = weights.pre.flatten(0, 1), weights.pre_bias.flatten(), None
    if pre.shape[1] > 2 * width:
        pre, to_edge = pre.split([2 * width, pre.shape[1] - 2 * width], 1)
        if weights.encoder is not None:
            assert weights.encoder_bias is not None
            bias = torch.addmv(bias, to_edge, weights.encoder_bias)
            to_edge = to_edge @ weights.encoder
        values, at = edge_term(edge, at, to_edge)
        assert values is not None
        values, at = values.contiguous(), None if at is None else at.contiguous()
    products = pre.reshape(2 * pre.shape[0], width)
    update = (weights.post, weights.post_bias, weights.mixing, weights.mixing_bias)
    if weights.mixing is not None and _is_composed(x, weights.post):
        assert weights.mixing_bias is not None
        post_bias = torch.addmv(weights.mixing_bias, weights.mixing, weights.post_bias[0])
        update = ((weights.mixing @ weights.post[0])[None], post_bias[None], None, None)
    apply: Any = _Layer.apply  # type: ignore[attr-defined]
    return apply(plan, adjacency, factors, x, values, at, products, bias, *update)


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
        *weights: Any,
    ) -> Tensor:
        pre, bias, post, post_bias, mixing, mixing_bias = weights
        given, x, nodes = x, x.contiguous(), x.shape[0]
        # BLAS is slow if both the rows are few and the weight is transposed
        products = x @ pre.t().contiguous()
        order, of_degree, update = None, None, post[None]  # (groups, towers, outputs, inputs)
        bounds, scalers = _bounds(plan, adjacency), plan.form.scalers
        if bounds is not None:
            order, scalers = adjacency.by_degree, 1
            of_degree = factors.index_select(0, order[bounds[:-1]])
            update, used = (
                _scaled(post, of_degree, x.shape[1]),
                _used(adjacency, bounds, x.shape[1]),
            )
        else:
            bounds, used = [0, nodes], [None]
        shape = (plan.request, plan.times, scalers, plan.form.width, bias.shape[0])
        kernels = small_cpu.small_kernels(small_cpu.SmallShape(*shape))
        factors_of_kernels = factors if order is None else None
        inputs, _ = kernels.forward(products, bias, x, factors_of_kernels, adjacency, edge, at)
        towers, outputs, _ = post.shape
        out = x.new_empty((nodes, towers * outputs))
        by_degree = zip(pairwise(bounds), used, update.mT.contiguous(), strict=True)
        for (begin, end), columns, weight in by_degree:
            if towers == 1:
                part, weight = inputs[begin:end, :columns], weight[0, :columns]
                torch.addmm(post_bias[0], part, weight, out=out[begin:end])
            else:
                to = _by_tower(out[begin:end], towers)
                each = _by_tower(inputs[begin:end], towers)
                torch.baddbmm(post_bias[:, None], each, weight, out=to)
        ctx.plan, ctx.adjacency, ctx.kernels = plan, adjacency, kernels
        ctx.bounds, ctx.used = bounds, used
        ctx.save_for_backward(
            factors, given, edge, at, *weights, of_degree, products, inputs, update, out
        )
        result = out
        if mixing is not None:
            result = torch.addmm(mixing_bias, out, mixing.t())
        if order is None:
            return result
        ctx.row = _inverse(order)
        return result.index_select(0, ctx.row)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_batch([grad], "the PNA layer")
        if torch.is_grad_enabled():
            return _gradients_in_steps(ctx, grad)
        with torch.autocast("cpu", enabled=False):
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Any:
    factors, x, edge, at, *weights, of_degree, products, inputs, update, out = ctx.saved_tensors
    pre, _, post, _, mixing, _ = weights
    x, factors = x.contiguous(), factors if of_degree is None else None
    for_x, for_edge = ctx.needs_input_grad[3:5]
    (towers, outputs, _), width = post.shape, x.shape[1]
    if of_degree is not None:
        grad = grad.index_select(0, ctx.adjacency.by_degree)
    of_mixing = of_mixing_bias = None
    if mixing is not None:
        of_mixing, of_mixing_bias, grad = grad.t() @ out, grad.sum(0), grad @ mixing
    of_inputs, of_update = torch.empty_like(inputs), torch.empty_like(update)
    for k, ((begin, end), columns) in enumerate(zip(pairwise(ctx.bounds), ctx.used, strict=True)):
        part, of_part, given = grad[begin:end], of_inputs[begin:end], inputs[begin:end]
        if towers == 1:
            torch.mm(part, update[k, 0, :, :columns], out=of_part[:, :columns])
            torch.mm(part.t(), given[:, :columns], out=of_update[k, 0, :, :columns])
            if columns is not None:
                of_update[k, 0, :, columns:] = 0
        else:
            each = _by_tower(part, towers)
            torch.bmm(each, update[k], out=_by_tower(of_part, towers))
            torch.bmm(each.mT, _by_tower(given, towers), out=of_update[k])
    of_products, of_edge, of_bias = ctx.kernels.backward(
        of_inputs, None, products, factors, ctx.adjacency, edge, at, for_edge
    )
    of_post = of_update[0] if of_degree is None else _unscaled(of_update, of_degree, width)
    grad_x = None
    if for_x:
        own = of_inputs.view(x.shape[0], towers, -1)[:, :, :width]
        own = own[:, 0] if towers == 1 else own.sum(1)
        if of_degree is not None:
            own = own.index_select(0, ctx.row)
        grad_x = torch.addmm(own, of_products, pre)
    return (
        None, None, None, grad_x, of_edge, None, of_products.t() @ x, of_bias, of_post,
        grad.sum(0).view(towers, outputs), of_mixing, of_mixing_bias,
    )  # fmt: skip


def _gradients_in_steps(ctx: Any, grad: Tensor) -> Any:
    """The gradients of all inputs of `_Layer`, which autograd can differentiate again."""
    plan, adjacency = ctx.plan, ctx.adjacency
    factors, x, edge, at, *weights = ctx.saved_tensors[:-5]

    def run(x: Tensor, edge: Tensor | None, at: Tensor | None, *weights: Any) -> Tensor:
        pre, bias, post, post_bias, mixing, mixing_bias = weights
        towers, width = post.shape[0], plan.form.width
        of_nodes = (pre.view(towers, width, 2 * width), bias.view(towers, width))
        parts = split(plan.form, Weights(*of_nodes, post, post_bias, None, None, None, None))
        out = layer_in_steps(plan, x, adjacency, (edge, at), factors, parts).flatten(1)
        return out if mixing is None else F.linear(out, mixing, mixing_bias)

    inputs, needs = (x, edge, at, *weights), needed_now(ctx)[3:]
    return None, None, None, *differentiable_gradients(run, inputs, needs, grad)


def _used(adjacency: Adjacency, bounds: list[int], width: int) -> list[int | None]:
    """How many inputs of U can differ from 0, for each degree: without neighbours x alone. None
    for all of them."""
    first = adjacency.reached_degree[adjacency.by_degree[0]]
    return [width if first == 0 else None, *[None] * (len(bounds) - 2)]


def _inverse(order: Tensor) -> Tensor:
    """Where each node is in the order. Reading rows there is faster than writing them in order."""
    order = order.long()
    places = torch.arange(len(order), device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)


def _by_tower(rows: Tensor, towers: int) -> Tensor:
    return rows.unflatten(1, (towers, -1)).transpose(0, 1)


def _scaled(post: Tensor, factors: Tensor, width: int) -> Tensor:
    """U for each row of factors: (rows, towers, outputs, (1 + aggregators) × width)."""
    (towers, outputs, inputs), (rows, scalers) = post.shape, factors.shape
    keep, mix = post.split([width, inputs - width], 2)
    by_scaler = mix.unflatten(2, (scalers, -1)).movedim(2, 0).reshape(scalers, -1)
    mixed = (factors @ by_scaler).view(rows, towers, outputs, -1)
    return torch.cat([keep.expand(rows, -1, -1, -1), mixed], 3)


def _unscaled(grad: Tensor, factors: Tensor, width: int) -> Tensor:
    """The gradient of `post` from that of `_scaled`."""
    _, towers, outputs, _ = grad.shape
    of_keep, of_mix = grad[..., :width].sum(0), grad[..., width:].flatten(1)
    of_mix = (factors.t() @ of_mix).view(factors.shape[1], towers, outputs, -1)
    return torch.cat([of_keep, of_mix.movedim(0, 2).flatten(2)], 2)
