"""How weights begin."""

from __future__ import annotations

import math

from torch import Tensor, nn

from pna.names import lookup
from pna.nn.towers import TowerLinear


def published_(model: nn.Module) -> None:
    """Xavier's uniform weights with a gain of 1 / inputs, tiny, and biases of 0: the authors'.

    Of linear layers; recurrent ones stay as they are.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | TowerLinear):
            outputs, inputs = module.weight.shape[-2:]
            bound = math.sqrt(6 / (inputs + outputs)) / max(inputs, 1)
            nn.init.uniform_(module.weight, -bound, bound)
            if isinstance(module.bias, Tensor):
                nn.init.zeros_(module.bias)


def default_(model: nn.Module) -> None:
    """As every module initialises itself."""


INITIAL = {"default": default_, "published": published_}


def initialise(model: nn.Module, how: str) -> None:
    """Begin with "published" or "default" weights."""
    lookup("initialisation", how, INITIAL)(model)
