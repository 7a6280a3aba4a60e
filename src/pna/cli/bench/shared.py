"""What `pna bench` commands have in common: options, and what is done with measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pna.cli.shared import make_console, print_error

Seconds = Annotated[float, typer.Option(min=0, help="Seconds for which each call is timed.")]
Small = Annotated[
    bool, typer.Option("--small", help="Use few and small graphs, to try the command.")
]
NoCompile = Annotated[
    bool, typer.Option("--no-compile", help="Measure nothing under torch.compile.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="CSV file; rows of this machine and case are replaced, others are kept. "
        "Default: no file."
    ),
]


WIDTH = 120  # letters of a line where there is no terminal


def usual_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def refused(option: str) -> Iterator[None]:
    """Report a refused value together with the name of its option."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def named(every: Sequence[Any], rows: str) -> list[Any]:
    """The cases whose names match one of the patterns."""
    chosen = [case for case in every if any(fnmatch(case.name, p) for p in rows.split(";"))]
    if not chosen:
        names = "; ".join(case.name for case in every)
        raise typer.BadParameter(f"no case of this name, expected {names}", param_hint="--rows")
    return chosen


@dataclass(frozen=True)
class Output:
    """Where results go, and how they are shown."""

    device: str
    out: Path | None  # CSV
    figure: str  # file name of the figure if there is no CSV
    words: str  # printed below the tables
    table: Callable[[list[Any]], Table]
    with_failed: bool = False  # whether to write rows of a case in which nothing was measured
    notes: tuple[str, ...] = ()  # printed above the tables


def measure_all(cases: Iterable[Any], measure: Callable[..., list[Any]], output: Output) -> None:
    """Print a table of each case, write its rows, and draw a figure of all."""
    import torch

    from pna.bench.layer_cases import INSTALL_PYG, has_pyg
    from pna.machine import machine

    kind, here = torch.device(output.device).type, machine()
    hardware = str(here["gpu"] if kind == "cuda" else f"{here['cpu']}, {here['threads']} threads")
    console = make_console(WIDTH)
    log = partial(console.print, highlight=False, markup=False)
    log(f"{hardware}, torch {here['torch']}, PyG {here['torch_geometric'] or 'missing'}")
    if not has_pyg():
        log(INSTALL_PYG)
    for note in output.notes:
        log(note)
    results: list[Any] = []
    with console.status("measuring") as spinner:
        status = (lambda words: spinner.update(escape(words))) if console.is_terminal else log
        for case in cases:
            rows = measure(case, status=status)
            if not rows:
                continue
            results += rows
            console.print(output.table(rows))
            if output.with_failed or any(row.ms is not None for row in rows):
                write_rows(output.out, kind, [asdict(row) for row in rows])
    if all(row.ms is None for row in results):
        notes = "; ".join(f"{row.case}: {row.note}" for row in results)
        print_error(f"error: nothing was measured: {notes}")
        raise typer.Exit(1)
    log(output.words)
    if output.out is not None:
        log(f"wrote {output.out}")
    if find_spec("matplotlib") is None:
        log("matplotlib not found, so no figure: pip install 'pna[plot]'")
        return
    from pna.report.figures import save_svg
    from pna.report.times import draw_times

    path = Path(output.figure) if output.out is None else output.out.with_suffix(".svg")
    figure = draw_times(results, hardware)
    if figure is not None:
        save_svg(figure, path)
        log(f"wrote {path}")


def write_rows(out: Path | None, device: str, rows: list[dict[str, Any]]) -> None:
    """Put rows into a CSV file, with the date and the machine; nothing without a file."""
    from pna.bench.results import write
    from pna.machine import machine

    if out is not None:
        where = {"device": device, "measured": date.today().isoformat(), **machine()}
        write(out, [row | where for row in rows])
