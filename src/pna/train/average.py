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
        self._join()

    def _join(self) -> None:
        """Put all floating-point buffers into one tensor, so that a step changes them at once."""
        self._floats = [name for name, b in self.buffers.items() if b.is_floating_point()]
        own = [self.buffers[name] for name in self._floats]
        self._joined = torch.cat([self.weights[:0, 0], *(b.flatten() for b in own)])
        parts = self._joined.split([b.numel() for b in own])
        for name, buffer, part in zip(self._floats, own, parts, strict=True):
            self.buffers[name] = part.view_as(buffer)
        members = torch.arange(len(self.weights), device=self.weights.device)
        of_each = [members.repeat_interleave(b[0].numel()) for b in own]
        self._members = torch.cat([members[:0], *of_each])

    @torch.no_grad()
    def update(self, population: Population, steps: Tensor, alive: Tensor) -> None:
        """Add a step of the members that are `alive`, (members,), after `steps` of them."""
        share = (_FIRST_STEPS / (steps + _FIRST_STEPS)).clamp(min=1 - self.decay)
        # members that stopped keep theirs, also if what they have now is not finite
        now = torch.where(alive[:, None], population.flat, self.weights)
        self.weights.lerp_(now, share[:, None])
        if self._floats:
            now = torch.cat([population.buffers[name].flatten() for name in self._floats])
            now = torch.where(alive[self._members], now, self._joined)
            self._joined.lerp_(now, share[self._members])
        for name in self.buffers.keys() - set(self._floats):  # integers are copied
            old, now = self.buffers[name], population.buffers[name]
            old.copy_(torch.where(alive.view(-1, *[1] * (now.dim() - 1)), now, old))

    def keep(self, rows: Tensor) -> None:
        """Drop all members but these."""
        self.weights = self.weights[rows].clone()
        self.buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        self._join()
