"""Graphs turned a little, so that a model learns to make no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pna.data.batch import Batch
from pna.nn.dropout import Dropout

#: How many coins are tossed for an angle.
_COINS = 16


class Turn(nn.Module):
    """In training, turns two coordinates of every graph about a centre, by some degrees at most.

    Angles are drawn anew in every pass, evenly, from seed, pass and graph alone, as for `Dropout`.

    Args:
        degrees: the largest angle, either way.
        centre: places of the two coordinates among the features of a node, and their middles.
        width: features of a node.
    """

    shares: Tensor

    def __init__(self, degrees: float, centre: Sequence[tuple[int, float]], width: int) -> None:
        super().__init__()
        places = {place for place, _ in centre}
        if len(centre) != 2 or len(places) != 2 or not places <= set(range(width)):
            raise ValueError(
                f"got a turn about {list(centre)}, expected two of the columns 0 to {width - 1}, "
                "the features of a node, each with its middle"
            )
        if not 0 < degrees <= 180:
            raise ValueError(f"got turn={degrees}, expected more than 0 degrees and at most 180")
        self.degrees = float(degrees)
        self.centre = tuple((place, float(middle)) for place, middle in centre)
        self.coins = Dropout(0.5, level="graph")
        # together a number between −1 and 1
        shares = 0.5 ** torch.arange(_COINS, dtype=torch.float64)
        self.register_buffer("shares", shares / shares.sum(), persistent=False)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """(nodes, width), as it is when not training."""
        if not self.training:
            return x
        heads = self.coins(x.new_ones(batch.num_graphs, _COINS)) > 0
        share = (torch.where(heads, 1.0, -1.0).to(self.shares) * self.shares).sum(1)
        angle = (share * math.radians(self.degrees)).to(x.dtype)[batch.graph_of_node]
        (first, middle), (second, other) = self.centre
        a, b = x[:, first] - middle, x[:, second] - other
        cosine, sine = angle.cos(), angle.sin()
        turned = {first: cosine * a - sine * b + middle, second: sine * a + cosine * b + other}
        return torch.stack([turned.get(i, x[:, i]) for i in range(x.shape[1])], 1)

    def extra_repr(self) -> str:
        return f"{self.degrees:g}, {list(self.centre)}"
