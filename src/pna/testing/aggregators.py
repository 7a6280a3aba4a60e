"""Whether an aggregator keeps what it declares, and what every aggregator must keep."""

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

#: Messages of each receiver of the graphs that are tried: none at the first, middle and last one.
_DEGREES = (0, 1, 2, 3, 0, 5, 4, 7, 0)
_FEATURES = 3
_STEP = 1 / 64  # messages are multiples of it, so that those of one receiver differ by as much
_DRAWS = 3
_TOLERANCE = 1e-7  # in float64, of the largest number
_SCALES = (1.0, 30.0)  # of vectors that are added


def check_aggregator(
    aggregator: Aggregator | type[Aggregator], *, features: int = _FEATURES, seed: int = 0
) -> None:
    """Raise an AssertionError that says what is wrong with an aggregator, if anything is.

    Tried in float64 on random messages of small graphs, none of which are equal: the shape and
    type of results, whether they depend on the order of edges or on other receivers, NaN and
    infinity at receivers that get no message, graphs without edges, writes to the messages,
    gradients (by finite differences, of messages and of learned tensors), and the declared `shift`.
    An aggregator with a parameter for each edge of one graph cannot be tried.

    Args:
        aggregator: an object, or a class if it needs no parameters.
        features: of a message; as many as tensors among its parameters are made for.
        seed: of the messages.
    """
    [chosen] = resolve([aggregator])
    random = torch.Generator().manual_seed(seed)
    tried = _in_float64(chosen)
    samples = [_Sample(features, random) for _ in range(_DRAWS)]
    _check_results(chosen, tried, samples[0])
    _check_writes(tried, samples[0])
    _check_isolated(chosen, tried, samples[0])
    for sample in samples:
        _check_order(tried, sample, random)
        _check_others(tried, sample, random)
        _check_shift(tried, sample, random)
    _check_gradient(tried, samples)


