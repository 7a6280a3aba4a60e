"""`pna fingerprint`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pna.cli import options
from pna.cli.predict import extend, file_of, readers, target_of
from pna.cli.shared import STANDARD, check_device, check_target, errors, print_line, progress
from pna.data.table import Table, is_table


@options.explained
def fingerprint(
    run: Path,
    data: list[str],
    *,
    out: Annotated[str, typer.Option("--out", "-o")] = "",
    member: int | None = None,
    smiles: str = "",
    encoding: str = "",
    resume: bool = False,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    device: options.Device = "",
    force: options.Force = False,
) -> None:
    r"""Write the vector of each molecule from which the models of a run predict.

    It is the input of the head: the readout of the atoms and, if the models use features of whole
    molecules, those features as the model encodes them. Several members are side by side, in
    columns such as member0_fp_0; one member has columns such as fp_0.

    It needs pna\[chem]. A table may be of any length. If the command is interrupted, OUT.partial
    has the rows so far.

    Args:
        run: Folder of a run, as pna train wrote it.
        data: Table of molecules; - for a table from standard input; or the SMILES of one or more
            molecules.
        out: File to write. CSV: the table with more columns; - for standard output. .npz and
            .safetensors: an array called vectors with a row for each row of the table, in memory
            until the end. Default: standard output for SMILES and standard input.
        member: Only this member, counted from 0. Default: all members, side by side.
        smiles: Column of a table that has the SMILES. Default: found by its name.
        encoding: Encoding of a table, such as latin-1, cp1252 or utf-16. Default: utf-8.
        resume: Continue an interrupted command for the same table; CSV only.
        workers: Number of processes that read molecules. Default: the number of processors, at
            most 8.
    """
    with errors() as console, file_of(data, smiles) as file:
        from pna.train.fingerprints import ARRAYS, TableFingerprint, save_vectors
        from pna.train.fingerprints import fingerprint as vectors_of

        check_device(device)
        target = target_of(data, out)
        if not is_table(file):
            raise ValueError(
                f"got {file}, expected a table of molecules, or SMILES; for a graph set, call "
                "pna.train.fingerprint in Python"
            )
        if Path(target).suffix.lower() not in ARRAYS:
            models = partial(
                TableFingerprint, run, member, smiles, readers(workers), device or None
            )
            shown = Console(stderr=True, emoji=False) if target == STANDARD else console
            extend(models, file, target, shown, encoding=encoding, resume=resume, force=force)
            return
        if resume:
            raise ValueError(f"got --resume for {target}, expected a CSV file; leave it out")
        check_target(Path(target), force)
        table = Table.read(file, encoding)
        with progress(console, "molecules") as update:
            vectors = vectors_of(
                run, table, member,
                smiles=smiles, workers=readers(workers), device=device or None, progress=update,
            )  # fmt: skip
        save_vectors(Path(target), vectors)
        print_line(console, f"wrote {target}")
