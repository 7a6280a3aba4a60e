"""`pna bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pna.cli.shared import say_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pna.bench import race
    from pna.bench.layer import Result

app = typer.Typer(help="Measure this machine, side by side with peers.", no_args_is_help=True)


@app.command()
def layer(
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="How long to time each call.")] = 1.0,
    small: Annotated[bool, typer.Option("--small", help="Tiny graphs, to try it out.")] = False,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Without torch.compile of PyG's layer.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="CSV of results so far; this run's are put in.")
    ] = None,
) -> None:
    """Time, memory and errors of the layer beside PyG's: a table, a figure and, if asked, a CSV."""
    import datetime

    import torch

    from pna.bench.layer import INSTALL_PYG, cases, has_pyg, measure_case
    from pna.bench.results import write
    from pna.machine import machine

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = cases(device, small)
    except (RuntimeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--device") from None
    kind, here = torch.device(device).type, machine()
    hardware = str(here["gpu"] if kind == "cuda" else f"{here['cpu']}, {here['threads']} threads")
    console = Console(width=None if sys.stdout.isatty() else 120)

    def say(words: str) -> None:
        console.print(escape(words), highlight=False)

    say(f"{hardware}, torch {here['torch']}, PyG {here['torch_geometric'] or 'missing'}")
    if not has_pyg():
        say(INSTALL_PYG)
    results: list[Result] = []
    when = {"measured": datetime.date.today().isoformat()}
    with console.status("measuring") as status:
        doing = (lambda words: status.update(escape(words))) if console.is_terminal else say
        for case in chosen:
            rows = measure_case(case, device, seconds, not no_compile, doing, say)
            if not rows:
                continue
            results += rows
            console.print(table(rows))
            if out is not None:
                write(out, [{**asdict(row), "device": kind, **when, **here} for row in rows])
    say(
        "Times are medians. Memory is the most that tensors took at once beyond the inputs; pna's "
        "Adjacency counts. Errors are in norm, against PyG in float64. Faster, less, smaller: "
        "PyG's figure over that of the row."
    )
    if out is not None:
        say(f"wrote {out}")

    def draw() -> Figure | None:
        from pna.report.layer import draw_layer

        return draw_layer(results, hardware)

    _draw(draw, Path("layer.svg") if out is None else out.with_suffix(".svg"), say)


@app.command()
def train(
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="How long to time each contender.")] = 5.0,
    small: Annotated[bool, typer.Option("--small", help="Few graphs, to try it out.")] = False,
    only: Annotated[
        str | None, typer.Option(help="One case: population, multitask or zinc-sized.")
    ] = None,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Without torch.compile of PyG's model.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="CSV of results so far; this run's are put in.")
    ] = None,
) -> None:
    """Time of an epoch beside PyG's: tables, a figure and, if asked, a CSV."""
    from pna.bench.train import cases

    device = device or _usual_device()
    with _refused("--device or --only"):
        chosen = cases(device, small, only)
    words = (
        "Times are medians of epochs: of multi-task graphs with validation, of molecules without. "
        "Faster: epochs a second of one member over those of PyG or of the authors' code."
    )
    _measure_epochs(chosen, device, seconds, not no_compile, out, "train.svg", words)


@app.command()
def real_world(
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="How long to time each contender.")] = 5.0,
    runs: Annotated[
        Path, typer.Option(help="Folder of the graphs, made there as by pna reproduce.")
    ] = Path("runs"),
    small: Annotated[bool, typer.Option("--small", help="Few graphs, to try it out.")] = False,
    only: Annotated[
        str | None, typer.Option(help="One case: zinc, molhiv, mnist or cifar10.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes to share the making of graphs.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="CSV of results so far; this run's are put in.")
    ] = None,
) -> None:
    """Time of an epoch of the paper's real-world models beside PyG's. Needs PNA_DATA, or graphs."""
    from pna.bench.real_world import cases

    device = device or _usual_device()
    with _refused("--device or --only"):
        chosen = cases(device, runs, small, only, workers)
    words = (
        "Times are medians of epochs of training, without validation. Times PyG's, or its "
        "example's: epochs a second of one member over those of that row."
    )
    _measure_epochs(chosen, device, seconds, False, out, "real-world.svg", words)


