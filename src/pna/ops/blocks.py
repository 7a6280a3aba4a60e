"""The definition over blocks of receivers, so that only some of the messages exist at once.

For the aggregators that have no kernel of their own. The backward pass makes each block's
messages again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pna.adjacency import Adjacency, values_visible
from pna.ops import reference
from pna.ops.aggregators import Aggregator

#: Numbers in the messages of one block, which may hold up to twice as many; a receiver that has
#: more is a block of its own.
BLOCK = 2**25


def aggregate(
    x: Tensor,
    adjacency: Adjacency,
    aggregators: Sequence[Aggregator],
    edge: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """As `reference.aggregate`, which it calls for every block."""
    bounds = _bounds(adjacency, x.shape[1])
    if len(bounds) <= 2:
        return reference.aggregate(x, adjacency, aggregators, edge, at)
    parts = [
        checkpoint(
            reference.aggregate,
            x,
            _receivers(adjacency, *between),
            aggregators,
            edge,
            at,
            use_reentrant=False,
        )
        for between in pairwise(bounds)
    ]
    return torch.cat(parts)


def _bounds(adjacency: Adjacency, features: int) -> list[int]:
    """First receiver of every block, and the end.

    One block where values cannot be read, and inside the transforms of `torch.func`, which
    checkpointing does not know.
    """
    most = max(BLOCK // max(features, 1), 1)
    whole = not values_visible() or torch._C._are_functorch_transforms_active()
    if whole or adjacency.num_edges <= most:
        return [0, adjacency.num_receivers]
    device, bounds = adjacency.device, [0]
    indptr = adjacency.indptr
    targets = torch.arange(most, adjacency.num_edges + most, most, device=device)
    for cut in torch.searchsorted(indptr, targets.to(indptr.dtype), right=True).tolist():
        bounds.append(min(max(cut - 1, bounds[-1] + 1), adjacency.num_receivers))
    bounds.append(adjacency.num_receivers)
    return sorted(set(bounds))


def _receivers(adjacency: Adjacency, first: int, last: int) -> Adjacency:
    """The part of a graph that the definition needs for the receivers first..last."""
    indptr = adjacency.indptr[first : last + 1]
    begin, end = indptr[[0, -1]].tolist()
    incoming = replace(
        adjacency.incoming, indptr=indptr - begin, neighbours=adjacency.senders[begin:end]
    )
    return replace(adjacency, incoming=incoming, edge_ids=adjacency.edge_ids[begin:end])
