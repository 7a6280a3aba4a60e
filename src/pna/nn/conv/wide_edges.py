"""Wide edge features of many edges: C e exists for a block of receivers at a time.

C e of all edges would be a tensor (edges, towers × width), which is the largest one of the layer.
The backward pass computes it again, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency, values_readable
from pna.ops.blocks import bounds_of
from pna.ops.request import Messages, Request, Saved, wide_type
from pna.ops.statistics import statistics_backward, statistics_operator

#: The fewest elements of C e in a block.
BLOCK = 2**20

#: The most blocks. A block costs time for every node, and on a GPU time for its launches.
MOST = {"cpu": 16, "cuda": 4}


@dataclass(frozen=True)
class _Block:
    """Some receivers with their incoming edges."""

    rows: slice
    edge_ids: Tensor  # (edges of the block,) in slot order: indices in the given order
    adjacency: Adjacency  # all senders, these receivers; its edges are given in slot order


_known: WeakKeyDictionary[Adjacency, dict[int, list[_Block]]] = WeakKeyDictionary()


def blocks_of(adjacency: Adjacency, columns: int) -> list[_Block]:
    """Blocks of receivers, for edge features of `columns` columns; none if one block is enough, or
    if the graph cannot be read. They are kept as long as the graph."""
    most = edges_of_a_block(adjacency.num_edges, columns, adjacency.device.type)
    if adjacency.num_edges <= most or not values_readable():
        return []
    known = _known.setdefault(adjacency, {})
    if most not in known:
        bounds = bounds_of(adjacency, most)
        slots = adjacency.indptr[bounds].tolist()
        known[most] = [
            _block(adjacency, *rows, *edges)
            for rows, edges in zip(pairwise(bounds), pairwise(slots), strict=True)
        ]
    return known[most]


def edges_of_a_block(num_edges: int, columns: int, device: str = "cuda") -> int:
    """About how many edges a block has on this type of device."""
    return max(BLOCK // columns, -(-num_edges // MOST.get(device, MOST["cuda"])), 1)


def _block(adjacency: Adjacency, first: int, last: int, begin: int, end: int) -> _Block:
    indptr, senders = adjacency.indptr[first : last + 1] - begin, adjacency.senders[begin:end]
    part = Adjacency.from_csr(indptr, senders, adjacency.num_senders)
    return _Block(slice(first, last), adjacency.edge_ids[begin:end], part)


@dataclass(frozen=True)
class WideEdges:
    """Edge features (edges, inputs), their weight C (columns, inputs), and the blocks."""

    features: Tensor
    weight: Tensor
    blocks: list[_Block]

    def statistics(self, sent: Tensor, request: Request, backend: str) -> list[Tensor]:
        """The statistics of messages sent_j + C e, (receivers, kinds, columns), and all other
        tensors that `gradients` needs."""
        results, kept = [], list[Tensor]()
        for block in self.blocks:
            messages = Messages(sent, self._values(block), None, block.adjacency)
            out, *others = statistics_operator(messages, request, backend)
            results.append(out)
            kept += others
        return [torch.cat(results), *kept]

    def gradients(
        self,
        grad: Tensor,
        sent: Tensor,
        saved: Sequence[Tensor],
        request: Request,
        backend: str,
        for_features: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients of `sent`, of the weight and, if asked for, of the features."""
        results, others = saved[0], list(zip(*[iter(saved[1:])] * 3, strict=True))
        wide = wide_type(sent.dtype)
        of_sent: Tensor | None = None
        of_weight = torch.zeros_like(self.weight, dtype=wide)
        of_features = torch.empty_like(self.features) if for_features else None
        for block, saved_of_block in zip(self.blocks, others, strict=True):
            messages = Messages(sent, self._values(block), None, block.adjacency)
            kept = Saved(results[block.rows], *saved_of_block)
            part, of_values, _ = statistics_backward(
                grad[block.rows], [True, True, False], messages, kept, request, backend
            )
            del messages  # C e, before the features are read once more
            of_sent = part.to(wide) if of_sent is None else of_sent.add_(part)
            of_weight += of_values.t() @ self.features.index_select(0, block.edge_ids)
            if of_features is not None:
                of_features.index_copy_(0, block.edge_ids.long(), of_values @ self.weight)
        assert of_sent is not None
        return of_sent.to(sent.dtype), of_weight.to(self.weight.dtype), of_features

    def _values(self, block: _Block) -> Tensor:
        """C e of the edges of a block, in slot order."""
        return F.linear(self.features.index_select(0, block.edge_ids), self.weight)
