"""Plots of the predictions of one target: parity, ROC, precision and recall, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure

from pna.report.colours import APART, FAINT
from pna.report.figures import literal
from pna.report.line_plots import COLOURS
from pna.report.panels import legend, quieten

MOST_CURVES = len(COLOURS)
MOST_BARS = 200  # points with an error bar each
MOST_POINTS = 1000  # points; more are counted in hexagons
_SIDE = 3.4  # inches
_LETTERS = 30  # of a name that fit beside an axis
_BINS, _IN_BIN = 10, 10  # largest number of bins of a reliability plot, and smallest of rows in one
_DIAGONAL: dict[str, Any] = {"color": FAINT, "linestyle": "--", "linewidth": 1, "zorder": 0}


def draw_parity(
    name: str,
    measured: np.ndarray,
    predicted: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """Predictions by measured values, (rows,) each, with bars between `ends` if there is room."""
    name = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    figure, axes = _panel("Parity", f"measured {name}", f"predicted {name}")
    bars = ends if len(measured) <= MOST_BARS else None
    drawn = [measured, predicted, *(bars or ())]
    low, high = min(map(np.min, drawn)), max(map(np.max, drawn))
    room = 0.04 * (high - low) or 1.0
    limits = (low - room, high + room)
    axes.plot(limits, limits, **_DIAGONAL)
    if bars is not None:
        axes.vlines(measured, *bars, color=APART, alpha=0.3, linewidth=0.9)
    if len(measured) > MOST_POINTS:
        shades = ListedColormap([(*to_rgb(APART), alpha) for alpha in np.linspace(0.2, 1, 6)])
        axes.hexbin(measured, predicted, gridsize=48, extent=2 * limits, bins="log", mincnt=1,
                    linewidths=0.1, cmap=shades)  # fmt: skip
    else:
        axes.plot(measured, predicted, "o", ms=3.6, color=APART, alpha=0.6, mew=0)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    axes.locator_params(nbins=6)
    return figure


@dataclass(frozen=True)
class Curve:
    """The rows of a class against the rest, with scores that are higher if it is likelier."""

    label: str  # at most `MOST_CURVES` are drawn in a figure
    ones: np.ndarray  # (rows,) bool
    scores: np.ndarray  # (rows,)
    chosen: np.ndarray | None = None  # (rows,) bool: which rows are predicted to be of the class


def draw_roc(curves: Sequence[Curve]) -> Figure:
    """Shares of the class and of the rest that are found, at every threshold."""
    from sklearn.metrics import roc_curve  # takes seconds to import

    figure, axes = _unit_panel("ROC curve", "false positive rate", "true positive rate")
    axes.plot((0, 1), (0, 1), **_DIAGONAL)
    for curve, look in _looks(figure, curves):
        rest, found, _ = roc_curve(curve.ones, curve.scores)
        axes.plot(rest, found, **look)
        if curve.chosen is not None:
            at = curve.chosen[~curve.ones].mean(), curve.chosen[curve.ones].mean()
            axes.plot(*at, "o", ms=6, color=look["color"])
    return figure


def draw_precision_recall(curves: Sequence[Curve]) -> Figure:
    """Share of right ones among the rows that are predicted to be of the class, by the share of
    the class that is found. A dashed line is the share of the class."""
    from sklearn.metrics import precision_recall_curve  # takes seconds to import

    figure, axes = _unit_panel("Precision-recall curve", "recall", "precision")
    for curve, look in _looks(figure, curves):
        precision, recall, _ = precision_recall_curve(
            curve.ones, curve.scores, drop_intermediate=True
        )
        axes.plot(recall, precision, drawstyle="steps-post", **look)
        if len(curves) == 1:
            axes.axhline(curve.ones.mean(), **_DIAGONAL)
        if curve.chosen is not None and curve.chosen.any():
            at = curve.chosen[curve.ones].mean(), curve.ones[curve.chosen].mean()
            axes.plot(*at, "o", ms=6, color=look["color"])
    return figure


@dataclass(frozen=True)
class ReliabilityBins:
    """Bins of rows with similar probabilities, (bins,) each."""

    rows: np.ndarray
    predicted: np.ndarray  # mean probability
    observed: np.ndarray  # share of hits
    low: np.ndarray  # ends of its 95% interval by Wilson's method
    high: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray, hits: np.ndarray) -> ReliabilityBins:
        """Bins of about equally many rows, at most 10; equal probabilities are in one bin."""
        from scipy.stats import binomtest  # takes a second to import

        bins = int(np.clip(len(hits) // _IN_BIN, 1, _BINS))
        inner = np.quantile(probabilities, np.arange(1, bins) / bins)
        index = np.searchsorted(inner, probabilities)
        rows, right, total = (
            np.bincount(index, weights, minlength=bins) for weights in (None, hits, probabilities)
        )
        some = rows > 0
        rows, right, total = rows[some], right[some].astype(int), total[some]
        ends = [
            binomtest(int(k), int(n)).proportion_ci(0.95, "wilson")
            for k, n in zip(right, rows, strict=True)
        ]
        low, high = np.array(ends).T
        return cls(rows, total / rows, right / rows, low, high)


def draw_reliability(
    bins: ReliabilityBins, before: ReliabilityBins | None, labels: tuple[str, str]
) -> Figure:
    """Observed shares by predicted probabilities; hollow points are those `before` calibration."""
    every = [bins] if before is None else [bins, before]
    most = max(float(np.max([*one.predicted, *one.high])) for one in every)
    figure, axes = _unit_panel("Calibration", *labels, most=1.0 if most > 0.5 else most)
    axes.plot((0, 1), (0, 1), **_DIAGONAL)
    if before is not None:
        axes.plot(before.predicted, before.observed, "-o", color=FAINT, linewidth=0.9, ms=4.5,
                  mfc="none", alpha=0.8)  # fmt: skip
    axes.vlines(bins.predicted, bins.low, bins.high, color=APART, alpha=0.45, linewidth=1.4)
    axes.plot(bins.predicted, bins.observed, "-o", color=APART, linewidth=0.9, ms=5)
    return figure


def draw_coverage(levels: Sequence[float], covered: Sequence[float]) -> Figure:
    """The share of rows inside intervals, by the share that they shall cover."""
    figure, axes = _unit_panel(
        "Coverage of intervals", "level of the intervals", "share of values inside"
    )
    axes.plot((0, 1), (0, 1), **_DIAGONAL)
    axes.plot(levels, covered, "-o", color=APART, linewidth=1.4, ms=5)
    return figure


def _looks(figure: Figure, curves: Sequence[Curve]) -> list[tuple[Curve, dict[str, Any]]]:
    """Each curve with the keywords of its line. Several of them have a legend."""
    width = 1.8 if len(curves) == 1 else 1.3
    looks = [
        {"color": colour, "linestyle": style, "linewidth": width}
        for _, colour, style in zip(curves, COLOURS, cycle(("-", "--", ":", "-.")), strict=False)
    ]
    if len(curves) > 1:
        legend(figure, {curve.label: look for curve, look in zip(curves, looks, strict=True)})
    return list(zip(curves, looks, strict=True))


def _panel(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_SIDE, _SIDE), layout="constrained")
    axes = figure.subplots()
    quieten(axes, title, x, grid_axis="both")
    axes.set_ylabel(literal(y), fontsize=8.5, color=FAINT)
    return figure, axes


def _unit_panel(title: str, x: str, y: str, most: float = 1.0) -> tuple[Figure, Axes]:
    """A panel whose axes are from 0 to 1, or to less."""
    figure, axes = _panel(title, x, y)
    limits = (-0.02 * most, 1.02 * most)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    return figure, axes
