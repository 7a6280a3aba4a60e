"""Metrics of the predictions of one task, by member or of the members' mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pna.train.metrics import METRICS, by_class, measure
from pna.train.prediction import in_units
from pna.train.tasks import Task, is_binary


@dataclass(frozen=True)
class TaskPredictions:
    """Predictions of a task by some members, or by the mean of members."""

    task: Task
    given: np.ndarray  # as by `in_units`: (members, rows), or (members, rows, classes)
    order: np.ndarray  # of `given`, or logits: probabilities near 1 would be rounded to ties
    thresholds: list[float]  # by member: probabilities from which class 1 is predicted

    @classmethod
    def of(cls, task: Task, outputs: np.ndarray, thresholds: list[float]) -> TaskPredictions:
        """From the outputs (members, rows, outputs) of models at the level of a task."""
        given = in_units(task, outputs)
        order = outputs[..., task.first] if is_binary(task) else given
        return cls(task, given, order, thresholds)

    def mean(self, members: np.ndarray, threshold: float) -> TaskPredictions:
        """The mean prediction of some members (members,) bool, with a threshold of its own."""
        given = self.given[members].mean(0, keepdims=True)
        order = self.order[members] if members.sum() == 1 else given
        return replace(self, given=given, order=order, thresholds=[threshold])

    def metric(self, name: str, targets: np.ndarray, scaled: bool = False) -> list[float]:
        """A metric of each member, in the units of the targets (rows,).

        With `scaled`, or if the metric is one of scaled targets, the unit is their scale.
        """
        metric, given = METRICS[name], self.given
        if is_binary(self.task):
            given = self.order if "logit" in metric.takes else self._chosen()
        scale = self.task.scale if scaled or metric.scaled else 1.0
        return [measure(name, row / scale, targets / scale) for row in given]

    def by_class(self, targets: np.ndarray) -> list[dict[str, list[float]]]:
        """Metrics of every class, each with a number per member."""
        known = ~np.isnan(targets)
        wanted, given = targets[known], self.given[:, known]
        if is_binary(self.task):
            wanted, chosen = wanted > 0.5, self._chosen()[:, known]
            order = self.order[:, known]
            given = np.stack([-order, order], -1)
        else:
            chosen = given.argmax(-1)
        found = [by_class(*of_member, wanted) for of_member in zip(given, chosen, strict=True)]
        return [
            {name: [of_member[name][label] for of_member in found] for name in found[0]}
            for label in range(self.task.num_classes)
        ]

    def _chosen(self) -> np.ndarray:
        """1 where class 1 is predicted, else 0: metrics predict class 1 from 0.5 on."""
        least = np.array(self.thresholds)[:, None]
        return np.where(np.isnan(self.given), np.nan, self.given >= least)
