"""How good the trained models of a run are: losses and metrics, by member and task."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pna.data.graphset import GraphSet
from pna.ops.aggregators import Aggregator
from pna.train.loop import fingerprint
from pna.train.metrics import METRICS, measure
from pna.train.prediction import Models, in_units
from pna.train.run import Config, Run
from pna.train.tasks import LOSSES, Task, check_values, column_of


@dataclass(frozen=True)
class TaskScores:
    """Of one task: a number for each member."""

    name: str
    level: str
    kind: str  # name of its loss
    loss: list[float]
    metrics: dict[str, list[float]]  # of targets divided by their scale, but for "mae_in_units"


@dataclass(frozen=True)
class Evaluation:
    """Losses and metrics of the members of a run on some graphs.

    Among the metrics "log10_mse" is the mean of the tasks' logarithms, as the paper has it, and
    "log10_of_mean_mse" the logarithm of their mean.
    """

    run: str
    split: str | None
    graphs: int
    members: list[int]  # those that have ever been validated, or the one asked for
    best: int  # place among these of the one with the least loss in the run's own validation
    tasks: list[TaskScores]
    loss: list[float]  # mean over tasks with known targets, for each member
    metrics: dict[str, list[float]]  # means over these of what all have, for each member

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
) -> Evaluation:
    """Losses and metrics of a run's members.

    A task none of whose targets is known has NaN, is warned of, and left out of the means.

    Args:
        run: a run or its folder.
        data: a graph set or its file; that of the run if left out.
        split: which of its graphs; None for all.
        member: one alone.
        device: a GPU if there is one, if left out.
        epoch: the "best" of every member, or its "last", where the run was told to keep that.
        aggregators: classes of the aggregators of the models that are your own.
    """
    run = run if isinstance(run, Run) else Run(run)
    models = Models.of(run, member, device, epoch, aggregators)
    graphs = _own_data(run, models.config) if data is None else data
    graphs = graphs if isinstance(graphs, GraphSet) else GraphSet.load(graphs)
    if split is not None and graphs.split_of_graph is None:
        raise ValueError(
            f"got graphs without splits, expected a split {split!r}; evaluate all of them, with "
            "split=None or --split ''"
        )
    graphs = graphs if split is None else graphs.split(split)
    if len(graphs) == 0:
        raise ValueError("got no graphs, expected some to evaluate with")
    where = "the graphs" if split is None else f"the split {split!r}"
    where += f" of {data}" if isinstance(data, str | Path) else ""
    targets = [_targets(task, graphs, where) for task in models.config.tasks]
    missing = [bool(np.isnan(y).all()) for y in targets]
    _tell_of_missing(models.config.tasks, missing, where)
    node, graph = models.outputs(graphs)
    scores = [
        _scores(task, node if task.level == "node" else graph, y)
        for task, y in zip(models.config.tasks, targets, strict=True)
    ]
    known = [task for task, left_out in zip(scores, missing, strict=True) if not left_out]
    return Evaluation(
        run=str(run.folder),
        split=split,
        graphs=len(graphs),
        members=models.members,
        best=int(np.argmin(models.validation)),
        tasks=scores,
        loss=np.mean([task.loss for task in known], 0).tolist(),
        metrics=_means(known),
    )


def _own_data(run: Run, config: Config) -> GraphSet:
    """The set a run was trained on, if it is still where and what it was."""
    graphs = GraphSet.load(own_path(run, config))
    if fingerprint(graphs) != config.data["fingerprint"]:
        raise ValueError(
            f"got {config.data['path']}, which has changed since {run.folder} was trained on it, "
            "expected the same graphs; name the file to evaluate with it as it is"
        )
    return graphs


def own_path(run: Run, config: Config) -> Path:
    """The file of the graphs that a run was begun with."""
    path = config.data["path"]
    if path is None:
        raise ValueError(
            f"got {run.folder}, which was trained on graphs in memory, expected a file of them; "
            "pass them too"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"got {run.folder}, which was trained on {path}, but that is gone; say where the file "
            "is now"
        )
    return Path(path)


def _targets(task: Task, graphs: GraphSet, where: str) -> np.ndarray:
    """Of one task, (rows,), found by its name."""
    names = graphs.node_targets if task.level == "node" else graphs.graph_targets
    places = {name: place for place, name in enumerate(names)}
    # these graphs may have targets at one level only, whose names then need not say which
    own = task.name if task.name in places else task.name.removeprefix(f"{task.level}.")
    if own not in places:
        raise ValueError(
            f"got {where} without the {task.level} target {own!r}, which the run was trained for, "
            f"expected it among theirs: {', '.join(names) or 'none'}; evaluate with graphs that "
            "have it, or predict, which needs none"
        )
    y = column_of(graphs, task.level, places[own])
    check_values(task, y, where)
    return y.double().cpu().numpy()


def _tell_of_missing(tasks: tuple[Task, ...], missing: list[bool], where: str) -> None:
    """Warn of tasks without a single target; raise where there is no other."""
    if not any(missing):
        return
    names = ", ".join(repr(task.name) for task, is_so in zip(tasks, missing, strict=True) if is_so)
    said = f"got no value of the target {names} in {where}, all are missing (NaN)"
    if all(missing):
        raise ValueError(f"{said}, expected some; evaluate with graphs whose targets are known")
    warnings.warn(f"{said}; means are over the other tasks", stacklevel=3)


def _scores(task: Task, outputs: np.ndarray, targets: np.ndarray) -> TaskScores:
    loss = LOSSES[task.loss]
    meant, scaled = in_units(task, outputs), targets / task.scale
    own = outputs[..., task.first : task.end]
    found: dict[str, list[float]] = {}
    for name in loss.metrics:
        # of probabilities those near 1 are rounded, and so tied
        given = own[..., 0] if name == "roc_auc" else meant / task.scale
        found[name] = [measure(name, row, scaled) for row in given]
    if loss.scaled:
        found["mae_in_units"] = [measure("mae", row, targets) for row in meant]
    losses = [_loss(loss.error, row if loss.classes else row[:, 0], scaled) for row in own]
    return TaskScores(task.name, task.level, task.loss, losses, found)


def _loss(error: Callable[..., Any], outputs: np.ndarray, targets: np.ndarray) -> float:
    """As in training: the mean over the targets there are."""
    known = ~np.isnan(targets)
    if not known.any():
        return float("nan")
    return float(error(torch.from_numpy(outputs[known]), torch.from_numpy(targets[known])).mean())


def _means(scores: list[TaskScores]) -> dict[str, list[float]]:
    shared = [name for name in scores[0].metrics if all(name in s.metrics for s in scores)]
    shared = [name for name in shared if name in METRICS]  # units differ between tasks
    means = {name: np.mean([s.metrics[name] for s in scores], 0).tolist() for name in shared}
    if "mse" in means:
        with np.errstate(divide="ignore"):
            means["log10_of_mean_mse"] = np.log10(means["mse"]).tolist()
    return means
