"""The tables that say what is in results, beside the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pna.paper.claims import Verdict, difference
from pna.paper.recipes import RECIPES
from pna.paper.scores import BASELINE, TOP, Estimate
from pna.report import benchmark
from pna.report.read import Result
from pna.report.tables import Table, estimate, number

MEAN = "predicting the mean"  # how the baseline is shown
AVERAGE, OVERALL = "average of logs", "log of the mean"
_WHAT = {"average": AVERAGE, "overall": OVERALL}  # statistics of `Scores`
_SHORT = {"sssp": "SSSP"}
_UNKNOWN = "unknown"  # where a run's environment.json was lost
_DRAWN = {
    "paper": "drawn as the paper says",
    "published": "drawn as the authors' code does, which made the paper's numbers",
    "benchmark": "its splits and graphs, as docs/data.md tells of them",
}
_TRAINED = {name: recipe.what for name, recipe in RECIPES.items()} | {
    "published": "as the authors' settings have it: Adam, its rate halved on a plateau; improved "
    "rows: AdamW and a cosine"
}


@dataclass(frozen=True)
class Column:
    """A statistic of populations: what was measured of it, and what the paper says."""

    head: str
    of: Callable[[str, int | None], Estimate]  # a population; its best members, or all of them
    paper: Callable[[str], float | None]
    baseline: float | None = None


def statistics(result: Result) -> list[Column]:
    """The average of the tasks, in both ways to take it, where there is one test."""
    (split,) = result.scores.splits
    scores = result.scores
    return [
        Column(AVERAGE, lambda name, top: scores.average(name, split, top),
               lambda name: result.published.get(name, "average"), scores.baseline_average(split)),
        Column(OVERALL, lambda name, top: scores.overall(name, split, top),
               lambda name: result.published.get(name, "overall"), scores.baseline_overall(split)),
    ]  # fmt: skip


def tasks(result: Result) -> list[Column]:
    """Every task, where there is one test."""
    (split,) = result.scores.splits
    scores = result.scores

    def column(task: str) -> Column:
        error = float(scores.baseline[split][scores.tasks.index(task)])
        return Column(
            words(task),
            lambda name, top: scores.of_task(name, task, split, top),
            lambda name: result.published.get(name, task),
            math.log10(error),
        )

    return [column(task) for task in scores.tasks]


def splits(result: Result, statistic: str, ratio: bool) -> list[Column]:
    """A statistic on every test; with `ratio` above that of predicting the mean."""
    scores = result.scores
    measured = getattr(scores, statistic)
    baseline = getattr(scores, f"baseline_{statistic}")

    def paper(name: str, split: str) -> float | None:
        if statistic == "average" and ratio:
            return result.published.get(name, split)
        return None

    def column(split: str) -> Column:
        return Column(
            words(split.removeprefix("test ")),
            lambda name, top: measured(name, split, top, ratio),
            lambda name: paper(name, split),
            None if ratio else baseline(split),
        )

    return [column(split) for split in scores.splits]


def ratios(result: Result) -> list[Column]:
    """Both averages, above those of predicting the mean, where there is one test."""
    (split,) = result.scores.splits

    def column(statistic: str) -> Column:
        measured = getattr(result.scores, statistic)

        def paper(name: str) -> float | None:
            value, baseline = (result.published.get(n, statistic) for n in (name, BASELINE))
            return None if value is None or baseline is None else value - baseline

        return Column(_WHAT[statistic], lambda name, top: measured(name, split, top, True), paper)

    return [column(statistic) for statistic in _WHAT]


def tables(result: Result) -> list[Table]:
    """All that an experiment has to say in numbers, the main thing first."""
    figure = result.experiment.figure
    if figure == "benchmark":
        return benchmark.tables(result)
    if figure == "curves":
        return [
            beside_the_paper(f"log10 of the ratio to {MEAN}, {what}, by nodes of a graph",
                             result, splits(result, statistic, ratio=True))
            for statistic, what in _WHAT.items()
        ]  # fmt: skip
    if figure == "heat map":
        return [
            beside_the_paper(f"log10 of the mean square error, {what}, by type of graph",
                             result, splits(result, statistic, ratio=False))
            for statistic, what in _WHAT.items()
        ]  # fmt: skip
    if figure in SPREAD:
        return [by_setting(result)]
    columns = statistics(result) + tasks(result)
    errors = beside_the_paper("log10 of the mean square error: less is better", result, columns)
    if figure == "pairs":
        return [*(between_groups(result, columns, other) for other in result.pairs), errors]
    if figure == "sizes":
        return [sizes(result), errors]
    if result.published.get(BASELINE, "average") is not None:
        above = f"log10 of the ratio to {MEAN}, which graphs drawn otherwise change less"
        return [errors, beside_the_paper(above, result, ratios(result))]
    return [errors]


def beside_the_paper(title: str, result: Result, columns: Sequence[Column]) -> Table:
    """Every population: its best members, all of them, the paper's number, the difference."""
    rows: list[tuple[str, ...]] = []
    ours: set[int] = set()
    means: dict[int, list[float]] = {}
    for name in result.names:
        best, whole = ([column.of(name, top) for column in columns] for top in (TOP, None))
        parts = {}
        if len(best[0].values) < len(whole[0].values):
            parts[f"best {TOP}"] = [estimate(value) for value in best]
        parts[f"all {len(whole[0].values)}"] = [estimate(value) for value in whole]
        paper = [column.paper(name) for column in columns]
        if any(value is not None for value in paper):
            gaps = [
                None if value is None else measured.mean - value
                for value, measured in zip(paper, best, strict=True)
            ]
            parts["paper"] = [number(value) for value in paper]
            parts["difference"] = [number(gap, sign=True) for gap in gaps]
        if result.is_ours(name):
            ours |= set(range(len(rows), len(rows) + len(parts)))
        means[len(rows)] = [measured.mean for measured in best]
        rows += _headed(result.label(name), parts)
    if any(column.baseline is not None for column in columns):
        parts = {"here": [number(column.baseline) for column in columns]}
        paper = [column.paper(BASELINE) for column in columns]
        if any(value is not None for value in paper):
            parts["paper"] = [number(value) for value in paper]
        rows += _headed(MEAN, parts)
    heads = ("model", "members", *(column.head for column in columns))
    return Table(title, heads, tuple(rows), 2, _least(means, 2), frozenset(ours))


