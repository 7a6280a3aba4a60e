"""Initialisation of the weights of a model."""

from __future__ import annotations

import math

from torch import Tensor, nn

from pna.names import lookup
from pna.nn.recurrent import GRU
from pna.nn.towers import TowerLinear

#: Bias of the update gate for "remembering": a step keeps 95% of a state, 14 steps keep half.
_KEEPING = 3.0


def published_(model: nn.Module) -> None:
    """The authors' initialisation: Xavier uniform with a gain of 1 / inputs, and biases of 0.

    Applies to linear layers; recurrent weights are not changed.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | TowerLinear):
            outputs, inputs = module.weight.shape[-2:]
            bound = math.sqrt(6 / (inputs + outputs)) / max(inputs, 1)
            nn.init.uniform_(module.weight, -bound, bound)
            if isinstance(module.bias, Tensor):
                nn.init.zeros_(module.bias)


def published_layers_(model: nn.Module) -> None:
    """As `published_`, but only in convolutions, with what mixes their towers: in the authors' code
    for molecules and superpixels, embeddings and the head begin as usual."""
    for name in ("convolutions", "mixing"):
        published_(model.get_submodule(name))


def default_(model: nn.Module) -> None:
    """The initialisation of every module itself."""


def remembering_(model: nn.Module) -> None:
    """The default, but with GRUs that keep most of their state.

    By default a GRU keeps about half of its state in a step, so a node's first state is soon lost.
    """
    for module in model.modules():
        if isinstance(module, GRU):
            update = slice(module.width, 2 * module.width)
            nn.init.constant_(module.bias_ih[update], _KEEPING)
            nn.init.zeros_(module.bias_hh[update])


INITIAL = {
    "default": default_,
    "published": published_,
    "published-layers": published_layers_,
    "remembering": remembering_,
}


def initialise(model: nn.Module, how: str) -> None:
    """Initialise the weights as one of `INITIAL`."""
    lookup("initialisation", how, INITIAL)(model)
