"""The PNA layer in plain torch, one receiver at a time: the oracle of `PNAConv`.

It makes every message and shares no code with the package. Of a layer it reads weights and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Neighbours:
    """The edges that reach one node, in the order they were given."""

    messages: Tensor  # (d, features), d at least 1
    edges: Tensor  # (d,) which edges these are
    out_degrees: Tensor  # (d,) how many edges leave the sender of each


def _centred(m: Tensor) -> Tensor:
    return m - m.mean(0)


def _var(m: Tensor) -> Tensor:
    return _centred(m).pow(2).mean(0)


def _std(std: Any, near: Neighbours) -> Tensor:
    var = _var(near.messages)
    if std.clamp:
        return torch.where(var > std.epsilon, var.clamp(min=std.epsilon).sqrt(), 0.0)
    return (var + std.epsilon).sqrt()


def _moment(moment: Any, near: Neighbours) -> Tensor:
    c, n, epsilon = _centred(near.messages).pow(moment.order).mean(0), moment.order, moment.epsilon
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


def _normalised_mean(near: Neighbours) -> Tensor:
    both = len(near.messages) * near.out_degrees.to(near.messages.dtype)
    return (near.messages / both.sqrt()[:, None]).sum(0)


def _kth_smallest(kth: Any, near: Neighbours) -> Tensor:
    m = near.messages
    return m.sort(0).values[kth.k - 1] if kth.k <= len(m) else torch.zeros_like(m[0])


#: By the name of its class, what an aggregator makes of the neighbours of a node: (features,).
AGGREGATORS: dict[str, Callable[[Any, Neighbours], Tensor]] = {
    "Mean": lambda _, near: near.messages.mean(0),
    "Sum": lambda _, near: near.messages.sum(0),
    "Max": lambda _, near: near.messages.max(0).values,
    "Min": lambda _, near: near.messages.min(0).values,
    "Var": lambda _, near: _var(near.messages),
    "Std": _std,
    "Moment": _moment,
    "Softmax": _softmax,
    "Softmin": lambda softmin, near: _softmax(softmin, near, -1),
    "NormalisedMean": lambda _, near: _normalised_mean(near),
    "KthSmallest": _kth_smallest,
}


#: S(d) of a scaler, from the degree and the mean of log(d + 1) and of d over the training set.
SCALERS: dict[str, Callable[[int, float, float], float]] = {
    "identity": lambda d, log, mean: 1.0,
    "amplification": lambda d, log, mean: math.log(d + 1) / log,
    "attenuation": lambda d, log, mean: log / math.log(d + 1),
    "linear": lambda d, log, mean: d / mean,
    "inverse_linear": lambda d, log, mean: mean / d,
}


def _through(layers: Any, act: Callable[[Tensor], Tensor], tower: int, h: Tensor) -> Tensor:
    for k, layer in enumerate(layers):
        h = F.linear(h if k == 0 else act(h), layer.weight[tower], layer.bias[tower])
    return h


def pna_conv(
    layer: Any,
    aggregators: Sequence[Any],
    scalers: Sequence[str],
    degrees: Sequence[int],
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None = None,
) -> Tensor:
    """U(x_i, ⊕_{j→i} M(x_i, x_j, e_ji)) of every node.

    `layer` has weights, activation and sizes; `aggregators` are objects, `scalers` names; `degrees`
    those of the training set's nodes; `edge_attr` is (edges, edge_dim).
    """
    log = sum(math.log(d + 1) for d in degrees) / len(degrees)
    mean = sum(degrees) / len(degrees)
    senders, receivers = edge_index
    out_degrees = torch.bincount(senders, minlength=len(x))
    if edge_attr is not None and layer.edge_encoder is not None:
        edge_attr = F.linear(edge_attr, layer.edge_encoder.weight, layer.edge_encoder.bias)
    width = layer.F_in
    results = []
    for i in range(len(x)):
        reach = (receivers == i).nonzero()[:, 0]
        of_towers = []
        for t in range(layer.towers):
            part = x[:, t * width : (t + 1) * width] if layer.divide_input else x
            h = [part[i]]
            if len(reach) == 0:
                h += [torch.zeros_like(part[i])] * (len(scalers) * len(aggregators))
            else:
                own, others = part[i].expand(len(reach), -1), part[senders[reach]]
                edge = [] if edge_attr is None else [edge_attr[reach]]
                made = [
                    _through(layer.pre, layer.act, t, torch.cat([*ends, *edge], 1))
                    for ends in ((own, others), (others, own))
                ]
                found = []
                for aggregator in aggregators:
                    kind = type(aggregator).__name__
                    swapped = layer.swap_extrema and kind in ("Max", "Min")
                    near = Neighbours(made[swapped], reach, out_degrees[senders[reach]])
                    found.append(AGGREGATORS[kind](aggregator, near))
                for scaler in scalers:
                    factor = SCALERS[scaler](len(reach), log, mean)
                    h += [factor * aggregate for aggregate in found]
            of_towers.append(_through(layer.post, layer.act, t, torch.cat(h)))
        results.append(torch.cat(of_towers))
    out = torch.stack(results)
    return out if layer.lin is None else F.linear(out, layer.lin.weight, layer.lin.bias)
