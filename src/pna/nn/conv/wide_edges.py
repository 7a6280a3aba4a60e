"""Wide edge features of many edges: C e exists for some of its columns at a time.

C e of all edges would be a tensor (edges, towers × width), which is the largest one of the layer.
Every column is aggregated on its own, so columns can be computed in blocks. The backward pass
computes C e again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.adjacency import Adjacency
from pna.ops.request import Messages, Request, Saved
from pna.ops.statistics import kernels_of, statistics_operator

#: The fewest elements of C e in a block, the fewest columns, and the most blocks. A block reads all
#: edges once more, and on a GPU costs time for its launches.
BLOCK, COLUMNS, MOST = 2**20, 16, {"cpu": 2, "cuda": 2}


def blocks_of(num_edges: int, columns: int, device: str = "cuda") -> list[slice]:
    """Blocks of columns for edge features of many edges; none if one block is enough."""
    most = MOST.get(device, MOST["cuda"])
    count = min(most, columns // COLUMNS, num_edges * columns // BLOCK)
    if count < 2:
        return []
    width = -(-columns // (count * COLUMNS)) * COLUMNS  # aligned
    return [slice(k, min(k + width, columns)) for k in range(0, columns, width)]


@dataclass(frozen=True)
class WideEdges:
    """Edge features (edges, inputs), their weight C (columns, inputs), and blocks of columns."""

    features: Tensor
    weight: Tensor
    adjacency: Adjacency
    blocks: list[slice]

    def statistics(self, sent: Tensor, request: Request, backend: str) -> list[Tensor]:
        """The statistics of messages sent_j + C e, (receivers, kinds, columns), and all other
        tensors that `gradients` needs."""
        results, kept = [], list[Tensor]()
        for block in self.blocks:
            out, *others = statistics_operator.directly(
                self._messages(sent, block), request, backend
            )
            results.append(out)
            kept += others
        return [torch.cat(results, 2), *kept]

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
        of_sent, of_weight = torch.empty_like(sent), torch.empty_like(self.weight)
        of_features: Tensor | None = None
        for block, saved_of_block in zip(self.blocks, others, strict=True):
            messages = self._messages(sent, block)
            values = messages.edge
            assert values is not None
            # a GPU kernel may write over C e: it reads an element before it writes its gradient
            of_values = values if backend == "triton" else torch.empty_like(values)
            kept = Saved(results[:, :, block].contiguous(), *saved_of_block)
            kernels_of(backend).backward(
                grad[:, :, block], messages, request, kept,
                (of_sent[:, block], of_values, values.new_empty(0)),
            )  # fmt: skip
            del messages, values, kept
            of_weight[block] = of_values.t() @ self.features
            if for_features:
                part = self.weight[block]
                if of_features is None:
                    of_features = of_values @ part
                else:
                    of_features.addmm_(of_values, part)
        return of_sent, of_weight, of_features

    def _messages(self, sent: Tensor, block: slice) -> Messages:
        """The messages with C e, of a block of columns."""
        values = F.linear(self.features, self.weight[block])
        return Messages(sent[:, block], values, None, self.adjacency)
