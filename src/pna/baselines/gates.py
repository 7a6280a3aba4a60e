"""Sums over neighbours behind gates (Bresson and Laurent, 2018) as `torch.library` operators:

    s_ji = a_i + b_j [+ e_ji],   out_i = Σ_{j→i} σ(s_ji) ⊙ v_j [/ (Σ_{j→i} σ(s_ji) + 10⁻⁶)].

Where there are kernels, the only tensors with a row of features for each edge are s, its gradient
and what is given and wanted of edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.ops.backend import choose
from pna.ops.edges import Slots, from_receivers, from_senders, sum_to_receivers
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

#: Keeps the sum of gates from 0.
LEAST = 1e-6


def gated_sum(
    at_receiver: Tensor,
    at_sender: Tensor,
    values: Tensor,
    edges: Adjacency | Slots,
    edge: Tensor | None = None,
    normalise: bool = True,
) -> tuple[Tensor, Tensor]:
    """out (nodes, features), and s (edges, features) by slot.

    Args:
        at_receiver: a (nodes, features).
        at_sender: b (nodes, features).
        values: v (nodes, features).
        edges: who sends to whom.
        edge: e (edges, features), by slot.
        normalise: divide by the sum of the gates.
    """
    _check(at_receiver, at_sender, values, edges, edge)
    if choose(values.device) != "triton" or not fast_paths.is_on("gates"):
        return definition(at_receiver, at_sender, values, Slots.of(edges), edge, normalise)
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    graph = graph_arguments(adjacency)
    given = (at_receiver, at_sender, values, edge)
    dtype = reduce(torch.promote_types, [t.dtype for t in given if t is not None])
    terms = [None if t is None else t.to(dtype) for t in given]
    out, state, _ = torch.ops.pna.gated_sum(*terms, *graph, normalise)
    return out, state


def _check(
    at_receiver: Tensor,
    at_sender: Tensor,
    values: Tensor,
    edges: Adjacency | Slots,
    edge: Tensor | None,
) -> None:
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    nodes, features = adjacency.num_senders, values.shape[-1]
    if nodes != adjacency.num_receivers:
        raise ValueError(f"got {adjacency!r}, expected as many senders as receivers")
    expected = dict(
        at_receiver=(at_receiver, nodes),
        at_sender=(at_sender, nodes),
        values=(values, nodes),
        edge=(edge, adjacency.num_edges),
    )
    for name, (given, rows) in expected.items():
        if given is None:
            continue
        if given.shape != (rows, features):
            raise ValueError(
                f"got {name} of shape {tuple(given.shape)}, expected ({rows}, {features}): a row "
                f"for each {'edge' if name == 'edge' else 'node'}, as wide as values"
            )
        if not given.is_floating_point():
            raise TypeError(f"got {name} of dtype {given.dtype}, expected a floating type")


def definition(
    at_receiver: Tensor,
    at_sender: Tensor,
    values: Tensor,
    slots: Slots,
    edge: Tensor | None = None,
    normalise: bool = True,
) -> tuple[Tensor, Tensor]:
    """The same with every message made."""
    state = from_receivers(at_receiver, slots) + from_senders(at_sender, slots)
    if edge is not None:
        state = state + edge
    gate = torch.sigmoid(state)
    total = sum_to_receivers(gate * from_senders(values, slots), slots)
    if normalise:
        total = total / (sum_to_receivers(gate, slots) + LEAST)
    return total, state


_INPUTS = "Tensor at_receiver, Tensor at_sender, Tensor values, Tensor? edge"
library.define(f"gated_sum({_INPUTS}, {GRAPH}bool normalise) -> (Tensor, Tensor, Tensor)")
library.define(
    "gated_sum_backward(Tensor? grad, Tensor? grad_state, Tensor out, Tensor state, "
    f"Tensor gates, {_INPUTS}, {GRAPH}bool normalise) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.impl(library, "gated_sum", "CompositeExplicitAutograd")
def _forward(
    at_receiver: Tensor, at_sender: Tensor, values: Tensor, edge: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, s, and the sums of gates (nodes, features) where they are divided by."""
    from pna.baselines.triton import gates as kernels

    *graph, normalise = rest
    results = _allocate(values, graph, normalise)
    if values.numel() > 0:
        incoming = sides_of(graph).incoming
        kernels.forward(at_receiver, at_sender, values, edge, incoming, LEAST, *results)
    return results


def _allocate(
    values: Tensor, graph: Sequence[Tensor], normalise: bool
) -> tuple[Tensor, Tensor, Tensor]:
    nodes, features = values.shape
    edges = sides_of(graph).incoming.neighbours.shape[0]
    wide = wide_type(values.dtype)
    return (
        values.new_empty((nodes, features)),
        values.new_empty((edges, features)),
        values.new_empty((nodes if normalise else 0, features), dtype=wide),
    )


@torch.library.register_fake("pna::gated_sum", lib=library)
def _(
    at_receiver: Tensor, at_sender: Tensor, values: Tensor, edge: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *graph, normalise = rest
    return _allocate(values, graph, normalise)


@torch.library.impl(library, "gated_sum_backward", "CompositeExplicitAutograd")
def _backward(
    grad: Tensor | None,
    grad_state: Tensor | None,
    out: Tensor,
    state: Tensor,
    gates: Tensor,
    at_receiver: Tensor,
    at_sender: Tensor,
    values: Tensor,
    edge: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all inputs; that of s, which is that of `edge`, whether there is one or not."""
    from pna.baselines.triton import gates as kernels

    *graph, _ = rest
    grads = _empty_gradients(values, state)
    if values.numel() == 0:
        for gradient in grads:
            gradient.zero_()
    else:
        grad = torch.zeros_like(out) if grad is None else grad
        above = (grad, grad_state, out, state, gates, values)
        kernels.backward(*above, *sides_of(graph), LEAST, grads)
    return grads


def _empty_gradients(values: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_nodes = [room(values, True, values) for _ in range(3)]
    return of_nodes[0], of_nodes[1], of_nodes[2], room(state, True, values)


@torch.library.register_fake("pna::gated_sum_backward", lib=library)
def _(
    grad: Any, grad_state: Any, out: Any, state: Tensor, gates: Any, a: Any, b: Any, values: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_gradients(values, state)


class _Differentiable(Function):
    """The operator and its gradients."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        output = below_autograd(torch.ops.pna.gated_sum.default, keyset, inputs)
        *tensors, ctx.normalise = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None, _: Any) -> Any:
        grads: Sequence[Tensor | None] = (None,) * 4
        if grad is not None or grad_state is not None:
            above = (grad, grad_state, *ctx.saved_tensors, ctx.normalise)
            grads = torch.ops.pna.gated_sum_backward(*above)
        wanted = ctx.needs_input_grad[1:5]
        given = [g if w else None for g, w in zip(grads, wanted, strict=True)]
        return None, *given, *[None] * (COUNT + 1)


differentiate("gated_sum", _Differentiable)
differentiate_once("gated_sum_backward", "pna.baselines.gates")


torch.library.register_vmap("pna::gated_sum", side_by_side("gated_sum", 4), lib=library)
torch.library.register_vmap(
    "pna::gated_sum_backward", one_by_one("gated_sum_backward"), lib=library
)
