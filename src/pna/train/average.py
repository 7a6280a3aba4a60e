"""Copies of the weights of a population: those of its best epochs, and their moving average."""

from __future__ import annotations

import torch
from torch import Tensor

from pna.train.population import Population

_FIRST_STEPS = 9  # at first, the average is over about the last ninth of all steps


class Snapshot:
    """Weights (members, parameters) of a population, and the buffers that training changes."""

    def __init__(self, population: Population) -> None:
        self.weights = population.flat.detach().clone()
        self.buffers = {name: buffer.clone() for name, buffer in population.buffers.items()}

    @torch.no_grad()
    def copy_from(
        self, weights: Tensor, buffers: dict[str, Tensor], ids: Tensor, new: Tensor
    ) -> None:
        """Copy the members `ids` where `new` (members,) is true; inputs have a row for each id."""
        rows = new[ids]
        own = (self.weights, *self.buffers.values())
        inputs = (weights, *(buffers[name] for name in self.buffers))
        for old, now in zip(own, inputs, strict=True):
            mask = rows.view(-1, *[1] * (now.dim() - 1))
            old.index_copy_(0, ids, torch.where(mask, now, old[ids]))

    def state_dict(self, name: str) -> dict[str, Tensor]:
        """Every tensor, without copying, under names that begin with `name`."""
        return {name: self.weights} | {f"{name}.buffer.{n}": b for n, b in self.buffers.items()}


class MovingAverage(Snapshot):
    """Exponential moving average of weights and buffers over steps.

    The average is short at first, so that the random initial weights are soon forgotten.
    """

    def __init__(self, population: Population, decay: float) -> None:
        super().__init__(population)
        self.decay = decay

    def update(self, population: Population, steps: Tensor, alive: Tensor) -> None:
        """Add a step of the members that are `alive`, (members,), after `steps` of them."""
        share = (_FIRST_STEPS / (steps + _FIRST_STEPS)).clamp(min=1 - self.decay)
        _update(self.weights, population.flat, share, alive)
        for name, average in self.buffers.items():
            _update(average, population.buffers[name], share, alive)

    def keep(self, rows: Tensor) -> None:
        """Drop all members but these."""
        self.weights = self.weights[rows].clone()
        self.buffers = {name: buffer[rows].clone() for name, buffer in self.buffers.items()}


def _update(average: Tensor, current: Tensor, share: Tensor, alive: Tensor) -> None:
    wide = [-1, *[1] * (current.dim() - 1)]
    moved = (
        torch.lerp(average, current, share.view(wide)) if average.is_floating_point() else current
    )
    average.copy_(torch.where(alive.view(wide), moved, average))
