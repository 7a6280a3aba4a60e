"""The aggregators by the formulas of the paper, for `fuzz`: in float64, without code of `pna.ops`.

Receivers of equal degree d are computed together. Their messages are (receivers, d, features), and
an aggregator reduces axis 1. Torch's autograd gives the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pna import aggregators as table
from pna.degree import Linear


@dataclass(frozen=True)
class EdgeList:
    """Senders and receivers in the given order, (edges,) int64 each, and the numbers of nodes."""

    senders: Tensor
    receivers: Tensor
    num_senders: int
    num_receivers: int

    @property
    def edge_index(self) -> Tensor:
        return torch.stack([self.senders, self.receivers])

    @property
    def sizes(self) -> tuple[int, int]:
        return self.num_senders, self.num_receivers

    def in_degree(self) -> Tensor:
        return torch.bincount(self.receivers, minlength=self.num_receivers)

    def out_degree(self) -> Tensor:
        return torch.bincount(self.senders, minlength=self.num_senders)

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Receivers of equal degree, (n,), and their edges in the given order, (n, degree)."""
        degree = self.in_degree()
        order = torch.argsort(self.receivers, stable=True)
        first = torch.cumsum(degree, 0) - degree
        for d in sorted(set(degree.tolist()) - {0}):
            rows = (degree == d).nonzero()[:, 0]
            yield rows, order[first[rows][:, None] + torch.arange(d)]


@dataclass(frozen=True)
class Context:
    """What an aggregator needs in addition to the messages (n, d, features)."""

    norm: Tensor  # (n, d, 1): 1 / sqrt(d_i d_j)
    weight: Tensor | None  # (n, d, features): of softmax
    temperature: Tensor | None  # (n, features): of softmax


def context(graph: EdgeList, edges: Tensor, aggregator: Any, features: int) -> Context:
    """For the receivers whose edges are (n, d)."""
    d_j = graph.out_degree()[graph.senders[edges]].double()
    norm = 1 / (edges.shape[1] * d_j).sqrt()[..., None]
    if not isinstance(aggregator, table.Softmax):
        return Context(norm, None, None)
    t = torch.as_tensor(aggregator.temperature, dtype=torch.float64)
    w = aggregator.weight
    weight = None if w is None else w[edges][..., None].expand(*edges.shape, features)
    return Context(norm, weight, t.expand(len(edges), features))


def aggregate(graph: EdgeList, messages: Tensor, aggregators: Sequence[Any]) -> Tensor:
    """(receivers, aggregators, features) from messages (edges, features); 0 where none arrive."""
    features = messages.shape[1]
    results = []
    for aggregator in aggregators:
        result = messages.new_zeros((graph.num_receivers, features))
        for rows, edges in graph.groups():
            known = context(graph, edges, aggregator, features)
            value = formula(aggregator)(aggregator, messages[edges], known)
            result = result.index_put((rows,), value)
        results.append(result)
    return torch.stack(results, 1)


def formula(aggregator: Any) -> Callable[[Any, Tensor, Context], Tensor]:
    if type(aggregator) not in FORMULAS:
        raise LookupError(
            f"got aggregator {type(aggregator).__name__}, which the fuzz has no formula for; add "
            "one to pna.testing.definition.FORMULAS, and to pna.testing.draw.draw_aggregator"
        )
    return FORMULAS[type(aggregator)]


def deviations(m: Tensor) -> Tensor:
    """m_j − mean, (n, d, features). The first message is subtracted from both: the mean of small
    differences is exact where messages are large and close to each other."""
    from_first = m - m[:, :1].detach()
    return from_first - from_first.mean(1, keepdim=True)


def central(m: Tensor, order: int) -> Tensor:
    return (deviations(m) ** order).mean(1)


