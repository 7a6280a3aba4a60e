"""Every kind of mistake in an aggregator is found, and none where there is none."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pna.aggregators import Aggregator, Max, Mean, Moment, Softmax, Std, Sum
from pna.ops.aggregators import BUILT_IN
from pna.testing import check_aggregator
from tests.ops.cases import examples


@pytest.mark.parametrize(
    "aggregator",
    [
        *(a for kind in BUILT_IN for a in examples(kind)),
        Moment(3, published=True),
        Softmax(nn.Parameter(torch.tensor(1.5))),
        Softmax(nn.Parameter(torch.tensor([0.5, 1.0, -2.0]))),
    ],
    ids=repr,
)
def test_those_of_the_package_pass(aggregator):
    check_aggregator(aggregator)


class Midrange(Aggregator):
    shift = "once"

    def aggregate(self, hood):
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


class RootMeanSquare(Aggregator):
    """Whose root has no slope at a receiver that gets nothing."""

    shift = "unknown"

    def aggregate(self, hood):
        return (hood.mean(hood.messages**2) + 1e-9).sqrt()


@dataclass(frozen=True)
class PowerMean(Aggregator):
    """With a learned power."""

    power: float | Tensor = 2.0
    shift = "unknown"

    def aggregate(self, hood):
        return hood.mean((hood.messages.abs() + 1e-3) ** self.power)


class ClampedCount(Aggregator):
    """A mean by hand, as errors advise it."""

    shift = "once"

    def aggregate(self, hood):
        return hood.sum(hood.messages) / hood.adjacency.degree.clamp(min=1)[:, None]


class Count(Aggregator):
    """Which has no gradient, as is right."""

    shift = "none"

    def aggregate(self, hood):
        return hood.sum(torch.ones_like(hood.messages))


class Attention(Aggregator):
    """Of all features together."""

    shift = "unknown"

    def aggregate(self, hood):
        scores = hood.messages.sum(1, keepdim=True)
        weights = (scores - hood.to_slots(hood.largest(scores))).exp()
        total = hood.sum(weights).clamp(min=1e-9)
        return hood.sum(weights * hood.messages) / total


@pytest.mark.parametrize(
    "aggregator",
    [Midrange, RootMeanSquare(), PowerMean(), PowerMean(nn.Parameter(torch.tensor(1.5))),
     ClampedCount, Count, Attention],
    ids=repr,
)  # fmt: skip
def test_right_ones_pass(aggregator):
    check_aggregator(aggregator)


def check(message, aggregate, shift="unknown", **kwargs):
    """Raises what it should for an aggregator with this definition."""
    wrong = type("Wrong", (Aggregator,), {"aggregate": aggregate, "shift": shift})
    with pytest.raises(AssertionError, match=message):
        check_aggregator(wrong, **kwargs)


@pytest.mark.parametrize(
    ("kind", "shift", "right"),
    [
        (Mean, "degree", "once"),
        (Mean, "none", "once"),
        (Sum, "once", "degree"),
        (Max, "none", "once"),
        (Std, "once", "none"),
        (Std, "as ones", "none"),
        (RootMeanSquare, "once", "unknown"),
        (RootMeanSquare, "none", "unknown"),
        (RootMeanSquare, "degree", "unknown"),
        (RootMeanSquare, "as ones", "unknown"),
    ],
)
def test_a_wrong_shift(kind, shift, right):
    """With the one that fits."""
    message = rf"Wrong: got shift = '{shift}' \(.*expected shift = '{right}' .*declare that"
    check(message, lambda _, hood: kind().aggregate(hood), shift)


def test_a_shift_that_is_wrong_far_from_zero_only():
    def aggregate(_, hood):
        return hood.mean(hood.messages.clamp(-8, 8))

    check("got shift = 'once'", aggregate, "once")


class _Halved(torch.autograd.Function):
    """x, with half of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def test_a_wrong_gradient():
    check(
        "a gradient that finite differences",
        lambda _, hood: _Halved.apply(hood.mean(hood.messages)),
    )


def test_a_gradient_that_is_cut():
    def aggregate(_, hood):
        return hood.mean(hood.messages * hood.messages.detach())

    check("a gradient that finite differences", aggregate)
    check("a gradient that finite differences", lambda _, hood: hood.mean(hood.messages).detach())


def test_a_wrong_gradient_of_a_parameter():
    @dataclass(frozen=True)
    class Scaled(Aggregator):
        factor: Tensor
        shift = "unknown"

        def aggregate(self, hood):
            return _Halved.apply(self.factor) * hood.mean(hood.messages)

    with pytest.raises(AssertionError, match="a gradient that finite differences"):
        check_aggregator(Scaled(nn.Parameter(torch.tensor(2.0))))


def test_the_order_of_edges():
    def first(_, hood):
        """The message that was given first."""
        place = hood.from_edges(torch.arange(len(hood.messages)).to(hood.messages))[:, None]
        return hood.max(torch.where(place == hood.to_slots(hood.min(place)), hood.messages, -9))

    check("change by .* with the order of the edges.*hood.sum", first)


