"""Weights of the losses: given, by the variance of targets, or by the inverse of the loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pna.data.graphset import GraphSet
from pna.train.distributed import is_first
from pna.train.settings import Settings
from pna.train.tasks import LOSSES, Task, column_of

_MOST_APART = 50.0  # highest factor between the weight of a loss and the mean, with `even`
_LEAST = 1e-12  # losses are clamped to this before their logarithm is taken


class LossWeights:
    """Weights of the losses of every member and task.

    Attributes:
        given: (members, tasks), for validation.
        shares: (members, tasks), for training; with `even` it changes in place after each epoch.
        is_learned: (members, tasks), whether a weight is above 0.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        settings: Settings,
        training: GraphSet,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.given = task_weights(tasks, settings, training).to(device, dtype)
        self.shares = self.given / len(tasks)
        self._even = settings.even
        self.is_learned = self.given > 0

    def total(self, losses: Tensor) -> Tensor:
        """The loss of each member, from losses (members, tasks): their weighted mean, or with
        `even` their geometric mean, where halving a small loss counts as much as a large one."""
        if not self._even:
            return (losses * self.given).sum(1) / self.given.shape[1]
        return self._middle(losses).exp()

    def update(self, losses: Tensor) -> None:
        """With `even`, set the weights to the inverse of these losses (members, tasks)."""
        if not self._even:
            return
        apart = self._middle(losses)[:, None] - (losses * self.given).clamp(min=_LEAST).log()
        times = apart.exp().clamp(1 / _MOST_APART, _MOST_APART).nan_to_num(1.0)
        self.shares.copy_(self.given * times / self.given.shape[1])

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that change."""
        return {"shares": self.shares} if self._even else {}

    def _middle(self, losses: Tensor) -> Tensor:
        """Mean logarithm of the losses with a weight above 0, (members,)."""
        logs = (losses * self.given).clamp(min=_LEAST).log() * self.is_learned
        return logs.sum(1) / self.is_learned.sum(1).clamp(min=1)


def task_weights(tasks: Sequence[Task], settings: Settings, training: GraphSet) -> Tensor:
    """The weight of each loss, (members, tasks)."""
    usual = torch.tensor([task.weight for task in tasks], dtype=torch.float64)
    for row in settings.task_weights:
        if len(row) != len(tasks):
            raise ValueError(
                f"got {len(row)} task weights for a member, expected {len(tasks)}: one for each of "
                + ", ".join(task.name for task in tasks)
            )
    rows = torch.tensor(settings.task_weights, dtype=torch.float64).reshape(-1, len(tasks))
    weights = rows if len(rows) else usual.expand(settings.members, -1)
    if settings.balance:
        variances = [_variance(task, training) for task in tasks]
        weights = weights / torch.tensor(variances, dtype=torch.float64)
    return weights.contiguous()


def _variance(task: Task, training: GraphSet) -> float:
    """Variance of the scaled targets of a task; 1, with a warning, if there is none."""
    values = column_of(training, task.level, task.column).double().cpu().numpy() / task.scale
    values = values[~np.isnan(values)]
    if LOSSES[task.loss].classes:
        why = "are classes, which have no variance"
    elif values.size == 0 or values.min() == values.max():
        why = "are all the same"
    else:
        return float(values.var())
    if is_first():
        warnings.warn(
            f"balance leaves the loss of {task.name!r} as it is: its targets {why}", stacklevel=2
        )
    return 1.0
