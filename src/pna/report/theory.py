"""A figure for each statement of the theory."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pna.paper.theory import AGGREGATORS, LARGEST, NODES, Codes, Theory
from pna.report.colours import APART, FAINT, INK, SECOND

_SIZES = (FAINT, APART, SECOND, "#3a8a5c", "#8a4f9e")  # of multisets, from 0 elements
_FLOAT32 = float(np.log10(np.finfo(np.float32).max))


def draw_theory(result: Theory) -> dict[str, Figure]:
    """Figures by the names of their files."""
    return {
        "theorem-1": draw_collisions(result),
        "proposition-1": draw_recoveries(result),
        "theorem-2": draw_codes(result),
        "scalers": draw_growth(result),
    }


def draw_collisions(result: Theory) -> Figure:
    """For each n two multisets, one above the other, that n − 1 aggregators confuse."""
    figure = Figure(figsize=(8.6, 0.72 * len(result.collisions) + 0.7), layout="constrained")
    axes = figure.subplots()
    labels = []
    for y, search in enumerate(result.collisions):
        found = search.collision
        assert found is not None
        axes.plot(found.left, [y - 0.13] * len(found.left), "o", color=APART, ms=6.5)
        axes.plot(found.right, [y + 0.13] * len(found.right), "s", color=SECOND, ms=5.5)
        labels.append(f"n = {len(found.left)}")
        exactly = f"to {found.disagreement:.1g}" if found.disagreement else "exactly"
        note = f"{'and ' if y else ''}{AGGREGATORS[y]} agree{'' if y else 's'} {exactly}"
        axes.text(1.01, y, note, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5,
                  color=INK)  # fmt: skip
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.6)
    _quiet(axes, "Two multisets of n reals, circles and squares: every row adds an aggregator, "
                 "and n − 1 agree")  # fmt: skip
    axes.grid(axis="x", color=FAINT, alpha=0.15)
    return figure


def draw_recoveries(result: Theory) -> Figure:
    """Errors of values recovered from moments, measured and estimated, by n."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    n = [recovery.n for recovery in result.recoveries]
    least = np.finfo(np.float64).eps / 2
    errors = [max(recovery.error, least) for recovery in result.recoveries]
    axes.semilogy(n, [r.recovered.error for r in result.recoveries], "--s", color=SECOND, ms=4.5,
                  label="what multiset_from_moments says to expect")  # fmt: skip
    axes.semilogy(n, errors, "-o", color=APART, ms=5, label="largest error of a value")
    axes.axhline(1e-6, color=FAINT, linestyle=":", linewidth=1.2)
    axes.text(n[-1], 1.5e-6, "1e-6", fontsize=8, color=FAINT, ha="right", va="bottom")
    axes.set_ylim(1e-17, 1e-3)
    axes.set_xlabel("n, equally spaced values from −1 to 1", fontsize=8.5, color=FAINT)
    axes.set_xticks(n)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left")
    _quiet(axes, "n values back from their mean and moments, in float64")
    return figure


def draw_codes(result: Theory) -> Figure:
    """Every small multiset at its value, a row for each size, a panel for each scaler."""
    figure = Figure(figsize=(8.6, 1.75 * len(result.codes) + 0.3), layout="constrained")
    for axes, codes in zip(figure.subplots(len(result.codes), 1), result.codes, strict=True):
        _draw_codes(axes, codes)
    axes.set_xlabel("value of a multiset (the empty one, at 0, is not drawn)", fontsize=8.5,
                    color=FAINT)  # fmt: skip
    return figure


def _draw_codes(axes: Axes, codes: Codes) -> None:
    shared = {multiset for group in codes.confused for multiset in group}
    for multiset, value in codes.values.items():
        if multiset:
            size = len(multiset)
            axes.plot(float(value), size, "o", ms=6, mec=_SIZES[size], mew=1.3,
                      mfc="none" if multiset in shared else _SIZES[size])  # fmt: skip
    names = ["1 element", *(f"{size} elements" for size in range(2, LARGEST + 1))]
    axes.set_yticks(range(1, LARGEST + 1), names)
    axes.set_ylim(LARGEST + 0.6, 0.4)
    distinct = len(set(codes.values.values()))
    _quiet(axes, f"mean × {codes.scaler}: {distinct} values of {len(codes.values)} multisets"
                 + ("; hollow ones share theirs" if shared else ""))  # fmt: skip
    axes.grid(axis="x", color=FAINT, alpha=0.15)


def draw_growth(result: Theory) -> Figure:
    """The largest feature after N/2 layers, by N: median, and the range over graphs."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    styles = {"linear": (SECOND, "s"), "amplification": (APART, "o"), "identity": (FAINT, "^")}
    for scaler, (colour, mark) in styles.items():
        values = result.growth[scaler]
        low, middle, high = (np.array([f(v) for v in values]) for f in (np.min, np.median, np.max))
        axes.fill_between(NODES, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(NODES, middle, f"-{mark}", color=colour, ms=5)
        axes.annotate(scaler, (NODES[-1], middle[-1]), (8, 0), textcoords="offset points",
                      va="center", fontsize=9, color=colour, annotation_clip=False)  # fmt: skip
    axes.axhline(_FLOAT32, color=FAINT, linestyle=":", linewidth=1.2)
    axes.text(NODES[0], _FLOAT32 + 0.8, "float32 ends", fontsize=8, color=FAINT)
    axes.set_xlabel("N, nodes of an Erdős–Rényi graph; lines: median of 64, shaded: all of them",
                    fontsize=8.5, color=FAINT)  # fmt: skip
    _quiet(axes, "log10 of the largest feature after N/2 layers x ← S(d)·mean(x)")
    return figure


def _quiet(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.tick_params(labelsize=8.5, length=0, colors=FAINT)
    axes.spines[["top", "right", "left"]].set_visible(False)
