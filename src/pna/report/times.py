"""Figures of the times of `pna bench` beside PyG's: of the layer, and of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.figure import Figure

from pna.bench.contenders import PYG
from pna.bench.epoch_times import AUTHORS, OURS, EpochResult
from pna.bench.layer_cases import LayerResult
from pna.report.bars import Bar, Bars, draw_bars


def draw_times(results: Sequence[LayerResult | EpochResult], hardware: str) -> Figure | None:
    """A panel for each case and kind of work; None if nothing was timed."""
    timed = [result for result in results if result.ms is not None]
    groups = [[*rows] for _, rows in groupby(timed, lambda r: (r.case, getattr(r, "work", "")))]
    panels = [_panel(rows, hardware) for rows in groups]
    return draw_bars(panels) if panels else None


def _panel(rows: Sequence[Any], hardware: str) -> Bars:
    is_layer = isinstance(rows[0], LayerResult)
    return _layer_panel(rows, hardware) if is_layer else _epoch_panel(rows, hardware)


def _layer_panel(rows: Sequence[LayerResult], hardware: str) -> Bars:
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


def _epoch_panel(rows: Sequence[EpochResult], hardware: str) -> Bars:
    first = rows[0]
    bars = []
    for row in rows:
        assert row.ms is not None
        each = row.ms / row.members
        times = f"  {row.faster:.3g}× as fast" if row.faster and row.contender != row.beside else ""
        once = " (measured before)" if row.contender == AUTHORS else ""
        label = f"{each:,.4g} ms{times}{once}"
        bars.append(Bar(row.contender, each, label, row.contender.startswith(OURS)))
    size = f"{first.graphs:,} graphs, batches of {first.batch_size}"
    return Bars(f"{first.case}: an epoch of one run", f"{hardware}: {size}", bars, width=1.45)
