"""Figure of a graph set: its sizes, degrees, types and targets."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pna.data.graphset import GraphSet
from pna.report.colours import APART, FAINT, INK
from pna.report.figures import literal


def draw_description(graphs: GraphSet, title: str) -> Figure:
    """A histogram each, and bars for the types."""
    panels = [("nodes of a graph", graphs.sizes), ("degree of a node", graphs.degree)]
    for level in ("node", "graph", "edge"):
        values = getattr(graphs, f"y_{level}")
        for i, name in enumerate(getattr(graphs, f"{level}_targets")):
            panels.append((name.replace("_", " "), values[:, i]))
    count = len(panels) + (graphs.type_of_graph is not None)
    rows = -(-count // 3)
    figure = Figure(figsize=(9, 2.1 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for panel_axes, (name, column) in zip(axes, panels, strict=False):
        values = column.double().numpy()
        _histogram(panel_axes, name, values[np.isfinite(values)])
    if graphs.type_of_graph is not None:
        _types(axes[len(panels)], graphs)
    for panel_axes in axes[count:]:
        panel_axes.axis("off")
    figure.suptitle(literal(title), fontsize=10, color=INK)
    return figure


def _histogram(axes: Axes, name: str, values: np.ndarray) -> None:
    is_discrete = (
        len(values) > 0 and np.array_equal(values, np.rint(values)) and np.ptp(values) < 60
    )
    bins: int | list[float] = 40
    if is_discrete:
        bins = [edge - 0.5 for edge in range(int(values.min()), int(values.max()) + 2)]
    axes.hist(values, bins=bins, color=APART)
    axes.ticklabel_format(style="plain", useOffset=False)
    _finish(axes, name)


def _types(axes: Axes, graphs: GraphSet) -> None:
    assert graphs.type_of_graph is not None
    counts = np.bincount(graphs.type_of_graph.numpy(), minlength=len(graphs.types))
    positions = range(len(counts))
    axes.barh(positions, counts, color=APART)
    axes.set_yticks(positions, [literal(name.replace("_", " ")) for name in graphs.types])
    axes.invert_yaxis()
    _finish(axes, "type of graph")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(literal(title), fontsize=9, loc="left", color=INK)
    axes.tick_params(labelsize=7, colors=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
