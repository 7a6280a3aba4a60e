"""The allowed error of a result, number by number.

A result is right if the definition gives it for messages that differ from the true ones by a unit
in the last place, with rounded sums. u is that unit, of the type in which sums are kept. The
allowed error of a number is the sum of

- the rounding of sums: growth(d)·u·Σ |slope_j|·|m_j| for a statistic of d messages, and
  growth(n)·u·Σ |terms| for a gradient that is a sum of n terms;
- a multiple of the change of the definition when messages move by u at random, which reflects the
  condition of roots, powers and exponentials;
- a few units of the type of the result.

The allowed error of a number does not depend on other graphs, however large their values are.

A statistic may jump (std of PyG at var = ε, published moments at c = 0), and rounding alone may
decide a maximum. Such a result is in doubt: it is not compared, and its upstream gradient is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pna import aggregators as table
from pna.testing.definition import Context, EdgeList, context, deviations, formula, softmax_shares

PICKS = (table.Max, table.Min, table.KthSmallest)
_LINEAR = (table.Mean, table.Sum, table.NormalisedMean)
_SAMPLES, _TIMES = 2, 16


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Arithmetic:
    """The accuracy of a mode of execution."""

    dtype: torch.dtype  # of the result
    growth: Callable[[int], float]  # of rounding errors, with the length of a sum
    steps: int  # roundings of a message; 0 where it is exact

    @property
    def work(self) -> torch.dtype:
        return sum_type(self.dtype)

    @property
    def unit(self) -> float:
        """Unit of rounding. In float64 the definition is rounded as much as the result."""
        return torch.finfo(self.work).eps * (2 if self.work == torch.float64 else 0.5)

    @property
    def last_place(self) -> float:
        return torch.finfo(self.dtype).eps / 2


@dataclass
class Bound:
    """Expected numbers, the allowed error of each, and whether it is compared (settled)."""

    value: Tensor
    error: Tensor
    settled: Tensor
    dtype: torch.dtype = torch.float64  # of the result


@dataclass
class Statistic:
    """One aggregator at every receiver, and its derivatives by each of its inputs."""

    out: Bound  # (receivers, features)
    doubt: Tensor  # (receivers, features): the upstream gradient is set to 0 there
    message: Bound  # (edges, features)
    weight: Bound  # (edges, features), of softmax
    temperature: Bound  # (receivers, features), of softmax


@dataclass
class Problem:
    graph: EdgeList
    messages: Tensor  # (edges, features) float64
    size: Tensor  # (edges, features): the sum of |terms| of a message
    arithmetic: Arithmetic
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))


def _empty(*shape: int) -> Bound:
    value, error = torch.zeros(2, *shape, dtype=torch.float64)
    return Bound(value, error, torch.ones(shape, dtype=torch.bool))


def analyse(problem: Problem, aggregator: Any) -> Statistic:
    """The results and slopes of an aggregator by the definition, with their allowed errors."""
    by_edge = problem.messages.shape
    by_row = (problem.graph.num_receivers, by_edge[1])
    doubt = torch.zeros(by_row, dtype=torch.bool)
    found = Statistic(_empty(*by_row), doubt, _empty(*by_edge), _empty(*by_edge), _empty(*by_row))
    for which, slots in problem.graph.groups():
        _analyse_group(problem, aggregator, which, slots, found)
    return found


def _differentiate(aggregator: Any, m: Tensor, known: Context, times: int) -> list[Tensor]:
    """The statistic for `times` sets of messages, and its slopes by messages, weights and
    temperature: (times, …) each."""
    inputs = [m] + [
        None if i is None else i.repeat(times, *[1] * (i.dim() - 1))
        for i in (known.weight, known.temperature)
    ]
    leaves = [i.detach().requires_grad_() for i in inputs if i is not None]
    given = iter(leaves)
    messages = next(given)
    weight, temperature = (None if i is None else next(given) for i in inputs[1:])
    norm = known.norm.repeat(times, 1, 1)
    out = formula(aggregator)(aggregator, messages, Context(norm, weight, temperature))
    found = iter(torch.autograd.grad(out.sum(), leaves))
    slopes = [torch.zeros(times, 0) if i is None else next(found) for i in inputs]
    return [r.detach().unflatten(0, (times, -1)) if r.numel() else r for r in (out, *slopes)]


def _largest_change(value: Tensor, others: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.zeros_like(value), *((o - value).abs() for o in others)]).amax(0)


def _analyse_group(
    problem: Problem, aggregator: Any, rows: Tensor, slots: Tensor, found: Statistic
) -> None:
    arithmetic, features = problem.arithmetic, problem.messages.shape[1]
    m, size = problem.messages[slots], problem.size[slots].nan_to_num(0, 0, 0)
    known = context(problem.graph, slots, aggregator, features)
    d = slots.shape[1]
    picks, linear = isinstance(aggregator, PICKS), isinstance(aggregator, _LINEAR)
    finite = m.isfinite().all(1)
    exact = arithmetic.steps == 0
    equal = (m == m[:, :1]).all(1) & (arithmetic.steps <= 1)
    equal = equal & (known.temperature is None)  # shares of equal messages need not be exact
    unit = arithmetic.unit
    by = arithmetic.growth(d) * unit * max(arithmetic.steps, 1)  # relative error of a message
    samples = 0 if picks or linear else _SAMPLES
    draw = torch.rand((samples, *m.shape), generator=problem.generator, dtype=torch.float64) * 2 - 1
    step = draw.sign() * (draw.abs() + 1) / 2 * size * unit * max(arithmetic.steps, 1)
    step = torch.where(equal[:, None], step[:, :, :1], step)
    every = torch.cat([m[None], m + step]).flatten(0, 1)
    (value, *values), *all_slopes = _differentiate(aggregator, every, known, samples + 1)
    slopes = [s[0].nan_to_num(0, 0, 0) for s in all_slopes]
    moved = _largest_change(value, values)
    moved_slopes = [
        _largest_change(s, o[1:].unbind()) for s, o in zip(slopes, all_slopes, strict=True)
    ]
    largest = size.amax(1)
    tiny = torch.finfo(arithmetic.work).tiny
    more, more_slopes, doubt, jump = _own_error(aggregator, m, size, by, equal, known, arithmetic)
    error = by * (slopes[0].abs() * size).sum(1) + _TIMES * moved + more
    error = error + 3 * arithmetic.last_place * value.abs() + 4 * d * tiny * (1 + largest)
    error = error + torch.finfo(arithmetic.dtype).tiny * torch.finfo(arithmetic.dtype).eps
    if picks and exact:
        error = torch.zeros_like(value)
    overflow, surely = _overflows(aggregator, m, known, arithmetic)
    if isinstance(aggregator, table.Var | table.Std):
        value = torch.where(surely & finite, torch.inf, value)
        overflow = overflow & ~surely
    elif not picks and not linear:
        overflow = overflow | surely
    settled = ~overflow & ~jump
    if not picks and not linear:  # the result of an infinite message is NaN
        value = torch.where(finite, value, torch.nan)
        settled = settled | ~finite
        defined = finite & ~overflow & ~surely
    else:
        defined = torch.ones_like(finite)
    found.doubt[rows] = doubt
    _write(found.out, rows, Bound(value, error, settled))
    messages = Bound(
        slopes[0] * defined[:, None],
        (_TIMES * moved_slopes[0] + more_slopes + 8 * unit * slopes[0].abs() + 1e4 * tiny),
        defined[:, None].expand_as(m),
    )
    if picks:
        messages.error = torch.zeros_like(m)
    _write(found.message, slots, messages)
    if known.temperature is not None:
        reach = _TIMES * moved_slopes[2] + by * largest**2 + tiny
        _write(found.temperature, rows, Bound(slopes[2] * defined, reach, defined))
    if known.weight is not None:
        shares = softmax_shares(aggregator, m, known)
        assert known.temperature is not None
        off = by * (1 + known.temperature.abs() * largest)  # of a share, by its exponent too
        reach = _TIMES * moved_slopes[1] + off[:, None] * shares * largest[:, None] + tiny
        counts = (known.weight > 0).any(1)  # jumps at the first weight above 0
        # the slope of a message of weight 0 grows like its exponential
        usual = (defined & counts)[:, None] & (shares * known.weight.sum(1, keepdim=True) < 1e12)
        _write(found.weight, slots, Bound(slopes[1] * usual, reach, usual))


def _write(to: Bound, at: Tensor, values: Bound) -> None:
    to.value[at], to.error[at] = values.value, values.error.nan_to_num(0, torch.inf)
    to.settled[at] = values.settled


def _own_error(
    aggregator: Any,
    m: Tensor,
    size: Tensor,
    by: float,
    equal: Tensor,
    known: Context,
    arithmetic: Arithmetic,
) -> tuple[Tensor | float, Tensor | float, Tensor, Tensor]:
    """Errors that random moves of messages do not show, of the result and of its slopes; where
    slopes are in doubt, and where the result is."""
    none = torch.zeros_like(equal)
    if isinstance(aggregator, PICKS):
        return 0.0, 0.0, _near_ties(aggregator, m, size, arithmetic), none
    if isinstance(aggregator, table.Var | table.Std):
        return _spread_own_error(aggregator, m, size, by, equal, arithmetic)
    if isinstance(aggregator, table.Softmax):
        reach, error, doubt = _softmax_own_error(aggregator, m, size, by, known)
        return reach, error, doubt, doubt
    if not isinstance(aggregator, table.Moment):
        return 0.0, 0.0, none, none
    n, epsilon, d = aggregator.order, aggregator.epsilon, m.shape[1]
    dev, off = deviations(m).abs(), by * size.amax(1, keepdim=True)
    off = torch.where(equal[:, None], 0, off)
    c = (deviations(m) ** n).mean(1).abs()
    error = ((dev + off) ** n - dev**n).mean(1) + n * by * (dev**n).mean(1)
    error = error + d * torch.finfo(arithmetic.work).tiny  # a power may underflow
    steep = (c + epsilon) ** (1 / n - 1) / n
    root = (c + epsilon) ** (1 / n)
    reach = torch.maximum(
        (c + error + epsilon) ** (1 / n) - root,
        root - ((c - error).clamp(min=0) + epsilon) ** (1 / n),
    )
    reach = torch.where(c < error, 2 * (error + epsilon) ** (1 / n) - 2 * epsilon ** (1 / n), reach)
    # the exponent 1/n is rounded too, which matters in proportion to log c
    reach = reach + (16 + 2 * (c + epsilon).log().abs()) * arithmetic.unit * root
    doubt = error > (c + epsilon) / 4
    jump = (c <= 4 * error) & ~equal if aggregator.published else none
    doubt = (doubt & ~equal) | jump
    power = ((dev + off) ** (n - 1) - dev ** (n - 1)) + n * by * dev ** (n - 1)
    slope = n / d * steep[:, None] * (power + power.mean(1, keepdim=True))
    relative = error / (c + epsilon)
    change = n / d * steep[:, None] * (dev ** (n - 1) + (dev ** (n - 1)).mean(1, keepdim=True))
    return reach, slope + 4 * relative[:, None] * change, doubt, jump


def _spread_own_error(
    aggregator: Any, m: Tensor, size: Tensor, by: float, equal: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor | float, Tensor | float, Tensor, Tensor]:
    """The errors of var and std."""
    dev, off, d = deviations(m).abs(), by * size, m.shape[1]
    error = torch.where(equal, 0, (2 * dev * off).mean(1) + off.amax(1) ** 2)
    var, none = (dev**2).mean(1), torch.zeros_like(equal)
    # the mean is rounded once, and found from deviations
    mean = arithmetic.unit * (4 * m.mean(1).abs() + arithmetic.growth(d) * dev.mean(1))
    if isinstance(aggregator, table.Std) and arithmetic.dtype == arithmetic.work:
        mean = torch.where(equal, 0, mean)  # equal messages have no slope: this is promised
    if isinstance(aggregator, table.Var):
        return torch.where(equal, 0, off.amax(1) ** 2), (2 / d * mean)[:, None], none, none
    if aggregator.clamp:
        jump = ((var - aggregator.epsilon).abs() <= 4 * error) & ~equal
        above = torch.where(var > aggregator.epsilon, var, torch.inf)
        lost = (error > above / 4) & ~equal
        return 0.0, _std_slope(dev, error, mean, above), jump | lost, jump
    root = (var + aggregator.epsilon).sqrt()
    lost = (error > (var + aggregator.epsilon) / 4) & ~equal
    # kernels may mark equal messages by the numbers just above their result
    reach = (root**2 + error).sqrt() - root + 6 * arithmetic.unit * root
    return reach, _std_slope(dev, error, mean, root**2), lost, none


def _std_slope(dev: Tensor, error: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The error of dev / (d·std), from those of the mean and the var."""
    slope = (mean[:, None] + dev * (error / (2 * var))[:, None]) / var.sqrt()[:, None]
    return slope / dev.shape[1]


