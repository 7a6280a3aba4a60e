"""Draw the results of `benchmarks/aggregate.py` into docs/figures/aggregate.svg.

python benchmarks/plot_aggregate.py
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from pna.report.bars import Bar, Bars, draw_bars
from pna.report.figures import save_svg

HERE = Path(__file__).parent


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
    figure = draw_bars([_bars(panel, rows) for panel, rows in panels if rows])
    save_svg(figure, HERE.parent / "docs" / "figures" / "aggregate.svg")


def _rows(results: list[dict[str, str]], panel: Panel) -> list[dict[str, str]]:
    """The rows of a panel, from the hardware that was measured last."""
    rows = [r for r in results if (r["case"], r["work"]) == (panel.case, panel.work)]
    latest = max((r["measured"] for r in rows), default="")
    return [r for r in rows if r["measured"] == latest]


def _bars(panel: Panel, rows: list[dict[str, str]]) -> Bars:
    first = rows[0]
    size = f"{int(first['nodes']):,} nodes, {int(first['edges']):,} edges, F = {first['features']}"
    hardware = (
        first["gpu"] if first["device"] == "cuda" else f"{first['threads']} cores of {first['cpu']}"
    )
    times = [float(r["ms"]) for r in rows]
    bars = []
    for i, (row, time) in enumerate(zip(rows, times, strict=True)):
        ratio = f"  {time / times[0]:.2f}×" if i else ""
        is_ours = row["contender"] in ("pna", "hub")
        bars.append(Bar(row["contender"], time, f"{time:.2f} ms{ratio}", is_ours))
    return Bars(panel.title, f"{hardware}: {size}", bars)


if __name__ == "__main__":
    main()