def _std(a: Any, m: Tensor, _: Context) -> Tensor:
    var = central(m, 2)
    if a.clamp:
        above = var > a.epsilon
        root = torch.where(above, torch.where(above, var, 1).sqrt(), 0)
        return torch.where(var.isnan(), var, root)
    return (var + a.epsilon).sqrt()


def _moment(a: Any, m: Tensor, _: Context) -> Tensor:
    c = central(m, a.order)
    if a.published:
        return c.sign() * (c.abs() + a.epsilon) ** (1 / a.order)
    sign = 1 - 2 * (c < 0).double()
    size, root = sign * c, 1 / a.order
    # (|c| + ε)^(1/n) − ε^(1/n), for small c without the difference of two nearly equal numbers
    small = a.epsilon**root * torch.expm1(torch.log1p(size.clamp(max=a.epsilon) / a.epsilon) * root)
    large = (size.clamp(min=a.epsilon) + a.epsilon) ** root - a.epsilon**root
    return sign * torch.where(size > a.epsilon, large, small)


def softmax_shares(a: Any, m: Tensor, known: Context) -> Tensor:
    """exp(t m_j) / Σ w_k exp(t m_k), (n, d, features); 0 where all weights are."""
    assert known.temperature is not None
    sign = -1 if isinstance(a, table.Softmin) else 1
    logits = known.temperature[:, None] * sign * m
    weight = torch.ones_like(m) if known.weight is None else known.weight
    none = (weight == 0).all(1, keepdim=True)
    top = torch.where((weight > 0) | none, logits, -math.inf).detach().amax(1, keepdim=True)
    exponential = (logits - top).clamp(max=300).exp()  # above 0 with weight 0 alone
    total = (weight * exponential).sum(1, keepdim=True)
    return torch.where(none, 0, exponential / torch.where(none, 1, total))


def _softmax(a: Any, m: Tensor, known: Context) -> Tensor:
    share = softmax_shares(a, m, known)
    share = share if known.weight is None else known.weight * share
    middle = (share * m).sum(1, keepdim=True).detach()
    # relative to its own value: otherwise the gradient is a small difference of large numbers
    return middle[:, 0] + (share * (m - middle)).sum(1)


def _picked(m: Tensor, chosen: Tensor) -> Tensor:
    """The chosen message of each receiver and feature; NaN where any message is NaN."""
    value = torch.where(chosen, m, 0).sum(1)
    return torch.where(m.isnan().any(1), math.nan, value)


def _max(_: Any, m: Tensor, __: Context) -> Tensor:
    at_top = m == m.amax(1, keepdim=True)
    return _picked(m, at_top & (at_top.cumsum(1) == 1))


def _kth(a: Any, m: Tensor, _: Context) -> Tensor:
    chosen = torch.zeros_like(m, dtype=torch.bool)
    if a.k <= m.shape[1]:
        order = m.detach().sort(dim=1, stable=True).indices
        chosen = chosen.scatter(1, order[:, a.k - 1 : a.k], True)
    return _picked(m, chosen)


FORMULAS: dict[type, Callable[[Any, Tensor, Context], Tensor]] = {
    table.Mean: lambda a, m, known: m.mean(1),
    table.Sum: lambda a, m, known: m.sum(1),
    table.Max: _max,
    table.Min: lambda a, m, known: -_max(a, -m, known),
    table.Var: lambda a, m, known: central(m, 2),
    table.Std: _std,
    table.Moment: _moment,
    table.Softmax: _softmax,
    table.Softmin: _softmax,
    table.NormalisedMean: lambda a, m, known: (known.norm * m).sum(1),
    table.KthSmallest: _kth,
}


def scaler(kind: type, degree: Tensor, alpha: Tensor | float, delta: Tensor) -> Tensor:
    """S(d): (log(d + 1) / δ)^α of `Power`, (d / δ)^α of `Linear`; d = 0 counts as 1."""
    d = degree.clamp(min=1).double()
    return ((d if kind is Linear else torch.log(d + 1)) / delta) ** alpha
