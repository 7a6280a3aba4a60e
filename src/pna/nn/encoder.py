"""From the columns of a graph set, categorical or numeric, to features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor, nn

from pna.nn.buffers import Buffers
from pna.nn.dropout import Dropout
from pna.nn.linear import Linear
from pna.population.linears import linear, takes_widths
from pna.visible import values_readable


class Embedding(Buffers):
    """The sum of learned vectors: one for each category of a categorical column, and one for each
    numeric column, multiplied by its number.

    Args:
        values: number of categories of each column, counted from 0; 0 for a numeric column.
        width: features of the output.
        scales: mean and standard deviation of each column, by which numeric columns are
            standardised. Default: they are not.

    Shapes:
        - **columns**: (rows, columns)
        - **output**: (rows, width)
    """

    offsets: Tensor
    is_number: Tensor
    means: Tensor
    deviations: Tensor

    def __init__(
        self, values: Sequence[int], width: int, scales: Sequence[tuple[float, float]] = ()
    ) -> None:
        super().__init__()
        self.values = tuple(values)
        self.scales = tuple(scales) or ((0.0, 1.0),) * len(self.values)
        self.vectors = [max(count, 1) for count in self.values]  # how many each column has
        self.weight = nn.Parameter(torch.empty(sum(self.vectors), width))
        self.hold()
        self.reset_parameters()

    def beginnings(self) -> dict[str, Tensor]:
        """The first vector of each column, which columns are numeric, and their scales."""
        return {
            "offsets": torch.tensor([0, *accumulate(self.vectors)][:-1]),
            "is_number": torch.tensor([count == 0 for count in self.values]),
            **_columns(self.scales),
        }

    def reset_parameters(self) -> None:
        """Vectors of one categorical column are drawn as in torch's embeddings; of several
        columns, whose sum would be large, as in OGB's encoders; of numeric columns as in linear
        layers."""
        if self.weight.is_meta:
            return  # there are no values to draw, and torch would import its compiler, 2 s
        numbers = self.values.count(0)
        begin = nn.init.normal_ if len(self.values) - numbers == 1 else nn.init.xavier_uniform_
        bound = 1 / math.sqrt(max(numbers, 1))
        with torch.no_grad():
            for table, count in zip(self.tables(), self.values, strict=True):
                begin(table) if count else table.uniform_(-bound, bound)

    def tables(self) -> tuple[Tensor, ...]:
        """The vectors of each column, (vectors, width) each."""
        return self.weight.split(self.vectors)

    @property
    def combinations(self) -> float:
        """How many different outputs there are; infinite if a column is numeric."""
        return math.prod(self.values) if all(self.values) else math.inf

    def every_output(self) -> Tensor:
        """The outputs for all combinations of categories, (combinations, width)."""
        first, *others = self.tables()
        return reduce(lambda sums, table: (sums[:, None] + table).flatten(0, 1), others, first)

    def combination_of(self, columns: Tensor) -> Tensor:
        """The row of `every_output` for each row of the columns."""
        self._check(columns)
        numbers = columns.long().unbind(1)
        pairs = zip(numbers[1:], self.values[1:], strict=True)
        return reduce(lambda at, pair: at * pair[1] + pair[0], pairs, numbers[0])

    def forward(self, columns: Tensor) -> Tensor:
        coefficients = self.coefficients(columns)
        if takes_widths(self.weight, *self.weight.shape):
            return linear(coefficients, self.weight.t())
        return coefficients @ self.weight

    def coefficients(self, columns: Tensor) -> Tensor:
        """The factor of each vector, (rows, vectors): 1 or 0 for a category, else a number."""
        self._check(columns)
        shape = columns.shape[0], self.weight.shape[0]
        none = torch.zeros(shape, dtype=self.weight.dtype, device=columns.device)
        if all(self.values):
            alone = len(self.values) == 1
            return none.scatter_(1, columns.long() if alone else columns.long() + self.offsets, 1)
        at = self.offsets + torch.where(self.is_number, 0, columns.long())
        numbers = (columns.to(none.dtype) - self.means) / self.deviations
        # not in place: members of a population may have different numbers
        return none.scatter(1, at, torch.where(self.is_number, numbers, 1).to(none.dtype))

    def _check(self, columns: Tensor) -> None:
        """Refuse a category without a vector, if values can be read without waiting."""
        if not values_readable() or columns.device.type != "cpu" or len(columns) == 0:
            return
        if columns.shape[1] != len(self.values):
            raise ValueError(
                f"got {columns.shape[1]} columns of categories, expected {len(self.values)}; give "
                "the columns that the model was made for"
            )
        bounds = torch.stack([*torch.aminmax(columns, dim=0)], 1).tolist()
        for column, (count, (low, high)) in enumerate(zip(self.values, bounds, strict=True)):
            if count > 0 and not (low >= 0 and high < count):  # NaN is in neither
                odd = high if low >= 0 else low
                raise ValueError(
                    f"got category {odd:g} in column {column}, expected 0 to "
                    f"{count - 1}; correct it, or make the model for more categories"
                )

    def extra_repr(self) -> str:
        return f"{list(self.values)}, {self.weight.shape[1]}"


def _columns(scales: Sequence[tuple[float, float]]) -> dict[str, Tensor]:
    """Means and deviations. On the meta device, operations on tensors would import SymPy, 1 s."""
    means, deviations = zip(*scales, strict=True)
    return {"means": torch.tensor(means), "deviations": torch.tensor(deviations)}


class GraphEncoder(Buffers):
    """Features of whole graphs to a vector: standardised, clipped, relu(W x + b).

    Descriptors of molecules have outliers, and some are undefined: numbers are clipped to
    ±`CLIP` standard deviations, and one that is not finite is replaced by the mean.

    Args:
        scales: mean and standard deviation of each column.
        width: features of the output.
        dropout: probability of dropping a column of a graph.

    Shapes:
        - **columns**: (graphs, columns)
        - **output**: (graphs, width)
    """

    CLIP: Final = 5.0
    means: Tensor
    deviations: Tensor

    def __init__(
        self, scales: Sequence[tuple[float, float]], width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.scales = tuple(scales)
        self.lin = Linear(len(self.scales), width)
        self.dropout = Dropout(dropout, level="graph")
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        """The means and the standard deviations."""
        return _columns(self.scales)

    def forward(self, columns: Tensor) -> Tensor:
        x = (columns.to(self.lin.weight.dtype) - self.means) / self.deviations
        x = torch.where(x.isfinite(), x, 0).clamp(-self.CLIP, self.CLIP)
        return torch.relu(self.lin(self.dropout(x)))


def encoder(
    values: Sequence[int], columns: int, width: int, scales: Sequence[tuple[float, float]] = ()
) -> nn.Module:
    """An `Embedding` if some columns are categorical, otherwise a linear layer."""
    return Embedding(values, width, scales) if any(values) else Linear(columns, width)
