"""Figure of an advice: what sets of aggregators and scalers leave merged."""

from __future__ import annotations

from matplotlib.figure import Figure

from pna.report.bars import Bar, Bars, draw_bars
from pna.theory.advice import MOMENTS, Advice, Merging


def draw_advice(advice: Advice, title: str) -> Figure:
    """Bars of the share that is merged, the recommended set first; below, moment by moment."""

    def bar(name: str, merged: int, is_ours: bool = False) -> Bar:
        share = merged / advice.distinct
        return Bar(name, 100 * share, f"{merged:,} ({share:.1%})", is_ours)

    chosen = advice.recommended
    sets = [bar(f"recommended: {_label(chosen)}", chosen.merged, True)]
    sets += [bar(_label(merging), merging.merged) for merging in advice.sets]
    moments = [
        bar(f"{'+ ' if use.order > 1 else ''}{name}", use.merged)
        for name, use in zip(MOMENTS, advice.moments, strict=True)
    ]
    return draw_bars([
        Bars(f"Left merged of {advice.distinct:,} distinct neighbourhoods", "", sets, width=1.4),
        Bars("Moments, scaled", f"{title}, grid {advice.grid:g}", moments, width=1.4),
    ])  # fmt: skip


def _label(merging: Merging) -> str:
    """Short: which scalers there are beside the identity does not matter to what is merged."""
    return ", ".join(merging.aggregators) + (", scaled" if len(merging.scalers) > 1 else "")
