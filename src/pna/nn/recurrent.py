"""A gated recurrent unit for the states of nodes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.ops.gru import gru_cell


class GRU(nn.Module):
    """`torch.nn.GRUCell` of one width, as one operation; narrower input is padded with zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight_ih = nn.Parameter(torch.empty(3 * width, width))
        self.weight_hh = nn.Parameter(torch.empty(3 * width, width))
        self.bias_ih = nn.Parameter(torch.empty(3 * width))
        self.bias_hh = nn.Parameter(torch.empty(3 * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `torch.nn.GRUCell` is initialised."""
        bound = 1 / math.sqrt(self.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Input and state, (rows, at most width) each, to the next state (rows, width)."""
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return gru_cell(self._padded(x), self._padded(state), *weights)

    def _padded(self, x: Tensor) -> Tensor:
        missing = self.width - x.shape[1]
        return F.pad(x, (0, missing)) if missing else x

    def extra_repr(self) -> str:
        return f"{self.width}"
