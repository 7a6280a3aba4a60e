"""`pna bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from pna.cli.options import AtLeast1, Device, Workers, explained, parse_names
from pna.cli.shared import errors, make_console, make_table, print_error, print_line

if TYPE_CHECKING:
    from pna.bench import epoch_times
    from pna.bench.layer_cases import LayerResult

app = typer.Typer(help="Measure speed and memory, and compare them with PyG.", no_args_is_help=True)

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


_WIDTH = 120  # letters of a line where there is no terminal


@app.command()
@explained
def layer(
    *,
    device: Device = "",
    seconds: Seconds = 1.0,
    small: Small = False,
    rows: str = "*",
    no_compile: NoCompile = False,
    peers: bool = False,
    out: Out = None,
) -> None:
    """Measure time, memory and error of the layer, and those of PyG's layer.

    Prints tables, draws a figure and, with --out, writes a CSV file.

    Args:
        rows: Cases to measure: names or patterns such as 'molecule*', separated by semicolons.
        peers: Measure other libraries too, if they are installed: PyG with torch-scatter, JAX,
            torch.sparse.mm and cuDNN. A line says which ones are left out, and why.
    """
    from pna.bench.contenders import left_out
    from pna.bench.layer import measure_case
    from pna.bench.layer_cases import cases

    device = device or _usual_device()
    with _refused("--device"):
        every = cases(device, small)
    chosen = _named(every, rows)
    words = (
        "Times are medians. Memory is the peak of tensors beyond the inputs, with pna's Adjacency. "
        "Errors are relative, in norm, against PyG in float64. Faster, less and smaller: PyG's "
        "value divided by that of the row."
    )
    measure = partial(
        measure_case, device=device, seconds=seconds, compiled=not no_compile, peers=peers
    )
    notes = tuple(left_out(device)) if peers else ()
    output = _Output(device, out, "layer.svg", words, table, with_failed=True, notes=notes)
    _measure(chosen, measure, output)


def _named(every: Sequence[Any], rows: str) -> list[Any]:
    """The cases whose names match one of the patterns."""
    chosen = [case for case in every if any(fnmatch(case.name, p) for p in rows.split(";"))]
    if not chosen:
        names = "; ".join(case.name for case in every)
        raise typer.BadParameter(f"no case of this name, expected {names}", param_hint="--rows")
    return chosen


@app.command()
@explained
def nodes(
    *,
    device: Device = "",
    seconds: Seconds = 5.0,
    small: Small = False,
    rows: str = "*",
    out: Out = None,
) -> None:
    """Measure training steps on the nodes of one large graph, and those of PyG's layers.

    On a GPU, random graphs of the size of ogbn-products, full batch and sampled; on a CPU the graph
    of tolokers, which needs the data folder PNA_DATA.

    Args:
        rows: Cases to measure: names or patterns such as 'products*', separated by semicolons.
    """
    from pna.bench.nodes import cases, measure_case

    device = device or _usual_device()
    with _refused("--device"):
        every = cases(device, small)
    words = (
        "Times are medians of training steps; sampled steps include the sampling, by pna's sampler "
        "in both rows. Memory is the peak of tensors, with the graph. Faster and less: PyG's value "
        "divided by that of the row."
    )
    measure = partial(measure_case, device=device, seconds=seconds)
    output = _Output(device, out, "nodes.svg", words, table, with_failed=True)
    _measure(_named(every, rows), measure, output)


@app.command()
@explained
def molecules(
    *,
    table: Path,
    targets: str = "",
    split: str = "scaffold",
    split_seed: int = 0,
    seeds: AtLeast1 = 5,
    peer: str = "",
    peer_python: str = "",
    work: Path = Path("runs/bench-molecules"),
    note: str = "",
    rates: bool = True,
    out: Out = None,
) -> None:
    """Measure the default training on a table of molecules, and chemprop's, on the same split.

    Each model is trained in a process of its own. Models that were measured are kept in the work
    folder: the command goes on where it stopped. Rows of chemprop stay in the CSV file. The last
    rows are rates of prediction, and that of RDKit, which only parses the molecules.

    Args:
        table: CSV table of molecules.
        targets: Columns to predict, separated by commas. Default: all columns of numbers.
        split: How molecules are split. Values: scaffold, random, or a column of the table.
        split_seed: Random seed of a random split.
        seeds: Number of models of each package, which are also its ensemble.
        peer: Also measure this package. Values: chemprop. Default: none.
        peer_python: Python of the environment in which the other package is installed. Default:
            python.
        work: Folder for runs and what was measured.
        note: Words for the column "note" of the CSV file, such as what else ran on the machine.
            Default: none.
        rates: Also measure rates of prediction, of 10,240 molecules.
    """
    from pna.bench.molecule_tables import CHEMPROP, MoleculeCase, measure_rates, measure_table
    from pna.bench.results import write
    from pna.machine import machine

    if peer not in ("", CHEMPROP):
        raise typer.BadParameter(f"got {peer}, expected {CHEMPROP}", param_hint="--peer")
    console = make_console(_WIDTH)
    log = partial(console.print, highlight=False, markup=False)
    case = MoleculeCase(table, parse_names(targets), split, split_seed, seeds)
    python = (peer_python or "python") if peer else ""
    key = ("table", "split", "contender", "model", "cpu", "gpu")
    where = {"measured": date.today().isoformat(), **machine()}
    with errors():
        for row in measure_table(case, work, python, log):
            times = "trained as a member of the ensemble"
            if row.cpu_seconds is not None:
                times = f"trained in {row.cpu_seconds:.1f} s of processors, {row.seconds:.1f} s"
            log(f"{row.contender:9} {row.model:13} {row.metric} {row.value:.4f}, {times}")
            if out is not None:
                write(out, [asdict(row) | where | {"note": note or None}], key)
        for row in measure_rates(case, work, python, log) if rates else ():
            log(
                f"{row.contender:9} {row.model:26} {row.value:,.0f} molecules per second after the "
                f"start; {row.molecules:,} in {row.predict_seconds:.1f} s with it"
            )
            if out is not None:
                write(out, [asdict(row) | where | {"note": note or None}], key)


@app.command()
@explained
def train(
    *,
    device: Device = "",
    seconds: Seconds = 5.0,
    small: Small = False,
    only: str | None = None,
    no_compile: NoCompile = False,
    out: Out = None,
) -> None:
    """Measure the time of a training epoch, and that of PyG.

    Prints tables, draws a figure and, with --out, writes a CSV file.

    Args:
        only: Measure one case. Values: population, multitask, zinc-sized. Default: all; on a CPU
            all but population.
    """
    from pna.bench.epoch_times import measure_case
    from pna.bench.train import cases

    device = device or _usual_device()
    with _refused("--device or --only"):
        chosen = cases(device, small, only)
    words = (
        "Times are medians of epochs, with validation for multi-task graphs but not for molecules. "
        "Faster: epochs per second of one member, divided by those of PyG or the authors' code."
    )
    measure = partial(measure_case, device=device, seconds=seconds, compiled=not no_compile)
    _measure(chosen, measure, _Output(device, out, "train.svg", words, epochs))


@app.command()
@explained
def real_world(
    *,
    device: Device = "",
    seconds: Seconds = 5.0,
    runs: Path = Path("runs"),
    small: Small = False,
    only: str | None = None,
    workers: Workers = 1,
    out: Out = None,
) -> None:
    """Measure the time of an epoch of the paper's real-world models, and that of PyG.

    Needs the data folder PNA_DATA, or graph sets in --runs.

    Args:
        runs: Folder of the graph sets; made there if missing, as by pna reproduce.
        only: Measure one case. Values: zinc, molhiv, mnist, cifar10. Default: all.
    """
    from pna.bench.epoch_times import measure_case
    from pna.bench.real_world import cases

    device = device or _usual_device()
    with _refused("--device or --only"):
        chosen = cases(device, runs, small, only, workers)
    words = (
        "Times are medians of training epochs, without validation. The last column: epochs per "
        "second of one member, divided by those of PyG or of its example."
    )
    measure = partial(measure_case, device=device, seconds=seconds, compiled=False)
    _measure(chosen, measure, _Output(device, out, "real-world.svg", words, epochs))


@app.command()
@explained
def example(
    *,
    device: Device = "",
    graphs: AtLeast1 = 10_000,
    epochs: AtLeast1 = 3,
    runs: Path = Path("runs"),
    small: Small = False,
    workers: Workers = 1,
    out: Out = None,
) -> None:
    """Measure an epoch of PyG's example for ZINC, with PyG's layer and with ours.

    Only the layer differs: the model, the DataLoader and the loop are PyG's.
    Needs the data folder PNA_DATA, or the graph set of ZINC in --runs.

    Args:
        graphs: Graphs to train on; a tenth of this number is used for validation, and for the test.
        epochs: Epochs to measure, after one to warm up.
        runs: Folder of the graph set; made there if missing, as by pna reproduce.
    """
    from pna.bench.example import measure, read_splits, small_splits
    from pna.bench.layer_cases import has_pyg
    from pna.bench.measure import check_device
    from pna.machine import machine

    device = device or _usual_device()
    with _refused("--device"):
        kind = check_device(device)
    if not has_pyg():
        print_error("error: PyG not found: pip install 'pna[pyg]'")
        raise typer.Exit(1)
    console = make_console(_WIDTH)
    log = partial(console.print, highlight=False, markup=False)
    here = machine()
    log(str(here["gpu"] if kind == "cuda" else f"{here['cpu']}, {here['threads']} threads"))
    try:
        splits = small_splits() if small else read_splits(runs, graphs, workers)
    except (OSError, ValueError) as error:
        print_error(f"error: no graphs: {error}")
        raise typer.Exit(1) from None
    rows = measure(splits, device, epochs, "small example" if small else "example", log)
    title = f"{rows[0].case}: {rows[0].graphs:,} graphs, batches of {rows[0].batch_size}"
    heads = ("seconds per epoch", "of training", "faster", "loss", "validation")
    shown = make_table(("",), heads, title=title)
    for row in rows:
        times = (f"{row.ms / 1e3:.3f}", f"{row.training_ms / 1e3:.3f}", f"{row.faster:.3g}×")
        shown.add_row(row.contender, *times, f"{row.loss:.4f}", f"{row.validation:.4f}")
    console.print(shown)
    log(
        "Times are medians, with validation and test. Losses are mean absolute errors of the last "
        "epoch. After a few epochs they differ in float32, as rounding grows from step to step; "
        "they do not tell which layer trains better. The row without a layer has all work that no "
        "layer can save."
    )
    _write(out, kind, [asdict(row) for row in rows])
    if out is not None:
        log(f"wrote {out}")


def _usual_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _refused(option: str) -> Iterator[None]:
    """Report a refused value together with the name of its option."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@dataclass(frozen=True)
