"""The PNA layer in plain torch, every message made, aggregated one receiver at a time.

It shares no code with the package: of a layer it reads weights and sizes, of aggregators and
scalers their parameters. Aggregators without a kernel may have no formula here; their own
definition, which tests/ops/test_reference.py checks, is then applied to the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pna import aggregators as kinds
from pna.adjacency import Adjacency
from pna.degree import Linear


@dataclass(frozen=True)
class Neighbours:
    """The edges that reach one node, in the order they were given."""

    messages: Tensor  # (d, features), d at least 1
    edges: Tensor  # (d,) which edges these are
    out_degrees: Tensor  # (d,) how many edges leave the sender of each


def _central(near: Neighbours, order: int) -> Tensor:
    return (near.messages - near.messages.mean(0)).pow(order).mean(0)


def _std(std: Any, near: Neighbours) -> Tensor:
    var = _central(near, 2)
    if std.clamp:
        return torch.where(var > std.epsilon, var.clamp(min=std.epsilon).sqrt(), 0.0)
    return (var + std.epsilon).sqrt()


def _moment(moment: Any, near: Neighbours) -> Tensor:
    c, n, epsilon = _central(near, moment.order), moment.order, moment.epsilon
    if moment.published:
        return c.sign() * (c.abs() + epsilon).pow(1 / n)
    # |c| as ±c, whose slope at 0 is 1 from both sides once the sign is multiplied back
    sign = torch.where(c < 0, -1.0, 1.0)
    return sign * ((sign * c + epsilon).pow(1 / n) - epsilon ** (1 / n))


def _softmax(softmax: Any, near: Neighbours, sign: int = 1) -> Tensor:
    m = sign * near.messages
    share = torch.softmax(softmax.temperature * m, 0)
    if softmax.weight is not None:
        share = softmax.weight[near.edges][:, None] * share
        share = share / share.sum(0)
    return sign * (share * m).sum(0)


def _normalised_mean(_: Any, near: Neighbours) -> Tensor:
    both = len(near.messages) * near.out_degrees.to(near.messages.dtype)
    return (near.messages / both.sqrt()[:, None]).sum(0)


def _kth_smallest(kth: Any, near: Neighbours) -> Tensor:
    m = near.messages
    return m.sort(0).values[kth.k - 1] if kth.k <= len(m) else torch.zeros_like(m[0])


def _by_definition(aggregator: Any, near: Neighbours) -> Tensor:
    assert aggregator.kernel is None, "an aggregator with a kernel needs a formula here"
    messages, device = near.messages, near.messages.device
    senders = torch.arange(len(messages), device=device)
    star = Adjacency.from_edge_index(
        torch.stack([senders, torch.zeros_like(senders)]), (len(messages), 1)
    )
    return aggregator.aggregate(kinds.Neighbourhoods(messages, star))[0]


#: What each aggregator makes of the neighbours of a node, (features,).
FORMULAS: dict[type, Callable[[Any, Neighbours], Tensor]] = {
    kinds.Mean: lambda _, near: near.messages.mean(0),
    kinds.Sum: lambda _, near: near.messages.sum(0),
    kinds.Max: lambda _, near: near.messages.max(0).values,
    kinds.Min: lambda _, near: near.messages.min(0).values,
    kinds.Var: lambda _, near: _central(near, 2),
    kinds.Std: _std,
    kinds.Moment: _moment,
    kinds.Softmax: _softmax,
    kinds.Softmin: lambda softmin, near: _softmax(softmin, near, -1),
    kinds.NormalisedMean: _normalised_mean,
    kinds.KthSmallest: _kth_smallest,
}


def aggregate(aggregator: Any, messages: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    """(edges, features) to (nodes, features); 0 for a node that gets none."""
    senders, receivers = edge_index
    out_degrees = torch.bincount(senders)[senders]
    rows = [messages.new_zeros(0, messages.shape[1])]
    for node in range(nodes):
        reach = (receivers == node).nonzero()[:, 0]
        if len(reach) == 0:
            row = messages.new_zeros(messages.shape[1])
        else:
            near = Neighbours(messages[reach], reach, out_degrees[reach])
            row = FORMULAS.get(type(aggregator), _by_definition)(aggregator, near)
        rows.append(row[None])
    return torch.cat(rows)


#: Whether a scaler is of d, else of log(d + 1), and its α.
SCALERS = {
    "identity": (False, 0),
    "amplification": (False, 1),
    "attenuation": (False, -1),
    "linear": (True, 1),
    "inverse_linear": (True, -1),
}


def scale(scaler: Any, degree: Tensor, degrees: Sequence[int]) -> Tensor:
    """S(d) = (d / δ)^α or (log(d + 1) / δ)^α of nodes that get something: (nodes, 1).

    `scaler` is a name or an object; δ is its own, or the mean over `degrees`.
    """
    if isinstance(scaler, str):
        (linear, alpha), delta = SCALERS[scaler], None
    else:
        linear, alpha, delta = isinstance(scaler, Linear), scaler.alpha, scaler.delta

    def measure(d: Tensor) -> Tensor:
        return d.double() if linear else (d.double() + 1).log()

    delta = measure(torch.tensor(degrees)).mean().to(degree.device) if delta is None else delta
    return (measure(degree.clamp(min=1)) / delta)[:, None] ** alpha


def _through(layers: Any, act: Callable[[Tensor], Tensor], tower: int, h: Tensor) -> Tensor:
    for k, layer in enumerate(layers):
        h = F.linear(h if k == 0 else act(h), layer.weight[tower], layer.bias[tower])
    return h


def pna_conv(
    layer: Any,
    aggregators: Sequence[Any],
    scalers: Sequence[Any],
    degrees: Sequence[int],
    x: Tensor | tuple[Tensor, Tensor],
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
    degree: Tensor | None = None,
) -> Tensor:
    """U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji)) of every node; with `layer.outgoing` along both directions.

    `layer` has weights, activation and sizes; `aggregators` are objects, `scalers` names or
    objects; `degrees` those of the training set's nodes; `edge_attr` is (edges, edge_dim). x may be
    a pair, of senders and of receivers. Along both directions, `aggregators` and `degrees` are
    pairs. `degree` (receivers,) is the number of edges, unless some were left out.
    """
    sent, own = x if isinstance(x, tuple) else (x, x)
    sides = [(layer, edge_index, degree, aggregators, degrees)]
    if layer.outgoing is not None:
        edges = (edge_index, edge_index.flip(0))
        both = (layer, layer.outgoing), edges, (degree, None), aggregators, degrees
        sides = list(zip(*both, strict=True))
    of_towers = []
    for t in range(layer.towers):
        shares = [
            part.chunk(layer.towers, 1)[t] if layer.divide_input else part for part in (sent, own)
        ]
        h = [shares[1]]
        for side, edges, true, chosen, counted in sides:
            found = torch.bincount(edges[1], minlength=len(shares[1])) if true is None else true
            factors = [scale(scaler, found, counted).to(own.dtype) for scaler in scalers]
            h += _scaled(layer, side, t, chosen, factors, shares, edges, edge_attr)
        of_towers.append(_through(layer.post, layer.act, t, torch.cat(h, 1)))
    out = torch.cat(of_towers, 1)
    return out if layer.lin is None else F.linear(out, layer.lin.weight, layer.lin.bias)


def _scaled(
    layer: Any,
    side: Any,
    tower: int,
    aggregators: Sequence[Any],
    factors: Sequence[Tensor],
    shares: Sequence[Tensor],
    edge_index: Tensor,
    edge_attr: Tensor | None,
) -> list[Tensor]:
    """Every scaler times every aggregate of a tower, along one direction of edges."""
    (senders, receivers), (sent, own) = edge_index, shares
    if edge_attr is not None and side.edge_encoder is not None:
        edge_attr = F.linear(edge_attr, side.edge_encoder.weight, side.edge_encoder.bias)
    edge = [] if edge_attr is None else [edge_attr]
    found = []
    for aggregator in aggregators:
        ends = [own[receivers], sent[senders]]
        if layer.swap_extrema and type(aggregator) in (kinds.Max, kinds.Min):
            ends.reverse()
        made = _through(side.pre, layer.act, tower, torch.cat([*ends, *edge], 1))
        found.append(aggregate(aggregator, made, edge_index, len(own)))
    return [factor * each for factor in factors for each in found]
