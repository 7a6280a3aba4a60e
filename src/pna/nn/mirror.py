"""Graphs seen in a mirror now and then, so that a model learns to make no difference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.nn.batch_context import batch_context
from pna.nn.buffers import Buffers
from pna.nn.columns import columns_of
from pna.nn.dropout import Dropout


class Mirror(Buffers):
    """In training, mirrors the coordinates of every other graph: v becomes c − v.

    Which graphs is drawn anew in every pass, from seed, pass and graph alone, as for `Dropout`.

    Args:
        columns: place of each coordinate among the features of a node, and its c, the sum of both
            ends of its range.
        width: features of a node.
    """

    chosen: Tensor
    ends: Tensor

    def __init__(self, columns: Sequence[tuple[int, float]], width: int) -> None:
        super().__init__()
        self.columns = columns_of("mirror", columns, width)
        self.coin = Dropout(0.5, level="graph")
        self.width = width
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """Which columns are coordinates, and the c of each."""
        chosen, ends = torch.zeros(self.width, dtype=torch.bool), torch.zeros(self.width)
        for place, both in self.columns:
            chosen[place], ends[place] = True, both
        return {"chosen": chosen, "ends": ends}

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(nodes, width), as it is when not training."""
        if not self.training:
            return x
        with batch_context(batch):
            heads = self.coin(x.new_ones(batch.num_graphs, 1)) > 0
        return torch.where(self.chosen & heads[batch.graph_of_node], self.ends - x, x)

    def extra_repr(self) -> str:
        return str(list(self.columns))
