"""The average of a population over its steps, which is validated and kept in its place."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.train.population import Population

_OF_ALL = 9  # at first an average is of the last ninth of all steps


class Average:
    """Weights, and the statistics that layers keep of their inputs, averaged over steps.

    The memory is short at first, so that the beginning is soon forgotten: what random weights are
    averaged with is no better than they are.
    """

    def __init__(self, population: Population, decay: float) -> None:
        self.decay = decay
        self.weights = population.flat.detach().clone()
        self.buffers = {name: buffer.clone() for name, buffer in population.buffers.items()}

    def follow(self, population: Population, steps: Tensor, alive: Tensor) -> None:
        """Take in a step of the members that are alive, (members,), after `steps` of them."""
        share = (_OF_ALL / (steps + _OF_ALL)).clamp(min=1 - self.decay)
        _move(self.weights, population.flat, share, alive)
        for name, held in self.buffers.items():
            _move(held, population.buffers[name], share, alive)

    def keep(self, places: Tensor) -> None:
        """Go on with these members alone."""
        self.weights = self.weights[places].clone()
        self.buffers = {name: buffer[places].clone() for name, buffer in self.buffers.items()}

    def state(self) -> dict[str, Tensor]:
        """Every tensor of it, in its own memory."""
        held = {f"average.buffer.{name}": buffer for name, buffer in self.buffers.items()}
        return {"average": self.weights, **held}


def _move(held: Tensor, now: Tensor, share: Tensor, alive: Tensor) -> None:
    wide = [-1, *[1] * (now.dim() - 1)]
    moved = torch.lerp(held, now, share.view(wide)) if held.is_floating_point() else now
    held.copy_(torch.where(alive.view(wide), moved, held))
