"""Data augmentation in training: flips, signs, rotations, scales and shifts of node features.

All nodes of a graph are transformed alike. What is drawn depends on the seed, the forward pass and
the graph alone, as for `Dropout`: not on the other graphs of the batch, on padding or on processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.nn.batch_context import batch_context
from pna.nn.buffers import Buffers
from pna.nn.dropout import Dropout

#: Random bits of a uniform number.
_BITS = 16


class _Augmentation(Buffers):
    """Transforms node features in training, and returns them unchanged in evaluation.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (nodes, width)
    """

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        return self._transformed(x, batch) if self.training else x

    def _transformed(self, x: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError


class RandomFlip(_Augmentation):
    """In training, mirrors coordinates of each graph with probability 0.5: v becomes c − v.

    Args:
        columns: pairs of a feature's column and its c, the sum of both ends of its range.
        width: features of a node.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (nodes, width)
    """

    chosen: Tensor
    ends: Tensor

    def __init__(self, columns: Sequence[tuple[int, float]], width: int) -> None:
        super().__init__()
        self.columns = _checked_columns("flip", columns, width)
        self.coin = Dropout(0.5, level="graph")
        self.width = width
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """Which columns are coordinates, and the c of each."""
        chosen, ends = torch.zeros(self.width, dtype=torch.bool), torch.zeros(self.width)
        for column, both in self.columns:
            chosen[column], ends[column] = True, both
        return {"chosen": chosen, "ends": ends}

    def _transformed(self, x: Tensor, batch: Batch) -> Tensor:
        with batch_context(batch):
            heads = self.coin(x.new_ones(batch.num_graphs, 1)) > 0
        return torch.where(self.chosen & heads[batch.graph_of_node], self.ends - x, x)

    def extra_repr(self) -> str:
        return str(list(self.columns))


class RandomSigns(_Augmentation):
    """In training, multiplies columns of each graph by 1 or −1 at random, each column by itself.

    Args:
        columns: node features, such as eigenvectors, whose sign means nothing.
        width: features of a node.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (nodes, width)
    """

    chosen: Tensor

    def __init__(self, columns: Sequence[int], width: int) -> None:
        super().__init__()
        pairs = _checked_columns("signs", [(column, 0) for column in columns], width)
        self.columns = [column for column, _ in pairs]
        self.coins = Dropout(0.5, level="graph")
        self.width = width
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """Which columns have no sign."""
        chosen = torch.zeros(self.width, dtype=torch.bool)
        chosen[self.columns] = True
        return {"chosen": chosen}

    def _transformed(self, x: Tensor, batch: Batch) -> Tensor:
        with batch_context(batch):
            heads = self.coins(x.new_ones(batch.num_graphs, self.width)) > 0
        return torch.where(self.chosen & heads[batch.graph_of_node], -x, x)

    def extra_repr(self) -> str:
        return str(self.columns)


class RandomRotate(_Augmentation):
    """In training, rotates two coordinates of each graph about a centre by a random angle.

    The angle is uniform between −`degrees` and `degrees`.

    Args:
        degrees: largest angle, above 0 and at most 180.
        centre: two pairs of a feature's column and the coordinate of the centre.
        width: features of a node.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (nodes, width)
    """

    def __init__(self, degrees: float, centre: Sequence[tuple[int, float]], width: int) -> None:
        super().__init__()
        self.centre = _checked_columns("centre", centre, width)
        if len(self.centre) != 2:
            raise ValueError(
                f"got a rotation about {list(self.centre)}, expected two columns, each with the "
                "coordinate of the centre"
            )
        if not isinstance(degrees, SupportsFloat) or not 0 < degrees <= 180:
            raise ValueError(
                f"got rotate={degrees!r}, expected more than 0 degrees and at most 180"
            )
        self.degrees = float(degrees)
        self.draws = UniformPerGraph(1)

    def _transformed(self, x: Tensor, batch: Batch) -> Tensor:
        angle = (self.draws(batch, x)[:, 0] * math.radians(self.degrees))[batch.graph_of_node]
        (first, middle), (second, other) = self.centre
        a, b = x[:, first] - middle, x[:, second] - other
        cosine, sine = angle.cos(), angle.sin()
        rotated = {first: cosine * a - sine * b + middle, second: sine * a + cosine * b + other}
        return torch.stack([rotated.get(i, x[:, i]) for i in range(x.shape[1])], 1)

    def extra_repr(self) -> str:
        return f"{self.degrees:g}, {list(self.centre)}"


class RandomScaleShift(_Augmentation):
    """In training, scales and shifts columns of each graph: v becomes m + (v − m)(1 + a) + b.

    For coordinates this is a zoom and a translation, for colours contrast and brightness. a and b
    are uniform between minus their maximum and their maximum. The columns of a group share a; each
    column has its own b.

    Args:
        groups: for each group its columns, their middle m, the maximum of a (below 1) and the
            maximum of b, such as ((3, 4), 0.5, 0.1, 0.05).
        width: features of a node.

    Shapes:
        - **x**: (nodes, width), **batch**: the graphs of these nodes
        - **output**: (nodes, width)
    """

    middle: Tensor
    stretch: Tensor
    shift: Tensor
    group: Tensor

    def __init__(
        self, groups: Sequence[tuple[Sequence[int], float, float, float]], width: int
    ) -> None:
        super().__init__()
        self.groups = _checked_groups(groups)
        columns = [(column, 0) for columns, *_ in self.groups for column in columns]
        _checked_columns("scale_shift", columns, width)
        self.width = width
        self.hold()
        self.draws = UniformPerGraph(len(self.groups) + width)

    def beginnings(self) -> dict[str, Tensor]:
        """For each column its m, the maxima of a and b, and the index of its group."""
        middle, stretch, shift = (torch.zeros(self.width).double() for _ in range(3))
        group = torch.zeros(self.width, dtype=torch.int64)
        for k, (columns, *numbers) in enumerate(self.groups):
            group[columns] = k
            for row, number in zip((middle, stretch, shift), numbers, strict=True):
                row[columns] = number
        return {"middle": middle, "stretch": stretch, "shift": shift, "group": group}

    def _transformed(self, x: Tensor, batch: Batch) -> Tensor:
        drawn = self.draws(batch, x)
        stretch = 1 + self.stretch.to(x.dtype) * drawn[:, self.group]
        shift = self.shift.to(x.dtype) * drawn[:, len(self.groups) :]
        of_node, middle = batch.graph_of_node, self.middle.to(x.dtype)
        return torch.addcmul(middle + shift[of_node], x - middle, stretch[of_node])

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.groups))


class UniformPerGraph(Buffers):
    """`count` uniform numbers between −1 and 1 for each graph, drawn anew in every forward pass.

    Shapes:
        - **batch**: the graphs, **like**: a tensor of the dtype and device of the output
        - **output**: (graphs, count)
    """

    shares: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.coins = Dropout(0.5, level="graph")
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """The weight of each random bit."""
        shares = 0.5 ** torch.arange(_BITS, dtype=torch.float64)
        return {"shares": shares / shares.sum()}

    def forward(self, batch: Batch, like: Tensor) -> Tensor:
        with batch_context(batch):
            heads = self.coins(like.new_ones(batch.num_graphs, self.count * _BITS)) > 0
        signs = torch.where(heads, 1.0, -1.0).to(self.shares).unflatten(1, (self.count, _BITS))
        return (signs * self.shares).sum(2).to(like.dtype)

    def extra_repr(self) -> str:
        return str(self.count)


def _checked_columns(what: str, given: Any, width: int) -> tuple[tuple[int, float], ...]:
    """Pairs of a node feature's column and a number."""
    try:
        found = tuple((index(column), float(number)) for column, number in given)
    except (TypeError, ValueError):
        raise ValueError(
            f"got {what}={given!r}, expected pairs of a column and a number, such as "
            "((3, 1.0), (4, 1.0))"
        ) from None
    columns = [column for column, _ in found]
    if len(set(columns)) < len(columns) or not set(columns) <= set(range(width)):
        raise ValueError(
            f"got columns {columns} for {what}, expected columns of node features, 0 to "
            f"{width - 1}, each once"
        )
    if not all(math.isfinite(number) for _, number in found):
        raise ValueError(f"got {what}={given!r}, expected finite numbers")
    return found


def _checked_groups(groups: Any) -> tuple[tuple[list[int], float, float, float], ...]:
    try:
        found = tuple(
            ([index(c) for c in columns], float(middle), float(stretch), float(shift))
            for columns, middle, stretch, shift in groups
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"got scale_shift={groups!r}, expected groups, each of columns, their middle, and the "
            "largest relative change of scale and shift, such as (((3, 4), 0.5, 0.1, 0.05),)"
        ) from None
    for columns, middle, stretch, shift in found:
        if not 0 <= stretch < 1 or not 0 <= shift < math.inf or not math.isfinite(middle):
            raise ValueError(
                f"got columns {columns} to scale by up to {stretch:g} about {middle:g} and shift "
                f"by up to {shift:g}, expected 0 to less than 1, a finite number, and 0 or more"
            )
    return found
