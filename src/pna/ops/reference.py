"""The definition: every aggregator in plain torch, readable beside the paper.

The oracle of every test, and what runs where nothing faster can. Differentiable any number of
times. Messages are materialised, (edges, features).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency, values_readable
from pna.ops.aggregators import (
    Aggregator,
    KthSmallest,
    Max,
    Mean,
    Min,
    Moment,
    NormalisedMean,
    Softmax,
    Softmin,
    Std,
    Sum,
    Var,
)
from pna.ops.request import check_table


def aggregate(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Aggregate x (senders, features) to (receivers, aggregators, features).

    Messages are x_j, or x_j + e_ij with e = edge, edge[at] or at @ edge, for `at` absent, whole
    numbers or real ones.
    """
    sent = take(x, adjacency.senders)
    hood = Neighbourhoods(messages(sent, adjacency, edge, at), adjacency)
    return results(hood, aggregators).to(x.dtype)


def results(hood: Neighbourhoods, aggregators: Sequence[Aggregator]) -> Tensor:
    """What the aggregators make of messages, (receivers, aggregators, features)."""
    empty = (hood.adjacency.degree == 0)[:, None]
    found = [DEFINITIONS[type(a)](a, hood).masked_fill(empty, 0) for a in aggregators]
    return torch.stack(found, dim=1)


def messages(sent: Tensor, adjacency: Adjacency, edge: Tensor | None, at: Tensor | None) -> Tensor:
    """Message of every slot, (edges, features), in float32 or better: what its sender `sent`, and
    what the edge adds."""
    wide = torch.promote_types(sent.dtype, torch.float32)
    message = sent.to(wide)
    if edge is None:
        return message
    if at is None:
        # a gradient reaches every row once at most: no sum whose order could matter
        return message + edge.index_select(0, adjacency.edge_ids).to(wide)
    if not at.is_floating_point() and at.device.type == "cpu" and values_readable():
        check_table(at, edge.shape[0])
    at = take(at, adjacency.edge_ids)
    if not at.is_floating_point():
        return message + take(edge, at.long()).to(wide)
    for d in range(edge.shape[0]):  # at @ edge, in steps that autocast leaves alone
        message = message + at[:, d, None].to(wide) * edge[d].to(wide)
    return message


@dataclass(frozen=True)
class Neighbourhoods:
    """The messages of every slot, and which of them meet at one receiver."""

    messages: Tensor  # (edges, features)
    adjacency: Adjacency

    def to_slots(self, values: Tensor) -> Tensor:
        """What each receiver has, to every slot it owns: (receivers, …) -> (edges, …)."""
        return take(values, self.adjacency.receivers)

    def sum(self, values: Tensor) -> Tensor:
        """Σ over the slots of each receiver: (edges, …) -> (receivers, …)."""
        receivers = self.adjacency.receivers
        zeros = values.new_zeros((self.adjacency.num_receivers, *values.shape[1:]))
        if values.is_cuda:  # sorted there, where index_add would use atomics
            return zeros.index_put((receivers.long(),), values, accumulate=True)
        return zeros.index_add(0, receivers, values)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.adjacency.degree.clamp(min=1)[:, None]

    def largest(self, values: Tensor) -> Tensor:
        """Largest value of each receiver, without gradient; 0 for a receiver of none."""
        receivers = self.adjacency.receivers.long()[:, None].expand_as(values)
        zeros = values.new_zeros((self.adjacency.num_receivers, values.shape[1]))
        return zeros.scatter_reduce(0, receivers, values.detach(), "amax", include_self=False)

    def centred(self) -> Tensor:
        """Messages, less the mean of those that meet: (edges, features)."""
        once = self.messages - self.to_slots(self.mean(self.messages))
        # that mean was rounded, which odd powers would show; what is left of it has no gradient
        return once - self.to_slots(self.mean(once.detach()))

    def power(self, order: int) -> Tensor:
        """The same, to a power."""
        return self.centred() ** order


def take(values: Tensor, index: Tensor) -> Tensor:
    """values[index], in the form whose gradient sums in a fixed order on this device."""
    return values[index.long()] if values.is_cuda else values.index_select(0, index)


def _mean(_: Mean, hood: Neighbourhoods) -> Tensor:
    return hood.mean(hood.messages)


def _sum(_: Sum, hood: Neighbourhoods) -> Tensor:
    return hood.sum(hood.messages)


