"""`metrics.csv` of a run: a row of losses for every member and epoch, appended as they come."""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pna.files import naming, replacing
from pna.train.room import room


class Metrics:
    """Rows of numbers appended to a CSV file, which begins with the rows that are given."""

    def __init__(
        self, path: Path, names: Sequence[str], kept: Sequence[Sequence[str]] = ()
    ) -> None:
        self._path = path
        self.rows = len(kept)  # in the file, or on their way there
        with room(path.parent):
            with replacing(path) as file:
                csv.writer(file).writerows([names, *kept])
            self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, names)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        with room(self._path.parent), naming(self._path):
            self._writer.writerows(rows)
        self.rows += len(rows)

    def flush(self) -> None:
        """Have what was added survive whatever comes."""
        with room(self._path.parent), naming(self._path):
            self._sync()

    def close(self) -> None:
        with room(self._path.parent), naming(self._path), self._file:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


class _Row(NamedTuple):
    line: int  # of the file, counted from 1
    cells: list[str]
    wrong: str  # why it cannot be read; empty if it can

    @property
    def epoch(self) -> int:
        return int(self.cells[0])

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and member, by which rows are in order."""
        return self.epoch, int(self.cells[1])


def read(path: Path) -> list[dict[str, float]]:
    """All rows; NaN where a cell is empty."""
    header, *rows = _lines(path)
    if header.wrong:
        raise _damaged(path, header.line, header.wrong)
    for row in rows:
        if wrong := _why_no_losses(row, len(header.cells)):
            raise _damaged(path, row.line, wrong)
    return [
        {
            name: float(cell) if cell else math.nan
            for name, cell in zip(header.cells, row.cells, strict=True)
        }
        for row in rows
    ]


def kept_rows(path: Path, names: Sequence[str], until: int, count: int | None) -> list[list[str]]:
    """The rows of a run up to an epoch, which a checkpoint was written after.

    The checkpoint knows their `count`; None if it is of an older version. Rows after them were
    written later, and the last ones may be torn: they are left out. Raises with the line and the
    remedy where one of the rows before is damaged or missing.
    """
    header, *rows = _lines(path)
    if header.cells != list(names):
        raise _damaged(path, header.line, "it does not have the columns of the run")
    wrong = [_why_no_losses(row, len(names)) for row in rows]
    early = [i for i, row in enumerate(rows) if not wrong[i] and row.epoch <= until]
    expected = len(early) if count is None else count
    for i, row in enumerate(rows[:expected]):
        if wrong[i]:
            raise _damaged(path, row.line, wrong[i])
        if row.epoch > until or (i > 0 and row.place <= rows[i - 1].place):
            raise _damaged(path, row.line, "it is out of order")
    epochs = [rows[i].epoch for i in early]
    if len(rows) < expected or (count is None and not _reaches(epochs, until)):
        last = rows[:expected][-1] if expected and rows else header
        raise _damaged(
            path, last.line + 1,
            f"it is missing: the checkpoint after epoch {until} has "
            + ("more rows" if count is None else f"{count} rows, the file {len(rows)}"),
        )  # fmt: skip
    return [row.cells for row in rows[:expected]]


def readable_rows(path: Path, names: Sequence[str], until: int) -> list[list[str]]:
    """Of a file that is damaged or missing, the rows up to an epoch that can be read.

    The file is kept under another name, and a warning says what became of it.
    """
    kept: list[_Row] = []
    said = "there was no file"
    if os.path.lexists(path):
        try:
            lines = _lines(path)
        except ValueError:
            lines = []
        for row in lines:
            if _why_no_losses(row, len(names)) or row.epoch > until:
                continue
            if not kept or row.place > kept[-1].place:
                kept.append(row)
        aside = next(
            place
            for number in range(1, 1000)
            if not os.path.lexists(place := path.with_name(f"{path.name}.damaged-{number}"))
        )
        with room(path.parent):
            path.replace(aside)
        said = f"the damaged file is now {aside}"
    warnings.warn(f"{path} goes on with {len(kept)} rows up to epoch {until}; {said}", stacklevel=2)
    return [row.cells for row in kept]


def _lines(path: Path) -> list[_Row]:
    """All lines that are not empty, the header first."""
    try:
        # what is no text is no number either, and is found by its line
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise _damaged(path, 1, f"the file cannot be read: {error.strerror}") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, line = [], 1
    while True:
        try:
            cells = next(reader, None)
            row = None if cells is None else _Row(line, cells, "")
        except csv.Error as error:
            row = _Row(line, [], str(error))
        if row is None:
            break
        if row.cells or row.wrong:
            rows.append(row)
        line = reader.line_num + 1
    if not rows or rows[0].cells[:2] != ["epoch", "member"]:
        rows.insert(0, _Row(1, [], "there is no header of columns"))
    return rows


def _why_no_losses(row: _Row, columns: int) -> str:
    """What is wrong with a row of an epoch and a member; nothing if it can be read."""
    if row.wrong or len(row.cells) != columns:
        return row.wrong or f"it has {len(row.cells)} numbers, expected {columns}"
    try:
        if row.epoch < 1 or int(row.cells[1]) < 0:
            return f"there is no epoch {row.epoch} of member {row.cells[1]}"
        for cell in filter(None, row.cells):
            float(cell)
    except ValueError as error:
        return str(error)
    return ""


def _reaches(epochs: list[int], until: int) -> bool:
    """Whether rows with these epochs, written every so many epochs, go on to the last one."""
    if not epochs:
        return False
    return until - epochs[-1] < min(
        (b - a for a, b in zip([0, *epochs], epochs, strict=False) if b > a), default=1
    )


def _damaged(path: Path, line: int, why: str) -> ValueError:
    return ValueError(
        f"got {path}, line {line}, which is no row of losses ({why}), expected what pna train "
        "wrote; restore the file, or go on with the rows that can be read: pna train --resume "
        f"{path.parent} --repair-metrics"
    )
