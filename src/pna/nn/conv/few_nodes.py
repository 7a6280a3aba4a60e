"""The PNA layer for few nodes on a GPU, computed on several streams.

No kernel of a small batch fills a GPU, so the time depends on how many kernels run one after the
other. The main stream runs only the critical path: the senders' part, its statistics and U, and in
the backward pass the kernels that lead to the gradient of x. Other streams compute the receivers'
part, U's part for x, the edge term, the argmax of max and min (after the layer), and the gradients
of all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.split import LayerPlan, Parts, Weights, split_gradients
from pna.ops.degree_linear import degree_linear_backward, degree_linear_operator
from pna.ops.operators import empty_gradient
from pna.ops.product import Product
from pna.ops.request import Messages, Saved
from pna.ops.statistics import statistics_operator
from pna.ops.streams import GradientClaim, SideStream

Pair = tuple[Tensor | None, Tensor | None]


class Kept(NamedTuple):
    """What the forward pass saves for the backward pass, besides its inputs."""

    sent: Tensor  # (nodes, towers × width)
    own: Tensor  # the receivers' part, (nodes, towers, width)
    out: Tensor  # statistics, as in `Saved`
    mean: Tensor
    argmax: Tensor | None  # as in `Argmax`; None if no gradient will be needed
    long_argmax: Tensor | None


class LayerInputs(NamedTuple):
    """Inputs of the layer, as the backward pass reads them."""

    adjacency: Adjacency
    x: Tensor
    factors: Tensor  # (nodes, scalers)
    term: Pair  # the edge term, computed from `features`
    features: Tensor | None  # of edges; the encoded table if there is a table
    table: Tensor | None  # of edge features, if it is encoded before the product with C


def forward(
    plan: LayerPlan,
    x: Tensor,
    adjacency: Adjacency,
    edge: Pair,
    edge_work: SideStream,
    factors: Tensor,
    parts: Parts,
    training: bool,
) -> tuple[Tensor, Kept, SideStream]:
    """Return the result (nodes, towers, outputs), the saved tensors, and the side stream that
    computes `argmax`. `edge_work` is the side stream that computes the edge term."""
    from pna.ops.triton import narrow_linear, scaled_linear
    from pna.ops.triton.argmax import argmax
    from pna.ops.triton.launch import with_unit_stride

    (mix,), form, backend = parts.mixes, plan.form, plan.backend
    towers, outputs = mix.shape[1], mix.shape[3]
    narrow = narrow_linear.fits(form.aggregators, form.width, mix.shape[0], outputs)
    quick = not narrow and scaled_linear.is_quick(x.shape[0], x.dtype, mix)
    of_weights, of_x = SideStream(x.device), SideStream(x.device)
    with of_weights:
        apart = scaled_linear.take_apart(mix, form.aggregators, plan.times) if quick else None
    with of_x:
        own = F.linear(x, parts.receiver.flatten(0, 1), parts.bias.flatten())
        own = own.view(x.shape[0], towers, form.width)
        moved = None if apart is None else scaled_linear.shift_products(own, apart)
        base = F.linear(x, parts.keep.flatten(0, 1), parts.keep_bias.flatten())
        base = base.view(x.shape[0], towers, outputs)
    sent = F.linear(x, parts.sender.flatten(0, 1))
    edge_work.join()
    messages = Messages(sent, *edge, adjacency)
    saved = Saved(*statistics_operator(messages, plan.request, backend))
    results = saved.out.unflatten(2, (towers, form.width))
    of_weights.join()
    if apart is None or moved is None or results.numel() == 0:
        of_x.join()
        degrees = (adjacency.indptr, adjacency.by_degree)
        product = Product(results, mix, factors, own, plan.times, *degrees)
        out = degree_linear_operator(product, base, backend)
    else:
        every = scaled_linear.products(results, apart)
        of_x.join()
        out = x.new_empty((x.shape[0], towers, outputs))
        factors = factors.contiguous()
        scaled_linear.add_up(every, moved, factors, base, adjacency.indptr, out)
    # the argmax starts last, because only the backward pass waits for it
    finding, found = SideStream(x.device, 3), None
    if training and adjacency.num_edges > 0:
        with finding, torch.cuda.device_of(sent):
            found = argmax(with_unit_stride(messages), plan.request, saved.out)
        finding.hold(sent, edge, saved)
    return out, Kept(sent, own, saved.out, saved.mean, *(found or (None, None))), finding


def backward(
    plan: LayerPlan,
    parts: Parts,
    weights: Weights,
    inputs: LayerInputs,
    kept: Kept,
    grad: Tensor,
    needs: Sequence[bool],
    claim: GradientClaim,
) -> tuple[Tensor, Tensor | None, Tensor, tuple[Tensor | None, ...]]:
    """Return the gradients of x, of the edge features or their table, of the coefficients of edges,
    and of the layer's weights.

    `needs` says whether x, the features, the coefficients and any weight need a gradient.
    """
    from pna.ops import triton
    from pna.ops.triton import degree_linear
    from pna.ops.triton.argmax import Argmax

    adjacency, x, factors, term, features, table = inputs
    _, for_features, for_places, for_weights = needs
    mix, form, device = parts.mixes[0], plan.form, x.device
    nodes, (towers, outputs) = x.shape[0], grad.shape[1:]
    saved = Saved(kept.out, kept.mean, grad.new_empty(0), grad.new_empty(0))
    results = kept.out.unflatten(2, (towers, form.width))
    degrees = (adjacency.indptr, adjacency.by_degree)
    product = Product(results, mix, factors, kept.own, plan.times, *degrees)
    of_mix = SideStream(device)
    with of_mix:
        wanted = [False, for_weights, False, False]
        grad_mix = degree_linear_backward(grad, wanted, product, plan.backend)[1]
    of_results, none = torch.empty_like(results), grad.new_empty(0)
    if grad.numel() > 0:
        degree_linear.backward(grad, product, (of_results, none, none))
    of_receivers, of_rest = SideStream(device, 1), SideStream(device, 1)
    with of_receivers:
        widths = [towers * form.width, towers * outputs]
        rest = grad.new_empty((nodes, sum(widths)))
        of_own, of_kept = rest.split(widths, 1)
        if grad.numel() > 0:
            degree_linear.shift_gradient(
                of_results, plan.times, adjacency.indptr, of_own.unflatten(1, (towers, -1))
            )
        above = grad.flatten(1)
        grad_x = of_own @ parts.receiver.flatten(0, 1)
        grad_x.addmm_(above, parts.keep.flatten(0, 1))
    with of_rest:
        of_kept.copy_(above)
        with_ones = _with_ones(x)
        total = rest.t() @ with_ones
    of_sent = torch.empty_like(kept.sent)
    of_values, of_place = (
        empty_gradient(part, needed, kept.sent)
        for part, needed in zip(term, (parts.edge is not None, for_places), strict=True)
    )
    found = None
    if kept.argmax is not None and kept.long_argmax is not None:
        found = Argmax(kept.argmax, kept.long_argmax)
    of_edges = SideStream(device, 2)
    triton.backward(
        of_results.flatten(2), Messages(kept.sent, *term, adjacency), plan.request, saved,
        (of_sent, of_values, of_place), found, of_edges,
    )  # fmt: skip
    grad_edge, of_encoder = None, None
    with of_edges:
        if table is not None:
            of_encoder, grad_edge = _through_encoder(of_values, parts, table, weights, towers)
        elif parts.edge is not None and for_features:
            grad_edge = of_values @ parts.edge
    last = SideStream(device)
    with last:
        grad_sender = of_sent.t() @ x
        of_rest.join()
        of_edges.join()
        of_edge = []
        if parts.edge is not None:
            of_edge = [of_values.t() if features is None else of_values.t() @ features]
        of_parts = _of_parts(grad_sender, total, widths, towers)
        of_layer: tuple[Tensor | None, ...] = (None,) * len(weights)
        if for_weights:
            of_layer = split_gradients(
                form, weights, (*of_parts, *of_edge, grad_mix), table is not None
            )
    of_receivers.join()
    grad_x.addmm_(of_sent, parts.sender.flatten(0, 1))
    of_mix.join()
    of_edges.join()
    claim.join(last, x, grad, above, rest, with_ones, total, of_sent, of_values, features, grad_mix)
    if of_encoder is not None:
        of_layer = (*of_layer[:-2], *of_encoder)
    return grad_x, grad_edge if for_features else None, of_place, of_layer


def _with_ones(x: Tensor) -> Tensor:
    """Append a column of ones to x, so that one product gives the gradients of weight and bias."""
    return torch.cat([x, x.new_ones((x.shape[0], 1))], 1)


def _of_parts(
    grad_sender: Tensor, total: Tensor, widths: list[int], towers: int
) -> tuple[Tensor, ...]:
    """Return the gradients of receiver, sender, bias, keep and keep_bias.

    `total` contains those of receiver and keep, with their biases as last column.
    """
    of_receiver, of_keep = total[:, :-1].split(widths)
    of_bias, of_keep_bias = total[:, -1].contiguous().split(widths)
    every = (of_receiver, grad_sender, of_bias, of_keep, of_keep_bias)
    return tuple(part.unflatten(0, (towers, -1)) for part in every)


def _through_encoder(
    grad: Tensor, parts: Parts, table: Tensor, weights: Weights, towers: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the gradients of the encoder, its bias and the table, given that of the edge term."""
    assert parts.edge is not None and weights.encoder is not None
    # one product per tower and a sum use more of the GPU than one long product
    each = grad.unflatten(1, (towers, -1)).transpose(0, 1)
    encoded = torch.bmm(each, parts.edge.unflatten(0, (towers, -1))).sum(0)
    return (encoded.t() @ table, encoded.sum(0)), encoded @ weights.encoder