def _usual_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _refused(option: str) -> Iterator[None]:
    """Have what is refused told of the option it was given by."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _measure_epochs(
    cases: Iterable[race.Case],
    device: str,
    seconds: float,
    compiled: bool,
    out: Path | None,
    figure: str,
    words: str,
) -> None:
    """A table of each case, `words` on what is in them, a figure, and rows in a CSV."""
    import datetime

    import torch

    from pna.bench.layer import INSTALL_PYG, has_pyg
    from pna.bench.race import measure_case
    from pna.bench.results import write
    from pna.machine import machine

    kind, here = torch.device(device).type, machine()
    hardware = str(here["gpu"] if kind == "cuda" else f"{here['cpu']}, {here['threads']} threads")
    console = Console(width=None if sys.stdout.isatty() else 120)

    def say(words: str) -> None:
        console.print(escape(words), highlight=False)

    say(f"{hardware}, torch {here['torch']}, PyG {here['torch_geometric'] or 'missing'}")
    if not has_pyg():
        say(INSTALL_PYG)
    results: list[race.Result] = []
    when = {"measured": datetime.date.today().isoformat()}
    with console.status("measuring") as status:
        doing = (lambda words: status.update(escape(words))) if console.is_terminal else say
        for case in cases:
            rows = measure_case(case, device, seconds, compiled, doing)
            results += rows
            console.print(epochs(rows))
            if out is not None and any(row.ms is not None for row in rows):
                write(out, [{**asdict(row), "device": kind, **when, **here} for row in rows])
    if all(row.ms is None for row in results):
        notes = "; ".join(f"{row.case}: {row.note}" for row in results)
        say_error(f"error: nothing was measured: {notes}")
        raise typer.Exit(1)
    say(words)
    if out is not None:
        say(f"wrote {out}")

    def draw() -> Figure | None:
        from pna.report.train import draw_train

        return draw_train(results, hardware)

    _draw(draw, Path(figure) if out is None else out.with_suffix(".svg"), say)


@app.command()
def generate(
    small: Annotated[bool, typer.Option("--small", help="Few graphs, to try it out.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="CSV of results so far; this run's are put in.")
    ] = None,
) -> None:
    """Graphs of the multi-task benchmark a second, on one core, beside NetworkX's labels."""
    import datetime

    from pna.bench.generate import measure
    from pna.bench.results import write
    from pna.machine import machine

    here = machine()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"{here['cpu']}, one core", highlight=False)
    shown = Table(box=SIMPLE_HEAD)
    for name in ("case", "", "graphs", "seconds", "graphs a second", "MiB of a worker"):
        shown.add_column(name, justify="left" if name in ("case", "") else "right")
    rows = []
    with console.status("measuring") as status:
        for row in measure(small, lambda words: status.update(escape(words))):
            memory = "" if row.mib is None else f"{row.mib:.0f}"
            counts = (f"{row.graphs:,}", f"{row.seconds:.2f}", f"{row.per_second:,.0f}", memory)
            shown.add_row(row.case, row.contender, *counts)
            rows.append(row)
    console.print(shown)
    if out is not None:
        when = {"measured": datetime.date.today().isoformat(), "device": "cpu"}
        write(
            out,
            [{**asdict(row), "per_second": row.per_second, **when, **here} for row in rows],
        )
        console.print(f"wrote {out}", highlight=False, markup=False)


@app.command()
def kernels(
    device: Annotated[
        str, typer.Option(help="cpu or cuda. Default: cuda if there is a GPU, else cpu.")
    ] = "",
    rows: Annotated[
        str, typer.Option(help="Rows to measure: patterns such as 'zinc/*', separated by commas.")
    ] = "*",
    paths: Annotated[
        str, typer.Option(help="Fast paths to switch off: patterns, separated by commas.")
    ] = "*",
    repeats: Annotated[int, typer.Option(min=1, help="Samples; their median is told.")] = 5,
    runs: Annotated[
        Path,
        typer.Option(help="Folder with graphs of pna reproduce. Without them: synthetic graphs."),
    ] = Path("runs"),
    small: Annotated[bool, typer.Option("--small", help="Tiny rows, to try it out.")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="List rows and fast paths, and measure nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV of results. What it has of this commit is not measured again."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Page whose table is written anew from --out. Measures nothing."),
    ] = None,
) -> None:
    """Switch off each fast path in turn, and time what that costs: tables and, if asked, a CSV."""
    from fnmatch import fnmatch

    from pna.bench.kernels import NONE, known_paths, measure, write
    from pna.bench.kernels import rows as every_row
    from pna.fast_paths import FAST_PATHS

    if table is not None:
        _write_table(table, out)
        return
    device = device or _usual_device()
    with _refused("--device"):
        every = every_row(device, runs, small)
    wanted, patterns = rows.split(","), paths.split(",")
    chosen = [row for row in every if any(fnmatch(row.name, pattern) for pattern in wanted)]
    named = {n: p for n, p in FAST_PATHS.items() if any(fnmatch(n, q) for q in patterns)}
    if not chosen or not named:
        option, of = ("--rows", "row") if not chosen else ("--paths", "fast path")
        raise typer.BadParameter(f"no {of} of this name; --list has them all", param_hint=option)
    console = Console(width=None if sys.stdout.isatty() else 120)

    def say(words: str) -> None:
        console.print(escape(words), highlight=False)

    if list_only:
        for row in chosen:
            say(row.name)
        listed = Table("fast path", "runs on", "asked for in", "without it", box=SIMPLE_HEAD)
        for name, path in named.items():
            listed.add_row(name, ", ".join(path.devices), path.file, path.replaces)
        console.print(listed)
        return
    failed = []
    for number, row in enumerate(chosen, 1):
        known = set() if out is None else known_paths(out, row, device)
        say(f"{number}/{len(chosen)} {row.name}{': measured before' if NONE in known else ''}")
        if NONE in known:
            continue
        results = measure(row, device, repeats=repeats, paths=patterns, known=known, say=say)
        if results is None:
            failed.append(row.name)
            continue
        shown = Table("without", "ms", "ms without it", "gain", "", box=SIMPLE_HEAD)
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
        say(f"wrote {out}")
    if failed:
        say_error(f"error: not measured, see above: {'; '.join(failed)}")
        raise typer.Exit(1)


