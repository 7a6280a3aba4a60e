"""Losses and metrics of the trained models of a run, by member and task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.data.edge_labels import message_edges
from pna.data.graphset import GraphSet
from pna.data.molecule_table import CALIBRATION
from pna.data.node_graph import KIND
from pna.data.tensor_file import kind_of
from pna.ops.aggregators import Aggregator
from pna.train.calibration import CalibrationRows, TaskCalibration, calibrations_of
from pna.train.loop import fingerprint
from pna.train.mask_columns import graph_for, graphs_of, learners
from pna.train.metrics import is_defined
from pna.train.prediction import Ensemble, in_units
from pna.train.run import Config, Run
from pna.train.settings import ALL
from pna.train.task_metrics import TaskPredictions
from pna.train.tasks import (
    LOSSES,
    Task,
    check_values,
    class_weights_of,
    column_of,
    is_binary,
    names_of,
    sample_weights_of,
)
from pna.train.temperature import calibration_error, log_loss, scaled
from pna.train.threshold import HALF, Thresholds, best_threshold, thresholds_of

_SCALED = ("mse", "mae")  # that the paper's experiments take of scaled targets


@dataclass(frozen=True)
class TaskScores:
    """Loss and metrics of one task, each with a number per member."""

    name: str
    level: str
    kind: str  # name of its loss
    loss: list[float]
    metrics: dict[str, list[float]]  # in the units of the target; "log10_mse": of scaled targets
    thresholds: list[float] | None = None  # probabilities from which class 1 is predicted
    class_1: str | None = None  # its name, if the classes have names
    classes: dict[str, dict[str, list[float]]] | None = None  # metrics by name of the class
    rows: int = 0  # known targets
    undefined: tuple[str, ...] = ()  # metrics that these targets do not have; means leave them out
    #: "mse" and "mae" of targets divided by their scale, as in the paper; none for classes.
    scaled: dict[str, list[float]] = field(default_factory=dict)
    #: Metrics of what `predict` gives: the mean prediction of the members. Not if they have a
    #: split each.
    ensemble: dict[str, float] = field(default_factory=dict)
    ensemble_threshold: float | None = None  # of the probabilities that `predict` gives
    #: Of these probabilities of class 1: "temperature", "log_loss" and "calibration_error".
    probabilities: dict[str, float] = field(default_factory=dict)
    ensemble_classes: dict[str, dict[str, float]] | None = None  # as `classes`


@dataclass(frozen=True)
class Evaluation:
    """Losses and metrics of the members of a run, and of their mean prediction, on some graphs.

    A mean over tasks leaves out those for which the metric is not defined, such as ROC AUC of one
    class. The metric "log10_mse" is the mean of the logarithms of the tasks, as in the paper;
    "log10_of_mean_mse" is the logarithm of their mean. Both are of scaled targets.
    """

    run: str
    split: str | None
    graphs: int
    members: list[int]  # those with a finite validation loss, or the chosen one
    best: int  # index in `members` of the one with the lowest validation loss in training
    tasks: list[TaskScores]
    loss: list[float]  # mean over the tasks with known targets, for each member
    metrics: dict[str, list[float]]  # means of the metrics that all of these tasks have
    #: Whether members have a split each. Of the targets of other splits they then have NaN.
    split_each: bool = False
    ensemble: dict[str, float] = field(default_factory=dict)  # means over the tasks
    benchmark: str = ""  # in the metadata of the graphs
    weighted: bool = False  # whether losses are weighted by `GraphSet.sample_weight`; no metric is

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    run: Run | str | Path,
    data: GraphSet | str | Path | None = None,
    split: str | None = "test",
    member: int | None = None,
    *,
    device: str | torch.device | None = None,
    epoch: str = "best",
    aggregators: Sequence[type[Aggregator]] = (),
    slice_nodes: int | None = None,
    per_class: bool = False,
) -> Evaluation:
    """Losses and metrics of the members of a run, and metrics of their mean prediction.

    A task without known targets gets NaN and a warning, and is left out of the means.

    Args:
        run: a run or its folder.
        data: a graph set or its file. Default: the graph set of the run.
        split: name of a split; None for all graphs.
        member: evaluate this member only. Default: all members.
        device: a device of torch. Default: a GPU if there is one.
        epoch: evaluate the weights of the "best" epoch, or of the "last" if the run kept them.
        aggregators: the classes of your own aggregators, if the models have any.
        slice_nodes: as for `predict`.
        per_class: also compute metrics of every class, `TaskScores.classes`.
    """
    run = run if isinstance(run, Run) else Run(run)
    models = Ensemble.of(run, member, device, epoch, aggregators)
    graphs = data if isinstance(data, GraphSet) else graphs_for(run, data)
    of_data = f" of {data}" if isinstance(data, str | Path) else ""
    seen = outputs_for(models, graphs, split, slice_nodes, of_data)
    return scores_of(run, seen, member, epoch, per_class)


@dataclass(frozen=True)
class SplitOutputs:
    """The graphs of a split, their targets, and what the members of a run give for them."""

    models: Ensemble
    split: str | None
    where: str  # the split in words
    graphs: GraphSet
    targets: list[np.ndarray]  # of each task, (rows,); NaN if unknown
    outputs: dict[str, np.ndarray]  # of `Ensemble.outputs`


def outputs_for(
    models: Ensemble,
    graphs: GraphSet,
    split: str | None,
    slice_nodes: int | None = None,
    of_data: str = "",
) -> SplitOutputs:
    """The outputs of models for a split, or for all graphs if it is None. `of_data` says of which
    file, for errors."""
    if split is not None and not graphs.has_splits:
        raise ValueError(
            f"got graphs without splits, expected a split {split!r}; evaluate all of them, with "
            "split=None or --split ''"
        )
    graphs = graphs if split is None else graphs.split(split)
    if len(graphs) == 0:
        raise ValueError("got no graphs, expected some to evaluate with")
    where = ("the graphs" if split is None else f"the split {split!r}") + of_data
    words = models.config.data.get("classes", {})
    targets = [_targets(task, graphs, where, words.get(task.name)) for task in models.config.tasks]
    seen = message_edges(graphs, models.config.settings.message_edges, split)
    return SplitOutputs(models, split, where, graphs, targets, models.outputs(seen, slice_nodes))


def scores_of(
    run: Run,
    seen: SplitOutputs,
    member: int | None = None,
    epoch: str = "best",
    per_class: bool = False,
) -> Evaluation:
    """Losses and metrics of outputs; other arguments as for `evaluate`."""
    models, split, graphs = seen.models, seen.split, seen.graphs
    targets, outputs = seen.targets, seen.outputs
    words = models.config.data.get("classes", {})
    missing = [bool(np.isnan(y).all()) for y in targets]
    _report_missing(models.config.tasks, missing, seen.where)
    scores, split_each = [], models.config.settings.mask_column == ALL
    calibrations = [TaskCalibration()] * len(targets)
    if epoch == "best":
        calibrations = calibrations_of(run, models.members, None)
    for index, (task, y) in enumerate(zip(models.config.tasks, targets, strict=True)):
        stored = Thresholds([HALF] * models.config.settings.members, HALF)
        if epoch == "best":  # thresholds were chosen with these weights
            stored = thresholds_of(run, task)
        thresholds = [stored.members[k] for k in models.members]
        given = TaskPredictions.of(task, outputs[task.level], thresholds)
        own = learners(models.config.settings, models.members, index)
        names = words.get(task.name)
        weights = sample_weights_of(graphs, task.level)
        found = _scores(given, outputs[task.level], y, weights)
        if names and is_binary(task):
            found = replace(found, class_1=names[1])
        if per_class:
            found = replace(found, classes=_of_classes(given, y, names))
        if split_each:  # others were trained with nodes that this split tests with
            found = _only(found, own)
        else:
            mean = given.mean(own, stored.mean if member is None else thresholds[0])
            found = _with_ensemble(found, mean, y, names)
            if is_binary(task):
                found = _with_probabilities(found, mean, y, calibrations[index].temperature)
        scores.append(found)
    known = [task for task, left_out in zip(scores, missing, strict=True) if not left_out]
    losses = np.array([task.loss for task in known])
    undefined = [task.undefined for task in known]
    ensemble = [{name: [value] for name, value in task.ensemble.items()} for task in known]
    return Evaluation(
        run=str(run.folder),
        split=split,
        graphs=len(graphs),
        members=models.members,
        best=int(np.argmin(models.validation)),
        tasks=scores,
        loss=_mean(losses, ~np.isnan(losses) if split_each else None),
        metrics=_means([task.metrics for task in known], undefined, split_each),
        split_each=split_each,
        ensemble={name: mean for name, (mean,) in _means(ensemble, undefined, False).items()},
        benchmark=graphs.metadata.get("benchmark", ""),
        weighted=graphs.sample_weight is not None,
    )


def graphs_for(run: Run, data: str | Path | None) -> GraphSet:
    """A graph set, or the one a run was trained on; raises if that has moved or changed."""
    config = run.config
    path = own_path(run, config) if data is None else Path(data)
    if data is not None:
        is_one_graph = kind_of(path) == KIND
        return graph_for(config, path)[1] if is_one_graph else GraphSet.load(path)
    graphs = graphs_of(path, config.settings.mask_column)
    if fingerprint(graphs) != config.data["fingerprint"]:
        raise ValueError(
            f"got {config.data['path']}, which has changed since {run.folder} was trained on it, "
            "expected the same graphs; pass the file to evaluate with it as it is now"
        )
    return graphs


def own_path(run: Run, config: Config) -> Path:
    """The file of the graphs that a run was started with."""
    path = config.data["path"]
    if path is None:
        raise ValueError(
            f"got {run.folder}, which was trained on graphs in memory, expected a file of them; "
            "pass them too"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"got {run.folder}, which was trained on {path}, but that is gone; pass the path where "
            "the file is now. The graphs of a table are made again by the same pna train, with "
            "the same options"
        )
    return Path(path)


def _targets(
    task: Task, graphs: GraphSet, where: str, classes: Sequence[str] | None = None
) -> np.ndarray:
    """The targets of a task by its name, (rows,): numbers, or indices in its classes."""
    names = names_of(graphs, task.level)
    columns = {name: column for column, name in enumerate(names)}
    # graphs with targets at one level do not have the level in their names
    own = task.name if task.name in columns else task.name.removeprefix(f"{task.level}.")
    if own not in columns:
        raise ValueError(
            f"got {where} without the {task.level} target {own!r}, which the run was trained for, "
            f"expected it among their targets: {', '.join(names) or 'none'}; evaluate with graphs "
            "that have it, or predict, which needs no targets"
        )
    y = column_of(graphs, task.level, columns[own])
    given = graphs.metadata.get("classes", {})
    given = given.get(own, given.get(f"{task.level}.{own}"))
    if given and classes and list(given) != list(classes):
        y = _renumbered(y, given, classes, f"{task.name} in {where}")
    check_values(task, y, where)
    return y.double().cpu().numpy()


def _renumbered(y: Tensor, given: Sequence[str], classes: Sequence[str], where: str) -> Tensor:
    """Indices in the given classes, NaN if missing, as indices in the classes of a run."""
    if unknown := [name for c, name in enumerate(given) if name not in classes and (y == c).any()]:
        raise ValueError(
            f"got {unknown[0]!r} as {where}, expected one of the classes of the run: "
            f"{', '.join(classes)}; leave these rows out, or train with them"
        )
    new = y.new_tensor([classes.index(name) if name in classes else math.nan for name in given])
    return torch.where(y.isnan(), y, new[y.nan_to_num().long()])


def _report_missing(tasks: tuple[Task, ...], missing: list[bool], where: str) -> None:
    """Warn of tasks without any known target; raise if there are no others."""
    if not any(missing):
        return
    names = ", ".join(
        repr(task.name) for task, is_missing in zip(tasks, missing, strict=True) if is_missing
    )
    problem = f"got no value of the target {names} in {where}, all are missing (NaN)"
    if all(missing):
        raise ValueError(f"{problem}, expected some; evaluate with graphs whose targets are known")
    warnings.warn(f"{problem}; means are over the other tasks", stacklevel=4)


def choose_thresholds(
    run: Run, config: Config, data: GraphSet, device: torch.device
) -> dict[str, Thresholds]:
    """The best thresholds of a run's binary tasks on its validation split, by name.

    Members that never had a finite validation loss have 0.5.
    """
    models = Ensemble.of(run, device=device, aggregators=config.model.own_aggregators)
    split, metric = config.data["splits"][1], config.settings.threshold
    graphs = data.split(split)
    outputs = models.outputs(message_edges(graphs, config.settings.message_edges, split))
    chosen = {}
    for index, task in enumerate(config.tasks):
        if not is_binary(task):
            continue
        own = learners(config.settings, models.members, index)
        y = column_of(graphs, task.level, task.column).double().cpu().numpy()
        given = in_units(task, outputs[task.level])
        members = [HALF] * config.settings.members
        for k, row in zip(models.members, given, strict=True):
            members[k] = best_threshold(row, y, metric)
        chosen[task.name] = Thresholds(members, best_threshold(given[own].mean(0), y, metric))
    return chosen


def calibration_rows(
    run: Run, config: Config, data: GraphSet, device: torch.device
) -> CalibrationRows | None:
    """The predictions of a run for its calibration split; None if it has none, or trained on it."""
    if CALIBRATION not in {*data.splits} - {*config.data["splits"]} or data.splits_inside:
        return None
    graphs = data.split(CALIBRATION)
    models = Ensemble.of(run, device=device, aggregators=config.model.own_aggregators)
    outputs = models.outputs(message_edges(graphs, config.settings.message_edges, CALIBRATION))
    shape = (len(config.tasks), len(models.members), len(graphs))
    predictions, targets = np.full(shape, np.nan), np.full((shape[0], shape[2]), np.nan)
    for index, task in enumerate(config.tasks):
        if task.level == "graph" and not LOSSES[task.loss].classes:
            predictions[index] = in_units(task, outputs["graph"])
            targets[index] = column_of(graphs, "graph", task.column).double().cpu().numpy()
    return CalibrationRows(models.members, predictions, targets)


def _of_classes(
    given: TaskPredictions, targets: np.ndarray, names: Sequence[str] | None
) -> dict[str, dict[str, list[float]]] | None:
    """Metrics of every class by its name, or its number; None if the target is a number."""
    classes = given.task.num_classes
    named = names or [str(label) for label in range(classes)]
    return dict(zip(named, given.by_class(targets), strict=True)) if classes else None


def _scores(
    given: TaskPredictions, outputs: np.ndarray, targets: np.ndarray, weights: Tensor | None
) -> TaskScores:
    """The scores of every member."""
    task, loss = given.task, LOSSES[given.task.loss]
    own = outputs[..., task.first : task.end]
    of_classes = task.outputs if loss.classes else 0
    return TaskScores(
        task.name,
        task.level,
        task.loss,
        [_loss(task, row if loss.classes else row[:, 0], targets / task.scale, weights)
         for row in own],
        {name: given.metric(name, targets) for name in loss.metrics},
        given.thresholds if is_binary(task) else None,
        rows=int((~np.isnan(targets)).sum()),
        undefined=tuple(n for n in loss.metrics if not is_defined(n, targets, of_classes)),
        scaled={name: given.metric(name, targets, scaled=True)
                for name in _SCALED if name in loss.metrics},
    )  # fmt: skip


def _with_ensemble(
    scores: TaskScores, mean: TaskPredictions, targets: np.ndarray, names: Sequence[str] | None
) -> TaskScores:
    """With the scores of the mean prediction, the same as those of members."""
    classes = None
    if scores.classes is not None:
        found = _of_classes(mean, targets, names) or {}
        classes = {
            label: {name: values[0] for name, values in of_class.items()}
            for label, of_class in found.items()
        }
    return replace(
        scores,
        ensemble={name: mean.metric(name, targets)[0] for name in scores.metrics},
        ensemble_classes=classes,
    )


def _with_probabilities(
    scores: TaskScores, mean: TaskPredictions, targets: np.ndarray, temperature: float
) -> TaskScores:
    """With the scores of the probabilities of class 1 that `predict` gives."""
    known = ~np.isnan(targets)
    given, wanted = scaled(mean.given[0], temperature)[known], targets[known]
    found = {"temperature": temperature}
    if known.any() and not np.isnan(given).any():
        found["log_loss"] = log_loss(given, wanted)
        found["calibration_error"] = calibration_error(given, wanted)
    threshold = float(scaled(np.array(mean.thresholds[0]), temperature))
    return replace(scores, probabilities=found, ensemble_threshold=threshold)


def _loss(task: Task, outputs: np.ndarray, targets: np.ndarray, of_samples: Tensor | None) -> float:
    """The mean loss over the known targets, weighted as in training; NaN without a weight."""
    known = ~np.isnan(targets)
    if not known.any():
        return float("nan")
    wanted = torch.from_numpy(targets[known])
    errors = LOSSES[task.loss].error(torch.from_numpy(outputs[known]), wanted)
    of_classes = class_weights_of([task], wanted[:, None])
    weights = torch.ones_like(wanted) if of_classes is None else of_classes[:, 0]
    if of_samples is not None:
        weights = weights * of_samples.cpu()[torch.from_numpy(known)]
    return float((errors * weights).sum() / weights.sum())


def _only(scores: TaskScores, members: np.ndarray) -> TaskScores:
    """The scores of some members, and NaN of all others."""

    def kept(values: list[float]) -> list[float]:
        return np.where(members, values, np.nan).tolist()

    metrics = {name: kept(values) for name, values in scores.metrics.items()}
    return replace(scores, loss=kept(scores.loss), metrics=metrics)


def _mean(values: np.ndarray, counted: np.ndarray | None = None) -> list[float]:
    """The mean (members,) over the tasks that count, of (tasks, members); NaN if none does."""
    counted = np.ones(values.shape, bool) if counted is None else counted
    with np.errstate(invalid="ignore"):
        found: list[float] = (np.where(counted, values, 0).sum(0) / counted.sum(0)).tolist()
    return found


def _means(
    metrics: list[dict[str, list[float]]], undefined: list[tuple[str, ...]], split_each: bool
) -> dict[str, list[float]]:
    """Means of the metrics that all tasks have, over the tasks for which each is defined; over
    those of its split if a member has one."""
    means = {}
    for name in metrics[0]:
        if not all(name in of_task for of_task in metrics):
            continue
        values = np.array([of_task[name] for of_task in metrics])
        defined = np.array([[name not in names] for names in undefined])
        counted = ~np.isnan(values) if split_each else np.broadcast_to(defined, values.shape)
        means[name] = _mean(values, counted)
        if name == "log10_mse":
            with np.errstate(divide="ignore"):
                means["log10_of_mean_mse"] = np.log10(_mean(10.0**values, counted)).tolist()
    return means
