"""The page of PNA at its best: docs/best.md, made from results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pna.paper.best import (
    BLOCK,
    CHANGES,
    EXPERIMENTS,
    INGREDIENTS,
    JUDGED,
    MULTITASK_BEST,
    choose,
)
from pna.paper.claims import NOT_RUN, Measured, difference, measured_as, on_average
from pna.paper.improved import changed
from pna.paper.published import published
from pna.paper.registry import EXPERIMENTS as REGISTRY
from pna.paper.results import broken_in
from pna.paper.scores import LEVEL
from pna.paper.synthetic import GRAPH_PROPERTIES
from pna.report.benchmark import LAST, SHOWN
from pna.report.page import render_text
from pna.report.read import ExperimentResult
from pna.report.results import verdicts
from pna.report.tables import NOTHING, TextTable, estimate, number, to_markdown
from pna.train.recipes import RECIPES

Results = Mapping[str, ExperimentResult]  # by folder, such as zinc/benchmark-published
Place = tuple[str, str]  # a folder, and a population in it
_REAL = "benchmark-published"


@dataclass(frozen=True)
class Goal:
    """A test set on which PNA is to be at its best, and how good that is to be."""

    what: str
    measured: Measured
    before: Sequence[Place]  # plain, then improved
    best: Place
    goal: str
    digits: int
    column: str = ""  # of the scores of later models
    times: int = 1  # by which these are multiplied


def _on(
    name: str, what: str, plain: Sequence[str], goal: str, digits: int,
    *, column: str = "", best: str = "pna best",
) -> Goal:  # fmt: skip
    """The goal of a benchmark."""
    experiment = REGISTRY[name]
    split, (words, times, _) = f"test, {experiment.scored} epoch", SHOWN[experiment.metric]
    return Goal(
        f"{what}, {words}", lambda scores, row: scores.mean(row, split, times),
        [(f"{name}/{_REAL}", row) for row in plain], (f"{name}-best/{_REAL}", best),
        goal, digits, column, times,
    )  # fmt: skip


_EDGES = ("pna edges", "pna improved edges")

#: The rows of the table.
GOALS = (
    _on("zinc", "ZINC, at most 100,000 parameters", _EDGES, "≤ 0.085", 3),
    _on("zinc", "ZINC, at most 500,000 parameters", ("pna deep", "pna improved deep"),
        "≤ 0.070", 3, column="zinc", best="pna best large"),
    _on("molhiv", "MolHIV", ("pna", "pna improved"), "≥ 80.0", 1,
        column="molhiv", best="pna best large"),
    _on("mnist", "MNIST superpixels, at most 110,000 parameters", _EDGES,
        "≥ 98.6", 1),
    _on("cifar10", "CIFAR10 superpixels, at most 110,000 parameters", _EDGES,
        "≥ 76.5", 1, column="cifar10"),
    Goal("six tasks, `paper`, log10 of the ratio to predicting the mean", on_average(ratio=True),
         [("multitask/paper-plain", "pna"), ("multitask/paper-tuned", "pna")],
         (f"{MULTITASK_BEST.name}/paper-tuned", "pna"), "≤ −2.60", 2),
)  # fmt: skip


def goals(results: Results) -> TextTable:
    """What PNA had before, what it has at its best, the goal, and the scores of later models."""
    rows = []
    for goal in GOALS:
        shown = [_shown(goal, results, place) for place in (*goal.before, goal.best)]
        folder, name = goal.best
        size = results[folder].parameters(name) if shown[-1] != NOTHING else None
        rows.append((goal.what, *shown, goal.goal, number(size, 0), _others(goal)))
    heads = ("test set", "plain", "improved", "at its best", "goal", "parameters", "later models")
    return TextTable("", heads, tuple(rows), 1)


def _shown(goal: Goal, results: Results, place: Place) -> str:
    folder, name = place
    if folder not in results or name not in results[folder].scores.populations:
        return NOTHING
    return estimate(goal.measured(results[folder].scores, name), goal.digits)


def _others(goal: Goal) -> str:
    found = (
        f"{model} {number(value * goal.times, goal.digits)}"
        for model, values in published("best").rows.items()
        if (value := values.get(goal.column)) is not None
    )
    return ", ".join(found) or NOTHING


def ingredients(results: Results) -> tuple[TextTable, dict[int, list[str]]] | None:
    """What every change to the block is worth, and whether it is taken; and the changes whose test
    error is clearly lower (−1) or higher (1). None if not all are run."""
    result = results.get(f"{INGREDIENTS.name}/{_REAL}")
    if result is None:
        return None
    scores, broken = result.scores, broken_in(result.facts)
    if not {v.name for v in INGREDIENTS.variants} <= {*scores.populations, *broken}:
        return None
    taken, test = choose(scores, broken), measured_as("mae", LAST)
    clear: dict[int, list[str]] = {-1: [], 0: [], 1: []}

    def errors(name: str) -> list[str]:
        shown = [estimate(measured(scores, name), 4) for measured in (JUDGED, test)]
        return [*shown, number(result.parameters(name), 0)]

    rows = [("the block", *errors(BLOCK.name), NOTHING, NOTHING, NOTHING)]
    for change in CHANGES:
        name = changed(BLOCK, change).name
        if name in broken:
            rows.append((change.label, *[NOTHING] * 5, "no: a run broke"))
            continue
        judged, tested = ([m(scores, n) for n in (name, BLOCK.name)] for m in (JUDGED, test))
        worse = number(judged[0].mean - judged[1].mean, 4, sign=True)
        error = number(math.hypot(judged[0].error, judged[1].error), 4)
        gap = difference(*tested)
        clear[gap.sign].append(change.label)
        rows.append((
            change.label, *errors(name), f"{worse} ({error})", gap.with_digits(4),
            "**yes**" if change in taken else "no",
        ))  # fmt: skip
    heads = (
        "change to the block", "validation", "test", "parameters",
        "validation, minus the block (standard error)", "test, minus the block", "taken",
    )  # fmt: skip
    return TextTable("", heads, tuple(rows), 1), clear


def _decided(results: Results) -> Iterator[tuple[str, str, str, str]]:
    """Claims of these experiments that were run: the experiment, and the verdict."""
    for result in results.values():
        if result.experiment in (*EXPERIMENTS, GRAPH_PROPERTIES):
            for text, verdict in verdicts(result):
                if verdict.outcome != NOT_RUN:
                    yield result.experiment.name, text, verdict.outcome, verdict.because


def best_page(results: Results) -> str:
    """The page as Markdown."""
    table, clear = ingredients(results) or (None, {})
    recipe = RECIPES["best"]
    return render_text(
        "best.md", goals=_bare(goals(results)), ingredients=table and _bare(table), clear=clear,
        changes=len(CHANGES), taken_by_chance=round(NormalDist().cdf(-1) * len(CHANGES)),
        clear_by_chance=round((1 - LEVEL) * len(CHANGES)),
        claims=list(_decided(results)), arguments=recipe.arguments, settings=recipe.settings,
        encodings=recipe.encodings,
    )  # fmt: skip


def _bare(table: TextTable) -> str:
    """A table as Markdown, without its title."""
    return to_markdown(table).lstrip()