class _Output:
    """Where results go, and how they are shown."""

    device: str
    out: Path | None  # CSV
    figure: str  # file name of the figure if there is no CSV
    words: str  # printed below the tables
    table: Callable[[list[Any]], Table]
    with_failed: bool = False  # whether to write rows of a case in which nothing was measured
    notes: tuple[str, ...] = ()  # printed above the tables


def _measure(cases: Iterable[Any], measure: Callable[..., list[Any]], output: _Output) -> None:
    """Print a table of each case, write its rows, and draw a figure of all."""
    import torch

    from pna.bench.layer_cases import INSTALL_PYG, has_pyg
    from pna.machine import machine

    kind, here = torch.device(output.device).type, machine()
    hardware = str(here["gpu"] if kind == "cuda" else f"{here['cpu']}, {here['threads']} threads")
    console = make_console(_WIDTH)
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
                _write(output.out, kind, [asdict(row) for row in rows])
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


def _write(out: Path | None, device: str, rows: list[dict[str, Any]]) -> None:
    """Put rows into a CSV file, with the date and the machine; nothing without a file."""
    from pna.bench.results import write
    from pna.machine import machine

    if out is not None:
        where = {"device": device, "measured": date.today().isoformat(), **machine()}
        write(out, [row | where for row in rows])


