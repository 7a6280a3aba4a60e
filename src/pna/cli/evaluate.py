"""`pna evaluate` and `pna predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pna.cli.progress import print_json
from pna.cli.shared import check_device, check_target, errors, make_console
from pna.cli.show import caption, table


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[
        Path | None, typer.Argument(help="A graph set; that of the run if left out.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which graphs of it; empty: all.")] = "test",
    member: Annotated[int | None, typer.Option(help="One member alone, counted from 0.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Losses and metrics of a run's members, at their best, on graphs with known targets.

    Losses are of targets divided by their scales, as in training; MAE is in the targets' units.
    """
    from pna.train.evaluation import evaluate as evaluate_run

    console = make_console()
    with errors():
        check_device(device)
        found = evaluate_run(run, data, split or None, member, device=device or None)
        if as_json:
            print_json(found.as_dict())
            return
        console.print(caption(found), highlight=False, markup=False, soft_wrap=True)
        console.print(table(found))
        if len(found.tasks) > 1 and "log10_of_mean_mse" in found.metrics:
            value = found.metrics["log10_of_mean_mse"][found.best]
            console.print(f"log10 of the mean MSE: {value:.4g}", highlight=False)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[Path, typer.Argument(help="A graph set.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write.")],
    split: Annotated[str, typer.Option(help="Which graphs of it; empty: all.")] = "",
    member: Annotated[
        int | None, typer.Option(help="One member alone, counted from 0; else their mean.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write what a run's members predict, on the average, in the units of the targets."""
    from pna.train.prediction import files
    from pna.train.prediction import predict as predict_with
    from pna.train.run import Run

    console = make_console()
    with errors():
        check_device(device)
        levels = {task.level for task in Run(run).config.tasks}
        for path in files(out, "node" in levels, "graph" in levels):
            check_target(path, force)
        found = predict_with(run, data, member, split=split or None, device=device or None)
        for path in found.save(out):
            console.print(f"wrote {path}", highlight=False, markup=False)
