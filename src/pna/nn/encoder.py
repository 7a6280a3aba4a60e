"""From the columns of a graph set to features that a layer takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pna.nn.linear import Linear


class Embedding(nn.Module):
    """Columns of whole numbers to features: a learned vector for every value of every column,
    summed over the columns.

    Args:
        values: how many values each column has, counted from 0.
        width: features of the result.
    """

    offsets: Tensor

    def __init__(self, values: Sequence[int], width: int) -> None:
        super().__init__()
        self.values = tuple(values)
        self.weight = nn.Parameter(torch.empty(sum(values), width))
        starts = torch.tensor([0, *self.values]).cumsum(0)[:-1]
        self.register_buffer("offsets", starts, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, columns: Tensor) -> Tensor:
        """(rows, columns) whole numbers to (rows, width)."""
        at = columns.long() + self.offsets
        one_hot = torch.zeros(
            columns.shape[0], self.weight.shape[0], dtype=self.weight.dtype, device=at.device
        ).scatter_(1, at, 1)
        return one_hot @ self.weight

    def extra_repr(self) -> str:
        return f"{list(self.values)}, {self.weight.shape[1]}"


def encoder(values: Sequence[int], columns: int, width: int) -> nn.Module:
    """An `Embedding` where columns hold whole numbers, else a linear layer."""
    return Embedding(values, width) if values else Linear(columns, width)
