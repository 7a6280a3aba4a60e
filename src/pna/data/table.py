"""A table as people keep one: a CSV file with a line of names, and what is written below them."""

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
_UNKNOWN = ("", "nan", "na", "n/a", "none", "null")  # how people write that a number is not known


@dataclass(frozen=True)
class Table:
    """The cells of a file, unread; every row has one for each column."""

    name: str  # of the file, for errors
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]  # of the file, on which each row ends

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """From a CSV file, packed by gzip or not: commas, semicolons or tabs between, UTF-8."""
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
        """What is written in a column, without blanks about it."""
        lookup(f"column of {self.name}", name, dict.fromkeys(self.columns))
        if self.columns.count(name) > 1:
            raise ValueError(
                f"got two columns called {name!r} in {self.name}, expected one; rename the other"
            )
        place = self.columns.index(name)
        return [row[place].strip() for row in self.rows]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """The numbers of a column; NaN where none is known."""
        found = []
        for line, text in zip(self.lines, self.column(name), strict=True):
            try:
                number = math.nan if text.lower() in _UNKNOWN else float(text.replace("_", "?"))
            except ValueError:
                number = math.inf
            if math.isinf(number):
                raise ValueError(
                    f"got {text!r} as {name} in line {line} of {self.name}, expected a number, "
                    "with a decimal point, or nothing where it is not known; correct it"
                )
            found.append(number)
        return np.array(found)

    def check_without(self, names: Iterable[str]) -> None:
        """Raise unless columns of these names can be added."""
        for name in names:
            if name in self.columns:
                raise ValueError(
                    f"got {self.name} with a column {name!r}, which is to be added; rename it"
                )

    def with_columns(self, more: Mapping[str, Sequence[str]]) -> Table:
        """The same with these to the right."""
        self.check_without(more)
        rows = [
            [*row, *cells]
            for row, cells in zip(self.rows, zip(*more.values(), strict=True), strict=True)
        ]
        return replace(self, columns=(*self.columns, *more), rows=rows)

    def save(self, path: str | Path) -> None:
        """Write CSV, commas between, wholly or not at all."""
        with replacing(Path(path)) as file:
            csv.writer(file).writerows([self.columns, *self.rows])


def _separator(text: str) -> str:
    """That which the file says, as spreadsheets do, or is most often in its first line of names,
    outside of quotes."""
    first = text.lstrip().partition("\n")[0]
    if first.lower().startswith(_SAYS_SEPARATOR) and first[len(_SAYS_SEPARATOR) :].strip("\r"):
        return first[len(_SAYS_SEPARATOR)]
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", first).count)


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def text_of(name: str, content: bytes) -> str:
    """A text file's content, unpacked if it is packed; `name` is what errors call it."""
    if content.startswith(b"\x1f\x8b"):
        content = gunzip(name, content)
    try:
        return content.decode("utf-8-sig")  # spreadsheets put a mark before the text
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"got {name}, which is not of UTF-8 in line {line}; save it as CSV of UTF-8"
        ) from error
