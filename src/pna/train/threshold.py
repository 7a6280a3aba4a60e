"""The probability from which class 1 is predicted: 0.5, or the best one on validation."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from pna.stored import check
from pna.train.run import SUMMARY, Run, unusable
from pna.train.tasks import Task, is_binary

HALF = 0.5


class Thresholds(NamedTuple):
    """Thresholds of a task: one for each member of a run, and one for the members' mean."""

    members: list[float]
    mean: float


def best_threshold(probabilities: np.ndarray, targets: np.ndarray, metric: str) -> float:
    """The threshold with the largest metric, "f1" or "balanced_accuracy", from (rows,) each.

    It lies between two probabilities that occur. The one nearest to 0.5 is taken of several. It is
    0.5 if a prediction is NaN, or if the targets have one class.
    """
    known = ~np.isnan(targets)
    given, ones = probabilities[known], targets[known] > 0.5
    if np.isnan(given).any() or ones.all() or not ones.any():
        return HALF
    order = np.argsort(-given, kind="stable")
    ranked, hits = given[order], ones[order].cumsum()
    # equal probabilities have one threshold, after the last of them
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    hits, predicted, actual = hits[ends], ends + 1, int(ones.sum())
    if metric == "f1":
        scores = 2 * hits / (predicted + actual)
    else:
        scores = hits / actual - (predicted - hits) / (len(ones) - actual)
    below = np.append(ranked[ends[1:]], 0.0)
    found = ((ranked[ends] + below) / 2)[scores >= scores.max() - 1e-12]
    return float(found[np.abs(found - HALF).argmin()])


def thresholds_of(run: Run, task: Task) -> Thresholds:
    """The thresholds that a run stored for a task; 0.5 if it chose none."""
    count = run.config.settings.members
    usual = Thresholds([HALF] * count, HALF)
    if run.config.settings.threshold == "half" or not is_binary(task):
        return usual
    summary = run.summary
    if summary is None:
        warnings.warn(
            f"{run.folder} is not finished, and thresholds are chosen at the end: classes are "
            f"predicted from a probability of 0.5 on; finish it: pna train --resume {run.folder}",
            stacklevel=3,
        )
        return usual
    stored = summary.get("thresholds", {})
    try:
        check(stored, {task.name: dict}, "thresholds")
        check(stored[task.name], {"members": list[float], "mean": float}, task.name)
        if len(stored[task.name]["members"]) != count:
            raise ValueError(f"{task.name} has another number of members")
    except ValueError as error:
        raise unusable(run.folder / SUMMARY, error) from error
    return Thresholds(**stored[task.name])
