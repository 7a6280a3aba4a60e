"""How weights begin."""

from __future__ import annotations

import math

from torch import Tensor, nn

from pna.names import lookup
from pna.nn.recurrent import GRU
from pna.nn.towers import TowerLinear

#: Bias of a GRU's update gate that remembers: 95% of a state is kept in a step, half in 14.
_KEEPING = 3.0


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


def remembering_(model: nn.Module) -> None:
    """As every module initialises itself, with GRUs that keep most of their state.

    They would otherwise keep half of it, and nothing of what a node began with after some steps.
    """
    for module in model.modules():
        if isinstance(module, GRU):
            update = slice(module.width, 2 * module.width)
            nn.init.constant_(module.bias_ih[update], _KEEPING)
            nn.init.zeros_(module.bias_hh[update])


INITIAL = {"default": default_, "published": published_, "remembering": remembering_}


def initialise(model: nn.Module, how: str) -> None:
    """Begin with weights of one of these names."""
    lookup("initialisation", how, INITIAL)(model)
