"""What losses are multiplied by: as given, by the spread of their targets, or so that all fall."""

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

_MOST_APART = 50.0  # how much more than the others a loss is weighed to fall with them, at most
_LEAST = 1e-12  # of a loss, below which it has fallen


class LossWeights:
    """Weights of the losses of every member and task, which training may move.

    Attributes:
        given: (members, tasks), what losses are judged with.
        shares: (members, tasks), what they are trained with; the same tensor at all times.
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
        self._is_learned = self.given > 0

    def judge(self, losses: Tensor) -> Tensor:
        """One number for each member, of losses (members, tasks): their mean, or, where all are to
        fall, the geometric one, by which halving a small loss is worth as much as a large one."""
        if not self._even:
            return (losses * self.given).sum(1) / self.given.shape[1]
        return self._middle(losses).exp()

    def follow(self, losses: Tensor) -> None:
        """After an epoch with these (members, tasks), weigh by their inverse if all shall fall."""
        if not self._even:
            return
        apart = self._middle(losses)[:, None] - (losses * self.given).clamp(min=_LEAST).log()
        times = apart.exp().clamp(1 / _MOST_APART, _MOST_APART).nan_to_num(1.0)
        self.shares.copy_(self.given * times / self.given.shape[1])

    def state(self) -> dict[str, Tensor]:
        """What moves, to be gone on from."""
        return {"shares": self.shares} if self._even else {}

    def _middle(self, losses: Tensor) -> Tensor:
        """(members,) mean of the logarithms of those that are learned."""
        logs = (losses * self.given).clamp(min=_LEAST).log() * self._is_learned
        return logs.sum(1) / self._is_learned.sum(1).clamp(min=1)


def task_weights(tasks: Sequence[Task], settings: Settings, training: GraphSet) -> Tensor:
    """What each loss is multiplied by, (members, tasks)."""
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
    """Of a task's targets as they are trained on; 1, with a warning, where there is none."""
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
