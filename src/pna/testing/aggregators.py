"""`check_aggregator`: whether an aggregator does what it declares, and what all of them must do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd import gradcheck

from pna.adjacency import Adjacency
from pna.ops import reference
from pna.ops.aggregate import aggregate
from pna.ops.aggregators import SHIFTS, Aggregator, KthSmallest, Moment, resolve, shift_of

#: Messages of each receiver of the sample graphs: the first, a middle and the last get none.
_DEGREES = (0, 1, 2, 3, 0, 5, 4, 7, 0)
_FEATURES = 3
_STEP = 1 / 64  # messages are multiples of it, so those of one receiver differ by at least as much
_DRAWS = 3
_TOLERANCE = 1e-7  # in float64, relative to the largest number
_SCALES = (1.0, 30.0)  # of the vectors that are added to messages


def check_aggregator(
    aggregator: Aggregator | type[Aggregator], *, features: int = _FEATURES, seed: int = 0
) -> None:
    """Raise an AssertionError that says what is wrong with an aggregator, if anything is.

    The checks use random, distinct messages of small graphs, in float64: the shape and type of
    results, their independence of the order of edges and of other receivers, NaN and infinity at
    receivers without messages, graphs without edges, writes to the messages, gradients (by finite
    differences, for messages and learned tensors), and the declared `shift`. An aggregator with a
    parameter for each edge of one graph cannot be checked.

    Args:
        aggregator: an object, or a class if it needs no parameters.
        features: number of features of a message; tensors among the parameters must fit it.
        seed: random seed of the messages.
    """
    [given] = resolve([aggregator])
    random = torch.Generator().manual_seed(seed)
    double = _in_float64(given)
    samples = [_Sample(features, random) for _ in range(_DRAWS)]
    try:
        _check_results(given, double, samples[0])
        _check_writes(double, samples[0])
        _check_isolated(given, double, samples[0])
        for sample in samples:
            _check_order(double, sample, random)
            _check_others(double, sample, random)
            _check_shift(double, sample, random)
        _check_gradient(double, samples)
    except AssertionError as error:
        raise AssertionError(f"{type(given).__name__}: {error}") from error.__cause__


class _Sample:
    """Messages (edges, features) and a graph in which each edge has its own sender."""

    def __init__(self, features: int, random: torch.Generator) -> None:
        degrees = torch.tensor(_DEGREES)
        receivers = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
        self.receivers = receivers[torch.randperm(len(receivers), generator=random)]
        self.messages = _distinct(len(receivers), features, random)

    def adjacency(self) -> Adjacency:
        return _adjacency(self.receivers, len(_DEGREES))


def _adjacency(receivers: Tensor, count: int) -> Adjacency:
    edge_index = torch.stack([torch.arange(len(receivers)), receivers])
    return Adjacency.from_edge_index(edge_index, (len(receivers), count))


def _distinct(rows: int, features: int, random: torch.Generator) -> Tensor:
    """Numbers between about −2 and 2, all different in a column."""
    columns = [torch.randperm(256, generator=random)[:rows] for _ in range(features)]
    return (torch.stack(columns, 1).double() - 128 + 0.25) * _STEP


def _in_float64(aggregator: Aggregator) -> Aggregator:
    """A copy with float64 tensors, which require gradients if the given ones do."""
    tensors = {}
    for field in fields(aggregator):
        value = getattr(aggregator, field.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            copy = value.detach().double()
            tensors[field.name] = copy.requires_grad_(value.requires_grad)
    return replace(aggregator, **tensors) if tensors else aggregator


@contextmanager
def _doing(what: str) -> Iterator[None]:
    """Errors of the definition itself say what was tried."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"got an error {what}, expected a result; {type(error).__name__}: {error}"
        ) from error


def _run(aggregator: Aggregator, messages: Tensor, adjacency: Adjacency) -> Tensor:
    """(receivers, features), 0 without messages, as in `pna.aggregate`."""
    return reference.aggregate(messages, adjacency, [aggregator])[:, 0]


def _result(aggregator: Aggregator, messages: Tensor, adjacency: Adjacency) -> Tensor:
    """The same, without gradients."""
    with torch.no_grad():
        return _run(aggregator, messages, adjacency)


