"""Molecules in files that are no CSV, read as tables: lines of SMILES, SDF and Parquet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from pna.data.molecules import check_chemistry
from pna.data.table import Table, named_errors, opened_text, without_rows
from pna.files import check_readable

SMILES, NAME = "smiles", "name"

_ROWS = 1024  # of a block
_HEADER = re.compile(r">.*<([^>]*)>")  # of a property in SDF
_END = "$$$$"  # of a molecule in SDF

Opened = tuple[Table, Iterator[tuple[Table, float]]]  # as `pna.data.table.opened_table` yields
Record = tuple[list[str], int]  # cells, and the line in the file


@contextmanager
def _smiles_lines(path: Path, encoding: str) -> Iterator[Opened]:
    """A SMILES and, after blanks, a name in each line, without a line of column names."""
    with opened_text(path, encoding) as (raw, text):
        empty = Table(str(path), (SMILES, NAME), [], [])
        yield empty, _tables(empty, _lines_of_smiles(text), encoding, raw.tell)


def _lines_of_smiles(text: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(text, 1):
        smiles, *name = line.split(maxsplit=1) or [""]
        if smiles and not (number == 1 and smiles.lower() == SMILES):
            yield [smiles, *(one.strip() for one in name or [""])], number


@contextmanager
def _structures(path: Path, encoding: str) -> Iterator[Opened]:
    """Molecules of an SDF file: their SMILES, name and properties.

    The line of a molecule is its first one. The SMILES of one that cannot be read is empty.
    """
    check_chemistry()
    names: dict[str, str] = {}
    with opened_text(path, encoding) as (_, text), named_errors(path, encoding):
        for line in text:
            if header := _HEADER.match(line):
                names.setdefault(header[1], header[1])
    for name in names:
        if name.lower() in (SMILES, NAME):
            names[name] = f"{name} (property)"
    with opened_text(path, encoding) as (raw, text):
        empty = Table(str(path), (SMILES, NAME, *names.values()), [], [])
        yield empty, _tables(empty, _records(text, [*names]), encoding, raw.tell)


def _records(text: Iterable[str], names: list[str]) -> Iterator[Record]:
    record: list[str] = []
    first = 1
    for number, line in enumerate(text, 1):
        record.append(line.rstrip("\r\n"))
        if record[-1].rstrip() == _END:
            yield _cells(record[:-1], names), first
            record, first = [], number + 1
    if any(line.strip() for line in record):  # the last one may have no end
        yield _cells(record, names), first


def _cells(record: list[str], names: list[str]) -> list[str]:
    properties: dict[str, list[str]] = {}
    own: list[str] = []
    end = next((k for k, line in enumerate(record) if _HEADER.match(line)), len(record))
    for line in record[end:]:
        if header := _HEADER.match(line):
            own = properties.setdefault(header[1], [])
        elif line.strip():
            own.append(line)
    texts = {name: "\n".join(lines) for name, lines in properties.items()}
    block = record[:end]
    return [_smiles(block), "".join(block[:1]).strip(), *(texts.get(name, "") for name in names)]


def _smiles(block: list[str]) -> str:
    """The SMILES of a molecule; of one with too many bonds at an atom, as it is written."""
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    text = "\n".join(block)
    with BlockLogs():
        molecule: Any = Chem.MolFromMolBlock(text)
        if molecule is None:
            molecule = Chem.MolFromMolBlock(text, sanitize=False, removeHs=False)
            if molecule is None:
                return ""
            molecule = Chem.RemoveHs(molecule, sanitize=False)
        found: str = Chem.MolToSmiles(molecule)
    return found


@contextmanager
def _parquet(path: Path, encoding: str) -> Iterator[Opened]:
    """The rows of a Parquet file, counted from 1 instead of lines. Needs ``pna[parquet]``."""
    check_readable(path)
    if find_spec("pyarrow") is None:
        raise ModuleNotFoundError(
            f"got no pyarrow, needed to read {path}; pip install 'pna[parquet]'"
        )
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            empty = Table(str(path), tuple(file.schema_arrow.names), [], [])
            count = file.metadata.num_rows
            if count == 0:
                raise without_rows(path)

            def tables() -> Iterator[tuple[Table, float]]:
                done = 0
                for batch in file.iter_batches(_ROWS):
                    columns = [map(_text, column.to_pylist()) for column in batch.columns]
                    rows = [[*row] for row in zip(*columns, strict=True)]
                    lines = [*range(done + 1, done + len(rows) + 1)]
                    done += len(rows)
                    yield replace(empty, rows=rows, lines=lines), done / count

            yield empty, tables()
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"got {path}, which cannot be read as Parquet ({error}); copy it again"
        ) from error


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _tables(
    empty: Table, records: Iterator[Record], encoding: str, position: Callable[[], int]
) -> Iterator[tuple[Table, float]]:
    path = Path(empty.name)
    size, some = path.stat().st_size, False
    while True:
        with named_errors(path, encoding):
            block = [*islice(records, _ROWS)]
        if not block:
            break
        some = True
        rows, lines = [row for row, _ in block], [line for _, line in block]
        yield replace(empty, rows=rows, lines=lines), position() / size
    if not some:
        raise without_rows(path)


#: How files are read, by how their names end.
READERS: dict[str, Callable[[Path, str], AbstractContextManager[Opened]]] = {
    ".smi": _smiles_lines,
    ".sdf": _structures,
    ".sd": _structures,
    ".parquet": _parquet,
}
