"""Tables of results beside the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pna.paper.claims import Verdict, difference
from pna.paper.recipes import RECIPES
from pna.paper.results import NOT_RECORDED, recorded
from pna.paper.scores import BASELINE, TOP, Estimate
from pna.report import benchmark
from pna.report.read import ExperimentResult
from pna.report.tables import RowGroup, TextTable, estimate, least, number, stacked

MEAN = "predicting the mean"  # how the baseline is shown
#: Averages of `Scores` over the tasks, and their heads.
_AVERAGES = {"average": "average of logs", "overall": "log of the mean"}
#: Title of the tables of experiments with several tests, and whether they show ratios.
_BY_SPLIT = {
    "curves": (f"log10 of the ratio to {MEAN}, {{}}, by nodes of a graph", True),
    "heatmap": ("log10 of the mean square error, {}, by type of graph", False),
}
_INTERVALS = f"95%; those of the best {TOP} members are computed as if these were not selected"
_SHORT = {"sssp": "SSSP"}
_DRAWN = {
    "paper": "drawn as the paper describes",
    "published": "drawn as by the authors' code, which made the paper's numbers",
    "benchmark": "the benchmark's own graphs and splits, see docs/data.md",
}
_TRAINED = {name: recipe.what for name, recipe in RECIPES.items()} | {
    "published": "the authors' settings: Adam, learning rate halved on a plateau; improved rows: "
    "AdamW with a cosine schedule",
    "candidates": "several recipes, named beside each model; docs/recipes.md explains them",
    "chosen": "the recipe that validation chose for each model, of redrawn, tuned and steady",
    "full-batch": "every step takes the whole graph; each member has a split of its own",
}


@dataclass(frozen=True)
class Column:
    """A statistic of populations on one test: measured here, and printed in the paper."""

    result: ExperimentResult
    statistic: str  # a key of `_AVERAGES`, or a task
    split: str
    ratio: bool = False  # to predicting the mean

    @property
    def head(self) -> str:
        if len(self.result.scores.splits) > 1:
            return words(self.split.removeprefix("test "))
        return _AVERAGES.get(self.statistic, words(self.statistic))

    def of(self, name: str, top: int | None) -> Estimate:
        """Estimate of a population, in log10: of its `top` members, or of all."""
        scores = self.result.scores
        if self.statistic in scores.tasks:
            return scores.of_task(name, self.statistic, self.split, top)
        measured: Estimate = getattr(scores, self.statistic)(name, self.split, top, self.ratio)
        return measured

    def paper(self, name: str) -> float | None:
        """None where the paper has no number; of several tests it has ratios of averages alone."""
        get = self.result.published.get
        if len(self.result.scores.splits) > 1:
            return get(name, self.split) if self.ratio and self.statistic == "average" else None
        value, baseline = get(name, self.statistic), get(BASELINE, self.statistic)
        if not self.ratio:
            return value
        return None if value is None or baseline is None else value - baseline

    @property
    def baseline(self) -> float | None:
        """Predicting the mean; None for ratios to it."""
        if self.ratio:
            return None
        scores = self.result.scores
        if self.statistic in scores.tasks:
            return math.log10(scores.baseline[self.split][scores.tasks.index(self.statistic)])
        return float(getattr(scores, f"baseline_{self.statistic}")(self.split))


def statistics(result: ExperimentResult, ratio: bool = False) -> list[Column]:
    """Both averages over the tasks, where there is one test."""
    (split,) = result.scores.splits
    return [Column(result, statistic, split, ratio) for statistic in _AVERAGES]


def tasks(result: ExperimentResult) -> list[Column]:
    """Every task, where there is one test."""
    (split,) = result.scores.splits
    return [Column(result, task, split) for task in result.scores.tasks]


def splits(result: ExperimentResult, statistic: str, ratio: bool) -> list[Column]:
    """An average on every test, perhaps as the ratio to predicting the mean."""
    return [Column(result, statistic, split, ratio) for split in result.scores.splits]


def tables(result: ExperimentResult) -> list[TextTable]:
    """Tables of an experiment, the main one first."""
    figure = result.experiment.figure
    if figure == "benchmark":
        return benchmark.tables(result)
    if figure in _BY_SPLIT:
        title, ratio = _BY_SPLIT[figure]
        return [
            beside_the_paper(title.format(what), result, splits(result, statistic, ratio))
            for statistic, what in _AVERAGES.items()
        ]
    if figure in SPREAD:
        return [setting_table(result)]
    columns = statistics(result) + tasks(result)
    errors = beside_the_paper("log10 of the mean square error: lower is better", result, columns)
    if figure == "pairs":
        between = (between_groups(result, columns, other) for other in result.pairs)
        gains = (gains_by_task(result, other) for other in result.pairs)
        return [*between, *gains, errors, *overfitting(result)]
    if figure == "sizes":
        return [sizes(result), errors]
    if result.published.get(BASELINE, "average") is not None:
        above = f"log10 of the ratio to {MEAN}, which depends less on how graphs are drawn"
        return [errors, beside_the_paper(above, result, statistics(result, ratio=True))]
    return [errors]


def beside_the_paper(title: str, result: ExperimentResult, columns: Sequence[Column]) -> TextTable:
    """Every population: its best members, all of them, the paper's number, the difference."""
    blocks = []
    for name in result.names:
        best, every = ([column.of(name, top) for column in columns] for top in (TOP, None))
        lines = {}
        if len(best[0].values) < len(every[0].values):
            lines[f"best {TOP} of {len(every[0].values)}"] = [estimate(value) for value in best]
        lines[f"all {len(every[0].values)}"] = [estimate(value) for value in every]
        lines |= _printed(name, columns)
        if "paper" in lines:
            lines["difference"] = [
                number(None if value is None else measured.mean - value, sign=True)
                for value, measured in zip((c.paper(name) for c in columns), best, strict=True)
            ]
        means = [measured.mean for measured in best]
        blocks.append(RowGroup(result.label(name), lines, result.is_ours(name), means))
    if any(column.baseline is not None for column in columns):
        here = {"here": [number(column.baseline) for column in columns]}
        blocks.append(RowGroup(MEAN, here | _printed(BASELINE, columns)))
    heads = (column.head for column in columns)
    return stacked(title, ("model", "members", *heads), blocks)


