"""Figure of the layer's times beside PyG's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pna.bench.layer import OURS, PYG, LayerResult
from pna.report.bars import Bar, Bars, draw_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_layer(results: Sequence[LayerResult], hardware: str) -> Figure | None:
    """A panel for each graph and kind of work; None if nothing was timed."""
    timed = [result for result in results if result.ms is not None]
    panels = [
        _panel(list(rows), hardware) for _, rows in groupby(timed, lambda r: (r.case, r.work))
    ]
    return draw_bars(panels) if panels else None


def _panel(rows: list[LayerResult], hardware: str) -> Bars:
    first = rows[0]
    towers = f", {first.towers} towers" if first.towers > 1 else ""
    size = f"{first.nodes:,} nodes, {first.edges:,} edges, F = {first.features}{towers}"
    pyg = next((row.ms for row in rows if row.contender == PYG), None)
    bars = []
    for row in rows:
        assert row.ms is not None
        memory = "" if row.mib is None else f", {row.mib:,.1f} MiB"
        faster = (
            f"  {pyg / row.ms:.3g}× as fast" if pyg is not None and row.contender != PYG else ""
        )
        label = f"{row.ms:.2f} ms{memory}{faster}"
        bars.append(Bar(row.contender, row.ms, label, row.contender == OURS))
    return Bars(f"{first.case}, {first.work}", f"{hardware}: {size}", bars, width=1.45)
