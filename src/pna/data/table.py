"""A CSV table: a line of column names, and rows of text. It is read whole, or in blocks of rows."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pna.data.unpacking import gunzip
from pna.files import check_readable, replacing
from pna.names import lookup

_SEPARATORS = ",;\t"
_SAYS_SEPARATOR = "sep="
_GZIP = b"\x1f\x8b"  # the first bytes of such a file
_BLOCK = 2**16  # cells of a block of rows

#: Texts of a column of splits, in lower case, and the split that each stands for.
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
#: Texts for an unknown number, in lower case.
UNKNOWN = ("", "nan", "na", "n/a", "none", "null")


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
        first = text.lstrip().partition("\n")[0]
        found = _rows(path, io.StringIO(text, newline=""), _separator(first))
        columns = tuple(next(found, ([], 0))[0])
        pairs = list(found)
        if not pairs:
            raise without_rows(path)
        rows, lines = [row for row, _ in pairs], [line for _, line in pairs]
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
                number = math.nan if text.lower() in UNKNOWN else float(text.replace("_", "?"))
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


class RowBlock(NamedTuple):
    """Consecutive rows of a table: the cells of each column, and the line at which a row ends."""

    columns: list[tuple[str, ...]]
    lines: NDArray[np.int64]  # (rows,)
    position: int  # bytes of the file that were read so far


@contextmanager
def opened(path: Path) -> Iterator[tuple[tuple[str, ...], Iterator[RowBlock]]]:
    """The columns of a file as `Table.read` reads it, and its rows in blocks of bounded memory."""
    check_readable(path)
    with path.open("rb") as raw:
        text = io.TextIOWrapper(_unpacked(raw), "utf-8-sig", newline="")
        with _named_errors(path):
            begin = [text.readline()]
            while begin[-1].isspace():
                begin.append(text.readline())
            found = _rows(path, chain(begin, text), _separator(begin[-1].strip()))
            columns = tuple(next(found, ([], 0))[0])
        if not columns:
            raise without_rows(path)
        yield columns, _blocks(path, raw, found, max(_BLOCK // len(columns), 1))


def _unpacked(raw: io.BufferedReader) -> Any:
    """The content of a file, which may be gzip, as it is read."""
    return gzip.open(raw) if raw.peek(2).startswith(_GZIP) else raw


def _blocks(
    path: Path, raw: BinaryIO, rows: Iterator[tuple[list[str], int]], size: int
) -> Iterator[RowBlock]:
    empty = True
    while True:
        with _named_errors(path):
            pairs = list(islice(rows, size))
        if not pairs:
            break
        empty = False
        lines = np.fromiter((line for _, line in pairs), np.int64, len(pairs))
        yield RowBlock([*zip(*(row for row, _ in pairs), strict=True)], lines, raw.tell())
    if empty:
        raise without_rows(path)


def _rows(path: Path, text: Iterable[str], separator: str) -> Iterator[tuple[list[str], int]]:
    """The names of the columns and then every row that is not blank, with the line of its end."""
    reader = csv.reader(text, delimiter=separator, strict=True)
    columns: list[str] = []
    try:
        for row in reader:
            if not row or len(row) != len(columns) or not row[0].strip():
                if not any(cell.strip() for cell in row):
                    continue
                if not columns:
                    if not row[0].lower().startswith(_SAYS_SEPARATOR):
                        columns = [cell.strip() for cell in row]
                        yield columns, reader.line_num
                    continue
                if not any(cell.strip() for cell in row[len(columns) :]):
                    row = row[: len(columns)]
                if len(row) != len(columns):
                    raise ValueError(
                        f"got {len(row)} cells in line {reader.line_num} of {path}, expected one "
                        f"for each of the {len(columns)} columns of its first line; correct it"
                    )
            yield row, reader.line_num
    except csv.Error as error:
        raise ValueError(
            f"got line {reader.line_num} of {path}, which is no line of a table ({error}); "
            "correct it"
        ) from error


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Make errors of decoding name the file, and the line if it is not UTF-8."""
    try:
        yield
    except UnicodeDecodeError:
        with path.open("rb") as raw:
            for number, line in enumerate(_unpacked(raw), 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    raise _not_utf8(str(path), number) from error
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"got {path}, which gzip cannot unpack ({error}); copy it again"
        ) from error


def _separator(first: str) -> str:
    """The separator that the first line declares ("sep=;", as spreadsheets write), or else the most
    frequent one in that line, outside of quotes."""
    if first.lower().startswith(_SAYS_SEPARATOR) and first[len(_SAYS_SEPARATOR) :].strip("\r"):
        return first[len(_SAYS_SEPARATOR)]
    return max(_SEPARATORS, key=re.sub('"[^"]*"', "", first).count)


def without_rows(path: Path) -> ValueError:
    return ValueError(
        f"got {path} without rows, expected a line of names and one for each row below it"
    )


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def text_of(name: str, content: bytes) -> str:
    """The text of a file's content, which may be gzip; `name` is for errors."""
    if content.startswith(_GZIP):
        content = gunzip(name, content)
    try:
        return content.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _not_utf8(name, line) from error


def _not_utf8(name: str, line: int) -> ValueError:
    return ValueError(f"got {name}, which is not UTF-8 in line {line}; save it as CSV in UTF-8")
