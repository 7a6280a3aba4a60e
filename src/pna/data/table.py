"""A CSV table: a line of column names, and rows of text."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pna.data.unpacking import gunzip
from pna.files import check_readable, replacing
from pna.names import lookup

_SEPARATORS = ",;\t"
_SAYS_SEPARATOR = "sep="
_UNKNOWN = ("", "nan", "na", "n/a", "none", "null")  # texts for an unknown number


@dataclass(frozen=True)
class Table:
    """The cells of a file as text; every row has one for each column."""

    name: str  # of the file, for errors
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]  # line number in the file at which each row ends

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """Read a CSV file in UTF-8, with commas, semicolons or tabs; gzip is unpacked."""
        path = Path(path)
        check_readable(path)
        text = text_of(str(path), path.read_bytes())
        separator = _separator(text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        columns: tuple[str, ...] = ()
        rows, lines = [], []
        try:
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if not columns and row[0].lower().startswith(_SAYS_SEPARATOR):
                    continue
                if not columns:
                    columns = tuple(cell.strip() for cell in row)
                    continue
                if not any(cell.strip() for cell in row[len(columns) :]):
                    row = row[: len(columns)]
                if len(row) != len(columns):
                    raise ValueError(
                        f"got {len(row)} cells in line {reader.line_num} of {path}, expected one "
                        f"for each of the {len(columns)} columns of its first line; correct it"
                    )
                rows.append(row)
                lines.append(reader.line_num)
        except csv.Error as error:
            raise ValueError(
                f"got line {reader.line_num} of {path}, which is no line of a table ({error}); "
                "correct it"
            ) from error
        if not rows:
            raise ValueError(
                f"got {path} without rows, expected a line of names and one for each row below it"
            )
        return cls(str(path), columns, rows, lines)

    def column(self, name: str) -> list[str]:
        """The cells of a column, without surrounding blanks."""
        lookup(f"column of {self.name}", name, dict.fromkeys(self.columns))
        if self.columns.count(name) > 1:
            raise ValueError(
                f"got two columns called {name!r} in {self.name}, expected one; rename the other"
            )
        column = self.columns.index(name)
        return [row[column].strip() for row in self.rows]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The numbers of a column; NaN if unknown."""
        found = []
        for line, text in zip(self.lines, self.column(name), strict=True):
            try:
                number = math.nan if text.lower() in _UNKNOWN else float(text.replace("_", "?"))
            except ValueError:
                number = math.inf
            if math.isinf(number):
                raise ValueError(
                    f"got {text!r} as {name} in line {line} of {self.name}, expected a number "
                    "with a decimal point, or nothing if it is not known; correct it"
                )
            found.append(number)
        return np.array(found)

    def check_without(self, names: Iterable[str]) -> None:
        """Raise if the table has a column of one of these names."""
        for name in names:
            if name in self.columns:
                raise ValueError(
                    f"got {self.name} with a column {name!r}, which would be added again; rename it"
                )

    def with_columns(self, more: Mapping[str, Sequence[str]]) -> Table:
        """A copy with these columns appended."""
        self.check_without(more)
        rows = [
            [*row, *cells]
            for row, cells in zip(self.rows, zip(*more.values(), strict=True), strict=True)
        ]
        return replace(self, columns=(*self.columns, *more), rows=rows)

    def save(self, path: str | Path) -> None:
        """Write a CSV file with commas, completely or not at all."""
        with replacing(Path(path)) as file:
            csv.writer(file).writerows([self.columns, *self.rows])


def _separator(text: str) -> str:
    """The separator that the first line declares ("sep=;", as spreadsheets write), or else the most
    frequent one in that line, outside of quotes."""
    first = text.lstrip().partition("\n")[0]
    if first.lower().startswith(_SAYS_SEPARATOR) and first[len(_SAYS_SEPARATOR) :].strip("\r"):
        return first[len(_SAYS_SEPARATOR)]
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", first).count)


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def text_of(name: str, content: bytes) -> str:
    """The text of a file's content, which may be gzip; `name` is for errors."""
    if content.startswith(b"\x1f\x8b"):
        content = gunzip(name, content)
    try:
        return content.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"got {name}, which is not UTF-8 in line {line}; save it as CSV in UTF-8"
        ) from error
