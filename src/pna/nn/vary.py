"""Graphs whose numbers are a little off, so that a model learns to make no difference."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from operator import index
from typing import Any

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.nn.buffers import Buffers
from pna.nn.columns import columns_of
from pna.nn.draws import Draws


class Vary(Buffers):
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
        self.groups = _checked(groups)
        columns_of("vary", [(place, 0) for columns, *_ in self.groups for place in columns], width)
        self.width = width
        self.hold()
        self.draws = Draws(len(self.groups) + width)

    def beginnings(self) -> dict[str, Tensor]:
        """Of each column its m, the largest a and b, and the number of its group."""
        middle, stretch, shift = (torch.zeros(self.width).double() for _ in range(3))
        group = torch.zeros(self.width, dtype=torch.int64)
        for k, (columns, *numbers) in enumerate(self.groups):
            group[columns] = k
            for row, number in zip((middle, stretch, shift), numbers, strict=True):
                row[columns] = number
        return {"middle": middle, "stretch": stretch, "shift": shift, "group": group}

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


def _checked(groups: Any) -> tuple[tuple[list[int], float, float, float], ...]:
    try:
        found = tuple(
            ([index(c) for c in columns], float(middle), float(stretch), float(shift))
            for columns, middle, stretch, shift in groups
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"got vary={groups!r}, expected groups, each of columns, their middle, and the most by "
            "which they are stretched and shifted, such as (((3, 4), 0.5, 0.1, 0.05),)"
        ) from None
    for columns, middle, stretch, shift in found:
        if not 0 <= stretch < 1 or not 0 <= shift < inf or not isfinite(middle):
            raise ValueError(
                f"got columns {columns} to stretch by {stretch:g} about {middle:g} and shift by "
                f"{shift:g} at most, expected 0 to less than 1, any number, and 0 or more"
            )
    return found
