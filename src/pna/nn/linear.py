"""Linear layers and stacks of them, fast too where many models run as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pna.nn.activation import activation
from pna.nn.buffers import Buffers
from pna.population.linears import linear


class Linear(nn.Linear):
    """`torch.nn.Linear`, whose weight gradient is summed in parallel over the rows."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class MLP(nn.Module):
    """Linear layers with an activation after each, and a normalisation after that of all but
    the last, as in the authors' heads.

    Args:
        widths: features of the input, of every layer between, and of the result.
        act: activation of all layers but the last.
        last: activation of the last.
        norm: makes the normalisation of a width; None for none.
    """

    def __init__(
        self,
        widths: Sequence[int],
        act: str | None = "relu",
        last: str | None = None,
        norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.act, self.last = activation(act), activation(last)
        between = widths[1:-1] if norm is not None else []
        self.norms = nn.ModuleList(norm(width) for width in between) if norm is not None else None

    def forward(self, x: Tensor) -> Tensor:
        *first, last = self.layers
        for i, layer in enumerate(first):
            x = self.act(layer(x))
            if self.norms is not None:
                x = self.norms[i](x)
        return self.last(last(x))


class Offset(Buffers):
    """Adds a constant to every column, so that predictions start from the mean of the targets.

    Args:
        means: the constants, one for each column.

    Shapes:
        - **input**: (rows, columns)
        - **output**: (rows, columns)
    """

    constants: Tensor

    def __init__(self, means: Sequence[float]) -> None:
        super().__init__()
        self.means = tuple(means)
        self.hold()

    def beginnings(self) -> dict[str, Tensor]:
        return {"constants": torch.tensor(self.means)}

    def forward(self, x: Tensor) -> Tensor:
        return x + self.constants

    def extra_repr(self) -> str:
        return f"{list(self.means)}"
