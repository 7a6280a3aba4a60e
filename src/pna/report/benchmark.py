"""Tables of a real-world benchmark: every row of the paper, with and without edge features."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pna.paper.scores import Estimate
from pna.report.read import ExperimentResult
from pna.report.tables import NOTHING, RowGroup, TextTable, estimate, number, stacked
from pna.train.metrics import METRICS

#: Metrics: label, and the factor and the digits they are shown with.
SHOWN = {
    "mae": ("mean absolute error", 1, 3),
    "accuracy": ("accuracy, %", 100, 2),
    "roc_auc": ("area under the ROC curve, %", 100, 2),
    "mse": ("mean square error", 1, 4),
}

LAST, BEST = "test, last epoch", "test, best epoch"


@dataclass(frozen=True)
class Cells:
    """Results of a benchmark by row of the paper's table and by group."""

    result: ExperimentResult

    @property
    def rows(self) -> dict[str, str]:
        """Labels of all rows of the experiment, run or not."""
        found: dict[str, str] = {}
        for variant in self.result.experiment.variants:
            found.setdefault(variant.row, variant.label)
        return found

    @property
    def groups(self) -> dict[str, str]:
        """Labels of groups."""
        return dict(self.result.experiment.groups) or {"": "test"}

    def name(self, row: str, group: str) -> str | None:
        """Name of a population, run or not; None if the experiment has none there."""
        variants = self.result.experiment.variants
        return next((v.name for v in variants if (v.row, v.group) == (row, group)), None)

    def measured(self, name: str | None, split: str) -> Estimate | None:
        """The mean as it is shown; None if it was not run."""
        scores = self.result.scores
        if name is None or name not in scores.populations:
            return None
        return scores.mean(name, split, SHOWN[scores.metric][1])

    def shown(self, name: str | None, split: str, digits: int) -> str:
        """The same as text; if members broke and are left out, with the number of those left."""
        found = self.measured(name, split)
        if name is None or found is None:
            return NOTHING
        members = len(self.result.scores.populations[name].members)
        few = f" ({len(found.values)} of {members})" if len(found.values) < members else ""
        return estimate(found, digits) + few

    def published(self, name: str | None) -> float | None:
        value = None if name is None else self.result.published.get(name, "test")
        return None if value is None else value * SHOWN[self.result.scores.metric][1]

    def printed(self, name: str | None, digits: int) -> str:
        """The published number as text."""
        value = self.published(name)
        is_alone = value is not None and name not in self.result.scores.populations
        return number(value, digits) + (", not run here" if is_alone else "")


def tables(result: ExperimentResult) -> list[TextTable]:
    """Scores beside the paper's, and the cost of training."""
    return [_scores(Cells(result)), _costs(result)]


def _scores(cells: Cells) -> TextTable:
    result = cells.result
    what, _, digits = SHOWN[result.scores.metric]
    sign = METRICS[result.scores.metric].sign
    scored, blocks = f"{result.experiment.scored} epoch", []
    for row, label in cells.rows.items():
        names = [cells.name(row, group) for group in cells.groups]
        is_run = any(name in result.scores.populations for name in names)
        if not is_run and all(cells.published(name) is None for name in names):
            continue
        lines = {"paper, not run here": [number(cells.published(name), digits) for name in names]}
        means: list[float] = []
        if is_run:
            lines = {
                "last epoch": [cells.shown(name, LAST, digits) for name in names],
                "best epoch": [cells.shown(name, BEST, digits) for name in names],
            }
            if any(cells.published(name) is not None for name in names):
                lines["paper"] = [cells.printed(name, digits) for name in names]
            found = [cells.measured(name, f"test, {scored}") for name in names]
            means = [math.nan if value is None else sign * value.mean for value in found]
        blocks.append(RowGroup(label, lines, row == "pna", means, scored))
    better = "lower" if sign > 0 else "higher"
    title = f"Test set, {what}: {better} is better; mean over members, 95% interval"
    return stacked(title, ("model", "", *cells.groups.values()), blocks)


def _costs(result: ExperimentResult) -> TextTable:
    """Parameters, epochs, seconds of an epoch of all members together, and memory."""
    rows = []
    for name in result.names:
        facts = result.facts["populations"][name]
        memory = facts.get("peak_memory")
        rows.append(
            (
                result.label(name),
                number(result.parameters(name), 0),
                number(result.published.get(name, "parameters"), 0),
                str(len(result.scores.populations[name].members)),
                number(facts["epochs"], 0),
                number(facts["seconds"] / max(facts["epochs"], 1), 3),
                number(None if memory is None else memory / 2**30),
            )
        )
    heads = ("model", "parameters", "parameters in the paper", "members", "epochs, longest run",
             "seconds per epoch, all members", "peak GPU memory, GiB")  # fmt: skip
    title = "Cost of training; other processes may have shared the machine"
    return TextTable(title, heads, tuple(rows), 1)
