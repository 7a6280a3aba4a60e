"""Graphs turned a little, so that a model learns to make no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.columns import columns_of
from pna.nn.draws import Draws


class Turn(nn.Module):
    """In training, turns two coordinates of every graph about a centre, by some degrees at most.

    Angles are drawn anew in every pass, as in `Draws`.

    Args:
        degrees: the largest angle, either way.
        centre: places of the two coordinates among the features of a node, and their middles.
        width: features of a node.
    """

    def __init__(self, degrees: float, centre: Sequence[tuple[int, float]], width: int) -> None:
        super().__init__()
        self.centre = columns_of("centre", centre, width)
        if len(self.centre) != 2:
            raise ValueError(
                f"got a turn about {list(self.centre)}, expected two columns, each with its middle"
            )
        if not isinstance(degrees, SupportsFloat) or not 0 < degrees <= 180:
            raise ValueError(f"got turn={degrees!r}, expected more than 0 degrees and at most 180")
        self.degrees = float(degrees)
        self.draws = Draws(1)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(nodes, width), as it is when not training."""
        if not self.training:
            return x
        angle = (self.draws(batch, x)[:, 0] * math.radians(self.degrees))[batch.graph_of_node]
        (first, middle), (second, other) = self.centre
        a, b = x[:, first] - middle, x[:, second] - other
        cosine, sine = angle.cos(), angle.sin()
        turned = {first: cosine * a - sine * b + middle, second: sine * a + cosine * b + other}
        return torch.stack([turned.get(i, x[:, i]) for i in range(x.shape[1])], 1)

    def extra_repr(self) -> str:
        return f"{self.degrees:g}, {list(self.centre)}"
