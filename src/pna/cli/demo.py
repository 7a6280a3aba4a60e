"""`pna demo`."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pna.cli.options import AtLeast0, explained
from pna.cli.shared import check_folder, cores, errors, make_table, progress

if TYPE_CHECKING:
    from pna.paper.failures import Failures
    from pna.paper.scores import Scores


@explained
def demo(
    *,
    folder: Annotated[Path, typer.Option("--out")] = Path("demo"),
    epochs: Annotated[int, typer.Option(hidden=True)] = 0,
    graphs: Annotated[int, typer.Option(hidden=True)] = 0,
    workers: AtLeast0 = 0,
) -> None:
    """Train PNA and five baselines on small graphs, in minutes. Writes a table, figures and a page.

    Args:
        folder: Folder for the page, the figures and the runs.
        workers: Number of models trained at the same time; 0: one per CPU core.
    """
    if find_spec("matplotlib") is None:
        typer.echo("matplotlib not found: pip install 'pna[plot]'", err=True)
        raise typer.Exit(1)

    from pna.paper.demo import EPOCHS, GRAPHS, MODELS, compare, make_graphs
    from pna.paper.failures import failures
    from pna.report.demo import draw_comparison, write_page
    from pna.report.figures import draw_failures, save, save_svg

    begin = time.monotonic()
    epochs, graphs = epochs or EPOCHS, graphs or GRAPHS
    with errors() as console:
        check_folder(folder)
        confused = failures()
        console.print(marks(confused))
        data = folder / "multitask.safetensors"
        made = make_graphs(data, graphs)
        console.print(f"Made {len(made):,} graphs. Training {len(MODELS)} models.", highlight=False)
        done = dict.fromkeys(MODELS, 0)
        with progress(console, "epochs") as update:

            def on_epoch(model: str, epoch: int) -> None:
                done[model] = epoch
                update(sum(done.values()), epochs * len(MODELS))

            count = min(workers or cores(), len(MODELS))
            result = compare(data, folder / "runs", epochs, count, on_epoch)
        console.print(scores(result))
        compared, pairs = draw_comparison(result), draw_failures(confused)
        save_svg(compared, folder / "comparison.svg")
        save(pairs, folder, "failures")
        captions = ("Six convolutions in one architecture; dots are single runs.",
                    "Why: every single statistic confuses some neighbourhoods.")  # fmt: skip
        page = folder / "index.html"
        write_page(page, result, list(zip(captions, (compared, pairs), strict=True)), epochs)
    console.print(f"Done in {time.monotonic() - begin:.0f} s. Open {page} in a browser.\n"
                  f"The trained runs are in {folder / 'runs'}, for `pna evaluate`.",
                  highlight=False, markup=False)  # fmt: skip


def marks(result: Failures) -> Table:
    """Which methods tell which pairs of neighbourhoods apart."""
    from pna.paper.failures import braces

    table = make_table((), title="Which statistics tell two neighbourhoods apart?")
    table.add_column("neighbours", no_wrap=True)
    for method in result.methods:
        table.add_column(method.name, justify="center")
    for pair, apart in zip(result.pairs, result.told_apart, strict=True):
        sides = f"{braces(pair.left)} {braces(pair.right)}"
        table.add_row(sides, *("[bold]≠[/]" if mark else "[dim]=[/]" for mark in apart))
    return table


def scores(result: Scores) -> Table:
    """Every model in a row, every task in a column."""
    from pna.paper.demo import MODELS
    from pna.report.demo import table_of

    heads, rows = table_of(result)
    table = make_table((), title="log10 of the mean square error on test graphs: lower is better")
    # 75 columns, so that a terminal of 80 shows every number whole
    table.padding, table.pad_edge, table.show_edge = (0, 0), False, False
    for head, column in zip(heads, zip(*rows, strict=True), strict=True):
        table.add_column(
            head.replace(" ", "\n"), justify="right" if head else "left", overflow="fold",
            min_width=max(map(len, column)),
        )  # fmt: skip
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == MODELS["pna"] else None)
    table.caption, table.caption_justify = "the mean: a model that always predicts it", "left"
    return table
