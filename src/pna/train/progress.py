"""How far each member has come: its best, its learning rate, and when it stops.

All of it is tensors (members,), decided where they are, so that an epoch waits for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pna.train.settings import Settings


@dataclass
class Standing:
    """Where every member stands after an epoch."""

    epoch: Tensor  # () int64, epochs done
    lr: Tensor  # learning rate of the next epoch
    base_lr: Tensor  # that from which schedules begin
    best: Tensor  # least validation loss so far, or what else it is judged by
    best_epoch: Tensor  # int64, when that was
    waiting: Tensor  # int64, epochs since the plateau's last change or improvement
    alive: Tensor  # bool: still being trained
    broken: Tensor  # bool: its loss or gradient was not finite

    @classmethod
    def at_start(cls, settings: Settings, device: torch.device, dtype: torch.dtype) -> Standing:
        base = torch.tensor(settings.of_members("lr"), dtype=dtype, device=device)
        none = torch.zeros_like(base, dtype=torch.int64)
        return cls(
            epoch=torch.zeros((), dtype=torch.int64, device=device),
            lr=base * (1 / (settings.warmup + 1)),
            base_lr=base,
            best=torch.full_like(base, math.inf),
            best_epoch=none.clone(),
            waiting=none.clone(),
            alive=torch.ones_like(none, dtype=torch.bool),
            broken=torch.zeros_like(none, dtype=torch.bool),
        )

    @torch.no_grad()
    def after_epoch(self, settings: Settings, loss: Tensor) -> Tensor:
        """Take in what validation is judged by (members,), less being better; says which are better
        than ever, (members,)."""
        self.epoch += 1
        better = (loss < self.best) & self.alive
        self.best.copy_(torch.where(better, loss, self.best))
        self.best_epoch.copy_(torch.where(better, self.epoch, self.best_epoch))
        self.waiting.copy_(torch.where(better, 0, self.waiting + 1))
        stop = torch.zeros_like(self.alive)
        if settings.patience is not None:
            stop = self.epoch - self.best_epoch >= settings.patience
        if settings.schedule == "plateau":
            dull = self.waiting >= settings.plateau
            self.base_lr.copy_(torch.where(dull, self.base_lr * settings.decay, self.base_lr))
            self.waiting.copy_(torch.where(dull, 0, self.waiting))
            if settings.min_lr > 0:
                stop = stop | (self.base_lr < settings.min_lr)
        self.alive.copy_(self.alive & ~stop)
        self.lr.copy_(self.base_lr * self._factor(settings))
        return better

    def _factor(self, settings: Settings) -> Tensor:
        """What a schedule of epochs makes of the learning rate."""
        epoch = self.epoch.to(self.lr.dtype)
        factor = ((epoch + 1) / (settings.warmup + 1)).clamp(max=1)
        if settings.schedule == "cosine":
            span = max(settings.epochs - settings.warmup, 1)
            done = ((epoch - settings.warmup) / span).clamp(0, 1)
            least = settings.min_lr / self.base_lr.clamp(min=1e-30)
            wave = (1 + torch.cos(math.pi * done)) / 2
            factor = factor * (least + (1 - least) * wave)
        return factor

    def state(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
