"""How far each member has come: its best, its learning rate, and when it stops.

All of it is tensors (members,), decided where they are, so that an epoch waits for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pna.train.schedules import SCHEDULES
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
        schedule = SCHEDULES[settings.schedule]
        base, waiting, factor = schedule.after(settings, self.epoch, self.base_lr, self.waiting)
        self.base_lr.copy_(base)
        self.waiting.copy_(waiting)
        stop = schedule.stopped(settings, self.base_lr)
        if settings.patience is not None:
            stop = stop | (self.epoch - self.best_epoch >= settings.patience)
        self.alive.copy_(self.alive & ~stop)
        warm = ((self.epoch.to(self.lr.dtype) + 1) / (settings.warmup + 1)).clamp(max=1)
        self.lr.copy_(self.base_lr * (warm * factor))
        return better

    def state(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