@app.command()
@explained
def tables(*, docs: Path = Path("docs"), results: Path = Path("benchmarks/results")) -> None:
    """Write the tables of the documentation anew, from the results of the benchmarks.

    Args:
        docs: Folder of the pages.
        results: Folder of the CSV files.
    """
    from pna.report.bench_tables import TABLES, with_tables

    with _refused("--docs"):
        for name in sorted({page for page, _ in TABLES}):
            page = docs / name
            if not page.is_file():
                raise ValueError(f"got {docs}, which has no {name}, expected the documentation")
            page.write_text(with_tables(name, page.read_text(), results))
            print_line(make_console(_WIDTH), f"wrote {page}")


@app.command()
def generate(small: Small = False, out: Out = None) -> None:
    """Measure how fast the multi-task benchmark is generated on one core, and NetworkX's labels."""
    from pna.bench.generate import measure
    from pna.machine import machine

    console = make_console(_WIDTH)
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
    _write(out, "cpu", rows)
    if out is not None:
        print_line(console, f"wrote {out}")


@app.command()
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
    device = device or _usual_device()
    with _refused("--device"):
        every = every_row(device, runs, small)
    is_name = any(row.name == rows for row in every)  # which may have commas
    wanted, patterns = [rows] if is_name else rows.split(","), paths.split(",")
    chosen = [row for row in every if any(fnmatch(row.name, pattern) for pattern in wanted)]
    named = {n: p for n, p in FAST_PATHS.items() if any(fnmatch(n, q) for q in patterns)}
    if not chosen or not named:
        option, of = ("--rows", "row") if not chosen else ("--paths", "fast path")
        raise typer.BadParameter(f"no {of} of this name; --list has them all", param_hint=option)
    console = make_console(_WIDTH)
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


