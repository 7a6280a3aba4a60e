"""A folder of results, read beside the paper's numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pna.names import lookup
from pna.paper.experiment import Experiment, Variant
from pna.paper.published import Published, published
from pna.paper.registry import EXPERIMENTS
from pna.paper.results import CURVES, FACTS, SCORES, agrees, load, load_curves
from pna.paper.scores import Scores


@dataclass(frozen=True)
class ExperimentResult:
    """What `pna reproduce` wrote, together with its experiment."""

    experiment: Experiment
    scores: Scores
    facts: dict[str, Any]
    published: Published
    curves: Mapping[str, list[dict[str, float]]] = field(default_factory=dict)  # losses by epoch

    @classmethod
    def read(cls, folder: Path) -> ExperimentResult:
        scores, facts = load(folder, complete=True)
        try:
            experiment = lookup("experiment", facts["experiment"], EXPERIMENTS)
        except ValueError as error:
            raise ValueError(
                f"got {folder / FACTS} of an {error}; restore the file, or upgrade pna"
            ) from error
        others = [name for name in scores.populations if not agrees(scores, facts, name)]
        if others:
            raise ValueError(
                f"got {folder / FACTS} without facts of the scores of {', '.join(sorted(others))} "
                f"that {SCORES} has; run pna reproduce again"
            )
        lost = [
            name for name, row in facts["populations"].items()
            if name not in scores.populations and not all(row["broken"])
        ]  # fmt: skip
        if lost:
            raise ValueError(
                f"got {folder / SCORES} without rows of {', '.join(sorted(lost))}, expected those "
                f"of all models in {FACTS}; restore the file, or run pna reproduce again"
            )
        curves = load_curves(folder / CURVES)
        return cls(experiment, scores, facts, published(experiment.name), curves)

    def only(self, variants: Sequence[Variant]) -> ExperimentResult:
        """The results of some populations, as if the experiment had no others."""
        names = {variant.name for variant in variants}
        groups = {variant.group for variant in variants}
        experiment = replace(
            self.experiment,
            variants=tuple(variants),
            groups={name: label for name, label in self.experiment.groups.items()
                    if name in groups},
        )  # fmt: skip
        populations = {n: p for n, p in self.scores.populations.items() if n in names}
        scores = replace(self.scores, populations=populations)
        return replace(self, experiment=experiment, scores=scores)

    @property
    def title(self) -> str:
        return self.experiment.title

    @property
    def is_quick(self) -> bool:
        return bool(self.facts["quick"])

    @property
    def setting(self) -> str:
        """Settings that differ between results of the same experiment."""
        quick = ", quick" if self.is_quick else ""
        return f"graphs: {self.facts['protocol']}, training: {self.facts['recipe']}{quick}"

    @cached_property
    def names(self) -> list[str]:
        """Populations in the order shown: the best first, or the experiment's own order."""
        names = list(self.scores.populations)
        if self.experiment.ordered:
            return names
        return sorted(names, key=self._error)

    @cached_property
    def pairs(self) -> dict[str, list[tuple[str, str]]]:
        """By every other group that was run: pairs of populations of one row, in the first group
        and in that group."""
        first, *others = self.experiment.groups
        rows = {group: {self.row(name): name for name in self.names if self.group(name) == group}
                for group in (first, *others)}  # fmt: skip
        found = {
            other: [(name, rows[other][row]) for row, name in rows[first].items()
                    if row in rows[other]]
            for other in others
        }  # fmt: skip
        return {other: pairs for other, pairs in found.items() if pairs}

    def row(self, name: str) -> str:
        return str(self._facts(name)["row"])

    def group(self, name: str) -> str:
        return str(self._facts(name)["group"])

    def label(self, name: str, with_group: bool = True) -> str:
        label, groups = str(self._facts(name)["label"]), self.experiment.groups
        return f"{label}, {groups[self.group(name)]}" if groups and with_group else label

    def in_words(self, text: str) -> str:
        """A text with labels of populations in place of their names, such as "GAT (edge features)".
        The first group is not named."""
        groups = self.experiment.groups
        first, *_ = groups or ("",)
        labels = {
            v.name: v.label if v.group == first else f"{v.label} ({groups[v.group]})"
            for v in self.experiment.variants
        }
        names = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
        return re.sub(rf"(?<![\w-])({names})(?![\w-])", lambda found: labels[found[0]], text)

    def is_ours(self, name: str) -> bool:
        """Whether it is what the experiment is about: PNA, or else the first row."""
        rows = [variant.row for variant in self.experiment.variants]
        return self.row(name) == ("pna" if "pna" in rows else rows[0])

    def parameters(self, name: str) -> int:
        return int(self._facts(name)["parameters"])

    def _facts(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.facts["populations"][name]
        return found

    def _error(self, name: str) -> float:
        splits = self.scores.splits
        mean = sum(self.scores.average(name, split).mean for split in splits) / len(splits)
        return math.inf if math.isnan(mean) else mean


def find(folder: Path) -> list[Path]:
    """Folders of results in a folder, which may be one itself, sorted by path."""
    if not folder.is_dir():
        raise FileNotFoundError(f"got {folder}, which is no folder, expected a folder of results")
    found = sorted(path.parent for path in folder.rglob(SCORES) if (path.parent / FACTS).is_file())
    if not found:
        raise FileNotFoundError(
            f"got {folder}, which has no {SCORES} and {FACTS} in it, expected results of pna "
            "reproduce"
        )
    return found


def in_order(results: Iterable[ExperimentResult]) -> list[ExperimentResult]:
    """In the order of the experiments, quick ones after the others."""
    order = list(EXPERIMENTS)
    return sorted(results, key=lambda r: (r.is_quick, order.index(r.experiment.name)))
