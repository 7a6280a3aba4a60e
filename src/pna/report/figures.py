"""Figures of results, as SVG for pages and PNG for slides."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from pna.files import make_folder, replacing
from pna.paper.failures import Failures, Neighbourhood, braces
from pna.report.colours import ALIKE, APART, FAINT, INK

_NO_LETTER = "\N{REPLACEMENT CHARACTER}"
VALUES = ("#fffaf0", "#fde3b5", "#fbc97f", "#f5a94f", "#e88a2e")  # of a leaf, from 0 to 4


def draw_failures(result: Failures) -> Figure:
    """Each pair as two stars, and below it which methods tell the two apart."""
    column, row, label, tally = 2.5, 0.44, 2.45, 1.0
    width = label + column * len(result.pairs) + tally
    top, gap = 2.85, 0.22
    singles = sum(len(s[0, 0]) == 1 for s in result.statistics)
    height = top + row * len(result.methods) + gap
    figure = Figure(figsize=(0.85 * width, 0.85 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.1, width - 0.1), ylim=(-height + 0.1, 0.1), aspect="equal")
    axes.axis("off")

    title = "Which statistics tell two neighbourhoods apart?"
    _text(axes, 0.1, -0.15, title, size=13, weight="bold", ha="left")
    for p, pair in enumerate(result.pairs):
        middle = label + column * (p + 0.5)
        _text(axes, middle, -0.65, pair.difference, size=9.5, weight="bold")
        for side, offset in ((pair.left, -0.6), (pair.right, 0.6)):
            _star(axes, middle + offset, -1.53, side)
            _text(axes, middle + offset, -2.4, braces(side), size=8.5, color=FAINT)

    last = label + column * len(result.pairs) + tally / 2 - 0.05
    _text(axes, last, -2.4, "told apart", size=8.5)
    for m, method in enumerate(result.methods):
        y = -top - row * m - (gap if m >= singles else 0)
        weight = "bold" if m >= singles else "normal"
        _text(axes, label - 0.2, y, method.name, size=10, weight=weight, ha="right")
        for p, apart in enumerate(marks[m] for marks in result.told_apart):
            left, right = result.statistics[m][p]
            sign = "≠" if apart else "="
            words = f"{left[0]:.3g} {sign} {right[0]:.3g}" if len(left) == 1 else sign
            _mark(axes, label + column * (p + 0.5), y, column - 0.25, row - 0.09, words, apart)
        count = sum(marks[m] for marks in result.told_apart)
        _text(axes, last, y, f"{count} of {len(result.pairs)}", size=10, weight=weight)
    return figure


def literal(words: str) -> str:
    """Names from outside (targets, types, files) as a figure shows them, letter by letter: no
    formulas between dollar signs, and no characters that an SVG file may not hold."""
    shown = "".join(c if c.isprintable() or c == "\n" else _NO_LETTER for c in words)
    return shown.replace("$", r"\$")


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.png into `folder`."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    save_svg(figure, svg)
    with replacing(png, binary=True) as file:
        figure.savefig(file, format="png", dpi=160, facecolor="white")
    return [svg, png]


def save_svg(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes for the same one; folders are made."""
    make_folder(path.parent)
    look = rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem})
    with look, replacing(path, binary=True) as file:
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")


def _star(axes: Axes, x: float, y: float, leaves: Neighbourhood) -> None:
    reach, size = 0.43, 0.145
    start = math.pi / 2 + (math.pi / 4 if len(leaves) == 4 else 0)
    for i, value in enumerate(leaves):
        angle = start - 2 * math.pi * i / len(leaves)
        at = (x + reach * math.cos(angle), y + reach * math.sin(angle))
        axes.plot([x, at[0]], [y, at[1]], color=FAINT, linewidth=1.2, zorder=1)
        colour = VALUES[min(int(value), len(VALUES) - 1)]
        axes.add_patch(Circle(at, size, facecolor=colour, edgecolor=INK, linewidth=1, zorder=2))
        _text(axes, *at, f"{value:g}", size=9)
    axes.add_patch(Circle((x, y), 0.1, facecolor=INK, edgecolor=INK, zorder=2))


def _mark(
    axes: Axes, x: float, y: float, width: float, height: float, words: str, apart: bool
) -> None:
    box = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=APART if apart else ALIKE,
        edgecolor="none",
    )
    axes.add_patch(box)
    weight = "bold" if apart else "normal"
    _text(axes, x, y, words, size=9.5, color="white" if apart else FAINT, weight=weight)


def _text(axes: Axes, x: float, y: float, words: str, **look: Any) -> None:
    usual = {"color": INK, "ha": "center", "va": "center_baseline"}
    axes.text(x, y, words, **usual | look)