def _printed(name: str, columns: Sequence[Column]) -> dict[str, list[str]]:
    """The line of the paper's numbers, if it has any."""
    values = [column.paper(name) for column in columns]
    has_any = any(value is not None for value in values)
    return {"paper": [number(value) for value in values]} if has_any else {}


def between_groups(result: ExperimentResult, columns: Sequence[Column], other: str) -> TextTable:
    """Every row in the first group and in another, and the difference between them."""
    labels = result.experiment.groups
    groups = [next(iter(labels.values())), labels[other]]
    blocks = []
    for pair in result.pairs[other]:
        found = [[column.of(name, TOP) for column in columns] for name in pair]
        lines = {
            group: [estimate(value) for value in values]
            for group, values in zip(groups, found, strict=True)
        }
        lines["difference"] = [str(difference(*both)) for both in zip(*found, strict=True)]
        label = result.label(pair[0], with_group=False)
        blocks.append(RowGroup(label, lines, result.is_ours(pair[0])))
    title = f"{groups[0]} minus {groups[1]}: below 0, the first is better"
    heads = (column.head for column in columns)
    return stacked(title[:1].upper() + title[1:], ("model", "", *heads), blocks)


def gains_by_task(result: ExperimentResult, other: str) -> TextTable:
    """How much less error every row has in the first group than in another, on each task, with
    intervals over all members: none is selected."""
    labels = result.experiment.groups
    groups = [next(iter(labels.values())), labels[other]]
    columns = statistics(result)[:1] + tasks(result)
    rows = []
    for pair in result.pairs[other]:
        gains = (
            difference(*(column.of(name, None) for name in reversed(pair))) for column in columns
        )
        label = result.label(pair[0], with_group=False)
        rows.append((label, *map(str, gains)))
    title = f"Gain of {groups[0]} over {groups[1]}, all members: above 0, the first is better"
    return TextTable(title, ("model", *(column.head for column in columns)), tuple(rows))


def overfitting(result: ExperimentResult) -> list[TextTable]:
    """How much larger the last validation loss is than the training loss, by row and group; no
    table without curves."""
    groups = result.experiment.groups
    rows: dict[str, dict[str, str]] = {}
    for name in result.names:
        if curve := result.curves.get(name):
            gap = math.log10(curve[-1]["validation"] / curve[-1]["training"])
            label = result.label(name, with_group=False)
            rows.setdefault(label, {})[result.group(name)] = number(gap, sign=True)
    cells = tuple((label, *(of.get(g, number(None)) for g in groups)) for label, of in rows.items())
    title = (
        "Overfitting: log10 of the ratio of validation to training loss after the last epoch, of "
        "mean losses over the members"
    )
    return [TextTable(title, ("model", *groups.values()), cells)] if cells else []


def sizes(result: ExperimentResult) -> TextTable:
    """Parameters of every population here and in the paper, and its error."""
    average = statistics(result)[0]
    rows = tuple(
        (result.label(name), number(result.parameters(name), 0),
         number(result.published.get(name, "parameters"), 0),
         estimate(average.of(name, TOP)), estimate(average.of(name, None)))
        for name in result.names
    )  # fmt: skip
    means = {r: [average.of(name, TOP).mean] for r, name in enumerate(result.names)}
    heads = ("model", "parameters", "parameters in the paper", f"{average.head}, best {TOP}", "all")
    return TextTable("Parameters and errors", heads, rows, 1, least(means, 3), _ours(result))


