"""Numbers drawn for every graph, in training."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.nn.batch_context import batch_context
from pna.nn.buffers import Buffers
from pna.nn.dropout import Dropout

#: How many coins are tossed for a number.
_COINS = 16


class Draws(Buffers):
    """Some numbers between −1 and 1 for every graph, drawn evenly and anew in every pass: from
    seed, pass and graph alone, as for `Dropout`."""

    shares: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.coins = Dropout(0.5, level="graph")
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """What each coin has of a number."""
        shares = 0.5 ** torch.arange(_COINS, dtype=torch.float64)
        return {"shares": shares / shares.sum()}

    def forward(self, batch: Batch, like: Tensor) -> Tensor:
        """(graphs, count), in the type of `like`."""
        with batch_context(batch):
            heads = self.coins(like.new_ones(batch.num_graphs, self.count * _COINS)) > 0
        signs = torch.where(heads, 1.0, -1.0).to(self.shares).unflatten(1, (self.count, _COINS))
        return (signs * self.shares).sum(2).to(like.dtype)

    def extra_repr(self) -> str:
        return str(self.count)
