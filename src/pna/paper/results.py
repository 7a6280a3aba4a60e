"""A folder of results: scores, losses and facts of every population that was trained and tested."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pna.files import alone
from pna.paper.experiment import Experiment
from pna.paper.scores import Numbers, ScoredPopulation, Scores
from pna.stored import check, read_json, shown
from pna.train.run import write_csv, write_json

SCORES, FACTS, CURVES = "scores.csv", "facts.json", "curves.csv"
NOT_RECORDED = "not recorded"  # what older facts do not say
_COUNTS = ("epoch", "members")
_LOSSES = (*_COUNTS, "training", "validation")  # columns of curves


@dataclass(frozen=True)
class ScoredRow:
    """A population that was trained and tested, and what it took."""

    population: ScoredPopulation
    facts: dict[str, Any]
    curve: list[dict[str, float]]  # of every epoch that was logged: mean losses of the members


@dataclass(frozen=True)
class ResultsFolder:
    """Rows of one experiment, of one kind of graphs and training, in a folder."""

    folder: Path
    experiment: Experiment
    about: Mapping[str, Any]  # shared by all rows: experiment, protocol, recipe, quick
    rows: dict[str, ScoredRow]
    own: set[str] = field(default_factory=set)  # rows added by this process

    @classmethod
    def open(cls, folder: Path, experiment: Experiment, about: Mapping[str, Any]) -> ResultsFolder:
        """With the rows that the folder has; a folder of another experiment is refused."""
        return cls(folder, experiment, about, _rows(folder, experiment, about))

    def check(self, baseline: Mapping[str, Numbers]) -> None:
        """Raise if the folder has rows tested on other graphs, which have another error of
        predicting the mean."""
        if not self.rows:
            return
        before = Scores.load(self.folder / SCORES).baseline
        if any(not np.allclose(before[split], baseline[split], rtol=1e-6) for split in baseline):
            raise ValueError(
                f"got {self.folder}, whose rows are of other graphs than there are now: predicting "
                "the mean has another error; move the results away, or bring back their graphs"
            )

    def has(self, name: str, run: str, settings: Mapping[str, Any] | None = None) -> bool:
        """Whether there is a row of this name and of this run. Rows that do not name their run,
        which are older, are those of the same `settings`."""
        if name not in self.rows:
            return False
        facts = self.rows[name].facts
        if "run" in facts or settings is None:
            return bool(facts.get("run") == run)
        wanted, stored = json.loads(json.dumps(settings)), facts.get("settings", {})
        return bool(stored) and all(wanted.get(n, value) == value for n, value in stored.items())

    def add(self, name: str, row: ScoredRow) -> None:
        """Add a row, or replace the one of the same name."""
        self.rows[name] = row
        self.own.add(name)

    def save(
        self,
        tasks: tuple[str, ...],
        baseline: Mapping[str, Numbers],
        took: Mapping[str, Any] | None = None,
    ) -> Scores:
        """Write all rows in the experiment's order, including rows that another process has
        written in the meantime; `took` is the time of all of them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone(self.folder):
            there = _rows(self.folder, self.experiment, self.about)
            self.rows.update({name: row for name, row in there.items() if name not in self.own})
            names = [v.name for v in self.experiment.variants if v.name in self.rows]
            rows = {name: self.rows[name] for name in names}
            scores = Scores(
                tasks,
                tuple(self.experiment.measured),
                {name: row.population for name, row in rows.items()},
                baseline,
                self.experiment.metric,
            )
            of_rows = {n: row.facts | {"scores": scores.digest(n)} for n, row in rows.items()}
            facts = {**self.about, "populations": of_rows}
            if took is not None:
                facts["took"] = took
            # Scores last: an interrupted save leaves facts without scores, which `agrees`
            # detects, and never scores without facts.
            curves = ({"population": name, **at} for name, row in rows.items() for at in row.curve)
            write_csv(self.folder / CURVES, ("population", *_LOSSES), curves)
            write_json(self.folder / FACTS, facts, indent=1)
            scores.save(self.folder / SCORES)
        return scores


def _rows(folder: Path, experiment: Experiment, about: Mapping[str, Any]) -> dict[str, ScoredRow]:
    """Rows of a folder of the same experiment; none if it was never finished."""
    if not (folder / SCORES).is_file():
        return {}
    if not (folder / FACTS).is_file():
        raise FileNotFoundError(
            f"got {folder / SCORES} without {FACTS} beside it, expected both, so that its rows are "
            "not lost; restore the file, or move the folder away"
        )
    scores, facts = load(folder)
    known = {name: facts[name] for name in about}
    where = {"evaluated on": facts.get("evaluated on")}  # once stored for all rows together
    curves = load_curves(folder / CURVES)
    rows = {
        name: ScoredRow(population, where | facts["populations"][name], curves.get(name, []))
        for name, population in scores.populations.items()
        if agrees(scores, facts, name)  # else the save was interrupted
    }
    if known != dict(about) or scores.splits != tuple(experiment.measured):
        raise ValueError(
            f"got {folder}, which has results of {_described(known)}, expected some of "
            f"{_described(about)} to add to; move them away, or choose another folder"
        )
    return rows


