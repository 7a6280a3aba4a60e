"""`metrics.csv` of a run: a row of losses for every member and epoch, appended as they come."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pna.files import naming, replacing
from pna.stored import shown
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


_CUT = "it is cut: the file does not end with a line end"
_BEGINS_INT = re.compile(r"[0-9]*")
_BEGINS_FLOAT = re.compile(r"-?([0-9]*\.?[0-9]*(e[+-]?[0-9]*)?|n(an?)?|i(nf?)?)")


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

    @property
    def is_cut(self) -> bool:
        return self.wrong == _CUT


def read(path: Path) -> list[dict[str, float]]:
    """All rows."""
    header, *rows = _lines(path)
    if header.wrong:
        raise _damaged(path, header.line, header.wrong)
    for row in rows:
        if wrong := _why_no_losses(row, len(header.cells)):
            raise _damaged(path, row.line, wrong)
    return [
        {name: float(cell) for name, cell in zip(header.cells, row.cells, strict=True)}
        for row in rows
    ]


def kept_rows(path: Path, names: Sequence[str], until: int, count: int | None) -> list[list[str]]:
    """The rows of a run up to an epoch, which a checkpoint was written after.

    The checkpoint knows their `count`; None if it is of an older version. Rows after them were
    written later, and the very last one may be torn, by a process that was killed: they are left
    out. Raises with the line and the remedy where anything else is damaged or missing.
    """
    header, *rows = _lines(path)
    if header.wrong or header.cells != list(names):
        raise _damaged(path, header.line, header.wrong or "it does not have the run's columns")
    wrong = [_why_no_losses(row, len(names)) for row in rows]
    epochs = [row.epoch for i, row in enumerate(rows) if not wrong[i] and row.epoch <= until]
    expected = len(epochs) if count is None else count
    for i, row in enumerate(rows):
        is_kept = i < expected
        if row.is_cut and not is_kept and _begins_later_row(row, len(names), until, count):
            break
        if wrong[i]:
            raise _damaged(path, row.line, wrong[i])
        if is_kept is not (row.epoch <= until) or (i > 0 and row.place <= rows[i - 1].place):
            raise _damaged(path, row.line, "it is out of order")
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
    """All lines that are not empty, the header first. Names of columns may be quoted and have line
    ends; rows are numbers and commas."""
    try:
        # what is no text is no number either, and is found by its line
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise _damaged(path, 1, f"the file cannot be read: {error.strerror}") from error
    lines = list(io.StringIO(text, newline=""))
    reader = csv.reader(lines, strict=True)
    try:
        header = _Row(1, next(reader, []), "")
    except csv.Error:
        header = _Row(1, [], "")
    first = reader.line_num
    if header.cells[:2] != ["epoch", "member"]:
        header, first = _Row(1, [], "there is no header of columns"), 0
    bodies = [line.rstrip("\r\n") for line in lines[first:]]
    rows = [header]
    rows += [_Row(first + i, b.split(","), "") for i, b in enumerate(bodies, start=1) if b]
    if not text.endswith("\n"):  # every row that was written does
        rows[-1] = rows[-1]._replace(wrong=rows[-1].wrong or _CUT)
    return rows


def _why_no_losses(row: _Row, columns: int) -> str:
    """What is wrong with a row of an epoch and a member; nothing if it is as it was written."""
    if row.wrong or len(row.cells) != columns:
        return row.wrong or f"it has {len(row.cells)} numbers, expected {columns}"
    for i, cell in enumerate(row.cells):
        if not _is_as_written(cell, int if i < 2 else float):
            return f"{shown(cell)} is no number as pna train writes it"
    if row.epoch < 1 or int(row.cells[1]) < 0:
        return f"there is no epoch {row.epoch} of member {row.cells[1]}"
    return ""


def _is_as_written(cell: str, kind: type[int] | type[float]) -> bool:
    """Whether a cell is a number in the form in which it is written; no cell is written empty."""
    try:
        return repr(kind(cell)) == cell
    except ValueError:
        return False


def _begins_later_row(row: _Row, columns: int, until: int, count: int | None) -> bool:
    """Whether a row that is cut is the beginning of one that was written after an epoch.

    If it is cut in its number of the epoch, only the `count` of rows before it can tell.
    """
    *whole, torn = row.cells
    begin = _BEGINS_INT if len(whole) < 2 else _BEGINS_FLOAT
    if len(whole) >= columns or not begin.fullmatch(torn):
        return False
    if not all(_is_as_written(c, int if i < 2 else float) for i, c in enumerate(whole)):
        return False
    return row.epoch > until or (not whole and count is not None)


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
