"""Graph attention (Veličković et al., 2018) as `torch.library` operators. In every head

    out_i = Σ_{j→i} α_ij v_j,   α_ij = softmax over j→i of LeakyReLU(r_i + s_j [+ e_ij]).

The kernels materialise no tensor of features per edge. They save the maximum score and the inverse
sum of exponentials of every softmax, from which the backward pass recomputes α.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import fast_paths
from pna.adjacency import Adjacency
from pna.baselines.graph import Graph
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
from pna.ops.operators import gradient_operator, no_second_derivative, operator
from pna.ops.request import wide_type
from pna.ops.vmap_rules import Fold

#: Most features of a head: a Triton program holds all features of its heads.
WIDEST = 1024


def attention(
    values: Tensor,
    scores: Tensor,
    edges: Adjacency | Slots,
    negative_slope: float,
    edge: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """Attend to the in-neighbours of every node: (nodes, heads, features), 0 without neighbours.

    Args:
        values: v (nodes, heads, features).
        scores: (nodes, heads, 2): r and s of every node, its scores as receiver and as sender.
        edges: the graph.
        negative_slope: slope of the LeakyReLU below 0.
        edge: e (edges, heads), in the order of slots.
        own: (nodes, heads), scores of self-loops before the LeakyReLU. If given, every node has
            exactly one self-loop with this score; self-loops among the edges are ignored.
    """
    adjacency = edges.adjacency if isinstance(edges, Slots) else edges
    _check(values, scores, adjacency, edge, own)
    plain = choose(values.device) != "triton" or values.shape[2] > WIDEST
    if plain or not fast_paths.is_on("attention"):
        return definition(values, scores, Slots.of(edges), negative_slope, edge, own)
    terms = AttentionTerms(values, scores, edge, own)
    return _attention(terms, Graph.of(adjacency), negative_slope)[0]


def definition(
    values: Tensor,
    scores: Tensor,
    slots: Slots,
    negative_slope: float,
    edge: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """`attention` in plain torch, with every message materialised.

    With `own`, the sums include all given edges, and self-loops among them get the score `own`.
    Then self-loops are added or subtracted so that every node has exactly one. The sums are divided
    by the total of the exponentials per node, not per edge.
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
        total = torch.where(total == 0, 1, total)  # nodes without neighbours
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


class AttentionTerms(NamedTuple):
    """Arguments of `attention`."""

    values: Tensor
    scores: Tensor
    edge: Tensor | None
    own: Tensor | None


class AttentionResults(NamedTuple):
    out: Tensor  # (nodes, heads, features)
    slopes: Tensor  # ∂out/∂r, derivative by the receiver's score, (nodes, heads, features)
    norms: Tensor  # (nodes, heads, 2): maximum score, and 1 / sum of exponentials


def _forward(terms: AttentionTerms, graph: Graph, slope: float) -> AttentionResults:
    from pna.baselines.triton import attention as kernels

    saved = _allocate(terms.values)
    if terms.values.numel() > 0:
        kernels.forward(terms, slope, graph.incoming, saved)
    return saved


def _allocate(values: Tensor) -> AttentionResults:
    wide = wide_type(values.dtype)
    return AttentionResults(
        values.new_empty(values.shape),
        values.new_empty(values.shape, dtype=wide),
        values.new_empty((*values.shape[:2], 2), dtype=wide),
    )


def _backward(
    grad: Tensor,
    saved: AttentionResults,
    terms: AttentionTerms,
    graph: Graph,
    slope: float,
    gradients: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    from pna.baselines.triton import attention as kernels

    kernels.backward(grad, terms, slope, graph, saved, gradients)


_attention_backward = gradient_operator(
    "attention_backward",
    _backward,
    tangent=no_second_derivative("pna.baselines.attention"),
    like=AttentionTerms._fields,
)
_attention = operator(
    "attention",
    _forward,
    fake=_allocate,
    backward=_attention_backward,
    differentiable=AttentionTerms._fields,
    vmap=Fold(dict.fromkeys(AttentionTerms._fields, 1), results=(1,)),
)
