"""Proposition 1, running: n values from their mean and moments M_2 to M_n."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pna.degree import Linear, Power
from pna.theory.countable import scaler_value

_ROUNDING = float(np.finfo(np.float64).eps)

_Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]  # numbers, and how far they may be wrong


@dataclass(frozen=True)
class Recovered:
    """A multiset that was recovered, and how far its values may be wrong."""

    values: tuple[float, ...]  # ascending
    error: float  # what rounding of the moments and of this computation may do to a value
    condition: float  # the same in units of rounding of the largest value; infinite if all are 0

    @property
    def size(self) -> int:
        return len(self.values)


def multiset_from_moments(
    moments: Sequence[float], size: int | None = None, *, epsilon: float = 1e-5
) -> Recovered:
    """The n values that have these moments, as `pna.aggregate` gives them in float64.

    Undoes epsilon and the roots, turns power sums about the mean into elementary symmetric
    polynomials by Newton's identities, and finds the roots of ∏ (t − x_i).

    Args:
        moments: mean, std, moment_3, …, moment_n.
        size: n, where there are more moments than that; what is left over is not used.
        epsilon: what std and the moments were made with.

    `error` is estimated, not proved: first-order bounds on what rounding does to the polynomial,
    then how far its roots can move, repeated ones too. Values are right to 1e-6 for n up to 8
    where they are well apart; `error` says what to expect beyond.
    """
    given = np.asarray(moments)
    if given.dtype in (np.float16, np.float32):
        raise TypeError(
            f"got moments in {given.dtype}, expected float64: recovery magnifies their rounding; "
            "aggregate x.double()"
        )
    given = given.astype(np.float64)
    n = given.size if size is None else size
    if given.ndim != 1 or not 1 <= n <= len(given):
        raise ValueError(
            f"got moments of shape {given.shape} for {n} values, expected at least {max(n, 1)}: "
            f"mean, std, moment_3 and so on"
        )
    if not np.isfinite(given).all():
        raise ValueError(f"got moments {given.tolist()}, expected finite numbers")
    if not epsilon > 0:
        raise ValueError(f"got epsilon={epsilon!r}, expected that of the aggregators, above 0")
    mean = float(given[0])
    central, doubt = _central_moments(given[1:n], epsilon)
    unit = math.sqrt(max(central[0], 0.0)) if n > 1 else 0.0  # keeps coefficients near 1
    unit = unit or 1.0
    powers = unit ** np.arange(2, n + 1)
    sums, wrong = _power_sums(mean / unit, central / powers, doubt / powers)
    coefficients, doubts = _polynomial(sums, wrong)
    roots = np.roots(coefficients)
    values = np.sort(mean + unit * roots.real)
    error = unit * max((_reach(coefficients, doubts, root) for root in roots), default=0.0)
    if n > 1 and np.abs(roots.imag).max() * unit > 10 * error:
        raise ValueError(
            f"got moments {given[:n].tolist()}, which no {n} real numbers have; check their order "
            f"(mean, std, moment_3, …), epsilon ({epsilon:g}) and that they are float64"
        )
    rounding = _ROUNDING * float(np.abs(values).max())
    error += 2 * rounding
    condition = error / rounding if rounding > 0 else math.inf
    return Recovered(tuple(values.tolist()), error, condition)


def size_from_scaled(
    statistic: float, scaled: float, scaler: str | Power | Linear, max_size: int = 1000
) -> int:
    """n from a statistic and the same one scaled: the n at which S(n) is their ratio.

    Fails at 0, which no scaler changes: the mean of {-1, 1} and of {-1, -1, 1, 1}. The standard
    deviation, sqrt(var + ε), is never 0, and always reveals n. δ is 1 unless the scaler has one.
    """
    if statistic == 0:
        raise ValueError(
            f"got a statistic of 0, which scaled is {scaled:g} for every n; take one that is never "
            "0: std, or the mean of a constant feature"
        )
    ratio = scaled / statistic
    factors = {n: float(scaler_value(scaler, n)) for n in range(1, max_size + 1)}
    sizes = [n for n, factor in factors.items() if math.isclose(factor, ratio, rel_tol=1e-9)]
    if len(sizes) != 1:
        raise ValueError(
            f"got a ratio of {ratio:g}, which the scaler has at {len(sizes)} sizes up to "
            f"{max_size}, expected one; check the scaler, its δ, and that the numbers are float64"
        )
    return sizes[0]


def _central_moments(roots: np.ndarray, epsilon: float) -> _Pairs:
    """Means of (x − mean)^k, k = 2 to n, from std and moments, and what rounding does to them."""
    orders = np.arange(2, len(roots) + 2)
    size = (np.abs(roots) + epsilon ** (1 / orders)) ** orders - epsilon
    central = np.copysign(size, roots)
    # a negative std is no deviation, and gives a variance that nothing has
    central[:1] = roots[:1] * np.abs(roots[:1]) - epsilon
    return central, 2 * orders * _ROUNDING * (np.abs(central) + epsilon)


def _power_sums(mean: float, central: np.ndarray, doubt: np.ndarray) -> _Pairs:
    """Σ (x − mean)^k, k = 1 to n; the first is 0 but for the rounding of the mean.

    A value less the mean is off by the rounding of both, which tells in every power.
    """
    n = len(central) + 1
    sums = n * np.concatenate([[0.0], central])
    wrong = n * np.concatenate([[0.0], doubt])
    spread = math.sqrt(n)  # no value is further from the mean, in standard deviations
    shift = _ROUNDING * (abs(mean) + spread)
    for index in range(n):
        k = index + 1
        lower = n if k == 1 else _absolute_sum(sums, k - 1)
        wrong[index] += k * lower * shift + n * _ROUNDING * abs(sums[index])
    return sums, wrong


def _absolute_sum(sums: np.ndarray, k: int) -> float:
    """Bound on Σ |x − mean|^k, in standard deviations, from the sums of even powers around it."""
    if k % 2 == 0:
        return float(abs(sums[k - 1]))
    n = len(sums)
    below = n if k == 1 else abs(sums[k - 2])
    above = abs(sums[k]) if k < n else n ** (k / 2 + 1)
    return float(math.sqrt(below * above))


def _polynomial(sums: np.ndarray, wrong: np.ndarray) -> _Pairs:
    """Coefficients of ∏ (t − x_i), highest power first: (−1)^k e_k, by Newton's identities.

    k e_k = Σ_i (−1)^(i−1) e_(k−i) p_i, whence ∂e_k/∂p_i = (−1)^(i−1) e_(k−i) / i.
    """
    n = len(sums)
    e, doubt = np.zeros(n + 1), np.zeros(n + 1)
    e[0] = 1.0
    for k in range(1, n + 1):
        i = np.arange(1, k + 1)
        terms = np.where(i % 2 == 1, 1, -1) * e[k - i] * sums[i - 1]
        e[k] = terms.sum() / k
        doubt[k] = (np.abs(e[k - i]) / i * wrong[i - 1]).sum() + _ROUNDING * np.abs(terms).sum()
    return np.where(np.arange(n + 1) % 2 == 0, e, -e), doubt


def _reach(coefficients: np.ndarray, doubts: np.ndarray, root: complex) -> float:
    """Bound on the distance of a root from one of the true polynomial.

    For every k a polynomial p of degree n has a root within (C(n, k) |k! p(t) / p^(k)(t)|)^(1/k)
    of t; |p(t)| is what the doubts and the evaluation itself leave of it at the computed root.
    """
    n = len(coefficients) - 1
    powers = abs(root) ** np.arange(n, -1, -1)
    off = float(abs(np.polyval(coefficients, root)))
    off += float(((doubts + 2 * n * _ROUNDING * np.abs(coefficients)) * powers).sum())
    nearest, derivative = math.inf, coefficients
    for k in range(1, n + 1):
        derivative = np.polyder(derivative) / k
        slope = float(abs(np.polyval(derivative, root)))
        if slope > 0:
            nearest = min(nearest, (math.comb(n, k) * off / slope) ** (1 / k))
    return float(nearest)
