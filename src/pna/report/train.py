"""Figure of an epoch's time beside PyG's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pna.bench.epoch_times import AUTHORS, OURS, EpochResult
from pna.report.bars import Bar, Bars, draw_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_train(results: Sequence[EpochResult], hardware: str) -> Figure | None:
    """A panel for each case: milliseconds of an epoch, of each member; None if none was timed."""
    timed = [result for result in results if result.ms is not None]
    panels = [_panel(list(rows), hardware) for _, rows in groupby(timed, lambda r: r.case)]
    return draw_bars(panels) if panels else None


def _panel(rows: list[EpochResult], hardware: str) -> Bars:
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
