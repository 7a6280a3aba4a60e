"""Errors over the number of parameters: a point for each population, those of a model joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pna.paper.scores import Estimate
from pna.report.figures import APART, FAINT, INK, literal
from pna.report.panels import NARROW, legend, quieten, spread
from pna.report.strips import OTHER

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LEAST_ROOM = 0.05  # between the names of two models, in heights of the panel


@dataclass(frozen=True)
class Model:
    """A model in one size, or in several from the least to the most parameters."""

    label: str
    points: Sequence[tuple[int, Estimate]]
    is_ours: bool = False


def draw_sizes(title: str, models: Sequence[Model], ways: Sequence[str], baseline: float) -> Figure:
    """Filled points for the first size, hollow ones for the second; bars are intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(NARROW, 4.6), layout="constrained")
    axes = figure.subplots()
    ends_at = [model.points[-1][1].mean for model in models]
    reach = max([*ends_at, baseline]) - min(ends_at)
    for model, height in zip(models, spread(ends_at, reach * _LEAST_ROOM), strict=True):
        colour = APART if model.is_ours else OTHER
        at = [parameters for parameters, _ in model.points]
        means = [value.mean for _, value in model.points]
        axes.plot(at, means, "-", color=colour, linewidth=1, zorder=1)
        for k, (x, value) in enumerate(model.points):
            if math.isfinite(value.half):
                ends = [value.mean - value.half, value.mean + value.half]
                axes.plot([x, x], ends, color=colour, linewidth=1.6, zorder=2)
            axes.plot(x, value.mean, "o", ms=7, mec=colour, mew=1.5, zorder=3,
                      mfc=colour if k == 0 else "white")  # fmt: skip
        axes.annotate(literal(model.label), (at[-1], height), (9, 0), textcoords="offset points",
                      va="center", fontsize=9, color=INK, annotation_clip=False,
                      fontweight="bold" if model.is_ours else "normal")  # fmt: skip
    if math.isfinite(baseline):
        axes.axhline(baseline, color=FAINT, linestyle="--", linewidth=1)
    axes.margins(x=0.08, y=0.08)
    quieten(axes, title, "parameters")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=FAINT, alpha=0.15, linewidth=0.8)
    marks: dict[str, dict[str, Any]] = {
        way: {"marker": "o", "mfc": OTHER if k == 0 else "none", "mec": OTHER, "ms": 6}
        for k, way in enumerate(ways)
    }
    legend(figure, marks | {"predicting the mean": {"color": FAINT, "linestyle": "--"}})
    return figure
