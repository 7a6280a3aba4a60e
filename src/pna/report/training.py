"""How losses fell: a curve for each population, training faint and validation strong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import TYPE_CHECKING

import numpy as np

from pna.report.figures import APART, FAINT, INK, literal
from pna.report.panels import WIDE, grid, legend, quieten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#b3530a", "#3a8a5c", "#8a4f9e", "#7c8794", "#a3862a", "#4f4a45")


@dataclass(frozen=True)
class Losses:
    """Of one population: epochs, and mean losses over its members."""

    label: str
    epochs: Sequence[float]
    training: Sequence[float]
    validation: Sequence[float]
    is_ours: bool = False


def draw_training(panels: Mapping[str, Sequence[Losses]]) -> Figure:
    """A panel for each group of populations, one below the other; losses are logarithmic."""
    from matplotlib.ticker import LogLocator, NullLocator

    least, most = _range([curve for curves in panels.values() for curve in curves])
    marked = (1, 2, 5) if most > 10 * least else (1, 1.5, 2, 3, 4, 5, 7)

    figure, places = grid(len(panels), 1, 3.0)
    figure.set_figwidth(WIDE)  # room beside the panels for what their curves are called
    for axes, (title, curves) in zip(places, panels.items(), strict=True):
        styles = cycle(product(("-", "--", ":"), _COLOURS))
        for curve in curves:
            line, colour = ("-", APART) if curve.is_ours else next(styles)
            width = 2.0 if curve.is_ours else 1.2
            axes.plot(curve.epochs, curve.training, color=colour, linewidth=0.8, alpha=0.45)
            axes.plot(curve.epochs, curve.validation, line, color=colour, linewidth=width,
                      label=literal(curve.label))  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylim(least, most)
        axes.yaxis.set_major_locator(LogLocator(subs=marked))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        quieten(axes, title, "epoch")
        axes.grid(axis="y", color=FAINT, alpha=0.15, linewidth=0.8)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5, frameon=False,
                    labelcolor=INK)  # fmt: skip
    legend(figure, {
        "validation": {"color": INK, "linestyle": "-", "linewidth": 1.8},
        "training": {"color": INK, "linestyle": "-", "linewidth": 0.8, "alpha": 0.45},
    })  # fmt: skip
    return figure


def _range(curves: Sequence[Losses]) -> tuple[float, float]:
    """From the least loss to what all but one in a hundred are below: a loss that shot up for some
    epochs does not press the rest together."""
    drawn = np.array([loss for c in curves for loss in (*c.training, *c.validation)])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not len(drawn):  # every run broke
        return 0.1, 1.0
    return float(drawn.min()) / 1.1, 1.1 * float(np.quantile(drawn, 0.99))
