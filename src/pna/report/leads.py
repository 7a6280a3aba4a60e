"""The figure of the summary: how far PNA is ahead of its best rival in every experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from pna.report.colours import APART, FAINT, INK, NARROW, OTHER
from pna.report.panels import Series, label_rows, legend, quieten
from pna.report.summary import Lead
from pna.report.tables import number


def draw_leads(panels: Mapping[str, Sequence[Lead]]) -> Figure:
    """A panel for each unit. Right of 0 PNA is ahead; a bar is a 95% interval."""
    shown = {title: leads for title, leads in panels.items() if leads}
    heights = [len(leads) + 1.4 for leads in shown.values()]
    figure = Figure(figsize=(NARROW + 0.8, 0.27 * sum(heights) + 0.6), layout="constrained")
    every = figure.subplots(len(shown), squeeze=False, height_ratios=heights).ravel()
    for axes, (title, leads) in zip(every, shown.items(), strict=True):
        axes.axvline(0, color=FAINT, linewidth=1, zorder=1)
        digits = 3 if max(abs(one.lead.mean) for one in leads) < 0.1 else 2
        for y, one in enumerate(leads):
            colour = OTHER if one.is_plain else APART
            ends = [one.lead.mean - one.lead.half, one.lead.mean + one.lead.half]
            axes.plot(ends, [y, y], color=colour, linewidth=1.6, zorder=2)
            axes.plot(one.lead.mean, y, "o", ms=5.5, color=colour, zorder=3)
            if one.paper is not None:
                axes.plot(one.paper, y, "D", ms=4.2, color=INK, zorder=4)
            axes.text(1.01, y, number(one.lead.mean, digits, sign=True), fontsize=8.5, va="center",
                      color=INK, transform=axes.get_yaxis_transform())  # fmt: skip
        quieten(axes, title)
        label_rows(axes, [Series(one.label, []) for one in leads])
    legend(figure, {
        "trained as in the paper": {"marker": "o", "color": OTHER, "linestyle": "-"},
        "trained by our recipes": {"marker": "o", "color": APART, "linestyle": "-"},
        "in the paper": {"marker": "D", "color": INK, "ms": 4.2},
    })  # fmt: skip
    return figure
