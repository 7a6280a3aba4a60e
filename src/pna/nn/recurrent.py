"""A GRU for node states, and all steps of a convolution and a GRU as one operation."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from pna.adjacency import Adjacency
from pna.nn.conv.inputs import EdgeFeatures
from pna.nn.conv.prepared import PreparedPNA
from pna.nn.convolution import Prepared
from pna.nn.depth import Depth
from pna.nn.hooks import is_hooked, may_be_read
from pna.nn.linear import RecurrentWeights
from pna.population.gru import gru_cell
from pna.population.recurrence import has_recurrence, recurrence


class GRU(RecurrentWeights):
    """`torch.nn.GRUCell` with inputs and states of one width, as one operation.

    Narrower inputs and states are padded with zeros.

    Shapes:
        - **x**: (rows, at most width), **state**: (rows, at most width)
        - **output**: (rows, width)
    """

    def __init__(self, width: int) -> None:
        super().__init__(3, width, width)

    def forward(
        self,
        x: Tensor,
        state: Tensor,
        until: Tensor | None = None,
        step: int = 0,
        swapped: bool = False,
    ) -> Tensor:
        """Return the next state. Rows with until[i] ≤ step keep their state; until is (rows,).

        With `swapped`, the state that they keep is x.
        """
        inputs = self._padded(x), self._padded(state)
        return gru_cell(*inputs, self.weights, until, step, swapped)

    def _padded(self, x: Tensor) -> Tensor:
        missing = self.width - x.shape[1]
        return F.pad(x, (0, missing)) if missing else x


def recur(
    layer: Prepared,
    unit: GRU,
    state: Tensor,
    adjacency: Adjacency,
    edges: EdgeFeatures,
    depth: Depth,
    until: Tensor | None,
    swapped: bool,
) -> Tensor | None:
    """Compute all steps after the first by `recurrence`; return None if it is not available.

    `until` (nodes,) is the number of steps of each node; None if all take `depth.most`.
    """
    steps, slope = depth.most - 1, _slope_of(layer.act)
    if steps < 1 or slope is None or not may_be_read(unit, GRU):
        return None
    if not isinstance(layer.conv, PreparedPNA):
        return None
    if any(weight.dtype != state.dtype for weight in unit.weights):
        return None
    parts = layer.conv.as_layer(state, adjacency, edges, slope)
    if parts is None or state.shape[1] != unit.width or not has_recurrence(state, parts):
        return None
    return recurrence(state, parts, unit.weights, adjacency, steps, until, swapped, depth.fronts)


def _slope_of(act: Callable[[Tensor], Tensor]) -> float | None:
    """Return the slope of a (leaky) ReLU below 0, 1 for the identity, None for any other."""
    if isinstance(act, nn.Module) and is_hooked(act):
        return None
    if type(act) is nn.LeakyReLU:
        return float(act.negative_slope)
    return {nn.ReLU: 0.0, nn.Identity: 1.0}.get(type(act))
