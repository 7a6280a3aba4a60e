"""Experiments of `pna reproduce` that are computed on the spot, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pna.paper.theory import Theory


def theory(folder: Path, console: Console) -> list[Path]:
    """The theorems in numbers, and a figure of each."""
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
    """The neighbourhoods that some aggregators confuse."""
    from pna.cli.demo import marks
    from pna.paper.failures import failures as compute
    from pna.report.figures import draw_failures, save

    result = compute()
    console.print(marks(result))
    return save(draw_failures(result), folder, "failures")


#: What it shows, and what computes, prints and draws it into a folder.
COMPUTED: dict[str, tuple[str, Callable[[Path, Console], list[Path]]]] = {
    "failures": ("Neighbourhoods that some aggregators cannot tell apart", failures),
    "theory": ("Theorem 1, Proposition 1, Theorem 2 as running code", theory),
}


def compute(name: str, folder: Path, console: Console) -> None:
    """Run one of COMPUTED."""
    if find_spec("matplotlib") is None:
        raise ValueError("got no matplotlib, expected it for figures: pip install 'pna[plot]'")
    for path in COMPUTED[name][1](folder, console):
        console.print(f"wrote {path}", highlight=False, markup=False)


def tables(result: Theory) -> Iterator[Table]:
    """A table for each statement."""
    from pna.paper.theory import AGGREGATORS, NODES
    from pna.theory.stars import braces

    table = _table("Theorem 1: n − 1 aggregators agree on two multisets of n", "n", "added",
                   "one", "the other", "disagreement")  # fmt: skip
    for name, search in zip(AGGREGATORS, result.collisions, strict=True):
        found = search.collision
        if found is not None:
            table.add_row(str(len(found.left)), name, braces(found.left), braces(found.right),
                          f"{found.disagreement:.1g}")  # fmt: skip
    yield table
    table = _table("Proposition 1: n values back from their moments", "n", "error", "expected")
    for recovery in result.recoveries:
        table.add_row(str(recovery.n), f"{recovery.error:.0e}", f"{recovery.recovered.error:.0e}")
    yield table
    table = _table("Theorem 2: mean × scaler over small multisets", "scaler", "multisets", "values")
    for codes in result.codes:
        values = len(set(codes.values.values()))
        table.add_row(codes.scaler, str(len(codes.values)), str(values))
    yield table
    heads = [f"N = {nodes}" for nodes in NODES]
    table = _table("log10 of the largest feature after N/2 layers, median", "scaler", *heads)
    for scaler, by_size in result.growth.items():
        table.add_row(scaler, *(f"{median(grown):.1f}" for grown in by_size))
    yield table


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head)
    return table
