"""`pna evaluate` and `pna predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pna.cli.progress import print_json
from pna.cli.shared import (
    check_device,
    check_target,
    errors,
    make_console,
    needing_packages,
    progress,
)
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
    data: Annotated[Path, typer.Argument(help="A graph set, or a table of molecules (CSV).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write.")],
    split: Annotated[str, typer.Option(help="Which graphs of it; empty: all.")] = "",
    member: Annotated[
        int | None, typer.Option(help="One member alone, counted from 0; else their mean.")
    ] = None,
    smiles: Annotated[
        str, typer.Option(help="Of a table: its column of SMILES; empty: found by its name.")
    ] = "",
    workers: Annotated[int, typer.Option(min=1, help="Processes to read a table.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda; empty: a GPU if there is one.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    r"""Write what a run's members predict, on the average, in the units of the targets.

    Of a table, which needs pna\[chem], a copy is written with columns of predictions.
    """
    from pna.data.table import is_table
    from pna.train.prediction import files, predict_table
    from pna.train.prediction import predict as predict_with
    from pna.train.run import Run

    console = make_console()
    with errors():
        check_device(device)
        if is_table(data):
            check_target(out, force)
            if split:
                raise ValueError(
                    f"got --split {split} with a table, all of which is predicted; leave it out"
                )
            with needing_packages(), progress(console, "molecules") as told:
                table = predict_table(
                    run, data, member, smiles=smiles, workers=workers, progress=told,
                    device=device or None,
                )  # fmt: skip
            table.save(out)
            console.print(f"wrote {out}", highlight=False, markup=False)
            return
        if smiles:
            raise ValueError(
                f"got --smiles {smiles} with a graph set, which has no such column; leave it out"
            )
        levels = {task.level for task in Run(run).config.tasks}
        for path in files(out, "node" in levels, "graph" in levels):
            check_target(path, force)
        found = predict_with(run, data, member, split=split or None, device=device or None)
        for path in found.save(out):
            console.print(f"wrote {path}", highlight=False, markup=False)
