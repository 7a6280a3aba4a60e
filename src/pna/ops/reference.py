"""The definition: every aggregator in plain torch, as written in the paper.

All tests compare with it, and it runs where no faster backend can. It can be differentiated any
number of times. It materialises the messages (edges, features).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.aggregators import BUILT_IN, Aggregator, take
from pna.ops.request import check_table
from pna.visible import values_readable


def aggregate(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: Tensor | None = None,
    at: Tensor | None = None,
    own: Tensor | None = None,
    combine: str = "add",
) -> Tensor:
    """Aggregate x (senders, features) to (receivers, aggregators, features).

    Messages are x_j, or x_j + e_ij, or x_j · e_ij if `combine` is "mul". The edge term e is that of
    `pna.ops.request.Messages`. With `own` (receivers, features), each receiver adds its row to all
    its messages.
    """
    wide = torch.promote_types(x.dtype, torch.float32)  # before gathers: gradients are summed in it
    message = messages(take(x.to(wide), adjacency.senders), adjacency, edge, at, combine)
    if own is not None:
        message = message + take(own.to(wide), adjacency.receivers)
    return results(Neighbourhoods(message, adjacency), aggregators).to(x.dtype)


def results(hood: Neighbourhoods, aggregators: Sequence[Aggregator]) -> Tensor:
    """The aggregates of the messages: (receivers, aggregators, features)."""
    empty = (hood.count == 0)[:, None]
    found = [defined(hood, aggregator).masked_fill(empty, 0) for aggregator in aggregators]
    return torch.stack(found, dim=1)


def defined(hood: Neighbourhoods, aggregator: Aggregator) -> Tensor:
    """One aggregate (receivers, features); the result of a custom aggregator is checked."""
    found = aggregator.aggregate(hood)
    if type(aggregator) in BUILT_IN:
        return found
    name = type(aggregator).__name__
    if not isinstance(found, Tensor):
        raise TypeError(
            f"got {type(found).__name__} from {name}.aggregate, expected a tensor (receivers, "
            "features)"
        )
    expected = (hood.adjacency.num_receivers, hood.messages.shape[1])
    if tuple(found.shape) != expected:
        raise ValueError(
            f"got shape {tuple(found.shape)} from {name}.aggregate, expected {expected}: one row "
            "for each receiver, as wide as the messages; hood.sum, mean, max and min give that"
        )
    if found.dtype != hood.messages.dtype:
        raise TypeError(
            f"got {found.dtype} from {name}.aggregate, expected {hood.messages.dtype}, that of "
            "the messages; make new tensors with hood.messages.new_zeros, new_ones or new_tensor"
        )
    return found


def messages(
    sent: Tensor, adjacency: Adjacency, edge: Tensor | None, at: Tensor | None, combine: str = "add"
) -> Tensor:
    """The message of every slot (edges, features), in float32 or better: the row `sent` by its
    sender, plus or times the edge term."""
    message = sent.to(torch.promote_types(sent.dtype, torch.float32))
    if edge is None:
        return message
    term = _edge_term(message, adjacency, edge, at)
    return message * term if combine == "mul" else message + term


def _edge_term(message: Tensor, adjacency: Adjacency, edge: Tensor, at: Tensor | None) -> Tensor:
    """The edge term of every slot (edges, features), in the dtype of the messages."""
    wide, features = message.dtype, message.shape[1]
    if at is None:
        # the gradient of each row has at most one term, so the order of summation does not matter
        term = edge.index_select(0, adjacency.edge_ids).to(wide)
        heads = term.shape[1]
        if heads == features:
            return term
        shape = (*term.shape, features // heads)
        return term[:, :, None].expand(shape).reshape(message.shape)
    if not at.is_floating_point() and at.device.type == "cpu" and values_readable():
        check_table(at, edge.shape[0])
    at = take(at, adjacency.edge_ids)
    if not at.is_floating_point():
        return take(edge.to(wide), at.long())
    term = torch.zeros_like(message)
    for d in range(edge.shape[0]):  # at @ edge, in operations that autocast does not change
        term = term + at[:, d, None].to(wide) * edge[d].to(wide)
    return term


@dataclass(frozen=True)
class Neighbourhoods:
    """Messages grouped by receiver: the input of the definition of an aggregator.

    `messages` is (edges, features), in float32 or float64. Rows are in slot order: those of one
    receiver are consecutive. `adjacency` is the graph.
    """

    messages: Tensor
    adjacency: Adjacency

    @property
    def count(self) -> Tensor:
        """Number of messages of each receiver, (receivers,); ``adjacency.degree`` may be larger,
        see `Adjacency.with_degree`."""
        return self.adjacency.incoming.lengths

    def sum(self, values: Tensor) -> Tensor:
        """Σ over the messages of each receiver: (edges, …) to (receivers, …)."""
        receivers = self.adjacency.receivers
        zeros = values.new_zeros((self.adjacency.num_receivers, *values.shape[1:]))
        if values.is_cuda:  # index_put sorts; index_add would use atomics
            return zeros.index_put((receivers.long(),), values, accumulate=True)
        return zeros.index_add(0, receivers, values)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the messages of each receiver: (edges, …) to (receivers, …)."""
        count = self.count.clamp(min=1)
        return self.sum(values) / count.reshape(-1, *[1] * (values.dim() - 1))

    def scaled_sum(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Σ / s, and s (receivers, 1), a power of 2 above the count, for values (edges, features).

        Partial sums do not overflow if the values do not, and the scaling loses no digits.
        """
        power = _power_above(self.count).to(values.dtype)[:, None]
        return self.sum(values * self.to_slots(1 / power)), power

    def mean_message(self) -> Tensor:
        """The mean of the messages, finite if they are: (receivers, features)."""
        total, power = self.scaled_sum(self.messages)
        return total / (self.count.clamp(min=1)[:, None] / power)

    def max(self, values: Tensor) -> Tensor:
        """Largest value of each receiver: (edges, features) to (receivers, features).

        Among equal values, the edge given first gets the gradient. A NaN counts as the largest
        value and gets no gradient.
        """
        if values.shape[0] == 0:
            return self.sum(values)
        largest = self.largest(values)
        slots = torch.arange(values.shape[0], 0, -1, device=values.device)[:, None]
        first = self.largest(torch.where(values == self.to_slots(largest), slots, 0))
        picked = values.gather(0, (values.shape[0] - first).clamp(max=values.shape[0] - 1))
        return torch.where(first > 0, picked, largest)

    def min(self, values: Tensor) -> Tensor:
        """Smallest value of each receiver; otherwise as `max`."""
        return -self.max(-values)

    def largest(self, values: Tensor) -> Tensor:
        """Largest value of each receiver, without gradient; 0 for a receiver without messages."""
        receivers = self.adjacency.receivers.long()[:, None].expand_as(values)
        zeros = values.new_zeros((self.adjacency.num_receivers, values.shape[1]))
        return zeros.scatter_reduce(0, receivers, values.detach(), "amax", include_self=False)

    def to_slots(self, values: Tensor) -> Tensor:
        """Gather the receiver's row for every message: (receivers, …) to (edges, …)."""
        return take(values, self.adjacency.receivers)

    def from_senders(self, values: Tensor) -> Tensor:
        """Gather the sender's row for every message: (senders, …) to (edges, …)."""
        return take(values, self.adjacency.senders)

    def from_edges(self, values: Tensor) -> Tensor:
        """Reorder rows from the given order of edges to that of the messages: (edges, …)."""
        return take(values, self.adjacency.edge_ids)

    def centred(self) -> Tensor:
        """Messages minus the mean of each receiver: (edges, features)."""
        once = self.messages - self.to_slots(self.mean_message())
        # correct for the rounding of the mean, which affects odd powers; without gradient
        rest = self.mean(once.detach()).nan_to_num(0, 0, 0)
        return once - self.to_slots(rest)

    def power(self, order: int) -> Tensor:
        """`centred`, to a power: (edges, features)."""
        return self.centred() ** order


def _power_above(count: Tensor) -> Tensor:
    """The least power of 2 above each count."""
    bits = count.long()
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> shift)
    return bits + 1
