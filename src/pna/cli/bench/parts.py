"""`pna bench generate`, `kernels` and `tables`: parts of the package, and pages of results."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pna.cli.bench.shared import WIDTH, Out, Small, refused, usual_device, write_rows
from pna.cli.options import AtLeast1, Device, explained
from pna.cli.shared import make_console, make_table, print_error, print_line


def generate(small: Small = False, out: Out = None) -> None:
    """Measure how fast the multi-task benchmark is generated on one core, and NetworkX's labels."""
    from pna.bench.generate import measure
    from pna.machine import machine

    console = make_console(WIDTH)
    console.print(f"{machine()['cpu']}, one core", highlight=False)
    heads = ("graphs", "seconds", "graphs per second", "MiB per worker")
    shown = make_table(("case", ""), heads)
    rows = []
    with console.status("measuring") as spinner:
        for row in measure(small, lambda words: spinner.update(escape(words))):
            memory = "" if row.mib is None else f"{row.mib:.0f}"
            counts = (f"{row.graphs:,}", f"{row.seconds:.2f}", f"{row.per_second:,.0f}", memory)
            shown.add_row(row.case, row.contender, *counts)
            rows.append(asdict(row) | {"per_second": row.per_second})
    console.print(shown)
    write_rows(out, "cpu", rows)
    if out is not None:
        print_line(console, f"wrote {out}")


@explained
def kernels(
    *,
    device: Device = "",
    rows: str = "*",
    paths: str = "*",
    repeats: AtLeast1 = 5,
    runs: Path = Path("runs"),
    small: Small = False,
    list_only: Annotated[bool, typer.Option("--list")] = False,
    out: Path | None = None,
    table: Path | None = None,
) -> None:
    """Switch off each fast path in turn and measure how much slower that is.

    Prints tables and, with --out, writes a CSV file.

    Args:
        rows: Benchmarks to measure: a name, or patterns such as 'zinc/*' separated by commas;
            --list prints the names.
        paths: Fast paths to switch off: patterns such as 'degree_*', separated by commas.
        repeats: Number of samples; the median is reported.
        runs: Folder with graphs of pna reproduce. Without them: synthetic graphs.
        list_only: Print the names of benchmarks and fast paths, and measure nothing.
        out: CSV of results. Rows that it has of this commit are not measured again.
            Default: no file.
        table: Markdown page whose table is rewritten from the CSV in --out; nothing is measured.
            Default: none.
    """
    from pna.bench.kernels import NONE, known_paths, measure, write
    from pna.bench.kernels import rows as every_row
    from pna.fast_paths import FAST_PATHS

    if table is not None:
        _write_table(table, out)
        return
    device = device or usual_device()
    with refused("--device"):
        every = every_row(device, runs, small)
    is_name = any(row.name == rows for row in every)  # which may have commas
    wanted, patterns = [rows] if is_name else rows.split(","), paths.split(",")
    chosen = [row for row in every if any(fnmatch(row.name, pattern) for pattern in wanted)]
    named = {n: p for n, p in FAST_PATHS.items() if any(fnmatch(n, q) for q in patterns)}
    if not chosen or not named:
        option, of = ("--rows", "row") if not chosen else ("--paths", "fast path")
        raise typer.BadParameter(f"no {of} of this name; --list has them all", param_hint=option)
    console = make_console(WIDTH)
    log = partial(console.print, highlight=False, markup=False)
    if list_only:
        for row in chosen:
            log(row.name)
        listed = make_table(("fast path", "runs on", "used in", "without it"))
        for name, path in named.items():
            listed.add_row(name, ", ".join(path.devices), path.file, path.replaces)
        console.print(listed)
        return
    failed = []
    for number, row in enumerate(chosen, 1):
        known = set() if out is None else known_paths(out, row, device)
        log(f"{number}/{len(chosen)} {row.name}{': measured before' if NONE in known else ''}")
        if NONE in known:
            continue
        results = measure(row, device, repeats=repeats, paths=patterns, known=known, log=log)
        if results is None:
            failed.append(row.name)
            continue
        shown = make_table(("without", "ms", "ms without it", "gain", ""))
        for result in sorted(results, key=lambda result: -(result.gain or 0)):
            if result.path != NONE:
                ms = (result.ms_on, result.ms_off, result.gain)
                cells = ["" if value is None else f"{value:.4g}" for value in ms]
                shown.add_row(result.path, *cells, escape(result.note))
        if shown.row_count:
            console.print(shown)
        if out is not None and results:
            write(out, results)
    if out is not None:
        log(f"wrote {out}")
    if failed:
        print_error(f"error: not measured, see above: {'; '.join(failed)}")
        raise typer.Exit(1)


@explained
def tables(*, docs: Path = Path("docs"), results: Path = Path("benchmarks/results")) -> None:
    """Write the tables of the documentation anew, from the results of the benchmarks.

    Args:
        docs: Folder of the pages.
        results: Folder of the CSV files.
    """
    from pna.report.bench_tables import TABLES, with_tables

    with refused("--docs"):
        for name in sorted({page for page, _ in TABLES}):
            page = docs / name
            if not page.is_file():
                raise ValueError(f"got {docs}, which has no {name}, expected the documentation")
            page.write_text(with_tables(name, page.read_text(), results))
            print_line(make_console(WIDTH), f"wrote {page}")


def _write_table(page: Path, results: Path | None) -> None:
    from pna.bench.results import read
    from pna.report.kernels import with_table

    if results is None or not results.is_file():
        raise typer.BadParameter("--table needs the CSV of results", param_hint="--out")
    with refused("--table"):
        page.write_text(with_table(page.read_text(), read(results)))
