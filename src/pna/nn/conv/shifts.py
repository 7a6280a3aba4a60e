"""What receivers contribute to messages, added to the aggregates of what senders contribute.

Where M is linear, a receiver adds one vector to all messages it gets. Most aggregators declare how
that shifts them. For the others, and for the reference, messages are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.split import Parts
from pna.ops.aggregate import aggregate, aggregate_messages
from pna.ops.aggregators import BUILT_IN, Aggregator, shift_of, tensors_of
from pna.ops.backend import choose

#: How often `degree_linear` adds the shift, in its own numbers: never, once, degree times.
_TIMES = {"none": 0, "once": 1, "degree": 2}


def aggregate_shifted(
    products: Iterator[Tensor],
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: EdgeFeatures,
) -> tuple[Tensor, Tensor, list[int]]:
    """Aggregates of messages sent_j + e_ij + own_i, which are made only where they must be.

    `products` gives sent and own, (nodes, …) of as many features each. The result is (nodes,
    aggregators, features), own, and how often own is still to be added to each aggregate, as
    `degree_linear` takes it.
    """
    sent = next(products).flatten(1)
    made = [i for i, a in enumerate(aggregators) if must_be_made(a, sent.device)]
    kept = [i for i in range(len(aggregators)) if i not in made]
    known = [aggregators[i] for i in kept]
    results = aggregate(sent, adjacency, known, edge) if known else None
    # asked for after the aggregation, so that in the backward pass it is gone before
    own = next(products)
    if results is not None:
        results = _add_as_ones(results, own, adjacency, known)
        if not made:
            return results, own, times_shifted(known)
    unknown = [aggregators[i] for i in made]
    others = aggregate_messages(sent, adjacency, unknown, edge, own.flatten(1))
    if results is None:
        return others, own, [0] * len(unknown)
    order = sorted(range(len(aggregators)), key=[*kept, *made].__getitem__)
    both, times = [*results.unbind(1), *others.unbind(1)], times_shifted(known) + [0] * len(unknown)
    return torch.stack([both[i] for i in order], 1), own, [times[i] for i in order]


def must_be_made(aggregator: Aggregator, device: torch.device) -> bool:
    """Whether an aggregator has to see whole messages, as all do in the reference."""
    return shift_of(aggregator) == "unknown" or choose(device) == "reference"


def times_shifted(aggregators: Sequence[Aggregator]) -> list[int]:
    """How often `degree_linear` adds what the receiver contributes to each aggregate."""
    return [_TIMES.get(shift_of(a), 0) for a in aggregators]


def is_shifted_by_kernel(aggregator: Aggregator) -> bool:
    """Whether `degree_linear` adds all that the receiver contributes."""
    return shift_of(aggregator) in _TIMES


def _add_as_ones(
    results: Tensor, own: Tensor, adjacency: Adjacency, aggregators: Sequence[Aggregator]
) -> Tensor:
    """Results shifted by what the receiver contributes, as often as they make of messages of 1."""
    special = [i for i, a in enumerate(aggregators) if shift_of(a) == "as ones"]
    if not special:
        return results
    chosen = [aggregators[i] for i in special]
    # every feature has the same, unless it has a parameter of its own
    alike = all(type(a) in BUILT_IN and not tensors_of(a) for a in chosen)
    ones = results.new_ones((results.shape[0], 1 if alike else results.shape[2]))
    times = aggregate(ones, adjacency, chosen)
    parts_of = list(results.unbind(1))
    for j, i in enumerate(special):
        parts_of[i] = parts_of[i] + (times[:, j] * own.flatten(1)).to(results.dtype)
    return torch.stack(parts_of, 1)


def roles(parts: Parts, swapped: bool) -> tuple[Tensor, Tensor]:
    """Weights of receiver and sender."""
    return (parts.sender, parts.receiver) if swapped else (parts.receiver, parts.sender)


def as_given(values: Tensor | None, at: Tensor | None) -> EdgeFeatures:
    """An edge term as `aggregate` takes it."""
    if values is None or at is None:
        return values
    return (at, values) if at.is_floating_point() else (values, at)
