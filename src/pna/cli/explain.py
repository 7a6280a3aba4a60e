"""`pna explain`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pna.cli import options
from pna.cli.predict import file_of
from pna.cli.shared import (
    STANDARD,
    check_device,
    check_folder,
    check_target,
    errors,
    print_line,
    progress,
)
from pna.data.table import Table, is_table
from pna.files import is_new, make_folder, replacing

#: The table of contributions in a folder.
CONTRIBUTIONS = "contributions.csv"


@options.explained
def explain(
    run: Path,
    data: list[str],
    *,
    out: Annotated[str, typer.Option("--out", "-o")] = STANDARD,
    target: str = "",
    member: int | None = None,
    permutations: int = 16,
    smiles: str = "",
    encoding: str = "",
    device: options.Device = "",
    force: options.Force = False,
) -> None:
    r"""Write what each atom of a molecule adds to its prediction, and draw it.

    Contributions are Shapley values: atoms replace CH2 one after another, in random orders. They
    add up to the prediction less the one for CH2 in place of all atoms. They are in the units of
    the target, or of a probability. It needs pna\[chem].

    Args:
        run: Folder of a run, as pna train wrote it.
        data: SMILES of one or more molecules; a table of molecules; or - for a table from standard
            input.
        out: Where to write. FILE.csv: a table with a row for each atom; - prints it. FILE.svg: a
            drawing of one molecule, with the table beside it. Any other name: a folder with a
            drawing of each molecule, 1.svg, 2.svg, …, and the table contributions.csv.
        target: Prediction to explain: a target, or for more than two classes target=class.
            Default: the only one.
        member: Only this member, counted from 0. Default: the mean of all members.
        permutations: Number of orders in which atoms are put in: an even number of at least 4.
            More take longer and lower the error of the contributions, which is written too.
        smiles: Column of a table that has the SMILES. Default: found by its name.
        encoding: Encoding of a table, such as latin-1, cp1252 or utf-16. Default: utf-8.
    """
    with errors() as console, file_of(data, smiles) as file:
        from pna.train.explanation import COLUMNS, Explanation, TableExplainer

        check_device(device)
        if not is_table(file):
            raise ValueError(f"got {file}, expected SMILES, or a table of molecules")
        table, path = Table.read(file, encoding), Path(out)
        suffix = path.suffix.lower()
        if suffix == ".svg" and len(table.rows) > 1:
            raise ValueError(
                f"got --out {out} for {len(table.rows)} molecules, expected a folder, for a "
                "drawing of each; give a name without .svg"
            )
        if suffix in (".svg", ".csv"):
            for file in {path, path.with_suffix(".csv")}:
                check_target(file, force)
        elif out != STANDARD:
            check_folder(path)
            if not (is_new(path) or force):
                raise FileExistsError(
                    f"got {path}, which is not empty, expected a new folder; --force writes there"
                )
        how = (run, member, smiles, 1, device or None, (), target, permutations)
        explainer, found = TableExplainer(*how), list[Explanation]()
        with progress(Console(stderr=True, emoji=False), "molecules") as update:
            for one in explainer.explained(table):
                found.append(one)
                update(len(found), len(table.rows))
        rows = Table("", COLUMNS, [row for one in found for row in one.rows()], [])
        if out == STANDARD:
            csv.writer(sys.stdout).writerows([rows.columns, *rows.rows])
            return
        drawings = {path: found[0]} if suffix == ".svg" else {}
        numbers = path.with_suffix(".csv")
        if suffix not in (".svg", ".csv"):
            make_folder(path)
            drawings = {path / f"{one.row}.svg": one for one in found}
            numbers = path / CONTRIBUTIONS
        for name, one in drawings.items():
            with replacing(name) as text:
                text.write(one.svg())
        rows.save(numbers)
        more = f" and {len(drawings)} drawing{'s' * (len(drawings) > 1)}" if drawings else ""
        print_line(console, f"wrote {numbers}{more}")