def _differ(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite where one is NaN."""
    if a.numel() == 0:
        return 0.0
    scale = 1 + torch.maximum(a.abs(), b.abs()).max()
    return float(((a - b).abs() / scale).nan_to_num(torch.inf).max())


def _check_results(given: Aggregator, double: Aggregator, sample: _Sample) -> None:
    """In both types of messages. The package itself checks the shape of what is returned."""
    adjacency = sample.adjacency()
    for aggregator, messages in ((given, sample.messages.float()), (double, sample.messages)):
        with _doing(f"from messages of {messages.dtype}"):
            found = _result(aggregator, messages, adjacency)
            again = _result(aggregator, messages, adjacency)
        reached = (adjacency.degree > 0)[:, None].expand_as(found)
        if not found[reached].isfinite().all():
            raise AssertionError(
                f"got {found[reached & ~found.isfinite()][0].item()} for finite messages, expected "
                "finite numbers; avoid 0 / 0, and roots and logarithms at 0 or below"
            )
        if not torch.equal(found, again):
            raise AssertionError(
                "got two results of the same messages, expected one; draw no random numbers"
            )
    with _doing("in pna.aggregate"), torch.no_grad():
        fast = aggregate(sample.messages, adjacency, [double])[:, 0]
    if (distance := _differ(found, fast)) > _TOLERANCE:
        raise AssertionError(
            f"got a result of pna.aggregate that differs by {distance:.2g} from the definition's, "
            "expected the same; use the methods of `hood` alone"
        )


def _check_writes(aggregator: Aggregator, sample: _Sample) -> None:
    """All aggregators of a list share their messages and powers, so none may write to them."""
    adjacency = sample.adjacency()
    messages = sample.messages[adjacency.senders]
    others: list[Aggregator] = [Moment(3), Moment(4), KthSmallest(1)]
    with torch.no_grad(), _doing("with others in pna.aggregate"):
        hood = reference.Neighbourhoods(messages.clone(), adjacency)
        reference.defined(hood, aggregator)
        alone = aggregate(sample.messages, adjacency, others)
        together = aggregate(sample.messages, adjacency, [aggregator, *others])[:, 1:]
    if not torch.equal(hood.messages, messages) or _differ(alone, together) > _TOLERANCE:
        raise AssertionError(
            "got other messages after aggregate(hood) than before, expected the same: the other "
            "aggregators of a list get them too; write to no tensor of `hood` in place (mul_, "
            "clamp_, +=, m[i] = …); make a new one, or write to a copy: hood.messages.clone()"
        )


class _Watched(reference.Neighbourhoods):
    """Messages whose sums and maxima record the gradients of receivers without messages."""

    def sum(self, values: Tensor) -> Tensor:
        return self._watched(super().sum(values))

    def max(self, values: Tensor) -> Tensor:
        return self._watched(super().max(values))

    @cached_property
    def gradients(self) -> list[Tensor]:
        return []

    def _watched(self, found: Tensor) -> Tensor:
        if found.requires_grad:
            empty = self.adjacency.degree == 0
            found.register_hook(lambda gradient: self.gradients.append(gradient[empty]))
        return found


def _check_isolated(given: Aggregator, double: Aggregator, sample: _Sample) -> None:
    """Receivers without messages are set to 0 afterwards, but the definition computes them too.
    Its results and gradients there must be finite. A graph may have no edges at all."""
    none = torch.zeros(0, dtype=torch.int64)
    for what, messages, receivers in (
        ("where a receiver gets no message", sample.messages, sample.receivers),
        ("from a graph without edges", sample.messages[:0], none),
    ):
        adjacency = _adjacency(receivers, len(_DEGREES))
        for aggregator, own in ((given, messages.float()), (double, messages)):
            leaf = own.clone().requires_grad_()
            hood = _Watched(leaf.index_select(0, adjacency.senders), adjacency)
            with _doing(what):
                found = reference.defined(hood, aggregator)
            rows = found[adjacency.degree == 0]
            if not rows.isfinite().all():
                raise AssertionError(
                    f"got {rows[~rows.isfinite()][0].item()} {what}, expected a finite number, "
                    "although it is set to 0 afterwards: its gradient may spoil others; such a "
                    "receiver has a sum of 0 and a degree of 0: use hood.mean, or divide by "
                    "hood.count.clamp(min=1)[:, None]; add a small number before "
                    "logarithms and powers below 0"
                )
        gradients: list[Tensor] = []
        with _doing(what):
            found = reference.results(hood, [double])
            if found.requires_grad:
                leaves = [leaf, *_learned(double).values()]
                gradients += torch.autograd.grad(
                    found.sum(), leaves, allow_unused=True, materialize_grads=True
                )
        if not all(g.isfinite().all() for g in [*gradients, *hood.gradients]):
            raise AssertionError(
                f"got a gradient with NaN or infinity {what}, expected finite numbers; such a "
                "receiver has a sum of 0 and a degree of 0, where roots, logarithms and quotients "
                "have no finite slope: add a small number, or use torch.where before them"
            )


def _check_order(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    order = torch.randperm(len(sample.receivers), generator=random)
    with _doing("from edges in another order"):
        found = _result(aggregator, sample.messages, sample.adjacency())
        permuted = _adjacency(sample.receivers[order], len(_DEGREES))
        other = _result(aggregator, sample.messages[order], permuted)
    if (distance := _differ(found, other)) > _TOLERANCE:
        raise AssertionError(
            f"got results that change by {distance:.2g} with the order of the edges, expected the "
            "same for every order; combine the messages of a receiver with hood.sum, mean, max or "
            "min, whatever their places"
        )


def _check_others(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    """The messages and the number of other receivers must not change the result of a receiver."""
    adjacency, messages = sample.adjacency(), sample.messages
    watched = 3
    own = sample.receivers == watched
    changed = torch.where(own[:, None], messages, 100 * messages + 7)
    more = torch.randint(20, (60,), generator=random)  # a second graph with its own receivers
    second = _distinct(60, messages.shape[1], random) * 100
    union = _adjacency(torch.cat([sample.receivers, more + len(_DEGREES)]), len(_DEGREES) + 20)
    with _doing("with another graph in the batch"):
        found = _result(aggregator, messages, adjacency)
        other = _result(aggregator, changed, adjacency)[watched]
        joined = _result(aggregator, torch.cat([messages, second]), union)[: len(_DEGREES)]
    for what, distance in (
        ("with the messages of other receivers", _differ(found[watched], other)),
        ("with other graphs in the batch", _differ(found, joined)),
    ):
        if distance > _TOLERANCE:
            raise AssertionError(
                f"got results of a receiver that change by {distance:.2g} {what}, expected a "
                "function of its own messages alone; use hood.sum, mean, max, min and to_slots, "
                "and no sum or maximum over all rows"
            )


def _check_shift(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    declared, adjacency = shift_of(aggregator), sample.adjacency()
    if declared == "unknown":
        return
    worst = dict.fromkeys(SHIFTS, 0.0)
    for scale in _SCALES:
        vectors = scale * _distinct(len(_DEGREES), sample.messages.shape[1], random)
        with _doing("from shifted messages"):
            found = _result(aggregator, sample.messages, adjacency)
            ones = _result(aggregator, torch.ones_like(sample.messages), adjacency)
            moved = _result(aggregator, sample.messages + vectors[sample.receivers], adjacency)
        times = {
            "once": (adjacency.degree > 0)[:, None].double(),
            "degree": adjacency.degree[:, None].double(),
            "as ones": ones,
            "none": torch.zeros_like(ones),
        }
        for rule, factor in times.items():
            worst[rule] = max(worst[rule], _differ(moved, found + factor * vectors))
    if worst[declared] <= _TOLERANCE:
        return
    right = next(rule for rule, distance in worst.items() if distance <= _TOLERANCE)
    raise AssertionError(
        f"got shift = {declared!r} ({SHIFTS[declared]}), from which results differ by "
        f"{worst[declared]:.2g} when one vector is added to all messages of a receiver, expected "
        f"shift = {right!r} ({SHIFTS[right]}); declare that, or correct the definition"
    )


def _check_gradient(aggregator: Aggregator, samples: list[_Sample]) -> None:
    """By finite differences. One sample may meet a kink; a wrong gradient fails in all of them."""
    learned, problem = _learned(aggregator), ""
    for sample in samples:
        adjacency = sample.adjacency()

        def run(messages: Tensor, *tensors: Tensor, adjacency: Adjacency = adjacency) -> Tensor:
            given = replace(aggregator, **dict(zip(learned, tensors, strict=True)))
            return _run(given, messages, adjacency)

        leaves = (sample.messages.clone().requires_grad_(), *learned.values())
        try:
            if gradcheck(run, leaves, atol=1e-5, rtol=1e-4, fast_mode=True):
                return
        except Exception as error:  # gradcheck's own, or one of the backward pass
            problem = " ".join(str(error).split())[:300]
    raise AssertionError(
        f"got a gradient that finite differences do not confirm ({problem}), expected that of the "
        "result; look for .detach(), .item(), rounding, steps in place, and a backward pass of "
        "its own"
    )


def _learned(aggregator: Aggregator) -> dict[str, Tensor]:
    """The parameters that have gradients, by name."""
    values = {field.name: getattr(aggregator, field.name) for field in fields(aggregator)}
    return {n: v for n, v in values.items() if isinstance(v, Tensor) and v.requires_grad}
