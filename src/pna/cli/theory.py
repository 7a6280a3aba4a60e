"""Experiments of `pna reproduce` that need no training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pna.cli.shared import make_table, print_line

if TYPE_CHECKING:
    from pna.paper.theory import Theory


def theory(folder: Path, console: Console) -> list[Path]:
    """Compute the theorems in numbers, with a figure each."""
    from pna.paper.theory import theory as compute
    from pna.report.figures import save_svg
    from pna.report.theory import draw_theory

    result = compute()
    for table in tables(result):
        console.print(table)
    written = []
    for name, figure in draw_theory(result).items():
        written.append(folder / f"{name}.svg")
        save_svg(figure, written[-1])
    return written


def failures(folder: Path, console: Console) -> list[Path]:
    """Compute the neighbourhoods that some aggregators confuse."""
    from pna.cli.demo import marks
    from pna.paper.failures import failures as compute
    from pna.report.figures import draw_failures, save

    result = compute()
    console.print(marks(result))
    return save(draw_failures(result), folder, "failures")


#: By name: a title, and a function that computes, prints and draws the results into a folder.
COMPUTED: dict[str, tuple[str, Callable[[Path, Console], list[Path]]]] = {
    "failures": ("Neighbourhoods that some aggregators cannot tell apart", failures),
    "theory": ("Theorem 1, Proposition 1, Theorem 2 as running code", theory),
}


def compute(name: str, folder: Path, console: Console) -> None:
    """Run one of COMPUTED."""
    if find_spec("matplotlib") is None:
        raise ValueError("got no matplotlib, expected it for figures: pip install 'pna[plot]'")
    for path in COMPUTED[name][1](folder, console):
        print_line(console, f"wrote {path}")


def tables(result: Theory) -> Iterator[Table]:
    """A table for each statement."""
    from pna.paper.theory import AGGREGATORS, NODES
    from pna.theory.stars import braces

    title = "Theorem 1: n − 1 aggregators agree on two multisets of n"
    table = make_table(("n", "added aggregator", "first", "second", "disagreement"), title=title)
    for name, search in zip(AGGREGATORS, result.collisions, strict=True):
        found = search.collision
        if found is not None:
            table.add_row(str(len(found.left)), name, braces(found.left), braces(found.right),
                          f"{found.disagreement:.1g}")  # fmt: skip
    yield table
    title = "Proposition 1: n values recovered from their moments"
    table = make_table(("n", "error", "expected"), title=title)
    for recovery in result.recoveries:
        table.add_row(str(recovery.n), f"{recovery.error:.0e}", f"{recovery.recovered.error:.0e}")
    yield table
    title = "Theorem 2: mean × scaler over small multisets"
    table = make_table(("scaler", "multisets", "values"), title=title)
    for codes in result.codes:
        values = len(set(codes.values.values()))
        table.add_row(codes.scaler, str(len(codes.values)), str(values))
    yield table
    title = "log10 of the largest feature after N/2 layers, median"
    table = make_table(("scaler", *(f"N = {nodes}" for nodes in NODES)), title=title)
    for scaler, by_size in result.growth.items():
        table.add_row(scaler, *(f"{median(grown):.1f}" for grown in by_size))
    yield table
