"""Weights of classes in the loss: given, or balanced by how often each occurs in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from pna.data.graphset import GraphSet
from pna.names import lookup
from pna.train.tasks import Task, column_of


def with_class_weights(
    tasks: Sequence[Task],
    training: GraphSet,
    given: Mapping[str, tuple[float, ...]],
    balance: bool,
) -> tuple[Task, ...]:
    """Tasks with weights of their classes: `given` by name, and `balance` for all other classes.

    Balanced weights are rows / (classes · rows of the class), as in scikit-learn: all classes that
    occur in training count the same. A class that does not occur there has weight 1.
    """
    for name in given:
        lookup("target", name, {task.name: task for task in tasks})
    if balance and not any(task.num_classes for task in tasks):
        raise ValueError(
            "got balance_classes for targets that are numbers, expected classes; leave it out, or "
            "train with bce or cross_entropy"
        )
    found = []
    for task in tasks:
        if task.name in given:
            task = replace(task, class_weights=given[task.name])
        elif balance and task.num_classes:
            task = replace(task, class_weights=_balanced(task, training))
        found.append(task)
    return tuple(found)


def _balanced(task: Task, training: GraphSet) -> tuple[float, ...]:
    y = column_of(training, task.level, task.column)
    y = y[~y.isnan()]
    if bool((odd := y != y.round()).any()):
        raise ValueError(
            f"got {y[odd][0].item():g} for the target {task.name!r}, expected 0 or 1 to balance "
            "classes; give the weights of both instead (class_weights)"
        )
    counts = torch.bincount(y.long(), minlength=task.num_classes).tolist()
    occurring = sum(count > 0 for count in counts)
    return tuple(len(y) / (occurring * count) if count else 1.0 for count in counts)
