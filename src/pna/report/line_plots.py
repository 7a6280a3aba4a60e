"""Lines: errors by the size of graphs or of models or by a setting, and losses by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from pna.report.colours import APART, FAINT, INK, NARROW, OTHER, WIDE
from pna.report.figures import literal
from pna.report.panels import Panel, grid, interval, legend, quieten, spread, weight

# A curve differs from others in its marker as well: legible without colour vision.
_OURS = (APART, "o")
_OTHERS = (
    ("#b3530a", "s"), ("#3a8a5c", "^"), ("#8a4f9e", "D"), (OTHER, "v"), ("#a3862a", "P"),
    ("#4f4a45", "X"),
)  # fmt: skip
COLOURS = (APART, *(colour for colour, _ in _OTHERS))
_MOST_EPOCHS = 500  # of a learning curve


def draw_curves(
    panels: Sequence[Panel], positions: Sequence[float], label: str, highest: float
) -> Figure:
    """Panels one below the other. Curves above `highest` are cut off, and an arrow says so.

    Every series has an estimate for each position, and the paper's number for each or none at all.
    """
    figure, axes = grid(len(panels), 1, 3.6)
    every = [series for panel in panels for series in panel.series]
    paper = [value for series in every for value in series.published if value is not None]
    means = [estimate.mean for series in every for estimate in series.estimates]
    known = [value for value in (*means, *paper) if math.isfinite(value)]
    top = min(max([*known, 0.0]) + 0.1, highest)
    styles = _styles(panels)
    for place, panel in zip(axes, panels, strict=True):
        _draw_curves(place, panel, styles, positions, (min([*known, top - 1.0]) - 0.15, top))
        place.set_xlabel(literal(label), fontsize=8.5, color=FAINT)
    has_intervals = any(math.isfinite(e.half) for series in every for e in series.estimates)
    mean = "here: mean, 95% interval" if has_intervals else "here: mean"
    marks: dict[str, dict[str, Any]] = {mean: {"color": INK, "linestyle": "-", "linewidth": 1.8}}
    if paper:
        marks["the paper"] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    marks["predicting the mean"] = {"color": FAINT, "linestyle": ":", "linewidth": 1.4}
    legend(figure, marks)
    return figure


def _styles(panels: Sequence[Panel]) -> dict[str, tuple[str, str]]:
    """Colour and marker of every label: the same in all panels, and unique within each."""
    styles: dict[str, tuple[str, str]] = {}
    for panel in panels:
        taken = {styles.get(series.label) for series in panel.series}
        left = [style for style in _OTHERS if style not in taken] or _OTHERS
        free = cycle(sorted(left, key=lambda style: style in styles.values()))  # new ones first
        for series in sorted(panel.series, key=lambda series: series.label):
            if series.label not in styles:
                styles[series.label] = _OURS if series.is_ours else next(free)
    return styles


def _draw_curves(
    axes: Axes,
    panel: Panel,
    styles: Mapping[str, tuple[str, str]],
    positions: Sequence[float],
    limits: tuple[float, float],
) -> None:
    at = np.asarray(positions, float)
    low, top = limits
    ends = []
    for series in panel.series:
        colour, mark = styles[series.label]
        mean, half = (np.array([getattr(e, n) for e in series.estimates]) for n in ("mean", "half"))
        if np.isfinite(half).any():
            axes.fill_between(at, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
        width = 2.2 if series.is_ours else 1.4
        axes.plot(at, mean, f"-{mark}", color=colour, linewidth=width, ms=4.5)
        if series.published:
            axes.plot(at, np.array(series.published, float), "--", color=colour, linewidth=1.1)
        ends.append(float(mean[-1]) if math.isfinite(mean[-1]) else math.inf)
    wide = np.ptp(at) or 1.0
    beyond = at[-1] + 0.06 * wide
    axes.set(ylim=limits, xlim=(at[0] - 0.04 * wide, at[-1] + 0.04 * wide))
    axes.axhline(0, color=FAINT, linestyle=":", linewidth=1.4, zorder=0)
    heights = spread([min(end, top) for end in ends], (top - low) * 0.055)
    for series, end, y in zip(panel.series, ends, heights, strict=True):
        colour, mark = styles[series.label]
        axes.plot(beyond, y, mark, color=colour, ms=4.5, clip_on=False)
        text = literal(series.label) + " ↑" * (end > top)
        _annotate(axes, text, (beyond, y), 6, 8.5, colour, weight(series))
    quieten(axes, panel.title, grid_axis="both")


def draw_sizes(panel: Panel, groups: Sequence[str]) -> Figure:
    """Errors by the number of parameters: a point for each size of a model, joined by a line.

    Filled points are the first size, hollow ones the second; bars are intervals.
    """
    figure = Figure(figsize=(NARROW, 4.6), layout="constrained")
    axes = figure.subplots()
    baseline = panel.baseline or 0.0
    ends_at = [series.estimates[-1].mean for series in panel.series]
    reach = max([*ends_at, baseline]) - min(ends_at)
    for series, height in zip(panel.series, spread(ends_at, reach * 0.05), strict=True):
        colour = APART if series.is_ours else OTHER
        means = [value.mean for value in series.estimates]
        axes.plot(series.positions, means, "-", color=colour, linewidth=1, zorder=1)
        for k, (x, value) in enumerate(zip(series.positions, series.estimates, strict=True)):
            if math.isfinite(value.half):
                axes.plot([x, x], interval(value), color=colour, linewidth=1.6, zorder=2)
            axes.plot(x, value.mean, "o", ms=7, mec=colour, mew=1.5, zorder=3,
                      mfc=colour if k == 0 else "white")  # fmt: skip
        end = (series.positions[-1], height)
        _annotate(axes, literal(series.label), end, 9, 9, INK, weight(series))
    if math.isfinite(baseline):
        axes.axhline(baseline, color=FAINT, linestyle="--", linewidth=1)
    axes.margins(x=0.08, y=0.08)
    quieten(axes, panel.title, "parameters", grid_axis="both")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    marks: dict[str, dict[str, Any]] = {
        group: {"marker": "o", "mfc": OTHER if k == 0 else "none", "mec": OTHER, "ms": 6}
        for k, group in enumerate(groups)
    }
    legend(figure, marks | {"predicting the mean": {"color": FAINT, "linestyle": "--"}})
    return figure


def _annotate(
    axes: Axes, text: str, at: tuple[float, float], points: int, size: float, colour: str, bold: str
) -> None:
    """Write the label of a line so many points to the right of its end."""
    axes.annotate(text, at, (points, 0), textcoords="offset points", va="center", fontsize=size,
                  color=colour, annotation_clip=False, fontweight=bold)  # fmt: skip


@dataclass(frozen=True)
class Losses:
    """Mean losses over the members of a population, by epoch."""

    label: str
    epochs: Sequence[float]
    training: Sequence[float]
    validation: Sequence[float]
    is_ours: bool = False


def draw_losses(panels: Mapping[str, Sequence[Losses]]) -> Figure:
    """A panel for each group of populations, one below the other, on a logarithmic axis. Training
    losses are faint, validation losses strong."""
    limits = _range([curve for curves in panels.values() for curve in curves])
    figure, grid_axes = grid(len(panels), 1, 3.0)
    figure.set_figwidth(WIDE)  # leaves room for the legends beside the panels
    for axes, (title, curves) in zip(grid_axes, panels.items(), strict=True):
        styles = cycle(product(("-", "--", ":"), (colour for colour, _ in _OTHERS)))
        for curve in curves:
            line, colour = ("-", APART) if curve.is_ours else next(styles)
            width = 2.0 if curve.is_ours else 1.2
            axes.plot(curve.epochs, curve.training, color=colour, linewidth=0.8, alpha=0.45)
            axes.plot(curve.epochs, curve.validation, line, color=colour, linewidth=width,
                      label=literal(curve.label))  # fmt: skip
        _set_log_scale(axes, *limits)
        quieten(axes, title, "epoch", grid_axis="both")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5, frameon=False,
                    labelcolor=INK)  # fmt: skip
    legend(figure, {
        "validation": {"color": INK, "linestyle": "-", "linewidth": 1.8},
        "training": {"color": INK, "linestyle": "-", "linewidth": 0.8, "alpha": 0.45},
    })  # fmt: skip
    return figure


def draw_learning_curve(rows: Sequence[Mapping[str, float]], best: Sequence[int]) -> Figure:
    """Losses of a run by epoch: means over the members still in training, and their range.

    `rows` are those of `metrics.csv`; `best` are the epochs whose weights were kept.
    """
    epochs = np.unique([row["epoch"] for row in rows])
    members = int(max(row["member"] for row in rows)) + 1
    table = np.full((2, len(epochs), members), np.nan)
    for row in rows:
        at = np.searchsorted(epochs, row["epoch"]), int(row["member"])
        table[:, at[0], at[1]] = row["training"], row["validation"]
    kept = slice(None, None, -(-len(epochs) // _MOST_EPOCHS))
    known = np.ma.masked_invalid(table[:, kept])
    (training, validation), ends = known.mean(2), (known.min(2), known.max(2))
    figure = Figure(figsize=(NARROW, 3.2), layout="constrained")
    axes = figure.subplots()
    looks: tuple[dict[str, Any], ...] = ({"color": FAINT, "linestyle": "--", "linewidth": 1.2},
             {"color": APART, "linestyle": "-", "linewidth": 1.8})  # fmt: skip
    for part, (losses, look) in enumerate(zip((training, validation), looks, strict=True)):
        axes.plot(epochs[kept], losses, **look)
        if members > 1:
            band = (end[part] for end in ends)
            axes.fill_between(epochs[kept], *band, color=look["color"], alpha=0.15, linewidth=0)
    axes.plot(best, [0.02] * len(best), "^", color=INK, ms=5, transform=axes.get_xaxis_transform())
    curve = Losses("", [], training.filled(np.nan), validation.filled(np.nan))
    _set_log_scale(axes, *_range([curve]))
    quieten(axes, "", "epoch", grid_axis="both")
    axes.set_ylabel("loss", fontsize=8.5, color=FAINT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    marks: dict[str, dict[str, Any]] = {"training": looks[0], "validation": looks[1]}
    legend(figure, marks | {"best epoch": {"marker": "^", "color": INK, "ms": 5}})
    return figure


def _set_log_scale(axes: Axes, least: float, most: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(least, most)
    marked = (1, 2, 5) if most > 10 * least else (1, 1.5, 2, 3, 4, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=marked))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _range(curves: Sequence[Losses]) -> tuple[float, float]:
    """From the least loss to the 99th percentile: a loss that is far too large for some epochs
    does not compress the other curves."""
    drawn = np.array([loss for c in curves for loss in (*c.training, *c.validation)])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not len(drawn):  # every run broke
        return 0.1, 1.0
    return float(drawn.min()) / 1.1, 1.1 * float(np.quantile(drawn, 0.99))
