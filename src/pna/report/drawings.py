"""Which figures an experiment has, drawn from its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pna.names import lookup
from pna.paper.improved import ROW as IMPROVED
from pna.paper.scores import TOP
from pna.report.benchmark import BEST, LAST, SHOWN, Cells
from pna.report.curves import Curve, Curves, draw_curves
from pna.report.figures import save_svg
from pna.report.heat_map import draw_heat_map
from pna.report.pairs import Pair, Pairs, draw_pairs
from pna.report.read import Result
from pna.report.results import (
    MEAN,
    SPREAD,
    Column,
    at_settings,
    settings_of,
    splits,
    statistics,
    tasks,
)
from pna.report.sizes import Model, draw_sizes
from pna.report.strips import Strip, Strips, draw_strips
from pna.report.tables import number
from pna.report.training import Losses, draw_training

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its file, and what it shows."""

    name: str
    caption: str
    figure: Figure


def drawings(result: Result) -> list[Drawing]:
    """Figures of an experiment, the main one first."""
    return lookup("figure", result.experiment.figure, FIGURES)(result)


def draw(folder: Path) -> list[Path]:
    """Write the figures of a folder of results into it, as SVG."""
    written = []
    for drawing in drawings(Result.read(folder)):
        path = folder / f"{drawing.name}.svg"
        save_svg(drawing.figure, path)
        written.append(path)
    return written


def _strips(result: Result) -> list[Drawing]:
    def panel(column: Column) -> Strips:
        strips = [
            Strip(
                result.label(name),
                column.of(name, None).values,
                column.of(name, TOP),
                column.paper(name),
                result.is_ours(name),
            )
            for name in result.names
        ]
        return Strips(column.head, strips, column.baseline)

    every = (
        "Every trained member is a dot, those with the least validation loss are filled; further "
        "left is better."
    )
    return _averages_and_tasks(
        result, every, lambda columns, across: draw_strips(list(map(panel, columns)), across)
    )


def _pairs(result: Result) -> list[Drawing]:
    """The first group against every other that was run."""
    return [drawing for other in result.pairs for drawing in _pairs_with(result, other)]


def _pairs_with(result: Result, other: str) -> list[Drawing]:
    shown = result.experiment.groups
    first, *others = shown
    ways = [shown[first], shown[other]]

    def panel(column: Column) -> Pairs:
        pairs = [
            Pair(
                result.label(one, with_group=False),
                (column.of(one, TOP), column.of(two, TOP)),
                result.is_ours(one),
            )
            for one, two in result.pairs[other]
        ]
        return Pairs(column.head, pairs, column.baseline)

    caption = (
        f"Each model twice: {ways[0]} (circles) and {ways[1]} (squares), the best {TOP} members of "
        f"each; further left is better. Numbers are {ways[0]} minus {ways[1]}."
    )
    return _averages_and_tasks(
        result,
        caption,
        lambda columns, across: draw_pairs(list(map(panel, columns)), ways, across),
        "" if other == others[0] else f"-{other}",
    )


def _averages_and_tasks(
    result: Result, caption: str, drawn: Callable[[Sequence[Column], int], Figure], which: str = ""
) -> list[Drawing]:
    name = f"{result.experiment.name}{which}"
    return [
        Drawing(name, f"log10 of the mean square error. {caption}", drawn(statistics(result), 1)),
        Drawing(f"{name}-tasks", "The same for each task.", drawn(tasks(result), 3)),
    ]


