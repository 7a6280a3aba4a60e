"""Every aggregator of one receiver's messages, from its formula; no code shared with the package.

m is (messages, features). `sender_degrees` (messages,) is how many edges the sender of each has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pna.aggregators import (
    Aggregator,
    KthSmallest,
    Max,
    Mean,
    Min,
    Moment,
    NormalisedMean,
    Softmax,
    Softmin,
    Std,
    Sum,
    Var,
)

Oracle = Callable[[Any, Tensor, Tensor], Tensor]


def _std(std: Std, m: Tensor, _: Tensor) -> Tensor:
    var = ((m - m.mean(0)) ** 2).mean(0)
    if std.clamp:
        return torch.stack([v.sqrt() if v > std.epsilon else v * 0 for v in var])
    return (var + std.epsilon) ** 0.5


def _moment(moment: Moment, m: Tensor, _: Tensor) -> Tensor:
    c, n = ((m - m.mean(0)) ** moment.order).mean(0), moment.order
    less = 0 if moment.published else moment.epsilon ** (1 / n)
    return c.sign() * ((c.abs() + moment.epsilon) ** (1 / n) - less)


def _softmax(softmax: Softmax, m: Tensor, _: Tensor) -> Tensor:
    return (m * (softmax.temperature * m).softmax(0)).sum(0)


#: What each should give; an aggregator of the package without an entry fails the tests.
ORACLES: dict[type[Aggregator], Oracle] = {
    Mean: lambda _, m, __: sum(m) / len(m),
    Sum: lambda _, m, __: sum(m),
    Max: lambda _, m, __: m.amax(0),
    Min: lambda _, m, __: m.amin(0),
    Var: lambda _, m, __: (m**2).mean(0) - m.mean(0) ** 2,
    Std: _std,
    Moment: _moment,
    Softmax: _softmax,
    Softmin: lambda softmin, m, __: -_softmax(softmin, -m, __),
    NormalisedMean: lambda _, m, degrees: (m / degrees[:, None].sqrt()).sum(0) / len(m) ** 0.5,
    KthSmallest: lambda kth, m, _: m.sort(0).values[kth.k - 1] if kth.k <= len(m) else m[0] * 0,
}

#: Objects of every aggregator to try, those with parameters with several.
EXAMPLES: dict[type[Aggregator], list[Aggregator]] = {
    Std: [Std(), Std(epsilon=0.1), Std(clamp=True)],
    Moment: [Moment(3), Moment(4), Moment(6, published=True)],  # odd published ones jump at 0
    Softmax: [Softmax(), Softmax(temperature=-2.0)],
    Softmin: [Softmin(), Softmin(temperature=3.0)],
    KthSmallest: [KthSmallest(3), KthSmallest(1)],
}


def examples(kind: type[Aggregator]) -> list[Aggregator]:
    return EXAMPLES[kind] if kind in EXAMPLES else [kind()]


def by_loops(aggregator: Aggregator, messages: Tensor, edge_index: Tensor, nodes: int) -> Tensor:
    """(nodes, features) of messages in the order of the edges; 0 for a node that gets none."""
    senders, receivers = edge_index.tolist()
    rows = []
    for node in range(nodes):
        own = [e for e, receiver in enumerate(receivers) if receiver == node]
        degrees = torch.tensor([senders.count(senders[e]) for e in own]).to(messages)
        given = ORACLES[type(aggregator)](aggregator, messages[own], degrees) if own else None
        rows.append(messages.new_zeros(messages.shape[1]) if given is None else given)
    return torch.stack(rows)
