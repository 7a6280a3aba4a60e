"""`pna bench layer` and `pna bench nodes`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from pna.cli.bench.shared import (
    NoCompile,
    Out,
    Output,
    Seconds,
    Small,
    measure_all,
    named,
    refused,
    usual_device,
)
from pna.cli.options import Device, explained
from pna.cli.shared import make_table

if TYPE_CHECKING:
    from pna.bench.layer_cases import LayerResult

#: What a row may have measured: field, unit, heading of the ratio to PyG, and format.
FIGURES = (
    ("ms", "ms", "faster", "{:.3f}"),
    ("mib", "MiB", "less", "{:,.1f}"),
    ("error", "error", "smaller", "{:.1e}"),
)


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

    device = device or usual_device()
    with refused("--device"):
        every = cases(device, small)
    chosen = named(every, rows)
    words = (
        "Times are medians. Memory is the peak of tensors beyond the inputs, with pna's Adjacency. "
        "Errors are relative, in norm, against PyG in float64. Faster, less and smaller: PyG's "
        "value divided by that of the row."
    )
    measure = partial(
        measure_case, device=device, seconds=seconds, compiled=not no_compile, peers=peers
    )
    notes = tuple(left_out(device)) if peers else ()
    output = Output(device, out, "layer.svg", words, table, with_failed=True, notes=notes)
    measure_all(chosen, measure, output)


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

    device = device or usual_device()
    with refused("--device"):
        every = cases(device, small)
    words = (
        "Times are medians of training steps; sampled steps include the sampling, by pna's sampler "
        "in both rows. Memory is the peak of tensors, with the graph. Faster and less: PyG's value "
        "divided by that of the row."
    )
    measure = partial(measure_case, device=device, seconds=seconds)
    output = Output(device, out, "nodes.svg", words, table, with_failed=True)
    measure_all(named(every, rows), measure, output)


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
