"""Errors over the size of graphs: a curve for each population, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from pna.paper.scores import Estimate
from pna.report.figures import APART, FAINT, INK, literal
from pna.report.panels import grid, legend, quieten, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Each has a mark beside its name as well: legible without colour vision.
_OURS = (APART, "o")
_OTHERS = (
    ("#b3530a", "s"), ("#3a8a5c", "^"), ("#8a4f9e", "D"), ("#7c8794", "v"), ("#a3862a", "P"),
    ("#4f4a45", "X"),
)  # fmt: skip
_LEAST_ROOM = 0.055  # between the names of two curves, in heights of the panel


@dataclass(frozen=True)
class Curve:
    """A population at each place; where the paper has no number there is none."""

    label: str
    values: Sequence[Estimate]
    published: Sequence[float | None] = ()
    is_ours: bool = False
    intervals: bool = True  # else there are too few members for them


@dataclass(frozen=True)
class Curves:
    title: str
    curves: Sequence[Curve]


def draw_curves(
    panels: Sequence[Curves], places: Sequence[float], label: str, highest: float
) -> Figure:
    """Panels one below the other; what is above `highest` is cut off, and an arrow says so."""
    figure, axes = grid(len(panels), 1, 3.6)
    means = [e.mean for panel in panels for curve in panel.curves for e in curve.values]
    paper = [v for panel in panels for c in panel.curves for v in c.published if v is not None]
    known = [value for value in (*means, *paper) if math.isfinite(value)]
    top = min(max([*known, 0.0]) + 0.1, highest)
    styles = _styles(panels)
    for place, panel in zip(axes, panels, strict=True):
        _draw(place, panel, styles, places, (min([*known, top - 1.0]) - 0.15, top))
        place.set_xlabel(literal(label), fontsize=8.5, color=FAINT)
    has_intervals = any(curve.intervals for panel in panels for curve in panel.curves)
    mean = "here: mean, 95% interval" if has_intervals else "here: mean"
    marks: dict[str, dict[str, Any]] = {mean: {"color": INK, "linestyle": "-", "linewidth": 1.8}}
    if paper:
        marks["the paper"] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    marks["predicting the mean"] = {"color": FAINT, "linestyle": ":", "linewidth": 1.4}
    legend(figure, marks)
    return figure


def _styles(panels: Sequence[Curves]) -> dict[str, tuple[str, str]]:
    """Colour and mark of every name: the same in all panels, others beside it in none."""
    styles: dict[str, tuple[str, str]] = {}
    for panel in panels:
        taken = {styles.get(curve.label) for curve in panel.curves}
        left = [style for style in _OTHERS if style not in taken] or _OTHERS
        free = cycle(sorted(left, key=lambda style: style in styles.values()))  # new ones first
        for curve in sorted(panel.curves, key=lambda curve: curve.label):
            if curve.label not in styles:
                styles[curve.label] = _OURS if curve.is_ours else next(free)
    return styles


def _draw(
    axes: Axes,
    panel: Curves,
    styles: Mapping[str, tuple[str, str]],
    places: Sequence[float],
    limits: tuple[float, float],
) -> None:
    at = np.asarray(places, float)
    low, top = limits
    ends = []
    for curve in panel.curves:
        colour, mark = styles[curve.label]
        mean, half = (np.array([getattr(e, n) for e in curve.values]) for n in ("mean", "half"))
        if curve.intervals:
            axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
        width = 2.2 if curve.is_ours else 1.4
        axes.plot(at, mean, f"-{mark}", color=colour, linewidth=width, ms=4.5)
        paper = [math.nan if value is None else value for value in curve.published]
        if paper:
            axes.plot(at, paper, "--", color=colour, linewidth=1.1)
        ends.append(float(mean[-1]) if math.isfinite(mean[-1]) else math.inf)
    wide = np.ptp(at) or 1.0
    beyond = at[-1] + 0.06 * wide
    axes.set(ylim=limits, xlim=(at[0] - 0.04 * wide, at[-1] + 0.04 * wide))
    axes.axhline(0, color=FAINT, linestyle=":", linewidth=1.4, zorder=0)
    heights = spread([min(end, top) for end in ends], (top - low) * _LEAST_ROOM)
    for curve, end, y in zip(panel.curves, ends, heights, strict=True):
        colour, mark = styles[curve.label]
        axes.plot(beyond, y, mark, color=colour, ms=4.5, clip_on=False)
        axes.annotate(literal(curve.label) + " ↑" * (end > top), (beyond, y), (6, 0), va="center",
                      textcoords="offset points", fontsize=8.5, color=colour,
                      annotation_clip=False,
                      fontweight="bold" if curve.is_ours else "normal")  # fmt: skip
    quieten(axes, panel.title)
    axes.grid(axis="y", color=FAINT, alpha=0.15, linewidth=0.8)