def _write_table(page: Path, results: Path | None) -> None:
    from pna.bench.results import read
    from pna.report.kernels import with_table

    if results is None or not results.is_file():
        raise typer.BadParameter("--table needs the CSV of results", param_hint="--out")
    with _refused("--table"):
        page.write_text(with_table(page.read_text(), read(results)))


def table(rows: list[LayerResult]) -> Table:
    """The rows of a case; after each value, PyG's value divided by it."""
    from pna.bench.contenders import PYG

    first = rows[0]
    towers = f", {first.towers} towers" if first.towers > 1 else ""
    size = f"{first.nodes:,} nodes, {first.edges:,} edges, F = {first.features}{towers}"
    shown = make_table((), title=f"{first.case}: {size}")
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
            value, of_pyg = getattr(row, name), getattr(pyg.get(row.work), name, None)
            cells.append("" if value is None else form.format(value))
            cells.append("" if not value or of_pyg is None else f"{of_pyg / value:.3g}×")
        shown.add_row(row.work, row.contender, *cells, *([escape(row.note)] if row.note else []))
    return shown


#: What a row may have measured: field, unit, heading of the ratio to PyG, and format.
FIGURES = (
    ("ms", "ms", "faster", "{:.3f}"),
    ("mib", "MiB", "less", "{:,.1f}"),
    ("error", "error", "smaller", "{:.1e}"),
)


def epochs(rows: list[epoch_times.EpochResult]) -> Table:
    """The rows of a case: the time of an epoch, and the number of members trained in it."""
    from pna.bench.epoch_times import OURS

    first = rows[0]
    size = f"{first.graphs:,} graphs, batches of {first.batch_size}"
    shown = make_table((), title=f"{first.case}: {size}")
    shown.add_column("", no_wrap=True)
    for name in ("parameters", "ms per epoch", "members", "member epochs per second"):
        shown.add_column(name, justify="right")
    baseline = next((row.beside for row in rows if row.beside), None)
    shown.add_column(f"times {baseline}" if baseline else "", justify="right")
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
