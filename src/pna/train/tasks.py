"""Tasks: which targets are predicted, with which losses and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from pna.data.header import MOST_KINDS
from pna.names import lookup
from pna.nn.architectures import Prediction
from pna.train.metrics import METRICS


@dataclass(frozen=True)
class Loss:
    """A loss, and all that depends on it. No field has a default, so that none is forgotten."""

    error: Callable[[Tensor, Tensor], Tensor]  # predictions and targets (…) to (…)
    outputs: str  # of `OUTPUTS`: what the outputs of a model mean
    scaled: bool  # whether targets are divided by their scale; the error of a hit is then 0
    metrics: tuple[str, ...]  # shown besides the loss; names of `pna.train.metrics`

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise ValueError(
                f"got a loss with outputs {self.outputs!r}, expected one of {', '.join(OUTPUTS)}"
            )
        if odd := [name for name in self.metrics if name not in METRICS]:
            raise ValueError(f"got a loss with unknown metrics {', '.join(odd)}")
        if odd := [name for name in self.metrics if not METRICS[name].suits(self.outputs)]:
            raise ValueError(
                f"got a loss with outputs {self.outputs!r} and the metrics {', '.join(odd)}, "
                "expected metrics that take these outputs"
            )
        if not self.metrics:
            raise ValueError("got a loss without metrics, expected at least one to show")
        same = torch.tensor([-2.0, 0.0, 0.5, 3.0])
        if self.scaled and bool(self.error(same, same).any()):
            raise ValueError(
                "got a scaled loss whose error is not 0 where the target is met, expected 0: "
                "missing targets would be counted; declare it with scaled=False"
            )

    @property
    def classes(self) -> bool:
        """Whether targets are classes, with one output each."""
        return self.outputs == "classes"


#: What the outputs of a model mean: a number, the logit of a probability, or a score per class.
OUTPUTS = ("number", "probability", "classes")


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """(…, classes) and (…) to (…), with operations that vmap supports."""
    chosen = F.one_hot(target.long(), logits.shape[-1]).to(logits.dtype)
    return logits.logsumexp(-1) - (logits * chosen).sum(-1)


_OF_NUMBERS = ("rmse", "mae", "r2", "spearman", "mse", "log10_mse")

LOSSES = {
    "mse": Loss(lambda p, y: (p - y).square(), "number", True, _OF_NUMBERS),
    "mae": Loss(lambda p, y: (p - y).abs(), "number", True, _OF_NUMBERS),
    "mae_in_units": Loss(lambda p, y: (p - y).abs(), "number", False, _OF_NUMBERS),
    "huber": Loss(
        lambda p, y: F.smooth_l1_loss(p, y, reduction="none"), "number", True, _OF_NUMBERS
    ),
    "bce": Loss(
        lambda p, y: F.softplus(p) - p * y,
        "probability",
        False,
        ("roc_auc", "average_precision", "f1", "mcc", "accuracy", "balanced_accuracy"),
    ),
    "cross_entropy": Loss(
        _cross_entropy, "classes", False, ("accuracy", "balanced_accuracy", "f1", "mcc")
    ),
}


#: Sums of weights are at least this when they divide: a batch may have weights of 0 only.
LEAST = 1e-12

#: What targets belong to. Edges are the labelled edges of a graph set.
LEVELS = ("node", "graph", "edge")


@dataclass(frozen=True)
class Task:
    """One target: its level, its column, its loss and its outputs of the model."""

    name: str  # unique: that of the target, with its level in front if several levels have it
    level: str  # of `LEVELS`
    column: int  # in y_node, y_graph or y_edge
    loss: str  # of `LOSSES`
    first: int  # first of its outputs at that level
    outputs: int = 1  # number of outputs: one, or one per class
    scale: float = 1.0  # targets are divided by it; above 0
    weight: float = 1.0  # weight of its loss
    class_weights: tuple[float, ...] = ()  # of every class in the loss; default: 1 each

    def __post_init__(self) -> None:
        lookup("loss", self.loss, LOSSES)
        lookup("level", self.level, dict.fromkeys(LEVELS))
        if min(self.column, self.first) < 0 or self.outputs < 1:
            raise ValueError(
                f"got the task {self.name!r} in column {self.column}, with {self.outputs} outputs "
                f"from {self.first} on, expected numbers of at least 0, and an output"
            )
        if not 0 < self.scale < math.inf:
            raise ValueError(
                f"got the task {self.name!r} with a scale of {self.scale}, expected a finite "
                "number above 0"
            )
        if not 0 <= self.weight < math.inf:
            raise ValueError(
                f"got the task {self.name!r} with a weight of {self.weight}, expected a finite "
                "number of at least 0"
            )
        given = self.class_weights
        fits = len(given) == self.num_classes and all(0 <= weight < math.inf for weight in given)
        if given and not (fits and any(given)):
            expected = "none, because it is a number"
            if self.num_classes:
                expected = f"{self.num_classes}, one for each class: finite, at least 0, not all 0"
            raise ValueError(
                f"got the class weights {', '.join(f'{weight:g}' for weight in given)} for the "
                f"target {self.name!r}, expected {expected}"
            )

    @property
    def end(self) -> int:
        return self.first + self.outputs

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if the target is a number."""
        return {"number": 0, "probability": 2, "classes": self.outputs}[LOSSES[self.loss].outputs]


