"""Gated sums over neighbours (Bresson and Laurent, 2018) as `torch.library` operators:

    s_ji = a_i + b_j [+ e_ji],   out_i = Σ_{j→i} σ(s_ji) ⊙ v_j [/ (Σ_{j→i} σ(s_ji) + 10⁻⁶)].

The only tensors of features per edge that the kernels materialise are s and its gradient.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.baselines.graph import Graph
from pna.ops.backend import choose
from pna.ops.edges import Slots, from_receivers, from_senders, sum_to_receivers
from pna.ops.operators import empty_gradient, gradient_operator, no_second_derivative, operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold

#: Keeps the sum of gates above 0.
LEAST = 1e-6


def gated_sum(
    at_receiver: Tensor,
    at_sender: Tensor,
    values: Tensor,
    edges: Adjacency | Slots,
    edge: Tensor | None = None,
    normalise: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return out (nodes, features), and s (edges, features) in the order of slots.

    Args:
        at_receiver: a (nodes, features).
        at_sender: b (nodes, features).
        values: v (nodes, features).
        edges: the graph.
        edge: e (edges, features), in the order of slots.
        normalise: divide by the sum of the gates.
    """
    _check(at_receiver, at_sender, values, edges, edge)
    if choose(values.device) != "triton" or not fast_paths.is_on("gates"):
        return definition(at_receiver, at_sender, values, Slots.of(edges), edge, normalise)
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    given = (at_receiver, at_sender, values, edge)
    dtype = reduce(torch.promote_types, [t.dtype for t in given if t is not None])
    terms: Any = (None if t is None else t.to(dtype) for t in given)
    out, state, _ = _gated_sum(GateTerms(*terms), Graph.of(adjacency), normalise)
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
    """`gated_sum` in plain torch, with every message materialised."""
    state = from_receivers(at_receiver, slots) + from_senders(at_sender, slots)
    if edge is not None:
        state = state + edge
    gate = torch.sigmoid(state)
    total = sum_to_receivers(gate * from_senders(values, slots), slots)
    if normalise:
        total = total / (sum_to_receivers(gate, slots) + LEAST)
    return total, state


class GateTerms(NamedTuple):
    """Arguments of `gated_sum`."""

    at_receiver: Tensor
    at_sender: Tensor
    values: Tensor
    edge: Tensor | None


class GateResults(NamedTuple):
    out: Tensor  # (nodes, features)
    state: Tensor  # s, (edges, features)
    gates: Tensor  # sums of gates (nodes, features); (0, features) without `normalise`


def _forward(terms: GateTerms, graph: Graph, normalise: bool) -> GateResults:
    from pna.baselines.triton import gates as kernels

    saved = _allocate(terms.values, graph, normalise)
    if terms.values.numel() > 0:
        kernels.forward(terms, graph.incoming, LEAST, saved)
    return saved


def _allocate(values: Tensor, graph: Graph, normalise: bool) -> GateResults:
    nodes, features = values.shape
    edges = graph.incoming.neighbours.shape[0]
    wide = wide_type(values.dtype)
    return GateResults(
        values.new_empty((nodes, features)),
        values.new_empty((edges, features)),
        values.new_empty((nodes if normalise else 0, features), dtype=wide),
    )


def _backward(
    grad_out: Tensor | None,
    grad_state: Tensor | None,
    saved: GateResults,
    values: Tensor,
    graph: Graph,
    gradients: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of all terms. The gradient of `edge` is that of s, which is written even
    if `edge` is None."""
    from pna.baselines.triton import gates as kernels

    grad_out = torch.zeros_like(saved.out) if grad_out is None else grad_out
    kernels.backward((grad_out, grad_state), saved, values, graph, LEAST, gradients)


def _empty_gradients(values: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_nodes = [empty_gradient(values, True, values) for _ in range(3)]
    return of_nodes[0], of_nodes[1], of_nodes[2], empty_gradient(state, True, values)


_gated_sum_backward = gradient_operator(
    "gated_sum_backward",
    _backward,
    tangent=no_second_derivative("pna.baselines.gates"),
    allocate=_empty_gradients,
)
_gated_sum = operator(
    "gated_sum",
    _forward,
    fake=_allocate,
    backward=_gated_sum_backward,
    differentiable=GateTerms._fields,
    vmap=Fold(dict.fromkeys(GateTerms._fields, 1), results=(1,)),
)
