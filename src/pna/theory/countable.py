"""Theorem 2, running: mean times an injective scaler tells all bounded multisets apart.

Elements of a countable set are given by their numbers 0, 1, 2, …; values are exact fractions.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from numbers import Rational
from typing import SupportsIndex, TypeAlias

import torch

from pna.degree import Linear, Power, resolve_scalers, scaler_factors

#: A name or scaler of ours, δ being 1 unless it has one, or S(d) as a function of whole numbers.
AnyScaler: TypeAlias = str | Power | Linear | Callable[[int], Fraction | float]

Elements: TypeAlias = tuple[int, ...]


def encode(multiset: Sequence[SupportsIndex], scaler: AnyScaler, max_size: int = 8) -> Fraction:
    """S(d) times the mean over the multiset of f(x) = K + N^(−x−1), exactly; 0 for an empty one.

    N is above every size; K is large enough that the ranges S(d)·(K, K + 1/N] of different d are
    disjoint. Two multisets of at most `max_size` elements share a value only where the
    scaler is not injective.

    Args:
        multiset: numbers of its elements, from 0 on, in any order.
        scaler: positive at 1 to `max_size`.
        max_size: the bound on the size of multisets, which `decode` must be given too.
    """
    elements = [_element(element) for element in multiset]
    if len(multiset) > max_size:
        raise ValueError(
            f"got {len(multiset)} elements, expected at most {max_size}; raise max_size, for "
            "decode too"
        )
    if len(multiset) == 0:
        return Fraction(0)
    factors = _factors(scaler, max_size)
    base = max_size + 1
    total = sum((Fraction(1, base ** (x + 1)) for x in elements), Fraction(0))
    mean = offset(scaler, max_size) + total / len(multiset)
    return factors[len(multiset) - 1] * mean


def decode(value: Fraction, scaler: AnyScaler, max_size: int = 8) -> Elements:
    """The multiset that `encode` gave this value, ascending.

    Raises where there is none, or more than one, as the identity scaler has them.
    """
    found = list(_decoded(Fraction(value), scaler, max_size))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(
            f"got {_shown(value)}, which no multiset of at most {max_size} elements has; give "
            "decode the scaler and max_size of encode, and its value as a fraction, not a float"
        )
    listed = " and ".join("{" + ", ".join(map(str, multiset)) + "}" for multiset in found[:2])
    raise ValueError(
        f"got {_shown(value)}, which {len(found)} multisets have, {listed} among them: the scaler "
        "is the same at both sizes; take an injective one, such as 'amplification'"
    )


def smallest_ratio(scaler: AnyScaler, max_size: int = 8) -> Fraction | None:
    """γ: the smallest ratio above 1 of the scaler's values at 1 to `max_size`; None if all agree.

    Of all ratios S(i)/S(j) ≥ 1 the smallest is 1, at i = j, and would make K infinite.
    """
    values = sorted(set(_factors(scaler, max_size)))
    return min((high / low for low, high in itertools.pairwise(values)), default=None)


def offset(scaler: AnyScaler, max_size: int = 8) -> Fraction:
    """K of `encode`: 1 / (N (γ − 1)), the least that keeps sizes apart; 0 without a γ."""
    ratio = smallest_ratio(scaler, max_size)
    return Fraction(0) if ratio is None else 1 / ((max_size + 1) * (ratio - 1))


def multisets(elements: int, max_size: int) -> Iterator[Elements]:
    """All multisets of at most `max_size` of the elements 0 to `elements` − 1, smallest first."""
    for size in range(max_size + 1):
        yield from itertools.combinations_with_replacement(range(elements), size)


def collisions(
    function: Callable[[Elements], Hashable], elements: int = 3, max_size: int = 4
) -> list[list[Elements]]:
    """Groups of multisets that a function confuses, out of all there are; none if it is injective.

    The mean alone: ``collisions(lambda m: Fraction(sum(m), max(len(m), 1)))``.
    """
    groups: dict[Hashable, list[Elements]] = defaultdict(list)
    for multiset in multisets(elements, max_size):
        groups[function(multiset)].append(multiset)
    return [group for group in groups.values() if len(group) > 1]


def scaler_value(scaler: AnyScaler, size: int) -> Fraction:
    """S(size) exactly; logarithms and roots are fixed to the exact value of their float64."""
    if callable(scaler):
        value = scaler(size)
        if isinstance(value, Rational):
            return Fraction(value)
        if not math.isfinite(value):
            raise ValueError(f"got a scaler that is {value} at {size}, expected positive values")
        return Fraction(float(value))
    (resolved,) = resolve_scalers([scaler])
    alpha, delta = (
        number.item() if isinstance(number, torch.Tensor) else number
        for number in (resolved.alpha, 1.0 if resolved.delta is None else resolved.delta)
    )
    return _exact_value(isinstance(resolved, Linear), float(alpha), float(delta), size)


@lru_cache(maxsize=4096)
def _exact_value(is_linear: bool, alpha: float, delta: float, size: int) -> Fraction:
    if is_linear and alpha in (1, -1):
        return (size / Fraction(delta)) ** int(alpha)
    scaler = (Linear if is_linear else Power)(alpha, delta)
    factor = scaler_factors(torch.tensor([size]), [scaler], dtype=torch.float64)
    return Fraction(factor.item())


def _element(number: SupportsIndex) -> int:
    try:
        found = operator.index(number)
    except TypeError:
        found = -1
    if found < 0:
        raise ValueError(f"got the element {number!r}, expected whole numbers from 0 on")
    return found


def _factors(scaler: AnyScaler, max_size: int) -> tuple[Fraction, ...]:
    """S(1) to S(max_size)."""
    if max_size < 1:
        raise ValueError(f"got max_size={max_size}, expected at least 1")
    found = tuple(scaler_value(scaler, size) for size in range(1, max_size + 1))
    for size, factor in enumerate(found, 1):
        if factor <= 0:
            raise ValueError(
                f"got a scaler that is {float(factor):g} at {size}, expected positive values; add "
                "a constant to it"
            )
    return found


def _decoded(value: Fraction, scaler: AnyScaler, max_size: int) -> Iterator[Elements]:
    """All multisets of this value: of every size the one whose digits it has, if there is one."""
    if value == 0:
        yield ()
        return
    shift = offset(scaler, max_size)
    for size, factor in enumerate(_factors(scaler, max_size), 1):
        digits = _digits((value / factor - shift) * size, max_size + 1, size)
        if digits is not None:
            yield digits


def _shown(value: Fraction) -> str:
    """The value, rounded if it has too many digits to read."""
    long = Fraction(value).denominator.bit_length() > 100
    return f"about {float(value):.6g}" if long else str(value)


def _digits(total: Fraction, base: int, size: int) -> Elements | None:
    """The elements whose N^(−x−1) add up to `total`; None where they are not `size`."""
    elements: list[int] = []
    element = 0
    while total > 0 and len(elements) < size:
        total *= base
        count = total.numerator // total.denominator
        if len(elements) + count > size:
            return None
        elements += [element] * count
        total -= count
        element += 1
    return tuple(elements) if total == 0 and len(elements) == size else None
