"""Losses and metrics of the trained models of a run, by member and task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pna.data.edge_labels import message_edges
from pna.data.graphset import GraphSet
from pna.data.node_graph import KIND
from pna.data.tensor_file import kind_of
from pna.ops.aggregators import Aggregator
from pna.train.loop import fingerprint
from pna.train.mask_columns import graph_for, graphs_of, learners
from pna.train.metrics import METRICS, by_class, measure
from pna.train.prediction import Ensemble, in_units
from pna.train.run import Config, Run
from pna.train.settings import ALL
from pna.train.tasks import (
    LOSSES,
    Task,
    check_values,
    class_weights_of,
    column_of,
    is_binary,
    names_of,
)
from pna.train.threshold import HALF, Thresholds, best_threshold, thresholds_of


@dataclass(frozen=True)
class TaskScores:
    """Loss and metrics of one task, each with a number per member."""

    name: str
    level: str
    kind: str  # name of its loss
    loss: list[float]
    metrics: dict[str, list[float]]  # of scaled targets, except "mae_in_units"
    thresholds: list[float] | None = None  # probabilities from which class 1 is predicted
    class_1: str | None = None  # its name, if the classes have names
    classes: dict[str, dict[str, list[float]]] | None = None  # metrics by name of the class
    rows: int = 0  # known targets


@dataclass(frozen=True)
class Evaluation:
    """Losses and metrics of the members of a run on some graphs.

    The metric "log10_mse" is the mean of the logarithms of the tasks, as in the paper;
    "log10_of_mean_mse" is the logarithm of their mean.
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
    """Losses and metrics of the members of a run.

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
    graphs = data if isinstance(data, GraphSet) else _load(run, data)
    if split is not None and not graphs.has_splits:
        raise ValueError(
            f"got graphs without splits, expected a split {split!r}; evaluate all of them, with "
            "split=None or --split ''"
        )
    graphs = graphs if split is None else graphs.split(split)
    if len(graphs) == 0:
        raise ValueError("got no graphs, expected some to evaluate with")
    where = "the graphs" if split is None else f"the split {split!r}"
    where += f" of {data}" if isinstance(data, str | Path) else ""
    words = models.config.data.get("classes", {})
    targets = [_targets(task, graphs, where, words.get(task.name)) for task in models.config.tasks]
    missing = [bool(np.isnan(y).all()) for y in targets]
    _report_missing(models.config.tasks, missing, where)
    seen = message_edges(graphs, models.config.settings.message_edges, split)
    outputs = models.outputs(seen, slice_nodes)
    scores, settings = [], models.config.settings
    split_each = settings.mask_column == ALL
    for index, (task, y) in enumerate(zip(models.config.tasks, targets, strict=True)):
        stored = [HALF] * models.config.settings.members
        if epoch == "best":  # thresholds were chosen with these weights
            stored = thresholds_of(run, task).members
        thresholds = [stored[k] for k in models.members]
        rows = int((~np.isnan(y)).sum())
        found = replace(_scores(task, outputs[task.level], y, thresholds), rows=rows)
        named = words.get(task.name)
        if named and found.thresholds is not None:
            found = replace(found, class_1=named[1])
        if per_class and task.num_classes:
            named = named or [str(label) for label in range(task.num_classes)]
            by_name = _of_classes(task, outputs[task.level], y, thresholds)
            found = replace(found, classes=dict(zip(named, by_name, strict=True)))
        if split_each:  # others were trained with nodes that this split tests with
            found = _only(found, learners(settings, models.members, index))
        scores.append(found)
    known = [task for task, left_out in zip(scores, missing, strict=True) if not left_out]
    return Evaluation(
        run=str(run.folder),
        split=split,
        graphs=len(graphs),
        members=models.members,
        best=int(np.argmin(models.validation)),
        tasks=scores,
        loss=_mean([task.loss for task in known], split_each),
        metrics=_means(known, split_each),
        split_each=split_each,
    )


def _load(run: Run, data: str | Path | None) -> GraphSet:
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
            "the file is now"
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
    warnings.warn(f"{problem}; means are over the other tasks", stacklevel=3)


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


def _of_classes(
    task: Task, outputs: np.ndarray, targets: np.ndarray, thresholds: list[float]
) -> list[dict[str, list[float]]]:
    """Metrics of every class, each with a number per member."""
    known = ~np.isnan(targets)
    wanted, given = targets[known], in_units(task, outputs)[:, known]
    if is_binary(task):
        wanted, chosen = wanted > 0.5, given >= np.array(thresholds)[:, None]
        own = outputs[:, known, task.first]
        given = np.stack([-own, own], -1)  # probabilities near 1 would be rounded to ties
    else:
        chosen = given.argmax(-1)
    found = [by_class(*of_member, wanted) for of_member in zip(given, chosen, strict=True)]
    return [
        {name: [of_member[name][label] for of_member in found] for name in found[0]}
        for label in range(task.num_classes)
    ]


def _scores(
    task: Task, outputs: np.ndarray, targets: np.ndarray, thresholds: list[float]
) -> TaskScores:
    loss = LOSSES[task.loss]
    meant, scaled = in_units(task, outputs), targets / task.scale
    own = outputs[..., task.first : task.end]
    found: dict[str, list[float]] = {}
    for name in loss.metrics:
        # logits: probabilities near 1 would be rounded to ties
        by_logit = "logit" in METRICS[name].takes and not loss.classes
        given = own[..., 0] if by_logit else meant / task.scale
        if is_binary(task) and not by_logit:  # metrics predict class 1 from 0.5 on
            least = np.array(thresholds)[:, None]
            given = np.where(np.isnan(given), np.nan, given >= least)
        found[name] = [measure(name, row, scaled) for row in given]
    if loss.scaled:
        found["mae_in_units"] = [measure("mae", row, targets) for row in meant]
    losses = [_loss(task, row if loss.classes else row[:, 0], scaled) for row in own]
    shown = thresholds if is_binary(task) else None
    return TaskScores(task.name, task.level, task.loss, losses, found, shown)


def _loss(task: Task, outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean loss over the known targets, as in training."""
    known = ~np.isnan(targets)
    if not known.any():
        return float("nan")
    wanted = torch.from_numpy(targets[known])
    errors = LOSSES[task.loss].error(torch.from_numpy(outputs[known]), wanted)
    weights = class_weights_of([task], wanted[:, None])
    if weights is None:
        return float(errors.mean())
    return float((errors * weights[:, 0]).sum() / weights.sum())


