"""`pna predict`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from pna.cli import options
from pna.cli.shared import (
    CALLED,
    STANDARD,
    check_device,
    check_target,
    cores,
    errors,
    print_error,
    print_line,
    progress,
    read_standard_input,
    warn_of_unfinished,
)
from pna.data.table import Table, is_table

if TYPE_CHECKING:
    from pna.train.table_prediction import TableModels


#: Ends of names that other programs take for another format than CSV with commas.
_NOT_CSV = {
    ".gz", ".json", ".npy", ".npz", ".parquet", ".safetensors", ".sd", ".sdf", ".smi", ".tsv",
    ".xls", ".xlsx", ".zip",
}  # fmt: skip


@options.explained
def predict(
    run: Path,
    data: list[str],
    *,
    out: Annotated[str, typer.Option("--out", "-o")] = "",
    split: str = "",
    member: int | None = None,
    interval: float | None = None,
    similarity: bool = True,
    smiles: str = "",
    encoding: str = "",
    resume: bool = False,
    slice_nodes: options.SliceNodes = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    device: options.Device = "",
    force: options.Force = False,
) -> None:
    r"""Write the mean prediction of the members of a run, in the units of the targets.

    For a table, which needs pna\[chem], a copy with columns of predictions is written. It may be
    of any length. If the command is interrupted, OUT.partial has the rows so far.

    Args:
        run: Folder of a run, or of a cross-validation, as pna train wrote it. A cross-validation
            predicts with the mean of all members of all folds.
        data: Graph set: a file that pna data wrote; a table of molecules; - for a table from
            standard input; or the SMILES of one or more molecules.
        out: CSV file to write; - for standard output. Default: standard output for SMILES and
            standard input.
        split: Split to predict. Default: all graphs, or all nodes or edges of one graph.
        member: Only this member, counted from 0, of each fold of a cross-validation. Default: the
            mean of all members.
        interval: Add columns with the ends of intervals that cover this share of molecules like
            those of the training set, such as 0.9. Needs a run with --calibration. Default: none.
        similarity: With a table: add a column with the Tanimoto similarity of the nearest training
            molecule. It takes time if there are many. Default: yes.
        smiles: Column of a table that has the SMILES. Default: found by its name.
        encoding: Encoding of a table, such as latin-1, cp1252 or utf-16. Default: utf-8.
        resume: Continue an interrupted prediction of the same table.
        workers: With a table: number of processes that read molecules. Default: the number of
            processors, at most 8.
    """
    with errors() as console, file_of(data, smiles) as file:
        check_device(device)
        warn_of_unfinished(run)
        target = target_of(data, out)
        shown = Console(stderr=True, emoji=False) if target == STANDARD else console
        if is_table(file):
            if slice_nodes is not None:
                raise ValueError(
                    "got --slice-nodes with a table, expected it with one graph; leave it out"
                )
            if split:
                raise ValueError(
                    f"got --split {split} with a table, which has no splits; leave it out"
                )
            from pna.train.table_prediction import TablePredictor

            how = (run, member, smiles, readers(workers), device or None, (), interval, similarity)
            models = partial(TablePredictor, *how)
            extend(models, file, target, shown, encoding=encoding, resume=resume, force=force)
            return
        for option, value in (("smiles", smiles), ("encoding", encoding), ("resume", resume)):
            if value:
                raise ValueError(
                    f"got --{option} with a graph set, expected it with a table; leave it out"
                )
        _predict_graphs(run, file, target, shown, force, {
            "member": member, "split": split or None, "device": device or None,
            "slice_nodes": slice_nodes, "interval": interval,
        })  # fmt: skip


def readers(workers: int | None) -> int:
    """Processes that read molecules. The models get the other processors, at least one."""
    import torch

    workers = min(cores(), 8) if workers is None else workers
    if workers > 1:  # otherwise this process reads them
        torch.set_num_threads(max(cores() - workers, 1))
    return workers


def target_of(data: list[str], out: str) -> str:
    """The file to write: the given one, or standard output for SMILES and standard input."""
    piped = [*data] == [STANDARD] or not os.path.lexists(data[0])
    target = out or (STANDARD if piped else "")
    if not target:
        raise ValueError("got no --out, expected a CSV file to write, or - to print")
    return target


@contextmanager
def file_of(data: list[str], smiles: str = "") -> Iterator[Path]:
    """The file to predict: the given one, or one with the SMILES or the text of standard input,
    whose column of SMILES may be named."""
    if len(data) == 1 and data[0] != STANDARD and os.path.lexists(data[0]):
        yield Path(data[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        if data == [STANDARD]:
            yield read_standard_input(Path(folder), smiles)
            return
        for one in data:
            if os.path.lexists(one) or one == STANDARD or not _is_smiles([one]):
                raise _not_molecule(one, len(data) - 1)
        path = Path(folder, "arguments.csv")
        CALLED[str(path)] = "the arguments (counted from line 2)"
        Table("", ("smiles",), [[one] for one in data], []).save(path)
        yield path


def _not_molecule(text: str, others: int) -> ValueError:
    """The error for an argument that is neither the only file nor the SMILES of a molecule."""
    if text.count(">") == 2:
        return ValueError(
            f"got {text!r}, a reaction, expected a file or the SMILES of a molecule; give its "
            "molecules one by one"
        )
    if others:
        return ValueError(
            f"got {text!r} beside {others} more, expected one file, or SMILES only; correct it"
        )
    return ValueError(
        f"got {text}, neither a file nor the SMILES of a molecule, expected one of them; check the "
        "path"
    )


def _is_smiles(texts: list[str]) -> bool:
    """Whether texts are molecules; no if that cannot be known."""
    from pna.data.molecules import check_chemistry, parse

    try:
        check_chemistry()
    except ModuleNotFoundError:
        return False
    from rdkit.rdBase import BlockLogs

    with BlockLogs():
        return all(text and parse(text) is not None for text in texts)


def extend(
    models: Callable[[], TableModels],
    table: Path,
    target: str,
    console: Console,
    *,
    encoding: str,
    resume: bool,
    force: bool,
) -> None:
    """Write a table with more columns, to a file or to standard output."""
    from pna.train.partial_file import partial_folder
    from pna.train.table_prediction import extend_file

    out: Path | TextIO = Path(target)
    if target == STANDARD:
        if resume:
            raise ValueError("got --resume for standard output, expected a file; leave it out")
        out = sys.stdout
    elif isinstance(out, Path):
        if out.suffix.lower() in _NOT_CSV:
            raise ValueError(
                f"got --out {out}, whose name is not that of a CSV file, which is written; choose "
                f"another name, such as {out.name.partition('.')[0] or 'out'}.csv"
            )
        check_target(out, force)
        if partial_folder(out).exists() and not (resume or force):
            raise FileExistsError(
                f"got {partial_folder(out)} of an interrupted command, expected none; --resume "
                "continues it, --force starts again"
            )
    made = models()
    try:
        with progress(console, "molecules") as update:
            extend_file(made, table, out, encoding=encoding, resume=resume, progress=update)
    except BaseException:
        if isinstance(out, Path) and partial_folder(out).exists():
            print_error(f"{partial_folder(out)} has the rows so far; --resume continues")
        raise
    if isinstance(out, Path):
        print_line(console, f"wrote {out}")


def _predict_graphs(
    run: Path, file: Path, target: str, console: Console, force: bool, how: dict[str, Any]
) -> None:
    from pna.train.fold_runs import runs_of
    from pna.train.prediction import files
    from pna.train.prediction import predict as predict_with

    levels = {task.level for task in runs_of(run)[0].config.tasks}
    if target == STANDARD:
        if len(levels) > 1:
            raise ValueError(
                f"got --out - for predictions of {' and '.join(sorted(levels))} targets, which are "
                "several files, expected the name of a file"
            )
        with tempfile.TemporaryDirectory() as folder:
            (path,) = predict_with(run, file, **how).save(Path(folder, "out.csv"))
            sys.stdout.write(path.read_text(encoding="utf-8"))
        return
    for path in files(Path(target), levels).values():
        check_target(path, force)
    for path in predict_with(run, file, **how).save(Path(target)):
        print_line(console, f"wrote {path}")
