"""Attention of graphs (Veličković et al., 2018) as `torch.library` operators: in every head

    out_i = Σ_{j→i} α_ij v_j,   α_ij the softmax over j→i of LeakyReLU(r_i + s_j [+ e_ij]).

No tensor has a row of features for each edge where there are kernels: weights are made anew in
the backward pass, from the norms of every node's softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.backend import choose
from pna.ops.edges import (
    Slots,
    count_self_loops,
    exponentials_of_receivers,
    from_receivers,
    from_senders,
    sum_to_receivers,
    weighted_sum,
)
from pna.ops.graph import COUNT, GRAPH, graph_arguments, side_by_side, sides_of
from pna.ops.operators import (
    Function,
    below_autograd,
    differentiate,
    differentiate_once,
    library,
    one_by_one,
    room,
)
from pna.ops.request import wide_type

#: The most features of a head of which a Triton program holds all.
WIDEST = 1024


def attention(
    values: Tensor,
    scores: Tensor,
    edges: Adjacency | Slots,
    negative_slope: float,
    edge: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """Attention over the in-neighbours of every node, (nodes, heads, features); 0 of none.

    Args:
        values: v (nodes, heads, features).
        scores: (nodes, heads, 2), r of a node that receives and s of the same when it sends.
        edges: who sends to whom.
        negative_slope: of the LeakyReLU.
        edge: e (edges, heads), by slot.
        own: (nodes, heads), score before the LeakyReLU of the one self-loop that every node then
            has, in place of those among its edges.
    """
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    _check(values, scores, adjacency, edge, own)
    plain = choose(values.device) != "triton" or values.shape[2] > WIDEST
    if plain or not fast_paths.is_on("attention"):
        return definition(values, scores, Slots.of(edges), negative_slope, edge, own)
    graph = graph_arguments(adjacency)
    return torch.ops.pna.attention(values, scores, edge, own, *graph, negative_slope)[0]


def definition(
    values: Tensor,
    scores: Tensor,
    slots: Slots,
    negative_slope: float,
    edge: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """The same with every message made.

    With `own`, sums run over the edges as they are, where self-loops have that score too, then
    self-loops are added or taken away to make one. The softmax is divided by its total at the
    nodes.
    """
    wide = wide_type(values.dtype)
    receiver, sender = scores.to(wide).unbind(2)
    each = from_receivers(receiver, slots) + from_senders(sender, slots)
    each = each if edge is None else each + edge
    if own is not None:
        own = own.to(wide)
        is_loop = (slots.adjacency.senders == slots.receivers)[:, None]
        each = torch.where(is_loop, from_receivers(own, slots), each)
        own = F.leaky_relu(own, negative_slope)
    each = F.leaky_relu(each, negative_slope)
    exponentials, highest = exponentials_of_receivers(each, slots, own)
    total = sum_to_receivers(exponentials, slots)
    out = weighted_sum(values, exponentials, slots)
    if own is None:
        total = torch.where(total == 0, 1, total)  # nothing reaches the node
    else:
        mine = (1 - count_self_loops(slots))[:, None] * (own - highest).exp()
        total, out = total + mine, out + mine[:, :, None] * values
    return (out / total[:, :, None]).to(values.dtype)


def _check(
    values: Tensor, scores: Tensor, adjacency: Adjacency, edge: Tensor | None, own: Tensor | None
) -> None:
    nodes, heads, _ = values.shape
    if not nodes == adjacency.num_senders == adjacency.num_receivers:
        raise ValueError(
            f"got values of {nodes} nodes and {adjacency!r}, expected as many senders and receivers"
        )
    expected = dict(
        scores=(scores, (nodes, heads, 2)),
        edge=(edge, (adjacency.num_edges, heads)),
        own=(own, (nodes, heads)),
    )
    for name, (given, shape) in expected.items():
        if given is not None and given.shape != shape:
            raise ValueError(
                f"got {name} of shape {tuple(given.shape)} for values of shape "
                f"{tuple(values.shape)}, expected {shape}"
            )


_INPUTS = "Tensor values, Tensor scores, Tensor? edge, Tensor? own"
library.define(f"attention({_INPUTS}, {GRAPH}float slope) -> (Tensor, Tensor, Tensor)")
library.define(
    f"attention_backward(Tensor grad, Tensor out, Tensor slopes, Tensor norms, {_INPUTS}, "
    f"{GRAPH}float slope) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "attention", "CompositeExplicitAutograd")
def _forward(
    values: Tensor, scores: Tensor, edge: Tensor | None, own: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, its derivatives by the receiver's score (nodes, heads, features), and norms of
    the softmax (nodes, heads, 2)."""
    from pna.baselines.triton import attention as kernels

    *graph, slope = rest
    results = _allocate(values)
    if values.numel() > 0:
        kernels.forward(values, scores, edge, own, slope, sides_of(graph).incoming, *results)
    return results


def _allocate(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = wide_type(values.dtype)
    return (
        values.new_empty(values.shape),
        values.new_empty(values.shape, dtype=wide),
        values.new_empty((*values.shape[:2], 2), dtype=wide),
    )


@torch.library.register_fake("pna::attention", lib=library)
def _(values: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _allocate(values)


@torch.library.impl(library, "attention_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor,
    out: Tensor,
    slopes: Tensor,
    norms: Tensor,
    values: Tensor,
    scores: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of values, scores, edge and own; of no length where there is none."""
    from pna.baselines.triton import attention as kernels

    *graph, slope = rest
    grads = _empty_gradients(values, scores, edge, own)
    if values.numel() == 0:
        for gradient in grads:
            gradient.zero_()
        return grads
    terms = (values, scores, edge, own, slope)
    saved = (out, slopes, norms)
    kernels.backward(grad, *terms, *sides_of(graph), *saved, grads)
    return grads


def _empty_gradients(
    values: Tensor, scores: Tensor, edge: Tensor | None, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_values, of_scores = room(values, True, values), room(scores, True, values)
    return of_values, of_scores, room(edge, True, values), room(own, True, values)


@torch.library.register_fake("pna::attention_backward", lib=library)
def _(
    grad: Tensor,
    out: Tensor,
    slopes: Tensor,
    norms: Tensor,
    values: Tensor,
    scores: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(values, scores, edge, own)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        output = below_autograd(torch.ops.pna.attention.default, keyset, inputs)
        *tensors, ctx.slope = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> Any:
        grads: Sequence[Tensor | None] = (None,) * 4
        if grad is not None:
            grads = torch.ops.pna.attention_backward(grad, *ctx.saved_tensors, ctx.slope)
        wanted = ctx.needs_input_grad[1:5]
        given = [g if w else None for g, w in zip(grads, wanted, strict=True)]
        return None, *given, *[None] * (COUNT + 1)


differentiate("attention", _Differentiable)
differentiate_once("attention_backward", "pna.baselines.attention")


torch.library.register_vmap("pna::attention", side_by_side("attention", 4), lib=library)
torch.library.register_vmap(
    "pna::attention_backward", one_by_one("attention_backward"), lib=library
)
