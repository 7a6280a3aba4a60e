"""Scores of trained populations, their statistics, and their file."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pna.names import lookup
from pna.train.metrics import METRICS
from pna.train.run import write_csv

Numbers = NDArray[np.float64]

BASELINE = "baseline"  # the name of predicting the mean of the training set
LEVEL = 0.95  # of confidence intervals
_RESAMPLES = 20_000
TOP = 5  # the paper reports the five members of ten with the least validation loss


@dataclass(frozen=True)
class Member:
    """One trained model of a population."""

    number: int
    seed: int
    lr: float
    weight_decay: float
    validation: float  # its least loss
    best_epoch: int


@dataclass(frozen=True)
class Estimate:
    """A mean over members, and its confidence interval."""

    mean: float
    half: float  # half the width of the interval; NaN for one member or infinite values
    values: tuple[float, ...]
    error: float = math.nan  # standard error of the mean, and its degrees of freedom
    freedom: float = math.nan
    level: float = LEVEL

    @classmethod
    def of(cls, values: Sequence[float] | Numbers, level: float = LEVEL) -> Estimate:
        """Of members that were not selected, or as if they were not."""
        known = np.asarray(values, dtype=np.float64)
        count = len(known)
        error = math.nan
        if count > 1 and np.isfinite(known).all():
            error = float(known.std(ddof=1)) / math.sqrt(count)
        return cls._with_error(known, error, count - 1, level)

    @classmethod
    def of_selected(cls, values: Numbers, top: int, level: float = LEVEL) -> Estimate:
        """Of the first `top` values, which were selected among all of them in this order.

        The standard error is that of a bootstrap of all members, which selects again in every
        resample.
        """
        count, error = len(values), math.nan
        if count > 1 and np.isfinite(values).all():
            error = math.sqrt(max(float(values @ _bootstrap(count, top) @ values), 0.0))
        return cls._with_error(np.asarray(values[:top]), error, count - 1, level)

    @classmethod
    def _with_error(cls, known: Numbers, error: float, freedom: int, level: float) -> Estimate:
        if not len(known):
            return cls(math.nan, math.nan, ())
        half = math.nan if math.isnan(error) else quantile(freedom, level) * error
        values = tuple(known.tolist())
        return cls(float(known.mean()), half, values, error, freedom, level)


@cache
def quantile(freedom: float, level: float) -> float:
    """How many standard errors half of a two-sided interval has, by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@cache
def _bootstrap(count: int, top: int) -> Numbers:
    """Covariance of the weights of members, in their order, in a mean of the first `top` of a
    resample. If all are taken, the error of the mean is exactly the usual one."""
    drawn = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
    first = np.sort(drawn, 1)[:, :top]
    weights = np.stack([(first == k).sum(1) for k in range(count)]) / top
    if top >= count:
        return (np.eye(count) - 1 / count) / (count * (count - 1))
    return np.cov(weights) * count / (count - 1)


@dataclass(frozen=True)
class ScoredPopulation:
    """Members of a population, and their errors: mean square ones, or what else was measured."""

    members: tuple[Member, ...]
    errors: Mapping[str, Numbers]  # by split: (members, tasks), NaN of a task not learned

    def kept(self, top: int | None) -> list[int]:
        """Indices of the `top` members with the least validation loss, the best first.

        If members learn one task each, the `top` members of every task.
        """
        learned = ~np.isnan(next(iter(self.errors.values())))
        order = sorted(range(len(self.members)), key=lambda k: self.members[k].validation)
        chosen: list[int] = []
        taken: dict[tuple[bool, ...], int] = {}
        for k in order:
            kind = tuple(learned[k].tolist())
            if math.isfinite(self.members[k].validation) and taken.get(kind, 0) < (top or math.inf):
                taken[kind] = taken.get(kind, 0) + 1
                chosen.append(k)
        return chosen


