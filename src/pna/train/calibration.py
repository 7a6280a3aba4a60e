"""Calibration rows of a run: predictions of a split that took no part in its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pna.data import tensor_file
from pna.data.download import sha256_of
from pna.train.conformal import Interval, check_level, fitted_interval
from pna.train.disk_errors import disk_errors
from pna.train.mask_columns import learners
from pna.train.run import BEST, Run, unusable
from pna.train.tasks import LOSSES, Task, is_binary
from pna.train.temperature import best_temperature

FILE = "calibration.safetensors"
_KIND, _VERSION = "pna.train.calibration", 1


class TaskCalibration(NamedTuple):
    """What calibration rows say about the predictions of a task."""

    interval: Interval | None = None
    temperature: float = 1.0  # of the mean probability of a binary task


@dataclass(frozen=True)
class CalibrationRows:
    """Predictions of each member in the units of the targets, and the targets."""

    members: list[int]  # their numbers in the run
    predictions: np.ndarray  # (tasks, members, rows); NaN for tasks of classes
    targets: np.ndarray  # (tasks, rows); NaN if unknown

    def save(self, run: Run) -> None:
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in _TENSORS}
        facts = {"members": self.members, "weights": sha256_of(run.folder / BEST)}
        with disk_errors(run.folder):
            tensor_file.write(
                run.folder / FILE, tensors, facts, kind=_KIND, version=_VERSION, force=True
            )

    @classmethod
    def of(cls, run: Run) -> CalibrationRows | None:
        """Those of a run; None if it has none for its present weights."""
        path = run.folder / FILE
        if not path.is_file():
            return None
        tensors, facts = tensor_file.read(path, kind=_KIND, version=_VERSION)
        if facts.get("weights") != sha256_of(run.folder / BEST):
            return None
        try:
            found = cls(facts["members"], *(tensors[name].numpy() for name in _TENSORS))
            count = (len(run.config.tasks), len(found.members), found.targets.shape[1])
            if found.predictions.shape != count or len(found.targets) != count[0]:
                raise ValueError("its tensors have other shapes")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise unusable(path, error) from error
        return found


_TENSORS = ("predictions", "targets")


def calibrations_of(
    run: Run, members: Sequence[int], interval: float | None
) -> list[TaskCalibration]:
    """The calibration of every task for the mean of some members, with intervals of a level."""
    config = run.config
    if interval is not None:
        check_level(interval)
    rows = CalibrationRows.of(run)
    if rows is None or not {*members} <= {*rows.members}:
        if interval is not None:
            raise _without_rows(run)
        return [TaskCalibration()] * len(config.tasks)
    of_members = [rows.members.index(member) for member in members]
    if interval is not None and not any(is_number(task) for task in config.tasks):
        raise ValueError(
            f"got --interval for {run.folder}, whose targets are classes or probabilities, "
            "expected a target that is a number; leave it out"
        )
    found = []
    for index, task in enumerate(config.tasks):
        given = rows.predictions[index, of_members][learners(config.settings, members, index)]
        mean, std, y = given.mean(0), given.std(0), rows.targets[index]
        bounds = None
        if interval is not None and is_number(task):
            bounds = fitted_interval(y, mean, std, interval, task.name)
        is_probability = task.level == "graph" and is_binary(task)
        temperature = best_temperature(mean, y) if is_probability else 1.0
        found.append(TaskCalibration(bounds, temperature))
    return found


def is_number(task: Task) -> bool:
    """Whether a task predicts a number of graphs, which may have an interval."""
    return task.level == "graph" and LOSSES[task.loss].outputs == "number"


def _without_rows(run: Run) -> ValueError:
    remedy = "train with a calibration split: pna train TABLE --calibration 0.1"
    if (run.folder / FILE).is_file():
        remedy = f"finish its training: pna train --resume {run.folder}"
    return ValueError(
        f"got --interval for {run.folder}, which has no calibration rows of its present weights, "
        f"expected some; {remedy}"
    )
