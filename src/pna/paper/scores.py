"""What trained populations were found to be worth, kept as a table of numbers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from pna.files import replacing
from pna.names import lookup
from pna.train.metrics import METRICS

Numbers = NDArray[np.float64]

BASELINE = "baseline"  # name of what predicts the mean of the training set
TOP = 5  # members that the paper reports, of ten: those with the least validation loss


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
    """A mean over members, and the interval that holds the true one with 95% confidence."""

    mean: float
    half: float  # of the interval's width; NaN of a single member, or where one is infinite
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float] | Numbers) -> Estimate:
        known = np.asarray(values, dtype=np.float64)
        count = len(known)
        if count == 0:
            return cls(math.nan, math.nan, ())
        half = math.nan
        if count > 1 and np.isfinite(known).all():
            error = float(known.std(ddof=1)) / math.sqrt(count)
            half = float(student.ppf(0.975, count - 1)) * error
        return cls(float(known.mean()), half, tuple(known.tolist()))


@dataclass(frozen=True)
class Population:
    """Members of a population, and their errors: mean square ones, or what else was measured."""

    members: tuple[Member, ...]
    errors: Mapping[str, Numbers]  # by split: (members, tasks), NaN of a task not learned

    def kept(self, top: int | None) -> list[int]:
        """Places of the members with the least validation loss, the best first.

        Of members that learn one task each, as many for every task.
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
    """

    tasks: tuple[str, ...]
    splits: tuple[str, ...]
    populations: Mapping[str, Population]
    baseline: Mapping[str, Numbers]  # by split: (tasks,)
    metric: str = "mse"  # which errors these are

    def by_setting(self, name: str, setting: str) -> dict[float, Estimate]:
        """log10 of the least validation loss of the members with each "lr" or "weight_decay"."""
        found = lookup("population", name, dict(self.populations))
        losses: dict[float, list[float]] = {}
        for member in found.members:
            own = float(getattr(member, setting))
            losses.setdefault(own, []).append(math.log10(member.validation))
        return {own: Estimate.of(values) for own, values in sorted(losses.items())}

    def mean(self, name: str, split: str, times: float = 1.0) -> Estimate:
        """Of the errors themselves, over all members and the mean of the tasks."""
        return Estimate.of(times * self._whole(name, split, None).mean(1))

    def of_task(self, name: str, task: str, split: str, top: int | None = TOP) -> Estimate:
        """log10 of the mean square error of one task."""
        found = lookup("population", name, dict(self.populations))
        column = self.tasks.index(task)
        values = found.errors[split][found.kept(top), column]
        return Estimate.of(np.log10(values[~np.isnan(values)]))

    def average(
        self, name: str, split: str, top: int | None = TOP, ratio: bool = False
    ) -> Estimate:
        values = np.log10(self._whole(name, split, top)).mean(1)
        return Estimate.of(values - (self.baseline_average(split) if ratio else 0))

    def overall(
        self, name: str, split: str, top: int | None = TOP, ratio: bool = False
    ) -> Estimate:
        values = np.log10(self._whole(name, split, top).mean(1))
        return Estimate.of(values - (self.baseline_overall(split) if ratio else 0))

    def baseline_average(self, split: str) -> float:
        return float(np.log10(self.baseline[split]).mean())

    def baseline_overall(self, split: str) -> float:
        return float(np.log10(self.baseline[split].mean()))

    def _whole(self, name: str, split: str, top: int | None) -> Numbers:
        """Errors (members, tasks) of members that learn all tasks; of others, the best of every
        task are put together as one, then the second best, and so on."""
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
        with replacing(path) as file:
            writer = csv.DictWriter(file, (*_COLUMNS, self.metric), restval="")
            writer.writeheader()
            writer.writerows(rows)

    def digest(self, name: str) -> str:
        """A hash of a population's lines in the file, in whatever order they are."""
        lines = [json.dumps(line) for split in self.splits for line in self._lines(name, split)]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

    def _lines(self, name: str, split: str) -> list[dict[str, Any]]:
        """What is written of a population on a split."""
        population = self.populations[name]
        lines = []
        for member, errors in zip(population.members, population.errors[split], strict=True):
            held = {
                "population": name, "member": member.number, "seed": member.seed,
                "lr": float(member.lr), "weight_decay": float(member.weight_decay),
                "validation": float(member.validation), "best_epoch": member.best_epoch,
                "split": split,
            }  # fmt: skip
            lines += [
                held | {"task": task, self.metric: float(error)}
                for task, error in zip(self.tasks, errors, strict=True)
                if not np.isnan(error)
            ]
        return lines

    @classmethod
    def load(cls, path: Path) -> Scores:
        """What `save` wrote."""
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
        for line, row in enumerate(rows, 2):
            if None in row or None in row.values():
                raise ValueError(
                    f"got {path}, line {line}, which has another number of cells than the header, "
                    f"expected scores that pna reproduce wrote; {again}"
                )
        tasks = tuple(dict.fromkeys(row["task"] for row in rows))
        splits = tuple(dict.fromkeys(row["split"] for row in rows))
        names = [n for n in dict.fromkeys(row["population"] for row in rows) if n != BASELINE]
        baseline = {split: np.full(len(tasks), np.nan) for split in splits}
        members: dict[str, dict[int, Member]] = {name: {} for name in names}
        found: dict[str, list[tuple[int, str, int, float]]] = {name: [] for name in names}
        for line, row in enumerate(rows, 2):
            name, split, task = row["population"], row["split"], tasks.index(row["task"])
            try:
                error = float(row[metrics[0]])
                if name == BASELINE:
                    baseline[split][task] = error
                    continue
                member = Member(
                    int(row["member"]), int(row["seed"]), float(row["lr"]),
                    float(row["weight_decay"]), float(row["validation"]), int(row["best_epoch"]),
                )  # fmt: skip
            except (ValueError, TypeError) as wrong:
                raise ValueError(
                    f"got {path}, line {line}, which is no score ({wrong}); {again}"
                ) from wrong
            members[name][member.number] = member
            found[name].append((member.number, split, task, error))
        populations = {}
        for name in names:
            places = {number: place for place, number in enumerate(members[name])}
            errors = {split: np.full((len(places), len(tasks)), np.nan) for split in splits}
            for number, split, task, error in found[name]:
                errors[split][places[number], task] = error
            populations[name] = Population(tuple(members[name].values()), errors)
        return cls(tasks, splits, populations, baseline, metrics[0])


_COLUMNS = ("population", "member", "seed", "lr", "weight_decay", "validation", "best_epoch",
            "split", "task")  # fmt: skip
