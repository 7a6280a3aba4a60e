"""Adds the receivers' part of the messages after the aggregation of the senders' part.

If M is linear, the receiver contributes the same vector to all of its messages. Most aggregators
declare how this vector shifts their result. For the others, and in the reference backend, complete
messages are computed.
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

#: Codes in `degree_linear` for how often it adds the shift: never, once, degree times.
_TIMES = {"none": 0, "once": 1, "degree": 2}


def aggregate_shifted(
    products: Iterator[Tensor],
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: EdgeFeatures,
) -> tuple[Tensor, Tensor, list[int]]:
    """Aggregate messages sent_j + e_ij + own_i, which are materialised only if necessary.

    Args:
        products: yields sent, then own, (nodes, …) with the same number of features.
        adjacency: the graph.
        aggregators: what to compute.
        edge: e, in a form that `aggregate` accepts.

    Returns:
        The aggregates (nodes, aggregators, features), own, and for each aggregate a code that says
        how often `degree_linear` must still add own to it.
    """
    sent = next(products).flatten(1)
    in_reference = choose(sent.device) == "reference"  # which needs whole messages
    made = [i for i, a in enumerate(aggregators) if in_reference or shift_of(a) == "unknown"]
    kept = [i for i in range(len(aggregators)) if i not in made]
    known = [aggregators[i] for i in kept]
    results = aggregate(sent, adjacency, known, edge) if known else None
    # computed after the aggregation: backward then frees it before running that of `aggregate`
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


def times_shifted(aggregators: Sequence[Aggregator]) -> list[int]:
    """Return for each aggregator the code of how often `degree_linear` adds the receivers' part."""
    return [_TIMES.get(shift_of(a), 0) for a in aggregators]


def is_shifted_by_kernel(aggregator: Aggregator) -> bool:
    """Return whether `degree_linear` alone can add the receivers' part."""
    return shift_of(aggregator) in _TIMES


def _add_as_ones(
    results: Tensor, own: Tensor, adjacency: Adjacency, aggregators: Sequence[Aggregator]
) -> Tensor:
    """Add own × (the aggregate of messages of 1) to the aggregates whose shift is "as ones"."""
    special = [i for i, a in enumerate(aggregators) if shift_of(a) == "as ones"]
    if not special:
        return results
    chosen = [aggregators[i] for i in special]
    # one column serves all features, unless aggregators have parameters per feature
    alike = all(type(a) in BUILT_IN and not tensors_of(a) for a in chosen)
    ones = results.new_ones((adjacency.num_senders, 1 if alike else results.shape[2]))
    times = aggregate(ones, adjacency, chosen)
    parts_of = list(results.unbind(1))
    for j, i in enumerate(special):
        parts_of[i] = parts_of[i] + (times[:, j] * own.flatten(1)).to(results.dtype)
    return torch.stack(parts_of, 1)


def weights_of_x(parts: Parts, swapped: Sequence[bool]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return weights and biases of all products of x: U's part, then for each view the sender's and
    the receiver's part of M(x_i, x_j), or of M(x_j, x_i) if swapped."""
    weights: list[Tensor] = [parts.keep]
    biases: list[Tensor | None] = [parts.keep_bias]
    for is_swapped in swapped:
        both = [parts.sender, parts.receiver]
        weights += both[::-1] if is_swapped else both
        biases += [None, parts.bias]
    return weights, biases


def as_given(values: Tensor | None, at: Tensor | None) -> EdgeFeatures:
    """Return an edge term in the form that `aggregate` accepts."""
    if values is None or at is None:
        return values
    return (at, values) if at.is_floating_point() else (values, at)
