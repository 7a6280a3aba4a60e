"""The definition applied to blocks of receivers, so that only some messages exist at once.

It serves aggregators without a kernel, including custom ones. The backward pass recomputes the
messages of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pna.adjacency import Adjacency
from pna.ops import edges, reference
from pna.ops.aggregators import Aggregator
from pna.ops.backend import backend, choose
from pna.ops.request import wide_type
from pna.visible import values_readable

#: Elements in the messages of one block. A block may hold up to twice as many; a receiver with more
#: is a block of its own.
BLOCK = 2**25


def aggregate(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: Tensor | None = None,
    at: Tensor | None = None,
    own: Tensor | None = None,
    combine: str = "add",
) -> Tensor:
    """`reference.aggregate`, with kernels for the steps between nodes and edges."""
    most = max(BLOCK // max(x.shape[1], 1), 1)
    # one block if values cannot be read, and inside `torch.func`, which checkpoints do not support
    few = not values_readable() or adjacency.num_edges <= most
    bounds = [0, adjacency.num_receivers] if few else bounds_of(adjacency, most)
    given, wide = x.dtype, wide_type(x.dtype)
    x = x.to(wide)  # once, here: gradients of all edges and blocks are summed in this dtype
    own = None if own is None else own.to(wide)
    if len(bounds) <= 2:
        slots = edges.Slots.of(adjacency)
        return _aggregate(x, slots, aggregators, edge, at, own, combine).to(given)
    chosen = choose(x.device)
    sizes = [last - first for first, last in pairwise(bounds)]
    # split instead of sliced: autograd would sum full-size gradients of slices
    parts_of_own = [None] * len(sizes) if own is None else own.split(sizes)

    def again(*arguments: Any) -> Tensor:
        with backend(chosen):  # also for the recomputation in the backward pass
            return _aggregate(*arguments)

    parts = [
        checkpoint(
            again,
            x,
            _receivers(adjacency, *between),
            aggregators,
            edge,
            at,
            part,
            combine,
            use_reentrant=False,
        )
        for between, part in zip(pairwise(bounds), parts_of_own, strict=True)
    ]
    return torch.cat(parts).to(given)


@dataclass(frozen=True)
class _Slots(reference.Neighbourhoods):
    """Messages that are summed by a kernel; gradients are gathered instead of scattered."""

    slots: edges.Slots
    powers: dict[int, Tensor] = field(default_factory=dict)  # those computed so far

    def power(self, order: int) -> Tensor:
        """Computed from the next lower power if available: orders are mostly consecutive."""
        if 1 not in self.powers:
            self.powers[1] = self.centred()
        if order not in self.powers:
            below, base = self.powers.get(order - 1), self.powers[1]
            self.powers[order] = base**order if below is None else below * base
        return self.powers[order]

    def to_slots(self, values: Tensor) -> Tensor:
        return edges.from_receivers(values, self.slots)

    def sum(self, values: Tensor) -> Tensor:
        return edges.sum_to_receivers(values, self.slots)


def _aggregate(
    x: Tensor,
    slots: edges.Slots,
    aggregators: Sequence[Aggregator],
    edge: Tensor | None,
    at: Tensor | None,
    own: Tensor | None,
    combine: str,
) -> Tensor:
    # what senders sent has no name: it would be kept in memory until the results are there
    messages = reference.messages(edges.from_senders(x, slots), slots.adjacency, edge, at, combine)
    if own is not None:
        messages = messages + edges.from_receivers(own, slots)
    return reference.results(_Slots(messages, slots.adjacency, slots), aggregators)


def bounds_of(adjacency: Adjacency, most: int) -> list[int]:
    """First receiver of every block of about `most` edges, and the end."""
    device, bounds = adjacency.device, [0]
    indptr = adjacency.indptr
    targets = torch.arange(most, adjacency.num_edges + most, most, device=device)
    for cut in torch.searchsorted(indptr, targets.to(indptr.dtype), right=True).tolist():
        bounds.append(min(max(cut - 1, bounds[-1] + 1), adjacency.num_receivers))
    bounds.append(adjacency.num_receivers)
    return sorted(set(bounds))


def _receivers(adjacency: Adjacency, first: int, last: int) -> edges.Slots:
    """The receivers first..last and their incoming edges only, with all senders."""
    indptr = adjacency.indptr[first : last + 1]
    begin, end = indptr[[0, -1]].tolist()
    part = Adjacency.from_csr(indptr - begin, adjacency.senders[begin:end], adjacency.num_senders)
    seen = replace(
        part,
        edge_ids=adjacency.edge_ids[begin:end],
        outgoing=adjacency.outgoing,
        degree=adjacency.degree[first:last],
    )
    return replace(edges.Slots.of(part), adjacency=seen)
