"""Draw the results of `benchmarks/aggregate.py` into docs/figures/aggregate.svg.

python benchmarks/plot_aggregate.py
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pna.report.figures import APART, FAINT, INK, save

HERE = Path(__file__).parent
OTHER = "#b9c2cc"


@dataclass(frozen=True)
class Panel:
    """One comparison: which rows, and what is said above them."""

    case: str
    work: str
    title: str


PANELS = (
    Panel("four for one", "forward", "four statistics beside kernels that only sum"),
    Panel("beside PyG", "forward", "beside PyG, forward"),
    Panel("beside PyG", "forward+backward", "beside PyG, forward and backward"),
    Panel("hub", "forward", "a hub of a million leaves, forward"),
    Panel("hub", "backward", "a hub of a million leaves, backward"),
    Panel("cpu", "forward", "beside PyG on a CPU, forward"),
    Panel("cpu", "forward+backward", "beside PyG on a CPU, forward and backward"),
)


def main() -> None:
    with (HERE / "results" / "aggregate.csv").open(newline="") as file:
        results = list(csv.DictReader(file))
    panels = [(panel, _rows(results, panel)) for panel in PANELS]
    panels = [(panel, rows) for panel, rows in panels if rows]
    bars = [len(rows) + 1.6 for _, rows in panels]
    figure = Figure(figsize=(8.5, 0.34 * sum(bars)), layout="constrained")
    subplots = figure.subplots(len(panels), 1, height_ratios=bars, squeeze=False)[:, 0]
    for axes, (panel, rows) in zip(subplots, panels, strict=True):
        _draw(axes, panel, rows)
    for path in save(figure, HERE.parent / "docs" / "figures", "aggregate"):
        if path.suffix == ".png":
            path.unlink()


def _rows(results: list[dict[str, str]], panel: Panel) -> list[dict[str, str]]:
    """The rows of a panel, from the hardware that was measured last."""
    rows = [r for r in results if (r["case"], r["work"]) == (panel.case, panel.work)]
    latest = max((r["measured"] for r in rows), default="")
    return [r for r in rows if r["measured"] == latest]


def _draw(axes: Axes, panel: Panel, rows: list[dict[str, str]]) -> None:
    names = [r["contender"] for r in rows]
    times = [float(r["ms"]) for r in rows]
    colours = [APART if name in ("pna", "hub") else OTHER for name in names]
    axes.barh(names, times, color=colours, height=0.7)
    axes.invert_yaxis()
    for y, time in enumerate(times):
        ratio = f"  {time / times[0]:.2f}×" if y else ""
        axes.text(time, y, f" {time:.2f} ms{ratio}", va="center", fontsize=8, color=INK)
    first = rows[0]
    size = f"{int(first['nodes']):,} nodes, {int(first['edges']):,} edges, F = {first['features']}"
    hardware = (
        first["gpu"] if first["device"] == "cuda" else f"{first['threads']} cores of {first['cpu']}"
    )
    axes.set_title(f"{panel.title}", loc="left", fontsize=9.5, fontweight="bold", color=INK)
    axes.set_title(f"{hardware}: {size}", loc="right", fontsize=7.5, color=FAINT)
    axes.set_xlim(0, max(times) * 1.25)
    axes.tick_params(axis="y", labelsize=8.5, length=0)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)


if __name__ == "__main__":
    main()