def is_binary(task: Task) -> bool:
    """Whether a task predicts the probability of class 1."""
    return LOSSES[task.loss].outputs == "probability"


def targets_by_name(graphs: GraphSet) -> dict[str, tuple[str, int]]:
    """Level and column of every target of a graph set.

    If targets of two levels have the same name, such as "0", they are called "node.0" and
    "graph.0".
    """
    by_level = {level: names_of(graphs, level) for level in LEVELS}
    every = [name for names in by_level.values() for name in names]
    found: dict[str, tuple[str, int]] = {}
    for level, names in by_level.items():
        for column, name in enumerate(names):
            own = f"{level}.{name}" if every.count(name) > 1 else name
            if own in found:
                raise ValueError(f"got two targets called {own!r}, expected one; rename the other")
            found[own] = (level, column)
    return found


def names_of(graphs: GraphSet, level: str) -> tuple[str, ...]:
    """Names of the targets of a level."""
    names: tuple[str, ...] = getattr(graphs, f"{level}_targets")
    return names


def column_of(graphs: GraphSet, level: str, column: int) -> Tensor:
    """The values of one target, (nodes,), (graphs,) or (labelled edges,)."""
    y: Tensor | None = getattr(graphs, f"y_{level}")
    assert y is not None
    return y[:, column]


def tasks_of(
    graphs: GraphSet,
    loss: str | Mapping[str, str] = "mse",
    weights: Mapping[str, float] | None = None,
    chosen: Sequence[str] | None = None,
) -> tuple[Task, ...]:
    """The tasks of a graph set: for all targets, or for those chosen.

    `loss` is one for all targets, or one for each by name. `weights` are 1 by default. Names are
    those of `targets_by_name`.
    """
    targets, weights = targets_by_name(graphs), weights or {}
    for given in (*(loss if isinstance(loss, Mapping) else ()), *weights, *(chosen or ())):
        lookup("target", given, targets)
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ValueError(
                f"got {weight} as the weight of the target {name!r}, expected a finite number of "
                "at least 0"
            )
    wanted = {name: t for name, t in targets.items() if chosen is None or name in chosen}
    if not wanted:
        raise ValueError("got graphs without targets, expected some in y_node, y_graph or y_edge")
    used = dict.fromkeys(LEVELS, 0)
    tasks = []
    for name, (level, column) in wanted.items():
        of_name = loss if isinstance(loss, str) else loss.get(name, "mse")
        kind = lookup("loss", of_name, LOSSES)
        outputs = _classes(name, column_of(graphs, level, column)) if kind.classes else 1
        scale = getattr(graphs, f"{level}_scale")[column] if kind.scaled else 1.0
        weight = weights.get(name, 1.0)
        tasks.append(Task(name, level, column, of_name, used[level], outputs, scale, weight))
        used[level] += outputs
    return tuple(tasks)


