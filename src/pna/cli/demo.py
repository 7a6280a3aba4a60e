"""`pna demo`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pna.bench.beside_pyg import Row
    from pna.paper.failures import Failures


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the figure goes.")] = Path("demo"),
    seconds: Annotated[float, typer.Option(help="How long to time each call.")] = 1.0,
) -> None:
    """Draw the neighbourhoods that single aggregators confuse; run the operation beside PyG's."""
    missing = [name for name in ("matplotlib", "torch_geometric") if find_spec(name) is None]
    if missing:
        typer.echo(f"{' and '.join(missing)} not found: pip install 'pna[plot,pyg]'", err=True)
        raise typer.Exit(1)

    import torch

    from pna.bench.beside_pyg import beside_pyg
    from pna.machine import machine
    from pna.paper.failures import failures
    from pna.report.figures import draw_failures, save

    console = Console()
    result = failures()
    console.print(marks(result))
    for path in save(draw_failures(result), folder, "failures"):
        console.print(f"wrote {path}")

    here = machine()
    rows = beside_pyg("cuda" if torch.cuda.is_available() else "cpu", seconds=seconds)
    hardware = here["gpu"] or f"{here['cpu']}, {here['threads']} threads"
    console.print(f"\n{hardware}, torch {here['torch']}, PyG {here['torch_geometric']}")
    console.print(comparison(rows))
    console.print(
        "Times are medians, and how many times pna's. Memory is the most that tensors took at "
        "once, beyond the inputs. Errors are the largest against float64; std is here by PyG's "
        "convention (sqrt(var) where var > 1e-5, else 0), so that both compute the same."
    )


def marks(result: Failures) -> Table:
    """Which methods tell which pairs of neighbourhoods apart."""
    from pna.paper.failures import braces

    table = _table("Which statistics tell two neighbourhoods apart?")
    table.add_column("neighbours", no_wrap=True)
    for method in result.methods:
        table.add_column(method.name, justify="center")
    for pair, apart in zip(result.pairs, result.told_apart, strict=True):
        sides = f"{braces(pair.left)} {braces(pair.right)}"
        table.add_row(sides, *("[bold]≠[/]" if mark else "[dim]=[/]" for mark in apart))
    return table


def comparison(rows: list[Row]) -> Table:
    """Every contender in a column, and how many times the first one's figures."""
    table = _table("mean, std, max, min: 10k nodes, 100k edges, 64 features")
    table.add_column("")
    for row in rows:
        table.add_column(row.name, justify="right")
    milliseconds, mebibytes = 1e-3, 2**20
    for name, unit, values in (
        ("forward", "ms", [row.forward.median / milliseconds for row in rows]),
        ("forward, backward", "ms", [row.both.median / milliseconds for row in rows]),
        ("memory, forward", "MiB", [row.forward_bytes / mebibytes for row in rows]),
        ("memory, both", "MiB", [row.both_bytes / mebibytes for row in rows]),
    ):
        cells = [f"{value:.1f} {unit} {value / values[0]:5.1f}×" for value in values]
        table.add_row(name, *cells)
    for i, name in enumerate(("mean", "std", "max", "min")):
        table.add_row(f"error of {name}", *(f"{row.output_errors[i]:.1e}" for row in rows))
    table.add_row("error of gradients", *(f"{row.gradient_error:.1e}" for row in rows))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
