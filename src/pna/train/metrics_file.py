"""`metrics.csv` of a run: one row of losses per member and epoch."""

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
from pna.train.disk_errors import disk_errors


class Metrics:
    """Appends rows to a CSV file, which starts with a header and the rows `kept`."""

    def __init__(
        self, path: Path, names: Sequence[str], kept: Sequence[Sequence[str]] = ()
    ) -> None:
        self._path = path
        self.rows = len(kept)  # in the file or in its buffer
        with disk_errors(path.parent):
            with replacing(path) as file:
                csv.writer(file).writerows([names, *kept])
            self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        rows = list(rows)
        with disk_errors(self._path.parent), naming(self._path):
            self._writer.writerows(rows)
        self.rows += len(rows)

    def flush(self) -> None:
        """Write the added rows to the disk."""
        with disk_errors(self._path.parent), naming(self._path):
            self._sync()

    def close(self) -> None:
        with disk_errors(self._path.parent), naming(self._path), self._file:
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
    wrong: str  # why the row is damaged; empty if it is not

    @property
    def epoch(self) -> int:
        return int(self.cells[0])

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and member, by which rows are sorted."""
        return self.epoch, int(self.cells[1])


def read(path: Path) -> list[dict[str, float]]:
    """All rows of the file."""
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
    """The rows up to the epoch `until` of a checkpoint, which knows their `count`.

    `count` is None for checkpoints of older versions. Later rows are left out; the last one may be
    incomplete, if the process was killed. Raises with the line and the remedy if anything else is
    damaged or missing.
    """
    header, *rows = _lines(path)
    if header.wrong or header.cells != list(names):
        raise _damaged(path, header.line, header.wrong or "it does not have the run's columns")
    wrong = [_why_no_losses(row, len(names)) for row in rows]
    epochs = [row.epoch for i, row in enumerate(rows) if not wrong[i] and row.epoch <= until]
    expected = len(epochs) if count is None else count
    for i, row in enumerate(rows):
        is_kept = i < expected
        if row.wrong == _CUT and not is_kept and _begins_later_row(row, len(names), until, count):
            break
        if wrong[i]:
            raise _damaged(path, row.line, wrong[i])
        if is_kept is not (row.epoch <= until) or (i > 0 and row.position <= rows[i - 1].position):
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
    """The undamaged rows up to an epoch, of a file that is damaged or missing.

    The file is renamed, and a warning names the new file.
    """
    kept: list[_Row] = []
    outcome = "there was no file"
    if os.path.lexists(path):
        try:
            lines = _lines(path)
        except ValueError:
            lines = []
        for row in lines:
            if _why_no_losses(row, len(names)) or row.epoch > until:
                continue
            if not kept or row.position > kept[-1].position:
                kept.append(row)
        backup = next(
            candidate
            for number in range(1, 1000)
            if not os.path.lexists(candidate := path.with_name(f"{path.name}.damaged-{number}"))
        )
        with disk_errors(path.parent):
            path.replace(backup)
        outcome = f"the damaged file is now {backup}"
    warnings.warn(
        f"{path} continues with {len(kept)} rows up to epoch {until}; {outcome}", stacklevel=2
    )
    return [row.cells for row in kept]


def _lines(path: Path) -> list[_Row]:
    """All lines that are not empty, the header first. The header may have quotes and line breaks;
    rows are numbers and commas."""
    try:
        # bytes that are not text become characters that are not numbers
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
        header, first = _Row(1, [], "there is no header"), 0
    bodies = [line.rstrip("\r\n") for line in lines[first:]]
    rows = [header]
    rows += [_Row(first + i, b.split(","), "") for i, b in enumerate(bodies, start=1) if b]
    if not text.endswith("\n"):  # every complete row does
        rows[-1] = rows[-1]._replace(wrong=rows[-1].wrong or _CUT)
    return rows


def _why_no_losses(row: _Row, columns: int) -> str:
    """What is wrong with a row of an epoch and a member; an empty text if nothing is."""
    if row.wrong or len(row.cells) != columns:
        return row.wrong or f"it has {len(row.cells)} numbers, expected {columns}"
    for i, cell in enumerate(row.cells):
        if not _is_as_written(cell, int if i < 2 else float):
            return f"{shown(cell)} is not a number as pna train writes it"
    if row.epoch < 1 or int(row.cells[1]) < 0:
        return f"there is no epoch {row.epoch} of member {row.cells[1]}"
    return ""


def _is_as_written(cell: str, kind: type[int] | type[float]) -> bool:
    """Whether a cell is a number in the form that `Metrics` writes."""
    try:
        return repr(kind(cell)) == cell
    except ValueError:
        return False


def _begins_later_row(row: _Row, columns: int, until: int, count: int | None) -> bool:
    """Whether an incomplete row is the beginning of one that was written after an epoch.

    If it ends within the number of its epoch, this is known only with a `count` of rows.
    """
    *complete, torn = row.cells
    begin = _BEGINS_INT if len(complete) < 2 else _BEGINS_FLOAT
    if len(complete) >= columns or not begin.fullmatch(torn):
        return False
    if not all(_is_as_written(c, int if i < 2 else float) for i, c in enumerate(complete)):
        return False
    return row.epoch > until or (not complete and count is not None)


def _reaches(epochs: list[int], until: int) -> bool:
    """Whether rows with these epochs, at regular intervals, reach the epoch `until`."""
    if not epochs:
        return False
    return until - epochs[-1] < min(
        (b - a for a, b in zip([0, *epochs], epochs, strict=False) if b > a), default=1
    )


def _damaged(path: Path, line: int, why: str) -> ValueError:
    return ValueError(
        f"got {path}, line {line}, which is not a row of losses ({why}), expected what pna train "
        "wrote; restore the file, or continue with the undamaged rows: pna train --resume "
        f"{path.parent} --repair-metrics"
    )