def _classes(name: str, y: Tensor) -> int:
    known = y[~y.isnan()] if y.is_floating_point() else y
    if len(known) == 0 or bool((known != known.round()).any()) or bool((known < 0).any()):
        raise ValueError(
            f"got target {name!r} for cross_entropy, expected classes 0, 1, 2, …; use another loss"
        )
    highest = int(known.max())
    if highest >= MOST_KINDS:
        raise ValueError(
            f"got class {highest} of target {name!r}, expected fewer than {MOST_KINDS:,} classes"
        )
    return highest + 1


def check_targets(tasks: Sequence[Task], graphs: GraphSet, where: str) -> None:
    """Raise unless every task has targets with a weight in these graphs, and its loss accepts them.

    `where` names the graphs in errors.
    """
    for task in tasks:
        y = column_of(graphs, task.level, task.column)
        if bool(y.isnan().all()):
            raise ValueError(
                f"got no value of the target {task.name!r} in {where}, all are missing (NaN), "
                "expected some; leave it out: list the other targets as tasks (--tasks)"
            )
        weights = sample_weights_of(graphs, task.level)
        if weights is not None and not bool((weights[~y.isnan()] > 0).any()):
            raise ValueError(
                f"got weights of 0 for all values of the target {task.name!r} in {where}, expected "
                "a sample_weight above 0 for some; give some of these graphs a weight (--weight)"
            )
        check_values(task, y, where)


def sample_weights_of(graphs: GraphSet, level: str) -> Tensor | None:
    """The weight of the graph of every row of a level; None without weights."""
    if graphs.sample_weight is None:
        return None
    if level == "edge":
        raise ValueError(
            "got a sample_weight of graphs for targets of edges, expected targets of graphs or "
            "nodes; leave the weights out"
        )
    if level == "graph":
        return graphs.sample_weight
    return torch.repeat_interleave(graphs.sample_weight, graphs.sizes.to(graphs.device))


def with_relative_weights(graphs: GraphSet) -> GraphSet:
    """Graphs whose largest weight is 1, as only ratios matter: equal weights leave losses as they
    are to the bit."""
    weights = graphs.sample_weight
    return graphs if weights is None else replace(graphs, sample_weight=weights / weights.max())


def check_values(task: Task, y: Tensor, where: str) -> None:
    """Raise unless the loss of a task accepts these targets; NaN is a missing target."""
    known = y[~y.isnan()]

    def refuse(odd: Tensor, expected: str) -> None:
        if bool(odd.any()):
            raise ValueError(
                f"got {known[odd][0].item():g} for the target {task.name!r} in {where}, expected "
                + expected
            )

    refuse(~known.isfinite(), "finite numbers, or NaN for a missing one; repair the graph set")
    if LOSSES[task.loss].classes:
        refuse(
            (known < 0) | (known != known.round()),
            "classes 0, 1, 2, …; repair the graph set, or train with another loss",
        )
        refuse(
            known >= task.outputs,
            f"0 to {task.outputs - 1}, the classes that the model has; leave those graphs out, or "
            "train with them",
        )
    elif LOSSES[task.loss].outputs == "probability":
        refuse(
            (known < 0) | (known > 1),
            f"numbers from 0 to 1 for {task.loss}; use another loss (--loss), such as mse",
        )