def between_groups(result: Result, columns: Sequence[Column], other: str) -> Table:
    """Every row in the first group and in another, and how far apart they are."""
    rows: list[tuple[str, ...]] = []
    ours: set[int] = set()
    shown = result.experiment.groups
    groups = [next(iter(shown.values())), shown[other]]
    for pair in result.pairs[other]:
        parts = {
            group: [estimate(column.of(name, TOP)) for column in columns]
            for group, name in zip(groups, pair, strict=True)
        }
        parts["difference"] = [
            str(difference(*(column.of(name, TOP) for name in pair))) for column in columns
        ]
        if result.is_ours(pair[0]):
            ours |= set(range(len(rows), len(rows) + len(parts)))
        rows += _headed(result.label(pair[0], with_group=False), parts)
    title = f"{groups[0]} minus {groups[1]}: below 0 {groups[0]} is better"
    heads = ("model", "", *(column.head for column in columns))
    return Table(_begin(title), heads, tuple(rows), 2, frozenset(), frozenset(ours))


def sizes(result: Result) -> Table:
    """Parameters of every population here and in the paper, and its error."""
    average = statistics(result)[0]
    rows, means = [], {}
    for r, name in enumerate(result.names):
        paper = result.published.get(name, "parameters")
        means[r] = [average.of(name, TOP).mean]
        rows.append(
            (result.label(name), number(result.parameters(name), 0), number(paper, 0),
             estimate(average.of(name, TOP)), estimate(average.of(name, None)))
        )  # fmt: skip
    ours = frozenset(r for r, name in enumerate(result.names) if result.is_ours(name))
    heads = ("model", "parameters", "in the paper", f"{AVERAGE}, best {TOP}", "all")
    return Table("Parameters and errors", heads, tuple(rows), 1, _least(means, 3), ours)


#: What members of a population differ in, by the figure that shows it: its name, and in words.
SPREAD = {"rates": ("lr", "learning rate"), "decays": ("weight_decay", "weight decay")}


def settings_of(found: Mapping[str, Mapping[float, Estimate]]) -> list[float]:
    """All settings that any population has a member of."""
    return sorted({value for of_values in found.values() for value in of_values})


