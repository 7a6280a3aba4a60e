"""`pna evaluate` and `pna predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pna.cli import options
from pna.cli.progress import print_json
from pna.cli.shared import (
    check_device,
    check_target,
    errors,
    print_line,
    progress,
)
from pna.cli.show import caption, class_tables, lines, table


@options.explained
def evaluate(
    run: Path,
    data: Path | None = None,
    *,
    split: str = "test",
    member: int | None = None,
    per_class: bool = False,
    slice_nodes: options.SliceNodes = None,
    device: options.Device = "",
    as_json: options.Json = False,
) -> None:
    """Print metrics of what pna predict writes: the mean prediction of the members of a run.

    Every member has its best weights. Errors are in the units of the targets. Losses are those of
    training, where targets are divided by their scales.

    Args:
        run: Folder of a run, as pna train wrote it.
        data: Graph set: a file that pna data wrote. Default: that of the run.
        split: Split to evaluate on, such as train, validation or test; "" means all graphs.
        member: Only this member, counted from 0. Default: the mean prediction of all members.
        per_class: Also print F1, average precision, ROC AUC and accuracy of every class.
    """
    from pna.train.evaluation import evaluate as evaluate_run

    with errors() as console:
        check_device(device)
        found = evaluate_run(
            run, data, split or None, member, device=device or None, slice_nodes=slice_nodes,
            per_class=per_class,
        )  # fmt: skip
        if as_json:
            print_json(found.as_dict())
            return
        print_line(console, caption(found))
        console.print(table(found))
        for line in lines(found):
            print_line(console, line)
        for of_task in class_tables(found):
            console.print(of_task)
        if found.benchmark == "multitask" and "log10_of_mean_mse" in found.ensemble:
            value = found.ensemble["log10_of_mean_mse"]
            console.print(f"log10 of the mean MSE: {value:.4g}", highlight=False)


@options.explained
def predict(
    run: Path,
    data: Path,
    *,
    out: Annotated[Path, typer.Option("--out", "-o")],
    split: str = "",
    member: int | None = None,
    smiles: str = "",
    slice_nodes: options.SliceNodes = None,
    workers: options.Workers = 1,
    device: options.Device = "",
    force: options.Force = False,
) -> None:
    r"""Write the mean prediction of the members of a run, in the units of the targets.

    For a table, which needs pna\[chem], a copy with columns of predictions is written.

    Args:
        run: Folder of a run, as pna train wrote it.
        data: Graph set: a file that pna data wrote; or a CSV table of molecules.
        out: CSV file to write.
        split: Split to predict. Default: all graphs, or all nodes or edges of one graph.
        member: Only this member, counted from 0. Default: the mean of all members.
        smiles: Column of a table that has the SMILES. Default: found by its name.
    """
    from pna.data.table import is_table
    from pna.train.prediction import files, predict_table
    from pna.train.prediction import predict as predict_with
    from pna.train.run import Run

    with errors() as console:
        check_device(device)
        if is_table(data):
            check_target(out, force)
            if slice_nodes is not None:
                raise ValueError(
                    "got --slice-nodes with a table, expected it with one graph; leave it out"
                )
            if split:
                raise ValueError(
                    f"got --split {split} with a table, which has no splits; leave it out"
                )
            with progress(console, "molecules") as update:
                table = predict_table(
                    run, data, member, smiles=smiles, workers=workers, progress=update,
                    device=device or None,
                )  # fmt: skip
            table.save(out)
            print_line(console, f"wrote {out}")
            return
        if smiles:
            raise ValueError(
                f"got --smiles {smiles} with a graph set, which has no such column; leave it out"
            )
        levels = {task.level for task in Run(run).config.tasks}
        for path in files(out, levels).values():
            check_target(path, force)
        found = predict_with(
            run, data, member, split=split or None, device=device or None, slice_nodes=slice_nodes
        )
        for path in found.save(out):
            print_line(console, f"wrote {path}")
