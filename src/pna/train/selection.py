"""Metrics that select the best epoch instead of the validation loss; lower is better."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.population.all_reduce import all_reduce_sum
from pna.train.distributed import is_first
from pna.train.metrics import METRICS, is_defined
from pna.train.settings import SELECTIONS
from pna.train.task_metrics import TaskPredictions
from pna.train.tasks import LOSSES, Task, column_of
from pna.train.threshold import HALF


def as_metric(score: float, name: str) -> float:
    """The value of a metric, or of the loss, from its score, which is lower if it is better."""
    return score if name == "loss" or METRICS[name].sign > 0 else 1 - score


class Selection:
    """A metric of the validation split, mean over the tasks of each member, (members,).

    A score is the metric if lower is better, else 1 minus the metric. Means leave out the tasks for
    which the metric is not defined, with a warning. Class 1 is predicted from 0.5 on.

    Outputs of the whole split stay on the device until the epoch ends. Metrics are then computed by
    `pna.train.metrics` on the host.
    """

    #: Whether the host computes scores, so that the end of an epoch cannot be captured.
    on_host = True

    def __init__(
        self,
        name: str,
        tasks: Sequence[Task],
        graphs: GraphSet,
        is_learned: Tensor,
        dtype: torch.dtype,
    ) -> None:
        self.name, self._tasks, self._level = name, tuple(tasks), tasks[0].level
        _check(name, self._tasks, graphs)
        self._targets = [
            column_of(graphs, self._level, task.column).double().cpu().numpy() for task in tasks
        ]
        counted = torch.tensor(
            [
                is_defined(name, y, task.outputs if LOSSES[task.loss].classes else 0)
                for task, y in zip(tasks, self._targets, strict=True)
            ]
        )
        self._counted = is_learned & counted.to(is_learned.device)  # (members, tasks)
        _report_undefined(name, tasks, counted, is_learned, self._counted)
        # one more row for padding
        outputs = max(task.end for task in tasks)
        shape = (len(is_learned), outputs, len(self._targets[0]) + 1)
        self._outputs = torch.zeros(shape, dtype=dtype, device=graphs.device)

    def columns(self, prediction: Prediction) -> Tensor:
        """The outputs of one model that are kept, (outputs × rows,)."""
        return prediction.at(self._level).T.flatten()

    def keep(self, members: Tensor, batch: Batch, columns: Tensor) -> None:
        """Store the `columns` (members, outputs × rows) of a batch."""
        assert batch.graph_ids is not None
        ids, real = batch.graph_ids, batch.real
        if self._level != "graph":
            ids = torch.arange(batch.rows(self._level), device=ids.device)
            real = batch.real_nodes if self._level == "node" else None
        if real is not None:
            ids = torch.where(real, ids, self._outputs.shape[2] - 1)
        values = columns.unflatten(1, (self._outputs.shape[1], -1)).to(self._outputs.dtype)
        for output in range(self._outputs.shape[1]):
            outputs = self._outputs[:, output]
            outputs.index_put_((members[:, None], ids[None]), values[:, output])

    def score(self) -> Tensor:
        """The score of all outputs stored since the last call."""
        found = self._of_tasks(all_reduce_sum(self._outputs))
        self._outputs.zero_()
        means = torch.where(self._counted, found, 0).sum(1) / self._counted.sum(1).clamp(min=1)
        score = means if METRICS[self.name].sign > 0 else 1 - means
        return score.clamp(min=torch.finfo(score.dtype).min)  # log10 MSE may be −∞

    def _of_tasks(self, outputs: Tensor) -> Tensor:
        """The metric of every task (members, tasks), from outputs (members, outputs, rows + 1)."""
        rows = outputs[..., :-1].transpose(1, 2).double().cpu().numpy()
        halves = [HALF] * len(rows)
        found = [
            TaskPredictions.of(task, rows, halves).metric(self.name, y)
            for task, y in zip(self._tasks, self._targets, strict=True)
        ]
        return torch.from_numpy(np.array(found).T).to(outputs)


class RocAuc(Selection):
    """1 minus the area under the ROC curve of targets trained with "bce".

    Areas are computed on the device by sorting, so that a captured epoch does not synchronise. They
    equal those of `pna.train.metrics.roc_auc`.
    """

    on_host = False

    def __init__(
        self,
        name: str,
        tasks: Sequence[Task],
        graphs: GraphSet,
        is_learned: Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(name, tasks, graphs, is_learned, dtype)
        self._classes = []
        for y in self._targets:
            classes = np.flatnonzero(y > 0.5), np.flatnonzero(y <= 0.5)
            self._classes.append([torch.from_numpy(rows).to(graphs.device) for rows in classes])

    def _of_tasks(self, outputs: Tensor) -> Tensor:
        areas = []
        for task, (ones, zeros) in zip(self._tasks, self._classes, strict=True):
            above = outputs[:, task.first, ones].contiguous()
            below = outputs[:, task.first, zeros].sort(1).values
            ranks = torch.searchsorted(below, above) + torch.searchsorted(below, above, right=True)
            # NaN would have the highest rank
            area = ranks.to(outputs.dtype).mean(1) / (2 * max(len(zeros), 1))
            known = outputs[:, task.first, :-1].isfinite().all(1)
            areas.append(torch.where(known, area, torch.nan))
        return torch.stack(areas, 1)


def selection_of(
    name: str, tasks: Sequence[Task], graphs: GraphSet, is_learned: Tensor, dtype: torch.dtype
) -> Selection | None:
    """What selects the best epoch by `Settings.select`; None for the validation loss.

    Args:
        name: of `SELECTIONS`.
        tasks: of the run.
        graphs: the validation split.
        is_learned: (members, tasks), whether a member learns a task.
        dtype: of the outputs of the models.
    """
    if name == "loss":
        return None
    binary = all(LOSSES[task.loss].outputs == "probability" for task in tasks)
    kind = RocAuc if name == "roc_auc" and binary else Selection
    return kind(name, tasks, graphs, is_learned, dtype)


def _check(name: str, tasks: Sequence[Task], graphs: GraphSet) -> None:
    """Raise unless a metric suits all tasks, and the outputs of a split can be kept."""
    odd = [task for task in tasks if not METRICS[name].suits(LOSSES[task.loss].outputs)]
    if odd:
        fits = [
            other
            for other in SELECTIONS
            if other == "loss"
            or all(METRICS[other].suits(LOSSES[task.loss].outputs) for task in tasks)
        ]
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        raise ValueError(
            f"got select={name!r} with {odd[0].name} (trained with {odd[0].loss}){more}, "
            f"expected targets that {METRICS[name].title} is a metric of; use one of "
            f"{', '.join(fits)} (--select)"
        )
    levels = {task.level for task in tasks}
    if len(levels) > 1 or (tasks[0].level != "graph" and len(graphs) > 1):
        raise ValueError(
            f"got select={name!r} with targets of the nodes of several graphs, or of edges, or of "
            "several levels, expected those of graphs, or of the nodes or the edges of one graph; "
            "use select='loss'"
        )


def _report_undefined(
    name: str, tasks: Sequence[Task], defined: Tensor, is_learned: Tensor, counted: Tensor
) -> None:
    """Warn of tasks that have no such metric; raise if a member learns no other."""
    names = [
        repr(task.name) for task, known in zip(tasks, defined.tolist(), strict=True) if not known
    ]
    if not names:
        return
    problem = (
        f"got a validation split where all known values of {', '.join(names)} are equal, so that "
        f"{METRICS[name].title} is not defined"
    )
    if bool((is_learned.any(1) & ~counted.any(1)).any()):
        raise ValueError(f"{problem}, expected a target with several; use select='loss'")
    if is_first():
        warnings.warn(f"{problem}; {name} is the mean over the other targets", stacklevel=2)