def test_the_messages_of_other_receivers():
    check(
        "change by .* with the messages of other receivers",
        lambda _, hood: hood.mean(hood.messages - hood.messages.mean(0)),
    )


def test_other_graphs_in_the_batch():
    def aggregate(_, hood):
        return hood.sum(hood.messages) / hood.adjacency.num_receivers

    check("change by .* with other graphs in the batch", aggregate)


def squared_in_place(_, hood):
    messages = hood.messages
    messages *= messages
    return hood.mean(messages)


@pytest.mark.parametrize(
    "aggregate",
    [
        squared_in_place,
        lambda _, hood: hood.mean(hood.messages.clamp_(min=0)),
        lambda _, hood: hood.max(hood.messages.neg_()),
        lambda _, hood: hood.mean(hood.messages.detach().exp_()),
        lambda _, hood: hood.mean(hood.power(2).mul_(2)),  # kept for moments of the same list
        lambda _, hood: hood.mean(hood.power(1).abs_()),
    ],
)
def test_writes_to_the_messages(aggregate):
    """Which the other aggregators of the list get as well."""
    check("Wrong: got other messages after .*than before.*hood.messages.clone()", aggregate)


def test_writes_to_a_copy_are_no_mistake():
    class Positive(Aggregator):
        shift = "unknown"

        def aggregate(self, hood):
            return hood.mean(hood.messages.clone().clamp_(min=0))

    check_aggregator(Positive)


def test_not_a_number():
    check(
        "Wrong: got nan for finite messages, expected finite numbers",
        lambda _, hood: hood.mean(hood.messages).sqrt(),
    )


def test_a_gradient_that_is_spoilt_by_isolated_nodes():
    @dataclass(frozen=True)
    class Scaled(Aggregator):
        """A root of 0 at a receiver that gets nothing, whose infinite slope meets the factor."""

        factor: Tensor
        shift = "unknown"

        def aggregate(self, hood):
            return (self.factor * hood.mean(hood.messages**2)).sqrt()

    with pytest.raises(AssertionError, match="a gradient with NaN or infinity where a receiver"):
        check_aggregator(Scaled(nn.Parameter(torch.tensor(2.0))))


@pytest.mark.parametrize(
    ("message", "aggregate"),
    [
        ("got nan", lambda _, h: h.sum(h.messages) / h.sum(torch.ones_like(h.messages))),
        ("got nan", lambda _, h: h.sum(h.messages) / h.adjacency.degree[:, None]),
        ("got -inf", lambda _, h: h.sum(h.messages.exp()).log()),
        ("got inf", lambda _, h: 1 / h.sum(h.messages.exp())),
    ],
)
def test_isolated_nodes(message, aggregate):
    """Right after all, as their rows are set to 0: but nothing else may see what was there."""
    check(
        rf"Wrong: {message} where a receiver gets no message, expected a finite .*clamp\(min=1\)",
        aggregate,
    )


def test_isolated_nodes_in_float32_alone():
    def aggregate(_, hood):
        count = hood.sum(torch.ones_like(hood.messages))
        return hood.sum(hood.messages) / count.clamp(min=1e-60)

    check("got nan where a receiver gets no message", aggregate)


@pytest.mark.parametrize(
    "aggregate",
    [
        lambda _, h: h.sum(h.messages**2).sqrt(),
        lambda _, h: h.mean(h.messages**2) ** 0.5,
        lambda _, h: h.max(h.messages.abs()).sqrt(),
    ],
)
def test_roots_at_isolated_nodes(aggregate):
    """Their slope is not finite there: times 0 it is NaN."""
    check("got a gradient with NaN or infinity where a receiver.*add a small number", aggregate)


def test_no_edges():
    check(
        "an error from a graph without edges.*IndexError",
        lambda _, hood: hood.mean(hood.messages - 0 * hood.messages.amax(0)),
    )


@pytest.mark.parametrize(
    ("message", "aggregate"),
    [
        (r"shape \(22, 3\) from Wrong.aggregate, expected \(9, 3\)", lambda _, h: h.messages),
        (r"shape \(9,\)", lambda _, h: h.mean(h.messages).sum(1)),
        (r"shape \(3,\)", lambda _, h: h.messages.mean(0)),
        (r"got torch.float32 from Wrong.aggregate, expected torch.float64",
         lambda _, h: h.mean(h.messages.float())),
        (r"got float from Wrong", lambda _, h: 1.0),
        (r"ZeroDivisionError: ", lambda _, h: 1 / 0),
    ],
)  # fmt: skip
def test_wrong_shapes_and_types(message, aggregate):
    check(message, aggregate)


def test_what_the_kernels_do_not_take():
    def aggregate(_, hood):
        return hood.sum(hood.messages > 0).to(hood.messages.dtype)

    check("an error in pna.aggregate.*dtype torch.bool", aggregate)


def test_random_numbers():
    def aggregate(_, hood):
        return hood.mean(hood.messages) + torch.rand(1, dtype=hood.messages.dtype)

    check("two results of the same messages, expected one", aggregate)


def test_what_is_no_aggregator():
    with pytest.raises(TypeError, match=r"a subclass of pna\.aggregators\.Aggregator"):
        check_aggregator(print)