def _ours(result: ExperimentResult) -> frozenset[int]:
    """Rows that are ours, in tables with one row for each population."""
    return frozenset(r for r, name in enumerate(result.names) if result.is_ours(name))


#: The setting in which members differ, by the figure that shows it: its name and label.
SPREAD = {"rates": ("lr", "learning rate"), "decays": ("weight_decay", "weight decay")}


def by_setting(result: ExperimentResult) -> tuple[list[float], dict[str, list[Estimate]]]:
    """All values of what members differ in, and the validation loss of every population at each:
    an empty estimate where all members with that value broke."""
    setting, _ = SPREAD[result.experiment.figure]
    found = {name: result.scores.by_setting(name, setting) for name in result.names}
    values = sorted({value for known in found.values() for value in known})
    return values, {
        name: [known.get(value, Estimate.of(())) for value in values]
        for name, known in found.items()
    }


def setting_table(result: ExperimentResult) -> TextTable:
    """The validation loss of every population by what its members differ in."""
    _, what = SPREAD[result.experiment.figure]
    values, found = by_setting(result)
    means = [[value.mean for value in row] for row in found.values()]
    rows = tuple(
        (result.label(name), *map(number, row)) for name, row in zip(found, means, strict=True)
    )
    least = frozenset(
        (r, 1 + int(np.nanargmin(row))) for r, row in enumerate(means) if not np.isnan(row).all()
    )
    heads = ("model", *(f"{value:g}" for value in values))
    title = f"log10 of the validation loss by {what}: lower is better"
    return TextTable(title, heads, rows, 1, least, _ours(result))


def verdicts(result: ExperimentResult) -> list[tuple[str, Verdict]]:
    """The claims of the paper, and whether these scores support them. The evidence says so if a
    bootstrap of the selection of members decides otherwise."""
    found = []
    for claim in result.experiment.claims:
        verdict = claim.decide(result.scores)
        other = claim.decide(replace(result.scores, resampled=True)).outcome
        words = result.in_words(verdict.because)
        if other != verdict.outcome:
            words += f"; with a bootstrap of the selection of runs: {other}"
        found.append((claim.text, replace(verdict, because=words)))
    return found


def claims(result: ExperimentResult) -> list[TextTable]:
    """A table of the claims, if there are any."""
    rows = tuple((text, verdict.outcome, verdict.because) for text, verdict in verdicts(result))
    return [TextTable("Claims", ("claim", "verdict", "evidence"), rows, 3)] if rows else []


def about(result: ExperimentResult) -> dict[str, str]:
    """What was run, on which hardware and with which software."""
    facts = list(result.facts["populations"].values())
    protocol, recipe = str(result.facts["protocol"]), str(result.facts["recipe"])
    what = f": {_TRAINED[recipe]}" if recipe in _TRAINED else ""
    if result.is_quick and recipe in RECIPES:
        what = ", shortened: inputs drawn once, few epochs"
    members = {len(population.members) for population in result.scores.populations.values()}
    broken = sum(sum(fact["broken"]) for fact in facts)
    trained = _time(sum(fact["seconds"] for fact in facts))
    took = result.facts.get("took")
    hashed = sum("scores" in fact for fact in facts)
    hashes = f"recorded for {hashed} of {len(facts)} populations, in facts.json"
    of_paper = result.published.counted()
    return {
        "graphs": f"{protocol}: {_DRAWN.get(protocol, 'unknown')}",
        "training": f"{recipe}{what}",
        "members": f"{_range(members)} in each of {len(facts)} populations"
                   + (f"; {broken} members broke" if broken else ""),
        "epochs": f"{_range({fact['epochs'] for fact in facts})} of at most "
                  f"{max(fact['settings']['epochs'] for fact in facts):,}",
        "time": f"{trained} of training in total" + (
            f", {took['at a time']} populations at a time, {_time(took['seconds'])} of wall-clock "
            "time" if took else ""),
        "hardware": recorded(facts, "gpu", "cpu"),
        "torch": recorded(facts, "torch"),
        "commit": recorded(facts, "commit"),
        "command": recorded(facts, "command"),
        "hash of the scores": hashes if hashed else NOT_RECORDED,
        **({} if result.experiment.figure == "benchmark" else {"intervals": _INTERVALS}),
        **({"numbers of the paper": of_paper} if of_paper else {}),
    }  # fmt: skip


def words(name: str) -> str:
    """The name of a task or of a type of graph, as it is shown."""
    return _SHORT.get(name, name.replace("_", " ").replace("-", "–"))


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