def _var(_: Var, hood: Neighbourhoods) -> Tensor:
    return hood.mean(hood.power(2))


def _std(std: Std, hood: Neighbourhoods) -> Tensor:
    var = hood.mean(hood.power(2))
    if std.clamp:
        spread = var > std.epsilon
        return torch.where(spread, torch.where(spread, var, 1).sqrt(), var * 0)
    return (var.relu() + std.epsilon).sqrt()


def _max(_: Max, hood: Neighbourhoods) -> Tensor:
    """The first of the largest messages; a NaN is largest of all and has no gradient."""
    values = hood.messages
    if values.shape[0] == 0:
        return hood.sum(values)
    largest = hood.largest(values)
    slots = torch.arange(values.shape[0], 0, -1, device=values.device)[:, None]
    first = hood.largest(torch.where(values == hood.to_slots(largest), slots, 0))
    picked = values.gather(0, (values.shape[0] - first).clamp(max=values.shape[0] - 1))
    return torch.where(first > 0, picked, largest)


def _min(_: Min, hood: Neighbourhoods) -> Tensor:
    return -_max(Max(), Neighbourhoods(-hood.messages, hood.adjacency))


def _moment(moment: Moment, hood: Neighbourhoods) -> Tensor:
    c = hood.mean(hood.power(moment.order))
    epsilon, root = moment.epsilon, 1 / moment.order
    if moment.published:
        return c.sign() * (c.abs() + epsilon) ** root
    sign = torch.where(c < 0, -1, 1)  # not 0 at 0, where the slope is not 0 either
    at_zero = torch.full_like(c, epsilon) ** root  # rounded as the other root is
    return sign * ((sign * c + epsilon) ** root - at_zero)


def _softmax(softmax: Softmax, hood: Neighbourhoods) -> Tensor:
    sign = -1 if isinstance(softmax, Softmin) else 1
    values = sign * hood.messages
    temperature = torch.as_tensor(softmax.temperature, dtype=values.dtype, device=values.device)
    logits = temperature * values
    if softmax.weight is None:
        exponentials = (logits - hood.to_slots(hood.largest(logits))).exp()
    else:
        weight = take(softmax.weight, hood.adjacency.edge_ids).to(values.dtype)[:, None]
        largest = hood.largest(torch.where(weight > 0, logits, float("-inf")))
        # what weighs nothing may be larger still, and its weight has a gradient
        above = logits - hood.to_slots(largest)
        most = math.log(torch.finfo(above.dtype).max) / 2
        exponentials = weight * torch.where(above == torch.inf, 0, above.clamp(max=most)).exp()
    total = hood.sum(exponentials)
    total = torch.where(total == 0, 1, total)
    # once without gradient, then what differs from it: else slopes are small differences of large
    known = hood.sum((exponentials * values).detach()) / total.detach()
    return sign * (known + hood.sum(exponentials * (values - hood.to_slots(known))) / total)


def _normalised_mean(_: NormalisedMean, hood: Neighbourhoods) -> Tensor:
    adjacency, values = hood.adjacency, hood.messages
    sender = adjacency.out_degree.clamp(min=1).to(values.dtype).rsqrt()[:, None]
    receiver = adjacency.degree.clamp(min=1).to(values.dtype).rsqrt()[:, None]
    return hood.sum(take(sender, adjacency.senders) * values) * receiver


def _kth_smallest(kth: KthSmallest, hood: Neighbourhoods) -> Tensor:
    adjacency, values = hood.adjacency, hood.messages
    if values.shape[0] == 0:
        return hood.sum(values)
    by_value = values.detach().argsort(dim=0, stable=True)
    by_row = adjacency.receivers[by_value].argsort(dim=0, stable=True)
    ordered = values.gather(0, by_value.gather(0, by_row))
    place = adjacency.indptr[:-1].long() + kth.k - 1
    enough = (adjacency.degree >= kth.k)[:, None]
    picked = take(ordered, place.clamp(max=values.shape[0] - 1))
    largest = hood.largest(values)
    return torch.where(largest.isnan(), largest, torch.where(enough, picked, 0))


DEFINITIONS: dict[type[Aggregator], Callable[..., Tensor]] = {
    Mean: _mean,
    Sum: _sum,
    Max: _max,
    Min: _min,
    Var: _var,
    Std: _std,
    Moment: _moment,
    Softmax: _softmax,
    Softmin: _softmax,
    NormalisedMean: _normalised_mean,
    KthSmallest: _kth_smallest,
}