def check_apart(tasks: Sequence[Task]) -> None:
    """Raise unless tasks have different names, and their outputs are contiguous."""
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError("two of its tasks have the same name, expected different names")
    used = dict.fromkeys(LEVELS, 0)
    for task in tasks:
        if task.first != used[task.level]:
            raise ValueError(
                f"the task {task.name!r} has outputs from {task.first} on, expected "
                f"{used[task.level]}, after those of the task before"
            )
        used[task.level] = task.end


def outputs_of(tasks: Sequence[Task], level: str) -> int:
    """Number of outputs of a model for each node, graph or labelled edge."""
    return sum(task.outputs for task in tasks if task.level == level)


def sampled_level(tasks: Sequence[Task]) -> str:
    """The level of the seeds of sampled batches; raises if tasks have several levels."""
    level, *others = {task.level for task in tasks}
    if others:
        raise ValueError(
            "got sampled neighbours for targets of nodes and of edges, expected one of both; "
            "list the targets of one as tasks (--tasks)"
        )
    return level


@dataclass(frozen=True)
class BatchTargets:
    """Targets of tasks with the same level and loss; the value of a missing target is finite."""

    tasks: tuple[int, ...]  # their indices
    values: Tensor  # (rows, tasks)
    known: Tensor  # (rows, tasks) bool: not missing, and not padding
    weights: Tensor | None = None  # (rows, tasks): of the samples times those of the classes, 0 if
    # not known; None: 1 each


def are_complete(tasks: Sequence[Task], graphs: GraphSet) -> bool:
    """Whether no target of these graphs is missing."""
    columns = (column_of(graphs, task.level, task.column) for task in tasks)
    return all(bool(y.isfinite().all()) for y in columns)


