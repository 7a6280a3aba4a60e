"""Members of populations as dots: a row for each population, a panel for each number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pna.paper.claims import difference
from pna.report.colours import APART, FAINT, INK, OTHER
from pna.report.panels import (
    BASELINE,
    Panel,
    grid,
    has_baseline,
    interval,
    label_rows,
    legend,
    quieten,
)
from pna.report.tables import number

_DOT: dict[str, Any] = {"marker": "o", "mec": OTHER, "ms": 5}
_OFFSETS = (0.0, -0.13, 0.13)  # of dots from the middle of their row, so that fewer overlap
_GROUPS = (("o", APART, -0.11), ("s", "#b3530a", 0.11))  # mark, colour and offset of each group


def draw_strip_plot(panels: Sequence[Panel], columns: int = 1) -> Figure:
    """All members of each population. Filled dots are the members reported, hollow ones the rest.

    Every series has one estimate: the mean of the members reported.
    """
    every = [series for panel in panels for series in panel.series]
    figure, grid_axes = grid(len(panels), columns, 0.3 * len(panels[0].series) + 0.75)
    for axes, panel in zip(grid_axes, panels, strict=True):
        _draw_strips(axes, panel, numbers=columns == 1)
    marks: dict[str, dict[str, Any]] = {
        "best in validation": {"mfc": OTHER, **_DOT},
        "the other members": {"mfc": "none", **_DOT},
    }
    if all(len(one.estimates[0].values) == len(one.members) for one in every):
        marks = {"a member": marks["best in validation"]}
    marks["mean, 95% interval"] = {
        "marker": "|", "mec": INK, "ms": 9, "mew": 2, "color": INK, "linestyle": "-",
        "linewidth": 1.2,
    }  # fmt: skip
    if any(value is not None for one in every for value in one.published):
        marks["the paper"] = {"marker": "D", "mfc": INK, "mec": INK, "ms": 4.5}
    legend(figure, marks | BASELINE if has_baseline(panels) else marks)
    return figure


def _draw_strips(axes: Axes, panel: Panel, numbers: bool) -> None:
    for y, series in enumerate(panel.series):
        colour = APART if series.is_ours else OTHER
        (best,), (published,) = series.estimates, series.published or (None,)
        if math.isfinite(best.half):
            axes.plot(interval(best), [y, y], color=INK, linewidth=1.2, zorder=3)
        kept = len(best.values)
        heights = [y + offset for offset, _ in zip(cycle(_OFFSETS), series.members, strict=False)]
        for fill, which in (("none", slice(kept, None)), (colour, slice(kept))):
            axes.plot(series.members[which], heights[which], "o", ms=4.8, mfc=fill, mec=colour,
                      zorder=2)  # fmt: skip
        axes.plot(best.mean, y, "|", ms=13, mew=2, color=INK, zorder=4)
        if published is not None:
            axes.plot(published, y + 0.33, "D", ms=4.2, color=INK, zorder=4)
        if numbers:
            _annotate(axes, y, number(best.mean, panel.digits))
    _finish(axes, panel, zorder=1)


def draw_paired_plot(panels: Sequence[Panel], groups: Sequence[str], columns: int = 1) -> Figure:
    """Each population trained in two ways: circles for the first, squares for the second.

    Every series has two estimates. Small marks are single members.
    """
    figure, grid_axes = grid(len(panels), columns, 0.34 * len(panels[0].series) + 0.75)
    for axes, panel in zip(grid_axes, panels, strict=True):
        _draw_pairs(axes, panel, numbers=columns == 1)
    marks: dict[str, dict[str, Any]] = {
        f"{group}: mean, 95% interval": {
            "marker": mark, "mfc": colour, "mec": colour, "ms": 6, "color": colour,
            "linestyle": "-",
        }
        for group, (mark, colour, _) in zip(groups, _GROUPS, strict=True)
    }  # fmt: skip
    legend(figure, marks | BASELINE if has_baseline(panels) else marks)
    return figure


def _draw_pairs(axes: Axes, panel: Panel, numbers: bool) -> None:
    for y, series in enumerate(panel.series):
        for value, (mark, colour, offset) in zip(series.estimates, _GROUPS, strict=True):
            at = y + offset
            if math.isfinite(value.half):
                axes.plot(interval(value), [at, at], color=colour, linewidth=1.6, zorder=2)
            axes.plot(value.values, [at] * len(value.values), mark, ms=3, mfc="none", mec=colour,
                      mew=0.7, alpha=0.7, zorder=1)  # fmt: skip
            axes.plot(value.mean, at, mark, ms=6.5, color=colour, zorder=3)
        if numbers:
            _annotate(axes, y, str(difference(*series.estimates)))
    _finish(axes, panel, zorder=0)


def _annotate(axes: Axes, y: float, text: str) -> None:
    """Write a number at the right of a row."""
    axes.text(1.01, y, text, fontsize=8.5, va="center", color=INK,
              transform=axes.get_yaxis_transform())  # fmt: skip


def _finish(axes: Axes, panel: Panel, zorder: int) -> None:
    if panel.baseline is not None and math.isfinite(panel.baseline):
        axes.axvline(panel.baseline, color=FAINT, linestyle="--", linewidth=1, zorder=zorder)
    quieten(axes, panel.title)
    label_rows(axes, panel.series)
