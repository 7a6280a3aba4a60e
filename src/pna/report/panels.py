"""Shared by the figures of experiments: panels in a grid, plain axes, one legend below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from pna.paper.scores import Estimate
from pna.report.colours import FAINT, INK, NARROW, WIDE
from pna.report.figures import literal

#: The line of predicting the mean, in legends.
BASELINE: dict[str, dict[str, Any]] = {
    "predicting the mean": {"color": FAINT, "linestyle": "--", "linewidth": 1}
}


_LINE = 40  # letters of a label on one line


@dataclass(frozen=True)
class Series:
    """A population in a panel, with an estimate for every position or group."""

    label: str
    estimates: Sequence[Estimate]
    is_ours: bool = False
    published: Sequence[float | None] = ()  # None where the paper has no number
    members: Sequence[float] = ()  # all of them, the best in validation first
    positions: Sequence[float] = ()  # on the x axis, if not the same for all series


@dataclass(frozen=True)
class Panel:
    """A number that all series have, and what predicting the mean would give."""

    title: str
    series: Sequence[Series]
    baseline: float | None = None
    digits: int = 2


def has_baseline(panels: Sequence[Panel]) -> bool:
    return any(panel.baseline is not None for panel in panels)


def grid(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `height` inches high, whose rows share their labels."""
    rows = -(-count // columns)
    engine = ConstrainedLayoutEngine(h_pad=0.09)
    width = NARROW if columns == 1 else WIDE
    figure = Figure(figsize=(width, rows * height + 0.45), layout=engine)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for unused in panels[count:]:
        unused.axis("off")
    return figure, list(panels[:count])


def quieten(axes: Axes, title: str, label: str = "", grid_axis: Literal["x", "both"] = "x") -> None:
    """Title at the left, faint numbers, no box."""
    axes.set_title(literal(title), loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.set_xlabel(literal(label), fontsize=8.5, color=FAINT)
    axes.tick_params(labelsize=8.5, length=0, colors=FAINT)
    axes.grid(axis=grid_axis, color=FAINT, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def label_rows(axes: Axes, series: Sequence[Series]) -> None:
    """Labels of rows at the left, the first on top; long ones have several lines."""
    axes.set_yticks(range(len(series)), [literal(fill(one.label, _LINE)) for one in series])
    axes.set_ylim(len(series) - 0.4, -0.6)
    for text, one in zip(axes.get_yticklabels(), series, strict=False):  # no texts if shared
        text.set(color=INK, fontsize=9, fontweight=weight(one))


def weight(series: Series) -> str:
    return "bold" if series.is_ours else "normal"


def interval(value: Estimate) -> list[float]:
    """Ends of the 95% interval; NaN, which is not drawn, where there is none."""
    return [value.mean - value.half, value.mean + value.half]


def legend(figure: Figure, marks: dict[str, dict[str, Any]]) -> None:
    """The meaning of each mark, below the panels; marks are keywords of a line."""
    drawn = [Line2D([], [], **{"linestyle": "none", **how}) for how in marks.values()]
    columns = len(marks) if figure.get_figwidth() > NARROW else 2
    figure.legend(
        drawn, [literal(name) for name in marks], loc="outside lower left", ncols=columns,
        frameon=False, fontsize=8, labelcolor=FAINT, handletextpad=0.4, columnspacing=1.4,
        borderaxespad=0.2,
    )  # fmt: skip


def spread(heights: Sequence[float], room: float) -> list[float]:
    """Heights of labels, moved down from the highest until no two are closer than `room`."""
    moved = list(heights)
    last = math.inf
    for k in sorted(range(len(heights)), key=lambda k: -heights[k]):
        moved[k] = last = min(heights[k], last - room)
    return moved