def _only(scores: TaskScores, members: np.ndarray) -> TaskScores:
    """The scores of some members, and NaN of all others."""

    def kept(values: list[float]) -> list[float]:
        return np.where(members, values, np.nan).tolist()

    metrics = {name: kept(values) for name, values in scores.metrics.items()}
    return replace(scores, loss=kept(scores.loss), metrics=metrics)


def _mean(values: list[list[float]], split_each: bool) -> list[float]:
    """The mean over the tasks, of each member; over those of its split if it has one."""
    given = np.array(values)
    counted = ~np.isnan(given) if split_each else np.ones_like(given, bool)
    with np.errstate(invalid="ignore"):  # NaN if there is none
        found: list[float] = (np.where(counted, given, 0).sum(0) / counted.sum(0)).tolist()
    return found


def _means(scores: list[TaskScores], split_each: bool) -> dict[str, list[float]]:
    shared = [name for name in scores[0].metrics if all(name in s.metrics for s in scores)]
    shared = [name for name in shared if name in METRICS]  # units differ between tasks
    means = {name: _mean([s.metrics[name] for s in scores], split_each) for name in shared}
    if "mse" in means:
        with np.errstate(divide="ignore"):
            means["log10_of_mean_mse"] = np.log10(means["mse"]).tolist()
    return means
