"""Metrics of every fold of a cross-validation, and their means and deviations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pna.data.folds import fold_of, labels
from pna.data.graphset import GraphSet
from pna.train.disk_errors import disk_errors
from pna.train.evaluation import Evaluation, evaluate, own_path
from pna.train.fold_runs import FoldParts, FoldRuns
from pna.train.loop import check_data
from pna.train.run import write_csv

TABLE = "folds.csv"
AVERAGE = "average"  # over the targets


@dataclass(frozen=True)
class FoldScores:
    """The evaluation of every fold. Metrics are those of the mean prediction of its members."""

    folder: str
    folds: list[FoldParts]
    evaluations: list[Evaluation]

    @property
    def targets(self) -> list[str]:
        """The targets, and `AVERAGE` if there are several."""
        names = [task.name for task in self.evaluations[0].tasks]
        return [*names, AVERAGE] if len(names) > 1 else names

    def values(self, target: str) -> dict[str, list[float]]:
        """The metrics of a target or of `AVERAGE`, with a number for each fold."""
        index = self.targets.index(target)
        found = [[*(task.ensemble for task in of.tasks), of.ensemble] for of in self.evaluations]
        return {name: [of[index][name] for of in found] for name in found[0][index]}

    def means(self, target: str) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation (of a sample) of each metric over the folds that have it."""
        found = {}
        for name, values in self.values(target).items():
            known = [value for value in values if not np.isnan(value)]
            with np.errstate(invalid="ignore"):
                std = float(np.std(known, ddof=1)) if len(known) > 1 else np.nan
            found[name] = (float(np.mean(known)) if known else np.nan, std)
        return found

    def save(self) -> None:
        """Write ``folds.csv``: a row for each fold and target, then the means and deviations."""
        metrics = list(
            dict.fromkeys(name for target in self.targets for name in self.means(target))
        )
        path = Path(self.folder) / TABLE
        with disk_errors(path.parent):
            write_csv(path, ["repeat", "fold", "target", "graphs", *metrics], self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        for target in self.targets:
            values = self.values(target)
            for k, fold in enumerate(self.folds):
                own = {"repeat": fold.repeat, "fold": fold.fold, "target": target}
                own["graphs"] = self.evaluations[k].graphs
                yield own | {name: _cell(of_folds[k]) for name, of_folds in values.items()}
        for index, word in enumerate(("mean", "std")):
            for target in self.targets:
                means = {name: _cell(pair[index]) for name, pair in self.means(target).items()}
                yield {"repeat": "", "fold": word, "target": target, "graphs": "", **means}

    def as_dict(self) -> dict[str, Any]:
        folds = [
            asdict(fold) | {"evaluation": found.as_dict()}
            for fold, found in zip(self.folds, self.evaluations, strict=True)
        ]
        pairs = {target: self.means(target) for target in self.targets}
        return {"folder": self.folder, "folds": folds} | {
            word: {t: {name: pair[index] for name, pair in of.items()} for t, of in pairs.items()}
            for index, word in enumerate(("mean", "std"))
        }


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.9g}"


def evaluate_folds(
    folder: str | Path,
    data: GraphSet | str | Path | None = None,
    split: str | None = "test",
    member: int | None = None,
    *,
    device: str | torch.device | None = None,
) -> FoldScores:
    """Metrics of every fold of a cross-validation.

    Args:
        folder: folder of the cross-validation, whose folds are finished.
        data: a graph set or its file. Default: the graph set of the cross-validation. If it has
            folds, they must be those of the cross-validation.
        split, member, device: as for `evaluate`. Each fold has its own splits.
    """
    found = FoldRuns.load(folder)
    found.check_finished()
    runs = found.runs
    if not isinstance(data, GraphSet):
        data = GraphSet.load(own_path(runs[0], runs[0].config) if data is None else data)
    evaluations = []
    for number, run in enumerate(runs):
        graphs = data
        if labels(data):
            graphs = fold_of(data, number)
            check_data(run.config, graphs, run)
        evaluations.append(evaluate(run, graphs, split, member, device=device))
    return FoldScores(str(found.folder), found.folds, evaluations)
