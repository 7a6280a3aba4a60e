"""`pna advise`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pna.cli.progress import print_json
from pna.cli.shared import errors, make_console

if TYPE_CHECKING:
    from pna.theory.advice import Advice


def advise(
    data: Annotated[Path, typer.Argument(help="A graph set.")],
    grid: Annotated[
        float, typer.Option(help="What features and statistics are rounded to, in deviations.")
    ] = 0.1,
    split: Annotated[
        str, typer.Option(help="Which graphs; empty: those to train on, or all if not marked.")
    ] = "",
    figure: Annotated[Path | None, typer.Option(help="SVG file to draw.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the recommendation alone.")] = False,
) -> None:
    """Say which aggregators and scalers a graph set needs, by what each set of them merges."""
    from pna.data.graphset import GraphSet
    from pna.theory.advice import advise as advice_for

    console = make_console()
    with errors():
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
        console.print(f"- {reason}", highlight=False, markup=False, soft_wrap=True)
    for table in tables(found):
        console.print(table)
    if figure is not None:
        console.print(f"wrote {figure}", highlight=False, markup=False)


def tables(found: Advice) -> Iterator[Table]:
    """What was looked at, and what each set of aggregators merges of it."""
    facts = Table(box=None, show_header=False)
    low, high = found.degrees
    same = ", the same wherever there are neighbours" if found.constant_degree else ""
    split = f", split {escape(found.split)}" if found.split else ""
    features = escape(", ".join(found.features))
    facts.add_row("graphs", f"{found.graphs:,}{split}")
    facts.add_row("neighbourhoods", f"{found.neighbourhoods:,}, of {found.nodes:,} nodes")
    facts.add_row("distinct", f"{found.distinct:,} on a grid of {found.grid:g} deviations")
    facts.add_row("features", features or "none: neighbours are only counted")
    facts.add_row("in-degree", f"{low} to {high}, mean {found.mean_degree:.4g}{same}")
    facts.add_row("δ", f"{found.delta:.4g}")
    yield facts
    sets = Table(box=SIMPLE_HEAD)
    for head in ("aggregators", "scalers", "results a feature", "merged", "%"):
        sets.add_column(head, justify="left" if head in ("aggregators", "scalers") else "right")
    rows = [*found.sets, found.recommended]
    for merging in sorted(rows, key=lambda merging: -merging.merged):
        share = f"{100 * merging.merged / found.distinct:.1f}"
        sets.add_row(", ".join(merging.aggregators), ", ".join(merging.scalers),
                     str(merging.outputs), f"{merging.merged:,}", share,
                     style="bold" if merging is found.recommended else None)  # fmt: skip
    yield sets
    moments = Table(box=SIMPLE_HEAD)
    for head in ("moments, scaled", "% with as many neighbours", "merged", "%"):
        moments.add_column(head, justify="right")
    for use in found.moments:
        moments.add_row(str(use.order), f"{100 * use.share:.1f}", f"{use.merged:,}",
                        f"{100 * use.merged / found.distinct:.1f}")  # fmt: skip
    yield moments
