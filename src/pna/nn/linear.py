"""Linear layers, MLPs and recurrent weights, also fast when many models run as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pna.nn.activation import activation
from pna.nn.buffers import Buffers
from pna.population.linears import linear


class Linear(nn.Linear):
    """`torch.nn.Linear`, whose weight gradient is summed in parallel over the rows.

    Shapes:
        - **input**: (rows, in_features)
        - **output**: (rows, out_features)
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class RecurrentWeights(nn.Module):
    """The weights of a recurrent cell, as in `torch.nn.RNNCellBase`.

    Args:
        gates: number of gates: 3 for a GRU, 4 for an LSTM.
        inputs: features of the input.
        width: features of the state.
    """

    def __init__(self, gates: int, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight_ih = nn.Parameter(torch.empty(gates * width, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates * width, width))
        self.bias_ih = nn.Parameter(torch.empty(gates * width))
        self.bias_hh = nn.Parameter(torch.empty(gates * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises the weights as torch's recurrent cells do."""
        bound = 1 / math.sqrt(self.width) if self.width > 0 else 0.0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def extra_repr(self) -> str:
        return f"{self.width}"


class MLP(nn.Module):
    """Linear layers, each followed by an activation and all but the last by a normalisation.

    The normalisation comes after the activation, as in the authors' code.

    Args:
        widths: features of the input, of every layer between, and of the output.
        act: activation of all layers but the last.
        last: activation of the last layer.
        norm: makes the normalisation for a width; None for none.

    Shapes:
        - **input**: (rows, widths[0])
        - **output**: (rows, widths[-1])
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
        self.norms = None if norm is None else nn.ModuleList(map(norm, widths[1:-1]))

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
