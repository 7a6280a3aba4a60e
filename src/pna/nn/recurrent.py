"""A gated recurrent unit for the states of nodes, and its steps with a convolution as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.front import Front
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.prepared import PreparedPNA
from pna.nn.family import Prepared
from pna.nn.hooks import is_hooked, may_be_read
from pna.population.gru import gru_cell
from pna.population.recurrence import has_recurrence, recurrence


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

    def forward(
        self,
        x: Tensor,
        state: Tensor,
        until: Tensor | None = None,
        step: int = 0,
        swapped: bool = False,
    ) -> Tensor:
        """Input and state, (rows, at most width) each, to the next state (rows, width).

        Rows stay as they are from the step `until` (rows,) on: as the state, or, where `swapped`,
        as x, in whose place the state then is.
        """
        inputs = self._padded(x), self._padded(state)
        return gru_cell(*inputs, *self.weights, until, step, swapped)

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `gru_cell` takes them."""
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def _padded(self, x: Tensor) -> Tensor:
        missing = self.width - x.shape[1]
        return F.pad(x, (0, missing)) if missing else x

    def extra_repr(self) -> str:
        return f"{self.width}"


def recur(
    layer: Prepared,
    unit: GRU,
    state: Tensor,
    adjacency: Adjacency,
    edges: EdgeFeatures,
    steps: int,
    until: Tensor | None,
    swapped: bool,
    fronts: Sequence[Front] = (),
) -> Tensor | None:
    """All of so many steps as one operation, as `recurrence`; None where there is none."""
    slope = _slope_of(layer.act)
    if steps < 1 or slope is None or not may_be_read(unit, GRU):
        return None
    if not isinstance(layer.conv, PreparedPNA):
        return None
    if any(weight.dtype != state.dtype for weight in unit.weights):
        return None
    parts = layer.conv.as_layer(state, adjacency, edges, slope)
    if parts is None or state.shape[1] != unit.width or not has_recurrence(state, parts):
        return None
    return recurrence(state, parts, unit.weights, adjacency, steps, until, swapped, fronts)


def _slope_of(act: Callable[[Tensor], Tensor]) -> float | None:
    """What an activation multiplies numbers below 0 by, if that is all it does."""
    if isinstance(act, nn.Module) and is_hooked(act):
        return None
    if type(act) is nn.LeakyReLU:
        return float(act.negative_slope)
    return {nn.ReLU: 0.0, nn.Identity: 1.0}.get(type(act))
