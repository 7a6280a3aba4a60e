"""Every member of every population as a dot: a row for each population, a panel for each number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pna.paper.scores import Estimate
from pna.report.figures import APART, FAINT, INK
from pna.report.panels import grid, legend, quieten, rows_of
from pna.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OTHER = "#7c8794"
_DOT: dict[str, Any] = {"marker": "o", "mec": OTHER, "ms": 5}
_OFFSETS = (0.0, -0.13, 0.13)  # of dots from the middle of their row, so that fewer hide others


@dataclass(frozen=True)
class Strip:
    """A population: all of its members, the best in validation first, and the mean of those."""

    label: str
    values: Sequence[float]
    best: Estimate
    published: float | None = None
    is_ours: bool = False


@dataclass(frozen=True)
class Strips:
    """A number that all populations have, and what predicting the mean would give."""

    title: str
    strips: Sequence[Strip]
    baseline: float | None = None
    digits: int = 2


def draw_strips(panels: Sequence[Strips], columns: int = 1) -> Figure:
    """Filled dots are the members that are reported, hollow ones the rest."""
    rows = len(panels[0].strips)
    figure, places = grid(len(panels), columns, 0.3 * rows + 0.75)
    for axes, panel in zip(places, panels, strict=True):
        _draw(axes, panel, numbers=columns == 1)
    reported, others = {"mfc": OTHER, **_DOT}, {"mfc": "none", **_DOT}
    if all(len(s.best.values) == len(s.values) for panel in panels for s in panel.strips):
        marks: dict[str, dict[str, Any]] = {"a member": reported}
    else:
        marks = {"best in validation": reported, "the other members": others}
    marks |= {
        "mean, 95% interval": {"marker": "|", "mec": INK, "ms": 9, "mew": 2, "color": INK,
                               "linestyle": "-", "linewidth": 1.2},
    }  # fmt: skip
    if any(strip.published is not None for panel in panels for strip in panel.strips):
        marks["the paper"] = {"marker": "D", "mfc": INK, "mec": INK, "ms": 4.5}
    if any(panel.baseline is not None for panel in panels):
        marks["predicting the mean"] = {"color": FAINT, "linestyle": "--", "linewidth": 1}
    legend(figure, marks)
    return figure


def _draw(axes: Axes, panel: Strips, numbers: bool) -> None:
    for y, strip in enumerate(panel.strips):
        colour = APART if strip.is_ours else OTHER
        if math.isfinite(strip.best.half):
            low, high = strip.best.mean - strip.best.half, strip.best.mean + strip.best.half
            axes.plot([low, high], [y, y], color=INK, linewidth=1.2, zorder=3)
        kept = len(strip.best.values)
        heights = [y + offset for offset, _ in zip(cycle(_OFFSETS), strip.values, strict=False)]
        for fill, which in (("none", slice(kept, None)), (colour, slice(kept))):
            axes.plot(strip.values[which], heights[which], "o", ms=4.8, mfc=fill, mec=colour,
                      zorder=2)  # fmt: skip
        axes.plot(strip.best.mean, y, "|", ms=13, mew=2, color=INK, zorder=4)
        if strip.published is not None:
            axes.plot(strip.published, y + 0.33, "D", ms=4.2, color=INK, zorder=4)
        if numbers:
            axes.text(1.01, y, number(strip.best.mean, panel.digits), fontsize=8.5, va="center",
                      color=INK, transform=axes.get_yaxis_transform())  # fmt: skip
    if panel.baseline is not None and math.isfinite(panel.baseline):
        axes.axvline(panel.baseline, color=FAINT, linestyle="--", linewidth=1, zorder=1)
    quieten(axes, panel.title)
    rows_of(axes, [s.label for s in panel.strips], [s.is_ours for s in panel.strips])
