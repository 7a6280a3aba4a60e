"""Graphs whose numbers are a little off, so that a model learns to make no difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.draws import Draws


class Vary(nn.Module):
    """In training, stretches and shifts columns of every graph: v becomes m + (v − m)(1 + a) + b.

    Of coordinates that is a zoom and a move, of colours contrast and brightness. a and b are drawn
    anew in every pass, as in `Draws`: a is one number for all columns of a group, b another for
    each.

    Args:
        groups: of each group its columns among the features of a node, their middle m, and the
            largest a and b, either way: ((3, 4), 0.5, 0.1, 0.05).
        width: features of a node.
    """

    middle: Tensor
    stretch: Tensor
    shift: Tensor
    group: Tensor

    def __init__(
        self, groups: Sequence[tuple[Sequence[int], float, float, float]], width: int
    ) -> None:
        super().__init__()
        self.groups = tuple(_checked(group) for group in groups)
        places = [place for columns, *_ in self.groups for place in columns]
        if len(set(places)) < len(places) or not set(places) <= set(range(width)):
            raise ValueError(
                f"got columns {places} to vary, expected some of 0 to {width - 1}, the features of "
                "a node, each in one group"
            )
        state = torch.zeros(3, width, dtype=torch.float64)
        group = torch.zeros(width, dtype=torch.int64)
        for k, (columns, *numbers) in enumerate(self.groups):
            state[:, columns], group[columns] = torch.tensor(numbers).double()[:, None], k
        for name, row in zip(("middle", "stretch", "shift"), state, strict=True):
            self.register_buffer(name, row.clone(), persistent=False)
        self.register_buffer("group", group, persistent=False)
        self.draws = Draws(len(self.groups) + width)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(nodes, width), as it is when not training."""
        if not self.training:
            return x
        drawn = self.draws(batch, x)
        stretch = 1 + self.stretch.to(x.dtype) * drawn[:, self.group]
        shift = self.shift.to(x.dtype) * drawn[:, len(self.groups) :]
        of_node, middle = batch.graph_of_node, self.middle.to(x.dtype)
        return torch.addcmul(middle + shift[of_node], x - middle, stretch[of_node])

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.groups))


def _checked(group: Any) -> tuple[list[int], float, float, float]:
    try:
        columns, middle, stretch, shift = group
        columns, numbers = [int(c) for c in columns], [float(n) for n in (middle, stretch, shift)]
    except (TypeError, ValueError):
        raise ValueError(
            f"got {group!r} to vary, expected columns, their middle, and the most by which they "
            "are stretched and shifted, such as ((3, 4), 0.5, 0.1, 0.05)"
        ) from None
    if not 0 <= numbers[1] < 1 or not numbers[2] >= 0:
        raise ValueError(
            f"got columns {columns} to stretch by {numbers[1]:g} and shift by {numbers[2]:g} at "
            "most, expected 0 to less than 1, and at least 0"
        )
    return columns, numbers[0], numbers[1], numbers[2]