def targets_of(
    tasks: Sequence[Task], batch: Batch, dtype: torch.dtype, complete: bool = False
) -> list[BatchTargets]:
    """The targets of a batch, divided by their scales.

    With `complete`, no target is missing, and none is searched for.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    for index, task in enumerate(tasks):
        alone = index if LOSSES[task.loss].classes else -1
        groups.setdefault((task.level, task.loss, alone), []).append(index)
    found = []
    for (level, _, _), indices in groups.items():
        y: Tensor | None = getattr(batch, f"y_{level}")
        assert y is not None
        values = _scaled(y, [tasks[index] for index in indices], dtype)
        # sets with labelled edges are not padded
        real = {"node": batch.real_nodes, "graph": batch.real, "edge": None}[level]
        if complete:
            all_real = values.new_ones(len(values), dtype=torch.bool) if real is None else real
            known = all_real[:, None].expand_as(values)
        else:
            known = ~values.isnan()
            known = known if real is None else known & real[:, None]
            values = torch.where(known, values, 0)
        weights = class_weights_of([tasks[index] for index in indices], values)
        of_samples = _sample_weights(batch, level, values)
        if of_samples is not None:
            weights = of_samples if weights is None else weights * of_samples
        weights = None if weights is None else weights * known
        found.append(BatchTargets(tuple(indices), values, known, weights))
    return found


def _sample_weights(batch: Batch, level: str, values: Tensor) -> Tensor | None:
    """The weight of the graph of every row, (rows, 1); None if all are 1."""
    weights = batch.sample_weight
    if weights is None or level == "edge":  # those of edges are refused
        return None
    of_rows = weights if level == "graph" else weights[batch.graph_of_node[: len(values)]]
    return of_rows.to(values.dtype)[:, None]


def class_weights_of(tasks: Sequence[Task], values: Tensor) -> Tensor | None:
    """The weight of the class of every target, from targets (rows, tasks); None if all are 1.

    A target between 0 and 1 has a weight in between. Only ratios matter, because sums of errors are
    divided by sums of weights. The smallest weight above 0 becomes 1, so that a sum is at least 1.
    """
    if not any(task.class_weights for task in tasks):
        return None
    columns = []
    for task, column in zip(tasks, values.unbind(1), strict=True):
        weights = task.class_weights or (1.0,) * task.num_classes
        least = min(weight for weight in weights if weight > 0)
        if LOSSES[task.loss].classes:
            found = torch.zeros_like(column)
            for index, weight in enumerate(weights):
                found = torch.where(column == index, weight / least, found)
        else:
            low, high = (weight / least for weight in weights)
            found = low + (high - low) * column
        columns.append(found)
    return torch.stack(columns, 1)


def _scaled(y: Tensor, tasks: Sequence[Task], dtype: torch.dtype) -> Tensor:
    """The scaled targets of these tasks, (rows, tasks)."""
    scales = [task.scale for task in tasks]
    values = _columns(y, [task.column for task in tasks]).to(dtype)
    if len({*scales}) == 1:
        return values if scales[0] == 1 else values / scales[0]
    return torch.stack([values[:, i] / scale for i, scale in enumerate(scales)], 1)


def count_targets(targets: Sequence[BatchTargets], tasks: int) -> Tensor:
    """Number of known targets of each task, (tasks,); the sum of their weights if there are any."""
    sums = [
        t.known.sum(0, dtype=t.values.dtype) if t.weights is None else t.weights.sum(0)
        for t in targets
    ]
    return _by_task(targets, sums, tasks)


def _by_task(targets: Sequence[BatchTargets], of_groups: Sequence[Tensor], tasks: int) -> Tensor:
    """Values per task, (tasks,), from those of every group."""
    if len(targets) == 1 and targets[0].tasks == tuple(range(tasks)):
        return of_groups[0]
    numbers: list[Tensor] = [torch.empty(0)] * tasks
    for target, group in zip(targets, of_groups, strict=True):
        for i, task_index in enumerate(target.tasks):
            numbers[task_index] = group[i]
    return torch.stack(numbers)


def summed_errors(
    tasks: Sequence[Task], prediction: Prediction, targets: Sequence[BatchTargets]
) -> Tensor:
    """The sum of the errors of every task over its known targets, (tasks,), each multiplied by the
    weights of its sample and its class."""
    sums = []
    for target in targets:
        first = tasks[target.tasks[0]]
        given = prediction.at(first.level)
        loss = LOSSES[first.loss]
        if loss.classes:
            outputs = given[:, None, first.first : first.end]
            outputs = torch.where(target.known[..., None], outputs, 0)
        else:
            outputs = _columns(given, [tasks[task_index].first for task_index in target.tasks])
            outputs = outputs.to(target.values.dtype)
            outputs = torch.where(target.known, outputs, target.values)  # no error, no gradient
        errors = loss.error(outputs.to(target.values.dtype), target.values)
        factors = target.known if target.weights is None else target.weights
        is_plain = loss.scaled and target.weights is None  # the error of a missing target is 0
        sums.append((errors if is_plain else errors * factors).sum(0))
    return _by_task(targets, sums, len(tasks))


def summed_losses(
    tasks: Sequence[Task], prediction: Prediction, targets: Sequence[BatchTargets], batch: Batch
) -> Tensor:
    """The sum of the errors of every task, (tasks,). If the model has a loss of its own, its sum
    over real graphs follows, (tasks + 1,)."""
    errors = summed_errors(tasks, prediction, targets)
    if prediction.own_loss is None:
        return errors
    own = prediction.own_loss.to(errors.dtype)
    own = own if batch.real is None else torch.where(batch.real, own, 0)
    return torch.cat([errors, own.sum()[None]])


def count_graphs(batch: Batch) -> Tensor:
    """Number of graphs without padding, () int64."""
    if batch.real is None:
        return batch.sizes.new_full((), batch.num_graphs)
    return batch.real.sum()


def _columns(values: Tensor, indices: list[int]) -> Tensor:
    """These columns; a view if they are adjacent."""
    first, count = indices[0], len(indices)
    if indices == list(range(first, first + count)):
        return values[:, first : first + count]
    return torch.stack([values[:, index] for index in indices], 1)