class _Sample:
    """A graph, each of whose edges has a sender of its own, and messages (edges, features)."""

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
    """With copies of its tensors, which learn if they do there."""
    tensors = {}
    for field in fields(aggregator):
        value = getattr(aggregator, field.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            copy = value.detach().double()
            tensors[field.name] = copy.requires_grad_(value.requires_grad)
    return replace(aggregator, **tensors) if tensors else aggregator


@contextmanager
def _doing(aggregator: Aggregator, what: str) -> Iterator[None]:
    """Errors of the definition itself say what was tried."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        _fail(aggregator, f"an error {what}", "a result", f"{type(error).__name__}: {error}", error)


def _fail(
    aggregator: Aggregator, got: str, expected: str, remedy: str, cause: Exception | None = None
) -> None:
    name = type(aggregator).__name__
    raise AssertionError(f"{name}: got {got}, expected {expected}; {remedy}") from cause


def _run(aggregator: Aggregator, messages: Tensor, adjacency: Adjacency) -> Tensor:
    """(receivers, features), with 0 where nothing arrives, as `pna.aggregate` has it."""
    return reference.aggregate(messages, adjacency, [aggregator])[:, 0]


def _result(aggregator: Aggregator, messages: Tensor, adjacency: Adjacency) -> Tensor:
    """The same, without gradients."""
    with torch.no_grad():
        return _run(aggregator, messages, adjacency)


def _differ(a: Tensor, b: Tensor) -> float:
    """The largest difference, in units of the largest number; infinite where one is NaN."""
    if a.numel() == 0:
        return 0.0
    scale = 1 + torch.maximum(a.abs(), b.abs()).max()
    return float(((a - b).abs() / scale).nan_to_num(torch.inf).max())


def _check_results(given: Aggregator, aggregator: Aggregator, sample: _Sample) -> None:
    """In both types of messages; the package itself checks what a definition returns."""
    adjacency = sample.adjacency()
    for chosen, messages in ((given, sample.messages.float()), (aggregator, sample.messages)):
        with _doing(given, f"from messages of {messages.dtype}"):
            found = _result(chosen, messages, adjacency)
            again = _result(chosen, messages, adjacency)
        reached = (adjacency.degree > 0)[:, None].expand_as(found)
        if not found[reached].isfinite().all():
            _fail(
                given,
                f"{found[reached & ~found.isfinite()][0].item()} for finite messages",
                "finite numbers",
                "avoid 0 / 0, and roots and logarithms at 0 or below",
            )
        if not torch.equal(found, again):
            _fail(given, "two results of the same messages", "one", "draw no random numbers")
    with _doing(given, "in pna.aggregate"), torch.no_grad():
        fast = aggregate(sample.messages, adjacency, [aggregator])[:, 0]
    if (distance := _differ(found, fast)) > _TOLERANCE:
        _fail(
            given,
            f"a result of pna.aggregate that differs by {distance:.2g} from the definition's",
            "the same",
            "use the methods of `hood` alone",
        )


def _check_writes(aggregator: Aggregator, sample: _Sample) -> None:
    """All aggregators of a list get the same messages, and the powers that others have asked for:
    none may write to them."""
    adjacency = sample.adjacency()
    messages = sample.messages[adjacency.senders]
    others: list[Aggregator] = [Moment(3), Moment(4), KthSmallest(1)]
    with torch.no_grad(), _doing(aggregator, "with others in pna.aggregate"):
        hood = reference.Neighbourhoods(messages.clone(), adjacency)
        reference.defined(hood, aggregator)
        alone = aggregate(sample.messages, adjacency, others)
        together = aggregate(sample.messages, adjacency, [aggregator, *others])[:, 1:]
    if not torch.equal(hood.messages, messages) or _differ(alone, together) > _TOLERANCE:
        _fail(
            aggregator,
            "other messages after aggregate(hood) than before",
            "the same: the other aggregators of a list get them too",
            "write to no tensor of `hood` in place (mul_, clamp_, +=, m[i] = …); make a new one, "
            "or write to a copy: hood.messages.clone()",
        )


class _Watched(reference.Neighbourhoods):
    """Messages whose sums and maxima remember the gradients of receivers that get none."""

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


def _check_isolated(given: Aggregator, aggregator: Aggregator, sample: _Sample) -> None:
    """Receivers that get nothing are set to 0, but the definition sees them: what it makes of them
    must be finite, and so must the gradients there. A graph may have no edges at all."""
    none = torch.zeros(0, dtype=torch.int64)
    for what, messages, receivers in (
        ("where a receiver gets no message", sample.messages, sample.receivers),
        ("from a graph without edges", sample.messages[:0], none),
    ):
        adjacency = _adjacency(receivers, len(_DEGREES))
        for chosen, own in ((given, messages.float()), (aggregator, messages)):
            leaf = own.clone().requires_grad_()
            hood = _Watched(leaf.index_select(0, adjacency.senders), adjacency)
            with _doing(given, what):
                found = reference.defined(hood, chosen)
            _check_empty_rows(given, found[adjacency.degree == 0], what)
        gradients: list[Tensor] = []
        with _doing(given, what):
            found = reference.results(hood, [aggregator])
            if found.requires_grad:
                leaves = [leaf, *_learned(aggregator)]
                gradients += torch.autograd.grad(
                    found.sum(), leaves, allow_unused=True, materialize_grads=True
                )
        if not all(g.isfinite().all() for g in [*gradients, *hood.gradients]):
            _fail(
                given,
                f"a gradient with NaN or infinity {what}",
                "finite numbers",
                "such a receiver has a sum of 0 and a degree of 0, where roots, logarithms and "
                "quotients have no finite slope: add a small number, or use torch.where "
                "before them",
            )


def _check_empty_rows(aggregator: Aggregator, rows: Tensor, what: str) -> None:
    """What a definition makes of no messages."""
    if rows.isfinite().all():
        return
    _fail(
        aggregator,
        f"{rows[~rows.isfinite()][0].item()} {what}",
        "a finite number, although it is set to 0 afterwards: its gradient may spoil others",
        "such a receiver has a sum of 0 and a degree of 0: use hood.mean, or divide by "
        "hood.adjacency.degree.clamp(min=1)[:, None]; add a small number before logarithms and "
        "powers below 0",
    )


def _check_order(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    order = torch.randperm(len(sample.receivers), generator=random)
    with _doing(aggregator, "from edges in another order"):
        found = _result(aggregator, sample.messages, sample.adjacency())
        other = _result(
            aggregator, sample.messages[order], _adjacency(sample.receivers[order], len(_DEGREES))
        )
    if (distance := _differ(found, other)) > _TOLERANCE:
        _fail(
            aggregator,
            f"results that change by {distance:.2g} with the order of the edges",
            "the same for every order",
            "combine the messages of a receiver with hood.sum, mean, max or min, whatever their "
            "places",
        )


def _check_others(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    """What other receivers get, and how many there are, changes nothing at a receiver."""
    adjacency, messages = sample.adjacency(), sample.messages
    watched = 3
    own = sample.receivers == watched
    changed = torch.where(own[:, None], messages, 100 * messages + 7)
    more = torch.randint(20, (60,), generator=random)  # a second graph, with receivers of its own
    second = _distinct(60, messages.shape[1], random) * 100
    union = _adjacency(torch.cat([sample.receivers, more + len(_DEGREES)]), len(_DEGREES) + 20)
    with _doing(aggregator, "with another graph in the batch"):
        found = _result(aggregator, messages, adjacency)
        beside = _result(aggregator, changed, adjacency)[watched]
        joined = _result(aggregator, torch.cat([messages, second]), union)[: len(_DEGREES)]
    for what, distance in (
        ("with the messages of other receivers", _differ(found[watched], beside)),
        ("with other graphs in the batch", _differ(found, joined)),
    ):
        if distance > _TOLERANCE:
            _fail(
                aggregator,
                f"results of a receiver that change by {distance:.2g} {what}",
                "a function of its own messages alone",
                "use hood.sum, mean, max, min and to_slots, and no sum or maximum over all rows",
            )


def _check_shift(aggregator: Aggregator, sample: _Sample, random: torch.Generator) -> None:
    declared, adjacency = shift_of(aggregator), sample.adjacency()
    if declared == "unknown":
        return
    worst = dict.fromkeys(SHIFTS, 0.0)
    for scale in _SCALES:
        vectors = scale * _distinct(len(_DEGREES), sample.messages.shape[1], random)
        with _doing(aggregator, "from shifted messages"):
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
    fitting = [rule for rule, distance in worst.items() if distance <= _TOLERANCE]
    right = fitting[0]  # "unknown" at the last
    _fail(
        aggregator,
        f"shift = {declared!r} ({SHIFTS[declared]}), from which results differ by "
        f"{worst[declared]:.2g} when one vector is added to all messages of a receiver",
        f"shift = {right!r} ({SHIFTS[right]})",
        "declare that, or correct the definition",
    )


def _check_gradient(aggregator: Aggregator, samples: list[_Sample]) -> None:
    """By finite differences. One draw may meet a kink; a wrong gradient fails in all of them."""
    names = [field.name for field in fields(aggregator)]
    learned = [n for n in names if any(getattr(aggregator, n) is t for t in _learned(aggregator))]
    said = ""
    for sample in samples:
        adjacency = sample.adjacency()

        def run(messages: Tensor, *tensors: Tensor, adjacency: Adjacency = adjacency) -> Tensor:
            given = replace(aggregator, **dict(zip(learned, tensors, strict=True)))
            return _run(given, messages, adjacency)

        leaf = sample.messages.clone().requires_grad_()
        try:
            if gradcheck(run, (leaf, *_learned(aggregator)), atol=1e-5, rtol=1e-4, fast_mode=True):
                return
        except Exception as error:  # gradcheck's own, or one of the backward pass
            said = " ".join(str(error).split())[:300]
    _fail(
        aggregator,
        f"a gradient that finite differences do not confirm ({said})",
        "that of the result",
        "look for .detach(), .item(), rounding, steps in place, and a backward pass of its own",
    )


def _learned(aggregator: Aggregator) -> list[Tensor]:
    """Tensors among its parameters that have gradients."""
    values = [getattr(aggregator, field.name) for field in fields(aggregator)]
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]
