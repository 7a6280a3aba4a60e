"""ogbg-molhiv: whether a molecule inhibits the replication of HIV; OGB's set and split."""

from __future__ import annotations

import csv
from hashlib import sha256
from pathlib import Path

import numpy as np

from pna.data.download import download, sha256_of
from pna.data.graphset import GraphSet
from pna.data.molecules import as_graphs, check_chemistry, from_smiles
from pna.data.progress import Progress
from pna.data.scaffolds import SPLITS, scaffold_split
from pna.data.sources import FROM_PUBLIC, GUIDE, SOURCES, cache, chosen, facts, read
from pna.data.table import text_of
from pna.files import make_folder, replacing

#: The address of MoleculeNet's table, in OGB's order, and its largest size in bytes; and the hash
#: of the table with the split, which is the unpacked file of `SOURCES`.
PUBLISHED = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/HIV.csv"
MAX_BYTES = 16_000_000
TABLE = "90f83445640ff32a8937e5ee1fcf4383521ad1b3026f28b6486644713ed84b5c"

_COLUMNS = ["smiles", "HIV_active", "split"]


def molhiv(
    where: str | Path | None = None, *, workers: int = 1, progress: Progress | None = None
) -> GraphSet:
    """The 41,127 molecules in OGB's order, with its nine features of atoms and three of bonds.

    The target is 1 for an active molecule, else 0. `where` is the data folder or its address, or
    "public" for MoleculeNet's table, split again. Default: PNA_DATA. `progress` is called with the
    number of molecules read, and the number in all. Needs ``pna[chem]``.
    """
    check_chemistry()
    if chosen(where) == FROM_PUBLIC:
        path = published()
        name, content = path.name, path.read_bytes()
    else:
        (file,) = SOURCES["molhiv"].files
        name, content = file.name, read(file, where)
    return from_csv(text_of(name, content), name, workers=workers, progress=progress)


def published(progress: Progress | None = None) -> Path:
    """The table in the cache, made from MoleculeNet's if it is not there.

    MoleculeNet's table has no split: molecules are divided by scaffold, as OGB did. A table that
    differs from OGB's by a single character is an error. `progress` is called with the number of
    molecules divided, and the number in all.
    """
    check_chemistry()
    path = cache() / "molhiv" / "molhiv.csv"
    if path.is_file() and sha256_of(path) == TABLE:
        return path
    smiles, active = _columns(download(PUBLISHED, MAX_BYTES))
    split = scaffold_split(smiles, progress)
    rows = [_COLUMNS, *zip(smiles, active, split, strict=True)]
    text = "".join(",".join(row) + "\n" for row in rows)
    found = sha256(text.encode()).hexdigest()
    if found != TABLE:
        raise ValueError(
            f"got molecules from {PUBLISHED} that make a table of sha256 {found}, expected "
            f"{TABLE}: other molecules, or other scaffolds of RDKit; nothing was kept; {GUIDE}"
        )
    make_folder(path.parent)
    with replacing(path) as file:
        file.write(text)
    return path


def _columns(content: bytes) -> tuple[list[str], list[str]]:
    """The texts of SMILES and activity."""
    try:
        rows = list(csv.DictReader(content.decode(errors="replace").splitlines()))
    except csv.Error:
        rows = []
    if not rows or not {"smiles", "HIV_active"} <= set(rows[0]):
        raise ValueError(
            f"got {PUBLISHED}, which is no table with the columns smiles and HIV_active, expected "
            f"one; {GUIDE}"
        )
    return [str(row["smiles"]) for row in rows], [str(row["HIV_active"]) for row in rows]


def from_csv(
    text: str, name: str, *, workers: int = 1, progress: Progress | None = None
) -> GraphSet:
    """Molecules of a table with the columns smiles, HIV_active (0 or 1) and split.

    `name` is for errors.
    """
    rows = list(csv.reader(text.splitlines()))
    if not rows or rows[0] != _COLUMNS:
        got = ", ".join(rows[0]) if rows else "nothing"
        raise ValueError(
            f"got the columns {got} in line 1 of {name}, expected {', '.join(_COLUMNS)}"
        )
    for line, row in enumerate(rows[1:], 2):
        if len(row) != 3 or row[1] not in ("0", "1") or row[2] not in SPLITS:
            raise ValueError(
                f"got {','.join(row)!r} in line {line} of {name}, expected the SMILES, 0 or 1, and "
                f"one of {', '.join(SPLITS)}; correct it"
            )
    smiles, active, split = zip(*rows[1:], strict=True) if rows[1:] else ((), (), ())
    lines = range(2, len(rows) + 1)
    found = from_smiles(smiles, name=name, lines=lines, workers=workers, progress=progress)
    return as_graphs(
        found,
        y_graph=np.array(active, np.float32),
        split=[SPLITS[word] for word in split],
        splits=list(SPLITS.values()),
        graph_targets=["HIV active"],
        metadata=facts("molhiv"),
    )