@dataclass(frozen=True)
class Scores:
    """Errors of every population of an experiment, and of predicting the mean.

    Statistics are of the `top` members by validation, or of all. `average` is the mean of the
    tasks' log10 errors, as in the paper's table; `overall` is log10 of the tasks' mean error, as
    in its box plots. With `ratio` both are above the baseline's.

    Intervals have a `level`. Those of the `top` members are Student's, as if these had not been
    selected; if `resampled`, they are of a bootstrap that repeats the selection.
    """

    tasks: tuple[str, ...]
    splits: tuple[str, ...]
    populations: Mapping[str, ScoredPopulation]
    baseline: Mapping[str, Numbers]  # by split: (tasks,)
    metric: str = "mse"  # of the errors
    level: float = LEVEL
    resampled: bool = False

    def by_setting(self, name: str, setting: str) -> dict[float, Estimate]:
        """log10 of the least validation loss of the members with each "lr" or "weight_decay"."""
        found = lookup("population", name, dict(self.populations))
        losses: dict[float, list[float]] = {}
        for member in found.members:
            own = float(getattr(member, setting))
            losses.setdefault(own, []).append(math.log10(member.validation))
        return {own: Estimate.of(values) for own, values in sorted(losses.items())}

    def mean(self, name: str, split: str, times: float = 1.0) -> Estimate:
        """Mean over all members of the mean error of the tasks that each learned, multiplied by
        `times`."""
        found = lookup("population", name, dict(self.populations))
        errors = found.errors[split][found.kept(None)]
        return Estimate.of(times * np.nanmean(errors, 1), self.level)

    def of_task(
        self, name: str, task: str, split: str, top: int | None = TOP, ratio: bool = False
    ) -> Estimate:
        """log10 of the mean square error of one task."""
        column = self.tasks.index(task)

        def measured(top: int | None) -> Numbers:
            found = lookup("population", name, dict(self.populations))
            values = found.errors[split][found.kept(top), column]
            return np.log10(values[~np.isnan(values)] / scale)

        scale = self.baseline[split][column] if ratio else 1.0
        return self._estimate(measured, top)

    def average(
        self, name: str, split: str, top: int | None = TOP, ratio: bool = False
    ) -> Estimate:
        above = self.baseline_average(split) if ratio else 0
        return self._estimate(
            lambda top: np.log10(self._complete_errors(name, split, top)).mean(1) - above, top
        )

    def overall(
        self, name: str, split: str, top: int | None = TOP, ratio: bool = False
    ) -> Estimate:
        above = self.baseline_overall(split) if ratio else 0
        return self._estimate(
            lambda top: np.log10(self._complete_errors(name, split, top).mean(1)) - above, top
        )

    def _estimate(self, measured: Callable[[int | None], Numbers], top: int | None) -> Estimate:
        """Estimate of the `top` members: `measured` gives values of so many, the best first."""
        if self.resampled and top is not None and len(every := measured(None)) > top:
            return Estimate.of_selected(every, top, self.level)
        return Estimate.of(measured(top), self.level)

    def baseline_average(self, split: str) -> float:
        return float(np.log10(self.baseline[split]).mean())

    def baseline_overall(self, split: str) -> float:
        return float(np.log10(self.baseline[split].mean()))

    def _complete_errors(self, name: str, split: str, top: int | None) -> Numbers:
        """Errors (members, tasks). If members learn one task each, the first row has the best
        member of every task, the second row the second best, and so on."""
        found = lookup("population", name, dict(self.populations))
        errors = found.errors[split][found.kept(top)]
        if not np.isnan(errors).any():
            return errors
        columns = [column[~np.isnan(column)] for column in errors.T]
        least = min(len(column) for column in columns)
        return np.stack([column[:least] for column in columns], 1)

    def save(self, path: Path) -> None:
        """Write CSV: a row for every member, split and task, and the baseline's."""
        rows: list[dict[str, Any]] = []
        for split in self.splits:
            for task, error in zip(self.tasks, self.baseline[split], strict=True):
                own: dict[str, Any] = {"population": BASELINE, "split": split, "task": task}
                rows.append(own | {self.metric: float(error)})
            for name in self.populations:
                rows += self._lines(name, split)
        write_csv(path, (*_COLUMNS, self.metric), rows)

    def digest(self, name: str) -> str:
        """A hash of a population's lines in the file, independent of their order."""
        lines = [json.dumps(line) for split in self.splits for line in self._lines(name, split)]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    def _lines(self, name: str, split: str) -> list[dict[str, Any]]:
        """Rows of a population on a split, as written to the file."""
        population = self.populations[name]
        lines = []
        for member, errors in zip(population.members, population.errors[split], strict=True):
            values = zip(_MEMBER.items(), vars(member).values(), strict=True)
            shared = {"population": name, **{column: kind(v) for (column, kind), v in values}}
            lines += [
                shared | {"split": split, "task": task, self.metric: float(error)}
                for task, error in zip(self.tasks, errors, strict=True)
                if not np.isnan(error)
            ]
        return lines

    @classmethod
    def load(cls, path: Path) -> Scores:
        """Read what `save` wrote."""
        again = "restore the file, or move the folder away and run pna reproduce again"
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            reader = csv.DictReader(file)
            try:
                rows = list(reader)
            except csv.Error as wrong:
                raise ValueError(
                    f"got {path}, line {reader.line_num}, which is no score ({wrong}); {again}"
                ) from wrong
        columns = list(rows[0]) if rows else []
        missing = set(_COLUMNS) - set(columns)
        metrics = [column for column in columns if column in METRICS]
        if missing or len(metrics) != 1:
            missing = missing or {"of one metric"}
            raise ValueError(
                f"got {path} without the columns {', '.join(sorted(missing))}, expected scores "
                f"that pna reproduce wrote; {again}"
            )
        members: dict[str, dict[int, Member]] = {}
        found = []  # population, number of the member, split, task and error of every line
        for line, row in enumerate(rows, 2):
            name, number = row["population"], 0
            try:
                if None in row or None in row.values():
                    raise ValueError("its number of cells is not that of the header")
                if name != BASELINE:
                    member = Member(*(kind(row[column]) for column, kind in _MEMBER.items()))
                    number = member.number
                    members.setdefault(name, {})[number] = member
                found.append((name, number, row["split"], row["task"], float(row[metrics[0]])))
            except (ValueError, TypeError) as wrong:
                raise ValueError(
                    f"got {path}, line {line}, which is no score ({wrong}); {again}"
                ) from wrong
        _, _, every_split, every_task, _ = zip(*found, strict=True)
        splits, tasks = tuple(dict.fromkeys(every_split)), tuple(dict.fromkeys(every_task))
        order = {BASELINE: [0], **{name: list(of_name) for name, of_name in members.items()}}
        errors = {
            name: {split: np.full((len(numbers), len(tasks)), np.nan) for split in splits}
            for name, numbers in order.items()
        }
        for name, number, split, task, error in found:
            errors[name][split][order[name].index(number), tasks.index(task)] = error
        populations = {
            n: ScoredPopulation(tuple(of.values()), errors[n]) for n, of in members.items()
        }
        baseline = {split: table[0] for split, table in errors[BASELINE].items()}
        return cls(tasks, splits, populations, baseline, metrics[0])


#: Columns of a member, in the order of its fields, and their types.
_MEMBER: dict[str, Callable[[Any], Any]] = {
    "member": int, "seed": int, "lr": float, "weight_decay": float, "validation": float,
    "best_epoch": int,
}  # fmt: skip
_COLUMNS = ("population", *_MEMBER, "split", "task")
