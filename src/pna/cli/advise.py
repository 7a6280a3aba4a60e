"""`pna advise`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pna.cli.options import Json, explained
from pna.cli.progress import print_json
from pna.cli.shared import errors, make_table, print_line

if TYPE_CHECKING:
    from pna.theory.advice import Advice


@explained
def advise(
    data: Path,
    *,
    grid: float = 0.1,
    split: str = "",
    figure: Path | None = None,
    as_json: Json = False,
    quiet: bool = False,
) -> None:
    """Recommend aggregators and scalers for a graph set.

    Counts how many neighbourhoods that differ get the same statistics from each combination, and
    recommends the fewest aggregators and scalers that separate nearly all of them.

    Args:
        data: Graph set: a file that pna data wrote.
        grid: Features and statistics are rounded to this many standard deviations.
        split: Split to look at. Default: train, or all graphs if there is none.
        figure: SVG file for a figure. Default: no figure.
        quiet: Print only the recommendation.
    """
    from pna.data.graphset import GraphSet
    from pna.theory.advice import advise as advice_for

    with errors() as console:
        if figure is not None and figure.suffix != ".svg":
            raise ValueError(f"got a figure {figure}, expected a name that ends in .svg")
        if figure is not None and find_spec("matplotlib") is None:
            raise ValueError("got --figure without matplotlib: pip install 'pna[plot]'")
        graphs = GraphSet.load(data)
        try:
            found = advice_for(graphs, grid=grid, split=split or None)
        except ValueError as error:
            raise ValueError(f"{data}: {error}") from error
        if figure is not None:
            from pna.report.advice import draw_advice
            from pna.report.figures import save_svg

            save_svg(draw_advice(found, data.name), figure)
    if as_json:
        print_json(found.as_dict())
        return
    console.print(f"[bold]{', '.join(found.recommended.aggregators)}[/] × "
                  f"[bold]{', '.join(found.recommended.scalers)}[/]", highlight=False)  # fmt: skip
    if quiet:
        return
    for reason in found.reasons:
        print_line(console, f"- {reason}")
    for table in tables(found):
        console.print(table)
    if figure is not None:
        print_line(console, f"wrote {figure}")


def tables(found: Advice) -> Iterator[Table]:
    """Facts about the graphs, and how many neighbourhoods each set of aggregators merges."""
    facts = Table(box=None, show_header=False)
    low, high = found.degrees
    same = ", the same for all nodes with neighbours" if found.constant_degree else ""
    split = f", split {escape(found.split)}" if found.split else ""
    features = escape(", ".join(found.features))
    facts.add_row("graphs", f"{found.graphs:,}{split}")
    facts.add_row("neighbourhoods", f"{found.neighbourhoods:,}, of {found.nodes:,} nodes")
    facts.add_row("distinct", f"{found.distinct:,} on a grid of {found.grid:g} standard deviations")
    facts.add_row("features", features or "none: only the number of neighbours counts")
    facts.add_row("in-degree", f"{low} to {high}, mean {found.mean_degree:.4g}{same}")
    facts.add_row("δ", f"{found.delta:.4g}")
    yield facts
    sets = make_table(("aggregators", "scalers"), ("outputs per feature", "merged", "%"))
    rows = [*found.sets, found.recommended]
    for merging in sorted(rows, key=lambda merging: -merging.merged):
        share = f"{100 * merging.merged / found.distinct:.1f}"
        sets.add_row(", ".join(merging.aggregators), ", ".join(merging.scalers),
                     str(merging.outputs), f"{merging.merged:,}", share,
                     style="bold" if merging is found.recommended else None)  # fmt: skip
    yield sets
    moments = make_table((), ("moments, scaled", "% with as many neighbours", "merged", "%"))
    for use in found.moments:
        moments.add_row(str(use.order), f"{100 * use.share:.1f}", f"{use.merged:,}",
                        f"{100 * use.merged / found.distinct:.1f}")  # fmt: skip
    yield moments