def recorded(populations: Iterable[Mapping[str, Any]], *names: str) -> str:
    """What the facts of populations say of each start and resume of their training: the first of
    some fields that it has, such as "gpu" and "cpu"; all different values."""
    first = [facts.get("environment", {}) for facts in populations]
    starts = [start for one in first for start in (one, *one.get("resumed", []))]
    values = {next((str(s[n]) for n in names if s.get(n)), NOT_RECORDED) for s in starts}
    return ", ".join(sorted(values))


def _described(about: Mapping[str, Any]) -> str:
    quick = ", quick" if about["quick"] else ""
    return f"{about['experiment']} ({about['protocol']}, {about['recipe']}{quick})"


def load_curves(path: Path) -> dict[str, list[dict[str, float]]]:
    """Losses by epoch of every population, from ``curves.csv``; none if there is no file."""
    curves: dict[str, list[dict[str, float]]] = {}
    if not path.is_file():
        return curves
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        try:
            for row in reader:
                losses = {name: float(row[name]) for name in _LOSSES}
                losses |= {name: int(losses[name]) for name in _COUNTS}
                curves.setdefault(row["population"], []).append(losses)
        except (KeyError, TypeError, ValueError, OverflowError, csv.Error) as error:
            raise ValueError(
                f"got {path}, line {max(reader.line_num, 1)}, which is no row of losses ({error}), "
                "expected what pna reproduce wrote; remove the file, and there are no curves"
            ) from error
    return curves


def load(folder: Path, complete: bool = False) -> tuple[Scores, dict[str, Any]]:
    """Scores and facts of a folder that `pna reproduce` wrote.

    Fields that are shown, but not needed to add rows, may be missing unless it must be `complete`.
    """
    if not (folder / SCORES).is_file() or not (folder / FACTS).is_file():
        raise FileNotFoundError(
            f"got {folder}, which has no {SCORES} and {FACTS}, expected results of pna reproduce"
        )
    try:
        facts = read_json(folder / FACTS)
        check(facts, _FACTS)
        if complete and "took" in facts:
            check(facts["took"], _TOOK, "took")
        for name, population in facts["populations"].items():
            _check_facts(
                name, population, [k for k in _OF_POPULATION if complete or k in population]
            )
    except ValueError as error:
        raise ValueError(
            f"got {folder / FACTS}, which cannot be read ({error}), expected facts that pna "
            "reproduce wrote; restore the file, or move the folder away and run pna reproduce again"
        ) from error
    return Scores.load(folder / SCORES), facts


def load_for_choice(folder: Path) -> tuple[Scores, set[str]]:
    """Scores of a folder, and the populations of which a member broke."""
    scores, facts = load(folder)
    return scores, broken_in(facts)


def broken_in(facts: Mapping[str, Any]) -> set[str]:
    """The populations of which a member broke. Those of which all did have no scores."""
    populations = facts["populations"].items()
    return {name for name, found in populations if any(found.get("broken", ()))}


def _check_facts(name: str, facts: dict[str, Any], needed: Iterable[str]) -> None:
    what = f"the population {shown(name)}"
    check(facts, {known: _OF_POPULATION[known] for known in needed}, what)
    if "settings" in needed:
        check(facts["settings"], {"epochs": int}, f"the settings of {what}")
    resumed = facts.get("environment", {}).get("resumed", [])
    check({"resumed": resumed}, {"resumed": list[dict[str, Any]]}, f"the environment of {what}")


_FACTS = {
    "experiment": str, "protocol": str, "recipe": str, "quick": bool,
    "populations": dict[str, dict[str, Any]],
}  # fmt: skip
_TOOK = {"seconds": float, "at a time": int}
_OF_POPULATION = {
    "label": str, "row": str, "group": str, "parameters": int, "epochs": int, "seconds": float,
    "broken": list[bool], "settings": dict[str, Any], "environment": dict[str, Any],
}  # fmt: skip


def agrees(scores: Scores, facts: Mapping[str, Any], name: str) -> bool:
    """Whether there are facts of a population and of these scores; old facts do not say."""
    known = facts["populations"].get(name)
    return known is not None and known.get("scores") in (None, scores.digest(name))
