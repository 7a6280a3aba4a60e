"""The state of each member in training: best loss, learning rate, early stopping.

All of it is tensors (members,) on the device, so that an epoch does not synchronise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from pna.train.schedules import SCHEDULES
from pna.train.settings import Settings


@dataclass
class MemberState:
    """State of every member after an epoch."""

    epoch: Tensor  # () int64, epochs done
    lr: Tensor  # learning rate of the next epoch
    base_lr: Tensor  # learning rate without warmup and the factor of the schedule
    best: Tensor  # lowest validation loss so far, or score of `Settings.select`
    best_epoch: Tensor  # int64, its epoch
    waiting: Tensor  # int64, epochs since an improvement or a change by `plateau`
    alive: Tensor  # bool: still in training
    broken: Tensor  # bool: its loss or gradient was not finite

    @classmethod
    def at_start(cls, settings: Settings, device: torch.device, dtype: torch.dtype) -> MemberState:
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
        """Update with the validation loss or score (members,); returns who improved, (members,)."""
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

    def state_dict(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
