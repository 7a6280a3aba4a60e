"""Models trained in two ways: a row for each, both of its errors, and how far they are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pna.paper.claims import difference
from pna.paper.scores import Estimate
from pna.report.figures import APART, FAINT, INK
from pna.report.panels import grid, legend, quieten, rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SECOND = "#b3530a"
_MARKS = (("o", APART, -0.11), ("s", SECOND, 0.11))  # of each way, and how far above the middle


@dataclass(frozen=True)
class Pair:
    """One model, trained in two ways."""

    label: str
    ways: tuple[Estimate, Estimate]
    is_ours: bool = False


@dataclass(frozen=True)
class Pairs:
    """A number that all models have, and what predicting the mean would give."""

    title: str
    pairs: Sequence[Pair]
    baseline: float | None = None


def draw_pairs(panels: Sequence[Pairs], ways: Sequence[str], columns: int = 1) -> Figure:
    """Circles for the first way, squares for the second; small marks are single members."""
    rows = len(panels[0].pairs)
    figure, places = grid(len(panels), columns, 0.34 * rows + 0.75)
    for axes, panel in zip(places, panels, strict=True):
        _draw(axes, panel, numbers=columns == 1)
    marks: dict[str, dict[str, Any]] = {
        way: {"marker": mark, "mfc": colour, "mec": colour, "ms": 6, "color": colour,
              "linestyle": "-"}
        for way, (mark, colour, _) in zip(ways, _MARKS, strict=True)
    }  # fmt: skip
    marks = {f"{way}: mean, 95% interval": how for way, how in marks.items()}
    if any(panel.baseline is not None for panel in panels):
        marks["predicting the mean"] = {"color": FAINT, "linestyle": "--", "linewidth": 1}
    legend(figure, marks)
    return figure


def _draw(axes: Axes, panel: Pairs, numbers: bool) -> None:
    for y, pair in enumerate(panel.pairs):
        for value, (mark, colour, offset) in zip(pair.ways, _MARKS, strict=True):
            at = y + offset
            if math.isfinite(value.half):
                ends = [value.mean - value.half, value.mean + value.half]
                axes.plot(ends, [at, at], color=colour, linewidth=1.6, zorder=2)
            axes.plot(value.values, [at] * len(value.values), mark, ms=3, mfc="none", mec=colour,
                      mew=0.7, alpha=0.7, zorder=1)  # fmt: skip
            axes.plot(value.mean, at, mark, ms=6.5, color=colour, zorder=3)
        if numbers:
            axes.text(1.01, y, str(difference(*pair.ways)), fontsize=8.5, va="center", color=INK,
                      transform=axes.get_yaxis_transform())  # fmt: skip
    if panel.baseline is not None and math.isfinite(panel.baseline):
        axes.axvline(panel.baseline, color=FAINT, linestyle="--", linewidth=1, zorder=0)
    quieten(axes, panel.title)
    rows_of(axes, [pair.label for pair in panel.pairs], [pair.is_ours for pair in panel.pairs])