def _softmax_own_error(
    aggregator: Any, m: Tensor, size: Tensor, by: float, known: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes are p_j (1 + t (m_j − result)). The error of p_j is that of its exponent. Shares are
    rounded too, which shows even if the slope of a message is 0."""
    assert known.temperature is not None
    t, largest = known.temperature.abs()[:, None], size.amax(1, keepdim=True)
    share = softmax_shares(aggregator, m, known)
    share = share if known.weight is None else share * known.weight
    away = t * (m - (share * m).sum(1, keepdim=True)).abs()
    off = by * t * largest
    error = 2 * share * off * (2 + away) + 4 * by * off
    return (
        by * (share * m.abs()).sum(1).nan_to_num(0, 0),
        error,
        (off[:, 0] > 0.1) & (m.shape[1] > 1),
    )


def _near_ties(aggregator: Any, m: Tensor, size: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Whether rounding decides which message is picked. Equal messages that are rounded once stay
    equal in float32."""
    if arithmetic.steps == 0 or m.shape[1] == 1:
        return torch.zeros_like(m[:, 0], dtype=torch.bool)
    if isinstance(aggregator, table.KthSmallest):
        k = min(aggregator.k, m.shape[1]) - 1
    else:
        k = m.shape[1] - 1 if isinstance(aggregator, table.Max) else 0
    picked = m.sort(1).values[:, k : k + 1]
    apart = (m - picked).abs()
    finfo = torch.finfo(arithmetic.work)
    near = apart <= 4 * arithmetic.steps * arithmetic.unit * size.amax(1, keepdim=True)
    near = near | (apart <= finfo.tiny * finfo.eps)  # products may underflow
    if arithmetic.steps > 1:
        return near.sum(1) > 1
    return (near & (apart > 0)).any(1)


def _overflows(
    aggregator: Any, m: Tensor, known: Context, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """Where a power may overflow the type in which sums are kept, and where it must."""
    most = torch.finfo(arithmetic.work).max
    if isinstance(aggregator, table.Var | table.Std | table.Moment):
        n = aggregator.order if isinstance(aggregator, table.Moment) else 2
        powers = deviations(m).abs().nan_to_num(0, 0) ** n
        return 1e3 * powers.sum(1) > most, powers.amax(1) > 4 * most
    if isinstance(aggregator, table.Softmax):
        assert known.temperature is not None
        largest = m.abs().amax(1).nan_to_num(0, 0)
        far = torch.maximum(known.temperature.abs(), torch.ones(1)) * largest
        return (4 + m.shape[1]) * far > most, torch.zeros_like(far, dtype=torch.bool)
    never = torch.zeros_like(m[:, 0], dtype=torch.bool)
    return never, never
