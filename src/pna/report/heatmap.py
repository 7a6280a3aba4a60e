"""A heatmap of numbers: the less, the darker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from pna.report.colours import INK, WIDE
from pna.report.figures import literal
from pna.report.tables import number

_LIGHT, _DARK = (0.93, 0.95, 0.97), (0.02, 0.27, 0.50)
_ON_LIGHT, _ON_DARK = "#111418", "#fefefe"  # numbers keep these colours on a dark page too


def draw_heatmap(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    strong: Sequence[bool],
) -> Figure:
    """A cell for each number; rows that are `strong` have bold names."""
    table = np.asarray(values, float)
    known = table[np.isfinite(table)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    depth = np.where(np.isfinite(table), (high - table) / max(high - low, 1e-9), np.nan)
    figure = Figure(figsize=(WIDE, 0.36 * len(rows) + 1.35), layout="constrained")
    axes = figure.subplots()
    colours = LinearSegmentedColormap.from_list("less", [_LIGHT, _DARK])
    axes.pcolormesh(depth, cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    for r, c in np.ndindex(*table.shape):
        ink = _ON_DARK if depth[r, c] > 0.5 else _ON_LIGHT
        label = number(float(table[r, c]))
        axes.text(c + 0.5, r + 0.5, label, ha="center", va="center", fontsize=8.5, color=ink)
    axes.invert_yaxis()
    heads = [literal(name).replace(" ", "\n") for name in columns]
    axes.set_xticks(np.arange(len(columns)) + 0.5, heads)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [literal(name) for name in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=8.5, colors=INK)
    for text, is_strong in zip(axes.get_yticklabels(), strong, strict=True):
        text.set_fontweight("bold" if is_strong else "normal")
    axes.set_title(literal(title), loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.spines[:].set_visible(False)
    return figure
