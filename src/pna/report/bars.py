"""Horizontal bars, a panel for each comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pna.report.colours import APART, FAINT, INK
from pna.report.figures import literal

OTHER = "#b9c2cc"


@dataclass(frozen=True)
class Bar:
    """One contender: how long its bar is, and what is written at the end of it."""

    name: str
    value: float
    label: str
    is_ours: bool


@dataclass(frozen=True)
class Bars:
    """One comparison, and what is said above it: its title, and where it was measured."""

    title: str
    where: str
    bars: Sequence[Bar]
    width: float = 1.25  # of the panel, in lengths of its longest bar: labels need room


def draw_bars(panels: Sequence[Bars]) -> Figure:
    """The panels one below the other, each with a scale of its own."""
    heights = [len(panel.bars) + 1.6 for panel in panels]
    figure = Figure(figsize=(8.5, 0.34 * sum(heights)), layout="constrained")
    subplots = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, panel in zip(subplots, panels, strict=True):
        _draw(axes, panel)
    return figure


def _draw(axes: Axes, panel: Bars) -> None:
    names = [literal(bar.name) for bar in panel.bars]
    values = [bar.value for bar in panel.bars]
    colours = [APART if bar.is_ours else OTHER for bar in panel.bars]
    axes.barh(names, values, color=colours, height=0.7)
    axes.invert_yaxis()
    for y, bar in enumerate(panel.bars):
        axes.annotate(literal(bar.label), (bar.value, y), (3, 0), textcoords="offset points",
                      va="center", fontsize=8, color=INK)  # fmt: skip
    axes.set_title(literal(panel.title), loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.set_title(literal(panel.where), loc="right", fontsize=7.5, color=FAINT)
    axes.set_xlim(0, (max(values) or 1) * panel.width)
    axes.tick_params(axis="y", labelsize=8.5, length=0)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
