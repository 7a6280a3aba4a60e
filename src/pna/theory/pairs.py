"""The smallest neighbourhoods of whole numbers that some aggregators confuse and one does not."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import torch

from pna.theory.stars import AnyAggregator, name_of, statistics

_DIGITS = 9  # to which statistics are compared


def smallest_pair(
    agree: Sequence[AnyAggregator],
    differ: AnyAggregator,
    *,
    same_size: bool = True,
    max_size: int = 4,
    max_value: int = 4,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two multisets on which all of `agree` agree and `differ` does not.

    Out of all multisets of up to `max_size` of the numbers 0 to `max_value`: the pair with the
    fewest numbers, then the smallest sum.

    Args:
        agree: aggregators that shall be confused, as `find_collision` takes them.
        differ: an aggregator that shall not be.
        same_size: look at pairs of one size only.
        max_size: the most numbers in a multiset.
        max_value: the largest of them.
    """
    confused: dict[tuple[float, ...], list[tuple[tuple[int, ...], float]]] = defaultdict(list)
    for size in range(1, max_size + 1):
        rows = list(itertools.combinations_with_replacement(range(max_value + 1), size))
        found = statistics([*agree, differ], torch.tensor(rows)).tolist()
        for row, (*same, other) in zip(rows, found, strict=True):
            key = tuple(round(value, _DIGITS) + 0.0 for value in same)  # −0.0 is 0.0
            confused[(float(size), *key) if same_size else key].append((row, other))
    pairs = [
        (left, right)
        for group in confused.values()
        for (left, a), (right, b) in itertools.combinations(group, 2)
        if abs(a - b) > 10.0**-_DIGITS
    ]
    if not pairs:
        raise ValueError(
            f"got no pair that {name_of(differ)} alone tells apart, of up to {max_size} numbers "
            f"from 0 to {max_value}; raise max_size or max_value"
        )
    return min(pairs, key=lambda pair: (len(pair[0]) + len(pair[1]), sum(map(sum, pair)), pair))
