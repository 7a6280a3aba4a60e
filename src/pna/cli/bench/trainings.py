"""`pna bench train`, `real-world`, `example` and `molecules`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from pna.cli.bench.shared import (
    WIDTH,
    NoCompile,
    Out,
    Output,
    Seconds,
    Small,
    measure_all,
    refused,
    usual_device,
    write_rows,
)
from pna.cli.options import AtLeast1, Device, Workers, explained, parse_names
from pna.cli.shared import errors, make_console, make_table, print_error

if TYPE_CHECKING:
    from pna.bench import epoch_times


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

    device = device or usual_device()
    with refused("--device or --only"):
        chosen = cases(device, small, only)
    words = (
        "Times are medians of epochs, with validation for multi-task graphs but not for molecules. "
        "Faster: epochs per second of one member, divided by those of PyG or the authors' code."
    )
    measure = partial(measure_case, device=device, seconds=seconds, compiled=not no_compile)
    measure_all(chosen, measure, Output(device, out, "train.svg", words, epochs))


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

    device = device or usual_device()
    with refused("--device or --only"):
        chosen = cases(device, runs, small, only, workers)
    words = (
        "Times are medians of training epochs, without validation. The last column: epochs per "
        "second of one member, divided by those of PyG or of its example."
    )
    measure = partial(measure_case, device=device, seconds=seconds, compiled=False)
    measure_all(chosen, measure, Output(device, out, "real-world.svg", words, epochs))


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

    device = device or usual_device()
    with refused("--device"):
        kind = check_device(device)
    if not has_pyg():
        print_error("error: PyG not found: pip install 'pna[pyg]'")
        raise typer.Exit(1)
    console = make_console(WIDTH)
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
    write_rows(out, kind, [asdict(row) for row in rows])
    if out is not None:
        log(f"wrote {out}")


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
    console = make_console(WIDTH)
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
