"""What figures of experiments share: panels in a grid, quiet axes, one legend below them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pna.report.figures import FAINT, INK, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 8.6, 5.2  # inches of a figure with several columns, and with one


def grid(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `height` inches high, whose rows share their labels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = -(-count // columns)
    engine = ConstrainedLayoutEngine(h_pad=0.09)
    width = NARROW if columns == 1 else WIDE
    figure = Figure(figsize=(width, rows * height + 0.45), layout=engine)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for unused in panels[count:]:
        unused.axis("off")
    return figure, list(panels[:count])


def quieten(axes: Axes, title: str, label: str = "") -> None:
    """Title at the left, faint numbers, no box."""
    axes.set_title(literal(title), loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.set_xlabel(literal(label), fontsize=8.5, color=FAINT)
    axes.tick_params(labelsize=8.5, length=0, colors=FAINT)
    axes.grid(axis="x", color=FAINT, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def rows_of(axes: Axes, labels: Sequence[str], strong: Sequence[bool]) -> None:
    """Names of rows at the left, the first on top."""
    axes.set_yticks(range(len(labels)), [literal(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    for text, is_strong in zip(axes.get_yticklabels(), strong, strict=False):  # none if shared
        text.set(color=INK, fontsize=9, fontweight="bold" if is_strong else "normal")


def legend(figure: Figure, marks: dict[str, dict[str, Any]]) -> None:
    """What each mark means, below the panels; marks as keywords of a line."""
    from matplotlib.lines import Line2D

    drawn = [Line2D([], [], **{"linestyle": "none", **how}) for how in marks.values()]
    columns = len(marks) if figure.get_figwidth() > NARROW else 2
    figure.legend(
        drawn, [literal(name) for name in marks], loc="outside lower left", ncols=columns,
        frameon=False, fontsize=8, labelcolor=FAINT, handletextpad=0.4, columnspacing=1.4,
        borderaxespad=0.2,
    )  # fmt: skip


def spread(heights: Sequence[float], room: float) -> list[float]:
    """Heights of labels, moved down from the highest until there is room between any two."""
    moved = list(heights)
    last = math.inf
    for k in sorted(range(len(heights)), key=lambda k: -heights[k]):
        moved[k] = last = min(heights[k], last - room)
    return moved