def at_settings(found: Mapping[float, Estimate], values: Sequence[float]) -> list[Estimate]:
    """Of every setting; nothing where all members with it broke."""
    return [found.get(value, Estimate.of(())) for value in values]


def by_setting(result: Result) -> Table:
    """The validation loss of every population by what its members differ in."""
    setting, what = SPREAD[result.experiment.figure]
    found = {name: result.scores.by_setting(name, setting) for name in result.names}
    values = settings_of(found)
    means = [[one.mean for one in at_settings(of, values)] for of in found.values()]
    rows = tuple(
        (result.label(name), *(number(mean) for mean in row))
        for name, row in zip(found, means, strict=True)
    )
    least = frozenset(
        (r, 1 + row.index(min(known)))
        for r, row in enumerate(means)
        if (known := [mean for mean in row if not math.isnan(mean)])
    )
    ours = frozenset(r for r, name in enumerate(found) if result.is_ours(name))
    heads = ("model", *(f"{value:g}" for value in values))
    title = f"log10 of the validation loss by {what}: less is better"
    return Table(title, heads, rows, 1, least, ours)


def verdicts(result: Result) -> list[tuple[str, Verdict]]:
    """What the paper claims, and whether these scores bear it out."""
    return [(claim.text, claim.decide(result.scores)) for claim in result.experiment.claims]


def claims(result: Result) -> list[Table]:
    """A table of them, where there are any."""
    rows = tuple((text, verdict.outcome, verdict.because) for text, verdict in verdicts(result))
    return [Table("Claims", ("claim", "here", "because"), rows, 3)] if rows else []


def about(result: Result) -> dict[str, str]:
    """What was run, and where."""
    facts = list(result.facts["populations"].values())
    protocol, recipe = str(result.facts["protocol"]), str(result.facts["recipe"])
    what = f": {_TRAINED[recipe]}" if recipe in _TRAINED else ""
    if result.is_quick and recipe in RECIPES:
        what = ", shortened: inputs drawn once, few epochs"
    members = {len(population.members) for population in result.scores.populations.values()}
    broken = sum(sum(fact["broken"]) for fact in facts)
    trained = _time(sum(fact["seconds"] for fact in facts))
    took = result.facts.get("took")
    starts = [start for fact in facts for start in _starts(fact["environment"])]
    machines = {str(start.get("gpu") or start.get("cpu") or _UNKNOWN) for start in starts}
    return {
        "graphs": f"{protocol}: {_DRAWN.get(protocol, 'unknown')}",
        "training": f"{recipe}{what}",
        "members": f"{_range(members)} of each of {len(facts)} populations"
                   + (f", {broken} of which broke" if broken else ""),
        "epochs": f"{_range({fact['epochs'] for fact in facts})} of at most "
                  f"{max(fact['settings']['epochs'] for fact in facts):,}",
        "time": f"{trained} of training in all" + (
            f", {took['at a time']} populations at a time; {_time(took['seconds'])} by the clock"
            if took else ""),
        "on": ", ".join(sorted(machines)),
        "torch": ", ".join(sorted({str(start.get("torch", _UNKNOWN)) for start in starts})),
        "commit": ", ".join(sorted({str(start.get("commit", _UNKNOWN)) for start in starts})),
    }  # fmt: skip


def _starts(environment: dict[str, Any]) -> list[dict[str, Any]]:
    """Where a run began, and everywhere it was resumed."""
    return [environment, *environment.get("resumed", [])]


def words(name: str) -> str:
    """A name of a task or of a type of graph, for people."""
    return _SHORT.get(name, name.replace("_", " ").replace("-", "–"))


def _headed(label: str, parts: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Lines of one model, which only the first of them names."""
    return [
        (label if i == 0 else "", line, *cells) for i, (line, cells) in enumerate(parts.items())
    ]


def _least(means: dict[int, list[float]], first: int) -> frozenset[tuple[int, int]]:
    """Cells (row, column) with the least mean of their column, of which there are several."""
    if len(means) < 2:
        return frozenset()
    columns = range(len(next(iter(means.values()))))
    best = ((min(means, key=lambda r: _finite(means[r][c])), c) for c in columns)
    return frozenset((r, c + first) for r, c in best)


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
