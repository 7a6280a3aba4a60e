"""What receivers contribute to messages, added to the aggregates of what senders contribute.

Where M is linear, a receiver adds one vector to all messages it gets, which shifts each aggregate
in a way that is known beforehand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.split import Parts
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import (
    Aggregator,
    KthSmallest,
    Max,
    Mean,
    Min,
    NormalisedMean,
    Softmax,
    Softmin,
    Sum,
)

#: What adding one vector to all messages of a node adds to an aggregate: that vector, d times
#: that vector, as many times as it makes of messages of 1, or (all others) nothing.
_SHIFTED_ONCE = (Mean, Max, Min, Softmax, Softmin)
_SHIFTED_BY_DEGREE = (Sum,)
SHIFTED_AS_ONES = (NormalisedMean, KthSmallest)


def add_as_ones(
    results: Tensor, own: Tensor, adjacency: Adjacency, aggregators: list[Aggregator]
) -> Tensor:
    """Results shifted by what the receiver contributes, as often as they make of messages of 1."""
    special = [i for i, a in enumerate(aggregators) if _is_shifted_as_ones(a)]
    if not special:
        return results
    ones = results.new_ones((results.shape[0], 1))
    times = aggregate(ones, adjacency, [aggregators[i] for i in special])
    parts_of = list(results.unbind(1))
    for j, i in enumerate(special):
        parts_of[i] = parts_of[i] + (times[:, j] * own.flatten(1)).to(results.dtype)
    return torch.stack(parts_of, 1)


def roles(parts: Parts, swapped: bool) -> tuple[Tensor, Tensor]:
    """Weights of receiver and sender."""
    return (parts.sender, parts.receiver) if swapped else (parts.receiver, parts.sender)


def times_shifted(aggregators: list[Aggregator]) -> list[int]:
    """How often aggregates are shifted by what shifts all messages, as `degree_linear` takes it."""
    once, each = _SHIFTED_ONCE, _SHIFTED_BY_DEGREE
    by_kernel = [None if _is_shifted_as_ones(a) else a for a in aggregators]
    return [1 if isinstance(a, once) else 2 if isinstance(a, each) else 0 for a in by_kernel]


def _is_shifted_as_ones(aggregator: Aggregator) -> bool:
    """Weights may all be 0 at a node, where a softmax is 0 and nothing shifts it."""
    weighted = isinstance(aggregator, Softmax) and aggregator.weight is not None
    return weighted or isinstance(aggregator, SHIFTED_AS_ONES)


def as_given(values: Tensor | None, at: Tensor | None) -> EdgeFeatures:
    """An edge term as `aggregate` takes it."""
    if values is None or at is None:
        return values
    return (at, values) if at.is_floating_point() else (values, at)