def _write_table(page: Path, results: Path | None) -> None:
    from pna.report.kernels import read, with_table

    if results is None or not results.is_file():
        raise typer.BadParameter("--table needs the CSV of results", param_hint="--out")
    with _refused("--table"):
        page.write_text(with_table(page.read_text(), read(results)))


def table(rows: list[Result]) -> Table:
    """The rows of a case, each figure followed by how many times it is in PyG's."""
    from pna.bench.layer import PYG

    first = rows[0]
    towers = f", {first.towers} towers" if first.towers > 1 else ""
    size = f"{first.nodes:,} nodes, {first.edges:,} edges, F = {first.features}{towers}"
    shown = Table(
        title=f"{first.case}: {size}", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    shown.add_column("work", no_wrap=True)
    shown.add_column("", no_wrap=True)
    figures = [f for f in FIGURES if any(getattr(row, f[0]) is not None for row in rows)]
    for _, unit, better, _ in figures:
        shown.add_column(unit, justify="right", no_wrap=True)
        shown.add_column(better, justify="right", no_wrap=True)
    if any(row.note for row in rows):
        shown.add_column("note")
    pyg = {row.work: row for row in rows if row.contender == PYG}
    for row in rows:
        cells = []
        for name, _, _, form in figures:
            value, beside = getattr(row, name), getattr(pyg.get(row.work), name, None)
            cells.append("" if value is None else form.format(value))
            cells.append("" if not value or beside is None else f"{beside / value:.3g}×")
        shown.add_row(row.work, row.contender, *cells, *([escape(row.note)] if row.note else []))
    return shown


#: What a row may have measured: its field, its unit, what PyG's over it says, and its format.
FIGURES = (
    ("ms", "ms", "faster", "{:.3f}"),
    ("mib", "MiB", "less", "{:,.1f}"),
    ("error", "error", "smaller", "{:.1e}"),
)


def epochs(rows: list[race.Result]) -> Table:
    """The rows of a case: time of an epoch, and how many members are trained in it."""
    from pna.bench.race import OURS

    first = rows[0]
    size = f"{first.graphs:,} graphs, batches of {first.batch_size}"
    shown = Table(
        title=f"{first.case}: {size}", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    shown.add_column("", no_wrap=True)
    for name in ("parameters", "ms an epoch", "members", "epochs of a member a second"):
        shown.add_column(name, justify="right")
    beside = next((row.beside for row in rows if row.beside), None)
    shown.add_column(f"times {beside}" if beside else "", justify="right")
    if any(row.note for row in rows):
        shown.add_column("note")
    for row in rows:
        cells = (
            f"{row.parameters:,}" if row.parameters else "",
            "" if row.ms is None else f"{row.ms:,.1f}",
            str(row.members),
            "" if row.per_second is None else f"{row.per_second:,.4g}",
            "" if row.faster is None else f"{row.faster:.3g}×",
        )
        shown.add_row(row.contender, *cells, *([escape(row.note)] if row.note else []))
    ours = [row for row in rows if row.contender.startswith(OURS)]
    many = {row.members: row.ms for row in ours if row.ms is not None}
    if len(many) > 1:
        most = max(many)
        shown.caption = f"{most} members take {many[most] / many[1]:.3g}× the time of one"
        shown.caption_justify = "left"
    return shown


def _draw(draw: Callable[[], Figure | None], path: Path, say: Callable[[str], None]) -> None:
    """Write a figure where there is one to draw, and something to draw it with."""
    if find_spec("matplotlib") is None:
        say("matplotlib not found, so no figure: pip install 'pna[plot]'")
        return
    from pna.report.figures import save_svg

    figure = draw()
    if figure is not None:
        save_svg(figure, path)
        say(f"wrote {path}")
