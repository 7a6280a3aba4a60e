"""Towers: several independent linear layers as one batched product."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pna.population.linears import tower_linear


class TowerLinear(nn.Module):
    """An independent linear layer in each tower.

    Shapes:
        - **x**: (nodes, towers, inputs)
        - **output**: (nodes, towers, outputs)
    """

    def __init__(self, towers: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(towers, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(towers, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the parameters as `torch.nn.Linear` does."""
        bound = 1 / math.sqrt(self.weight.shape[2]) if self.weight.shape[2] > 0 else 0.0
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[0] == 1:
            return F.linear(x, self.weight[0], self.bias[0])
        return tower_linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        towers, outputs, inputs = self.weight.shape
        return f"towers={towers}, {inputs}, {outputs}"


def first_of(layers: nn.ModuleList) -> TowerLinear:
    return cast(TowerLinear, next(iter(layers)))


def named_layers(name: str, layers: nn.ModuleList) -> list[tuple[str, nn.Module]]:
    """Return the layers of a list with their names for error messages.

    An empty list, or None in the list, raises ValueError.
    """
    if len(layers) == 0:
        raise ValueError(
            f"got {name} without a layer, expected at least one; replace a layer instead of "
            f"deleting it: {name}[0] = …"
        )
    modules: list[nn.Module | None] = list(layers)
    found = []
    for k, layer in enumerate(modules):
        if layer is None:
            remove = f", or remove it with del {name}[{k}]" if k > 0 else ""
            raise ValueError(
                f"got {name}[{k}] = None, expected a module; put one of the same shapes in its "
                f"place{remove}"
            )
        found.append((f"{name}[{k}]", layer))
    return found


def tower_layers(towers: int, inputs: int, outputs: int, count: int) -> nn.ModuleList:
    """Make `count` layers: the first takes `inputs` features, the others `outputs`."""
    widths = [inputs, *[outputs] * count]
    return nn.ModuleList(TowerLinear(towers, widths[i], widths[i + 1]) for i in range(count))
