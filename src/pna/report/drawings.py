"""Which figures an experiment has, drawn from its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from matplotlib.figure import Figure

from pna.names import lookup
from pna.paper.improved import IMPROVED
from pna.paper.scores import TOP
from pna.report.benchmark import BEST, LAST, SHOWN, Cells
from pna.report.dot_plots import draw_paired_plot, draw_strip_plot
from pna.report.figures import save_svg
from pna.report.heatmap import draw_heatmap
from pna.report.line_plots import Losses, draw_curves, draw_losses, draw_sizes
from pna.report.panels import Panel, Series
from pna.report.read import ExperimentResult
from pna.report.results import MEAN, SPREAD, Column, by_setting, splits, statistics, tasks
from pna.report.tables import number


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its file, and what it shows. It is drawn when it is first asked for."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    @cached_property
    def figure(self) -> Figure:
        return self.draw()


def drawings(result: ExperimentResult) -> list[Drawing]:
    """Figures of an experiment, the main one first."""
    return lookup("figure", result.experiment.figure, FIGURES)(result)


def draw(folder: Path) -> list[Path]:
    """Write the figures of a folder of results into it, as SVG."""
    written = []
    for drawing in drawings(ExperimentResult.read(folder)):
        path = folder / f"{drawing.name}.svg"
        save_svg(drawing.figure, path)
        written.append(path)
    return written


def _strip_plots(result: ExperimentResult) -> list[Drawing]:
    def panel(column: Column) -> Panel:
        series = [
            Series(result.label(name), [column.of(name, TOP)], result.is_ours(name),
                   [column.paper(name)], column.of(name, None).values)
            for name in result.names
        ]  # fmt: skip
        return Panel(column.head, series, column.baseline)

    caption = (
        "Every dot is a trained member; those with the least validation loss are filled. Further "
        "left is better."
    )
    return _averages_and_tasks(result, "", caption, panel, draw_strip_plot)


def _paired_plots(result: ExperimentResult) -> list[Drawing]:
    """The first group against every other that was run."""
    return [drawing for other in result.pairs for drawing in _paired_with(result, other)]


def _paired_with(result: ExperimentResult, other: str) -> list[Drawing]:
    labels = result.experiment.groups
    first, second, *_ = labels
    groups = [labels[first], labels[other]]

    def panel(column: Column) -> Panel:
        series = [
            Series(result.label(pair[0], with_group=False),
                   [column.of(name, TOP) for name in pair], result.is_ours(pair[0]))
            for pair in result.pairs[other]
        ]  # fmt: skip
        return Panel(column.head, series, column.baseline)

    caption = (
        f"Each model twice: {groups[0]} (circles) and {groups[1]} (squares), the best {TOP} "
        f"members of each; further left is better. Numbers are {groups[0]} minus {groups[1]}."
    )
    suffix = "" if other == second else f"-{other}"
    return _averages_and_tasks(
        result, suffix, caption, panel, lambda panels, wide: draw_paired_plot(panels, groups, wide)
    )


def _averages_and_tasks(
    result: ExperimentResult,
    suffix: str,
    caption: str,
    panel: Callable[[Column], Panel],
    draw: Callable[[list[Panel], int], Figure],
) -> list[Drawing]:
    """A figure of the averages over tasks, one panel below the other, and one of every task."""
    name = f"{result.experiment.name}{suffix}"

    def averages() -> Figure:
        return draw([*map(panel, statistics(result))], 1)

    def every_task() -> Figure:
        return draw([*map(panel, tasks(result))], 3)

    return [
        Drawing(name, f"log10 of the mean square error. {caption}", averages),
        Drawing(f"{name}-tasks", "The same for each task.", every_task),
    ]


def _curves(result: ExperimentResult) -> list[Drawing]:
    """Models of the paper in one panel, variants of one of them in another."""
    columns = splits(result, "average", ratio=True)
    base = {variant.row: variant.convolution for variant in result.experiment.variants}

    def series(name: str) -> Series:
        return Series(result.label(name), [column.of(name, TOP) for column in columns],
                      result.is_ours(name), [column.paper(name) for column in columns])  # fmt: skip

    models = [name for name in result.names if base[result.row(name)] == result.row(name)]
    altered = [name for name in result.names if name not in models]
    origins = [name for name in models if name in {base[result.row(n)] for n in altered}]
    panels = [
        Panel(title, [*map(series, names)])
        for title, names in (("models", models), ("PNA altered", origins + altered))
        if names
    ]
    positions = [_middle(split) for split in result.scores.splits]
    figure = partial(draw_curves, panels, positions, "nodes of a graph", highest=0.6)
    caption = (
        f"log10 of the ratio of the error to that of {MEAN}, average of the tasks: lower is "
        "better, above 0 is worse than the mean. All models were trained on 15 to 24 nodes."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _middle(split: str) -> float:
    """Middle of the sizes in the name of a test such as "test 20-24"."""
    first, last = split.removeprefix("test ").split("-")
    return (int(first) + int(last)) / 2


def _heatmap(result: ExperimentResult) -> list[Drawing]:
    """Tests from the easiest to the hardest for the best model."""
    columns = splits(result, "average", ratio=False)
    names = result.names
    columns.sort(key=lambda column: column.of(names[0], TOP).mean)
    values = [[column.of(name, TOP).mean for column in columns] for name in names]
    values.append([math.nan if c.baseline is None else c.baseline for c in columns])
    figure = partial(
        draw_heatmap,
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


def _sizes(result: ExperimentResult) -> list[Drawing]:
    average = statistics(result)[0]
    rows: dict[str, list[str]] = {}
    for name in sorted(result.names, key=result.parameters):
        rows.setdefault(result.row(name), []).append(name)
    models = [
        Series(
            result.label(names[0], with_group=False),
            [average.of(name, TOP) for name in names],
            result.is_ours(names[0]),
            positions=[result.parameters(name) for name in names],
        )
        for names in rows.values()
    ]
    shown = [one for one in models if all(math.isfinite(e.mean) for e in one.estimates)]
    groups = list(result.experiment.groups.values())
    figure = partial(draw_sizes, Panel(average.head, shown, average.baseline), groups)
    caption = (
        f"log10 of the mean square error, average of the tasks, the best {TOP} members and their "
        "95% interval: lower is better."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _by_setting(result: ExperimentResult) -> list[Drawing]:
    """Means without intervals: there are too few members with each setting."""
    _, what = SPREAD[result.experiment.figure]
    positions, found = by_setting(result)
    groups = result.experiment.groups or {"": "validation loss"}
    panels = [
        Panel(label, [
            Series(result.label(name, with_group=False),
                   [replace(value, half=math.nan) for value in found[name]], result.is_ours(name))
            for name in found
            if result.group(name) == group
        ])
        for group, label in groups.items()
    ]  # fmt: skip
    shown = [panel for panel in panels if panel.series]
    figure = partial(draw_curves, shown, positions, what, highest=0.2)
    caption = (
        f"log10 of the validation loss, mean of the members with the same {what}: 0 is {MEAN}, "
        "lower is better."
    )
    return [Drawing(result.experiment.name, caption, figure)]


def _benchmark(result: ExperimentResult) -> list[Drawing]:
    """Scores of every member beside the paper's, and losses by epoch."""
    cells, name = Cells(result), result.experiment.name
    what, times, digits = SHOWN[result.scores.metric]
    present = {
        group: names
        for group in cells.groups
        if (names := [n for n in result.names if result.group(n) == group])
    }
    labels = {group: [label] for group, label in result.experiment.groups.items()} or {"": []}
    first = next(iter(cells.groups))

    def panel(split: str, title: str, names: Sequence[str]) -> Panel:
        series = [
            Series(result.label(one, with_group=False), [found], result.is_ours(one),
                   [cells.published(one)], found.values)
            for one in names
            if (found := cells.measured(one, split)) is not None
        ]  # fmt: skip
        return Panel(title, series, digits=digits)

    def epochs(names: Sequence[str]) -> Figure:
        return draw_strip_plot([panel(LAST, "last epoch", names), panel(BEST, "best epoch", names)])

    mean = float(result.scores.baseline[LAST].mean()) * times  # too far away to be drawn
    constant = "the most frequent class" if result.scores.metric == "accuracy" else "the mean"
    words = f"Every dot is a member. Predicting {constant} of training: {number(mean, digits)}."
    drawn = [
        Drawing(
            name if group == first else f"{name}-{group}",
            ", ".join(["Test set", *labels[group]]) + f": {what}. {words}",
            partial(epochs, names),
        )
        for group, names in present.items()
    ]
    losses = {
        ", ".join([*labels[group], kind]): curves
        for group, names in present.items()
        for kind, curves in _losses(result, names).items()
    }
    if losses:
        caption = (
            "Losses by epoch: means over the members still in training. Losses above the 99th "
            "percentile are cut off."
        )
        drawn.append(Drawing(f"{name}-training", caption, partial(draw_losses, losses)))
    return drawn


def _losses(result: ExperimentResult, names: Sequence[str]) -> dict[str, list[Losses]]:
    """Curves of plain rows, and of improved ones together with the plain PNA."""
    kinds: dict[str, list[Losses]] = {"plain rows": [], "improved rows": []}
    improved = [name for name in names if IMPROVED in result.row(name).split()]
    for name in names:
        if name not in result.curves:
            continue
        epochs, training, validation = (
            [row[column] for row in result.curves[name]]
            for column in ("epoch", "training", "validation")
        )
        label = result.label(name, with_group=False)
        curve = Losses(label, epochs, training, validation, result.is_ours(name))
        if name not in improved:
            kinds["plain rows"].append(curve)
        if name in improved or (improved and curve.is_ours):
            kinds["improved rows"].append(curve)
    return {kind: curves for kind, curves in kinds.items() if curves}


#: How `Experiment.figure` is drawn.
FIGURES: dict[str, Callable[[ExperimentResult], list[Drawing]]] = {
    "strips": _strip_plots,
    "pairs": _paired_plots,
    "curves": _curves,
    "heatmap": _heatmap,
    "sizes": _sizes,
    **dict.fromkeys(SPREAD, _by_setting),
    "benchmark": _benchmark,
}
