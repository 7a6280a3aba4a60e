"""The results of one run: metrics on its splits, and predictions beside measured values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pna.data.graphset import GraphSet
from pna.data.molecule_table import CALIBRATION
from pna.train.calibration import CalibrationRows, TaskCalibration, calibrations_of
from pna.train.evaluation import Evaluation, SplitOutputs, graphs_for, outputs_for, scores_of
from pna.train.mask_columns import learners
from pna.train.prediction import Ensemble, MeanPrediction, in_units
from pna.train.run import Config, Run
from pna.train.settings import ALL
from pna.train.task_metrics import TaskPredictions
from pna.train.tasks import LOSSES, Task
from pna.train.threshold import thresholds_of

#: Shares of the rows that intervals shall cover, for which the covered share is computed.
LEVELS = tuple(k / 10 for k in range(1, 10))
_USUAL = 0.9  # level of intervals
_ALL = "all graphs"  # in place of the name of a split


@dataclass(frozen=True)
class TaskRows:
    """The known targets of a task in a split, and the predictions that `pna predict` gives."""

    task: Task
    classes: tuple[str, ...]  # their names; none for a number
    targets: np.ndarray  # (rows,) numbers, or indices of classes
    found: MeanPrediction
    order: np.ndarray  # (rows,) of probabilities: scores in the same order, without rounding
    uncalibrated: np.ndarray | None  # (rows,) probabilities without their temperature, if any
    threshold: float  # probability from which class 1 is predicted, before calibration
    covered: tuple[float, ...] = ()  # shares of the targets inside intervals of `LEVELS`

    @property
    def kind(self) -> str:
        """What the predictions are: one of `pna.train.tasks.OUTPUTS`."""
        return LOSSES[self.task.loss].outputs

    @property
    def predicts_one(self) -> np.ndarray:
        """Of a binary task, whether class 1 is predicted, (rows,) bool."""
        given = self.found.mean if self.uncalibrated is None else self.uncalibrated
        chosen: np.ndarray = given >= self.threshold
        return chosen


@dataclass(frozen=True)
class RunResults:
    """A run, its graphs, and what was computed with them."""

    run: Run
    config: Config
    graphs: GraphSet
    evaluations: dict[str, Evaluation]  # by the name of the split, test sets first
    rows: list[TaskRows]  # of the first split; none if members have a split each
    interval: float | None  # level of the intervals
    why_no_interval: str  # empty if nothing is wrong

    @classmethod
    def of(
        cls,
        run: Run | str | Path,
        data: GraphSet | str | Path | None = None,
        interval: float | None = None,
        device: str | None = None,
    ) -> RunResults:
        """Predict the validation and test splits of a run.

        Args:
            run: a run or its folder.
            data: its graphs, or their file. Default: the file that the run names.
            interval: level of prediction intervals. Default: 0.9, if the run has enough calibration
                rows.
            device: a device of torch. Default: a GPU if there is one.
        """
        run = run if isinstance(run, Run) else Run(run)
        models = Ensemble.of(run, device=device)
        config = models.config
        graphs = data if isinstance(data, GraphSet) else graphs_for(run, data)
        level, problem = _level(run, models.members, interval)
        calibrations = {k: calibrations_of(run, models.members, k) for k in _needed(level)}
        evaluations: dict[str, Evaluation] = {}
        rows: list[TaskRows] = []
        for split in _splits(graphs, config):
            seen = outputs_for(models, graphs, split)
            if all(np.isnan(y).all() for y in seen.targets):
                continue
            if not evaluations and config.settings.mask_column != ALL:
                rows = _task_rows(run, seen, level, calibrations)
            evaluations[split or _ALL] = scores_of(run, seen)
        if not evaluations:
            raise ValueError(
                f"got no known target in {', '.join(s or _ALL for s in _splits(graphs, config))} "
                f"for {run.folder}, expected some to compare predictions with; give graphs with "
                "targets (--data)"
            )
        return cls(run, config, graphs, evaluations, rows, level, problem)


def _splits(graphs: GraphSet, config: Config) -> list[str | None]:
    """Splits that are not trained on: "test", others, then that of validation; None without any."""
    if not graphs.has_splits:
        return [None]
    training, validation = config.data["splits"]
    names = [name for name in graphs.splits if name not in (training, validation, CALIBRATION)]
    names.sort(key=lambda name: name != "test")
    return [name for name in (*names, validation) if len(graphs.split(name))]


def _level(run: Run, members: Sequence[int], asked: float | None) -> tuple[float | None, str]:
    """The level of intervals, and why there is none."""
    if asked is not None or CalibrationRows.of(run) is None:
        return asked, ""
    try:
        calibrations_of(run, members, _USUAL)
    except ValueError as error:  # few rows, or no target that is a number
        return None, str(error)
    return _USUAL, ""


def _needed(level: float | None) -> set[float | None]:
    return {None} if level is None else {level, *LEVELS}


def _task_rows(
    run: Run,
    seen: SplitOutputs,
    level: float | None,
    calibrations: dict[float | None, list[TaskCalibration]],
) -> list[TaskRows]:
    models, config, found = seen.models, seen.models.config, []
    for index, (task, y) in enumerate(zip(config.tasks, seen.targets, strict=True)):
        known = ~np.isnan(y)
        own = learners(config.settings, models.members, index)
        outputs = seen.outputs[task.level][:, known]
        given = in_units(task, outputs)[own]
        stored = thresholds_of(run, task)
        raw = TaskPredictions.of(task, outputs, [*stored.members]).mean(own, stored.mean)
        mean = MeanPrediction.of(task, given, calibrations[level][index])
        is_scaled = calibrations[level][index].temperature != 1.0
        names = config.data.get("classes", {}).get(task.name)
        rows = TaskRows(
            task,
            tuple(names or map(str, range(task.num_classes))),
            y[known],
            mean,
            raw.order[0],
            raw.given[0] if is_scaled else None,
            stored.mean,
            _covered(task, y[known], given, [calibrations[k][index] for k in LEVELS])
            if mean.ends is not None
            else (),
        )
        found.append(rows)
    return found


def _covered(
    task: Task, targets: np.ndarray, given: np.ndarray, calibrations: list[TaskCalibration]
) -> tuple[float, ...]:
    shares = []
    for calibration in calibrations:
        ends = MeanPrediction.of(task, given, calibration).ends
        assert ends is not None
        shares.append(float(((ends[0] <= targets) & (targets <= ends[1])).mean()))
    return tuple(shares)