def _curves(result: Result) -> list[Drawing]:
    """Models of the paper in one panel, alterations of one of them in another beside it."""
    columns = splits(result, "average", ratio=True)
    base = {variant.row: variant.convolution for variant in result.experiment.variants}

    def curves(names: Sequence[str]) -> list[Curve]:
        return [
            Curve(
                result.label(name),
                [column.of(name, TOP) for column in columns],
                [column.paper(name) for column in columns],
                result.is_ours(name),
            )
            for name in names
        ]

    models = [name for name in result.names if base[result.row(name)] == result.row(name)]
    altered = [name for name in result.names if name not in models]
    origins = [name for name in models if name in {base[result.row(n)] for n in altered}]
    panels = [
        Curves(title, curves(names))
        for title, names in (("models", models), ("PNA altered", origins + altered))
        if names
    ]
    places = [_middle(split) for split in result.scores.splits]
    figure = draw_curves(panels, places, "nodes of a graph", highest=0.6)
    caption = (
        f"log10 of the ratio of the error to that of {MEAN}, average of the tasks: less is better, "
        "above 0 is worse than the mean. All were trained on 15 to 24 nodes."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _middle(split: str) -> float:
    """Of the sizes that a test such as "test 20-24" is named by."""
    first, last = split.removeprefix("test ").split("-")
    return (int(first) + int(last)) / 2


def _heat_map(result: Result) -> list[Drawing]:
    """Tests from the easiest to the hardest for the best model."""
    columns = splits(result, "average", ratio=False)
    names = result.names
    columns.sort(key=lambda column: column.of(names[0], TOP).mean)
    values = [[column.of(name, TOP).mean for column in columns] for name in names]
    values.append([math.nan if c.baseline is None else c.baseline for c in columns])
    figure = draw_heat_map(
        "average of logs",
        [*(result.label(name) for name in names), MEAN],
        [column.head for column in columns],
        values,
        [*(result.is_ours(name) for name in names), False],
    )
    caption = (
        f"log10 of the mean square error on each type of graph, the best {TOP} members: darker is "
        "better. Types are in the order of the first row."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _sizes(result: Result) -> list[Drawing]:
    average = statistics(result)[0]
    rows: dict[str, list[str]] = {}
    for name in sorted(result.names, key=result.parameters):
        rows.setdefault(result.row(name), []).append(name)
    models = [
        Model(
            result.label(names[0], with_group=False),
            [(result.parameters(name), average.of(name, TOP)) for name in names],
            result.is_ours(names[0]),
        )
        for names in rows.values()
        if all(math.isfinite(average.of(name, TOP).mean) for name in names)
    ]
    assert average.baseline is not None
    ways = list(result.experiment.groups.values())
    figure = draw_sizes(average.head, models, ways, average.baseline)
    caption = (
        f"log10 of the mean square error, average of the tasks, the best {TOP} members and their "
        "95% interval: lower is better."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _by_setting(result: Result) -> list[Drawing]:
    setting, what = SPREAD[result.experiment.figure]
    found = {name: result.scores.by_setting(name, setting) for name in result.names}
    places = settings_of(found)
    panels: dict[str, list[Curve]] = {}
    for name, of_values in found.items():
        panels.setdefault(result.group(name), []).append(
            Curve(
                result.label(name, with_group=False), at_settings(of_values, places),
                is_ours=result.is_ours(name), intervals=False,
            )
        )  # fmt: skip
    shown = result.experiment.groups or {"": "validation loss"}
    drawn = [Curves(shown[group], curves) for group, curves in panels.items()]
    figure = draw_curves(drawn, places, what, highest=0.2)
    caption = (
        f"log10 of the validation loss, mean of the members with the same {what}: 0 is {MEAN}, "
        "less is better."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _benchmark(result: Result) -> list[Drawing]:
    """Scores of every member beside the paper's, and how losses fell."""
    cells, name = Cells(result), result.experiment.name
    what, times, digits = SHOWN[result.scores.metric]
    present = {
        group: [n for n in result.names if result.group(n) == group] for group in cells.groups
    }

    def panel(split: str, words: str, names: Sequence[str]) -> Strips:
        strips = [
            Strip(
                result.label(one, with_group=False),
                found.values,
                found,
                cells.published(one),
                result.is_ours(one),
            )
            for one in names
            if (found := cells.measured(one, split)) is not None
        ]
        return Strips(words, strips, digits=digits)

    grouped = {group: [shown] for group, shown in result.experiment.groups.items()} or {"": []}
    mean = float(result.scores.baseline[LAST].mean()) * times  # too far away to be drawn
    constant = "the commonest class" if result.scores.metric == "accuracy" else "the mean"
    words = f"Every member is a dot. Predicting {constant} of training: {number(mean, digits)}."
    drawn = [
        Drawing(
            f"{name}-{group}" if group else name,
            ", ".join(["Test set", *grouped[group]]) + f": {what}. {words}",
            draw_strips([panel(LAST, "last epoch", names), panel(BEST, "best epoch", names)], 1),
        )
        for group, names in present.items()
        if names
    ]
    losses = {
        ", ".join([*grouped[group], kind]): curves
        for group, names in present.items()
        for kind, curves in _losses(result, names).items()
    }
    if losses:
        caption = (
            "Losses by epoch, means over the members that were still being trained; "
            "the few that are far above all others are cut off."
        )
        drawn.append(Drawing(f"{name}-training", caption, draw_training(losses)))
    return drawn


def _losses(result: Result, names: Sequence[str]) -> dict[str, list[Losses]]:
    """Curves of plain rows, and of improved ones with the plain PNA beside them."""
    kinds: dict[str, list[Losses]] = {"plain rows": [], "improved rows": []}
    improved = [name for name in names if result.row(name).startswith(IMPROVED)]
    for name in names:
        if name not in result.curves:
            continue
        curve = Losses(
            result.label(name, with_group=False), *result.curves[name], result.is_ours(name)
        )
        if name not in improved:
            kinds["plain rows"].append(curve)
        if name in improved or (improved and curve.is_ours):
            kinds["improved rows"].append(curve)
    return {kind: curves for kind, curves in kinds.items() if curves}


#: How `Experiment.figure` is drawn.
FIGURES: dict[str, Callable[[Result], list[Drawing]]] = {
    "strips": _strips,
    "pairs": _pairs,
    "curves": _curves,
    "heat map": _heat_map,
    "sizes": _sizes,
    **dict.fromkeys(SPREAD, _by_setting),
    "benchmark": _benchmark,
}
