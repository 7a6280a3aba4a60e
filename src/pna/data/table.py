"""A table: names of columns, and rows of text. It is read whole, or in blocks of rows."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count, islice
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
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # likewise
_LIMIT = re.compile(r"(?:<=|>=|[<>≤≥~≈])\s*(?=[-+.\d])")  # in front of a number
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # may be a number of thousands
_BLOCK, _MOST_ROWS = 2**16, 4096  # cells, and rows, of a block of rows

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
    separator: str = ","  # of cells in the file

    @classmethod
    def read(cls, path: str | Path, encoding: str = "") -> Table:
        """Read a CSV file with commas, semicolons or tabs, or molecules in a file of another format
        (``.smi``, ``.sdf``, ``.parquet``). Text may be packed with gzip.

        `encoding` is that of the file, as Python names it; by default UTF-8.
        """
        path = Path(path)
        check_readable(path)
        if not _is_csv(path):
            with opened_table(path, encoding) as (empty, tables):
                parts = [table for table, _ in tables]
            rows, lines = (
                [row for t in parts for row in t.rows],
                [n for t in parts for n in t.lines],
            )
            return replace(empty, rows=rows, lines=lines)
        text = text_of(str(path), path.read_bytes(), encoding or "utf-8")
        first = text.lstrip().partition("\n")[0]
        separator = _separator(first)
        found = _rows(path, io.StringIO(text, newline=""), separator, empty_rows=True)
        columns = tuple(next(found, ([], 0))[0])
        pairs = list(found)
        if not pairs:
            raise without_rows(path)
        rows, lines = [row for row, _ in pairs], [line for _, line in pairs]
        return cls(str(path), columns, rows, lines, separator)

    def column(self, name: str) -> list[str]:
        """The cells of a column, without surrounding blanks."""
        lookup(f"column of {self.name}", name, dict.fromkeys(self.columns))
        if self.columns.count(name) > 1:
            raise ValueError(
                f"got two columns called {name!r} in {self.name}, expected one; rename the other"
            )
        column = self.columns.index(name)
        return [row[column].strip() for row in self.rows]

    def numbers(self, name: str, take_limits: bool = False) -> NDArray[np.float64]:
        """The numbers of a column; NaN if unknown. With `take_limits`, "<0.01" is 0.01.

        "0,5" is 0.5, with a warning, if the table has no commas between cells, the column has no
        number with a point, and its numbers cannot all be thousands.
        """
        texts = self.column(name)
        if take_limits:
            texts = [_LIMIT.sub("", text, count=1) for text in texts]
        comma = self._decimal_comma(texts)
        if comma:
            warnings.warn(
                f"took {comma} as {comma.replace(',', '.')} in column {name} of {self.name}, and "
                "likewise all of its decimal commas",
                stacklevel=2,
            )
        found = []
        for line, text in zip(self.lines, texts, strict=True):
            number = math.nan if text.lower() in UNKNOWN else as_number(text, bool(comma))
            if number is None:
                raise self._no_number(name, line, text)
            found.append(number)
        return np.array(found)

    def limits(self, name: str) -> list[tuple[int, str]]:
        """Rows whose cell is a limit such as "<0.01", and that cell."""
        return [(row, text) for row, text in enumerate(self.column(name)) if _LIMIT.match(text)]

    def _decimal_comma(self, texts: Sequence[str]) -> str:
        """A number of a column with a decimal comma; empty if it has none or that is not sure."""
        numbers = [text for text in texts if _DECIMAL_COMMA.fullmatch(text)]
        sure = next((text for text in numbers if not _THOUSANDS.fullmatch(text)), "")
        if not sure or self.separator == ",":
            return ""
        return "" if any("." in text and as_number(text) is not None for text in texts) else sure

    def _no_number(self, name: str, line: int, text: str) -> ValueError:
        got = f"got {text!r} as {name} in line {line} of {self.name}"
        if _LIMIT.match(text):
            return ValueError(
                f"{got}, a limit, expected a number; correct it, leave the cell empty, or take the "
                "limits as numbers (--take-limits)"
            )
        if _DECIMAL_COMMA.fullmatch(text):
            return ValueError(
                f"{got}, where the comma may be decimal or separate thousands, expected a number "
                "with a decimal point; correct it"
            )
        return ValueError(
            f"{got}, expected a number with a decimal point, or nothing if it is not known; "
            "correct it"
        )

    def check_without(self, names: Iterable[str]) -> None:
        """Raise if the table has a column of one of these names."""
        for name in names:
            if name in self.columns:
                raise ValueError(
                    f"got {self.name} with a column {name!r}, which would be added again; rename it"
                )

    def free_name(self, name: str) -> str:
        """This name, or if a column has it, the first of name_2, name_3, … that is free."""
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        return next(one for one in names if one not in self.columns)

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

    def without_empty_rows(self) -> Table:
        """A copy without rows whose cells are all empty."""
        kept = [k for k, row in enumerate(self.rows) if any(map(str.strip, row))]
        return replace(self, rows=[self.rows[k] for k in kept], lines=[self.lines[k] for k in kept])

    def part(self, first: int, size: int | None = None) -> Table:
        """A copy with so many rows from this one on; by default all."""
        rows = slice(first, None if size is None else first + size)
        return replace(self, rows=self.rows[rows], lines=self.lines[rows])

    def blocks(self, size: int) -> Iterator[Table]:
        """Consecutive rows, so many in each table."""
        return (self.part(first, size) for first in range(0, len(self.rows), size))


class RowBlock(NamedTuple):
    """Consecutive rows of a table: the cells of each column, and the line at which a row ends."""

    columns: list[tuple[str, ...]]
    lines: NDArray[np.int64]  # (rows,)
    position: int  # bytes of the file that were read so far


@contextmanager
def opened(
    path: Path, encoding: str = "", empty_rows: bool = False
) -> Iterator[tuple[tuple[str, ...], Iterator[RowBlock]]]:
    """The columns of a CSV file as `Table.read` reads it, and its rows in bounded blocks. Rows of
    empty cells are left out unless `empty_rows` are wanted."""
    with opened_text(path, encoding) as (raw, text):
        with named_errors(path, encoding):
            begin = [text.readline()]
            while begin[-1].isspace():
                begin.append(text.readline())
            found = _rows(path, chain(begin, text), _separator(begin[-1].strip()), empty_rows)
            columns = tuple(next(found, ([], 0))[0])
        if not columns:
            raise without_rows(path)
        size = min(max(_BLOCK // len(columns), 1), _MOST_ROWS)
        yield columns, _blocks(path, raw, found, size)


@contextmanager
def opened_text(path: Path, encoding: str = "") -> Iterator[tuple[BinaryIO, io.TextIOWrapper]]:
    """A file and its text, which may be packed with gzip."""
    check_readable(path)
    with path.open("rb") as raw:
        yield raw, io.TextIOWrapper(_unpacked(raw), _codec(encoding), newline="")


@contextmanager
def opened_table(
    path: Path, encoding: str = ""
) -> Iterator[tuple[Table, Iterator[tuple[Table, float]]]]:
    """The columns of a file as a table without rows; and its rows in tables of bounded size, each
    with the fraction of the file that was read."""
    if not _is_csv(path):
        from pna.data.molecule_files import READERS

        with READERS[_suffix(path)](path, encoding or "utf-8") as found:
            yield found
        return
    check_readable(path)
    size = path.stat().st_size
    with opened(path, encoding or "utf-8", empty_rows=True) as (columns, blocks):
        empty = Table(str(path), columns, [], [])

        def tables() -> Iterator[tuple[Table, float]]:
            for block in blocks:
                rows = [[*row] for row in zip(*block.columns, strict=True)]
                yield replace(empty, rows=rows, lines=block.lines.tolist()), block.position / size

        yield empty, tables()


def _unpacked(raw: io.BufferedReader) -> Any:
    """The content of a file, which may be gzip, as it is read."""
    return gzip.open(raw) if raw.peek(2).startswith(_GZIP) else raw


def _blocks(
    path: Path, raw: BinaryIO, rows: Iterator[tuple[list[str], int]], size: int
) -> Iterator[RowBlock]:
    empty = True
    while True:
        with named_errors(path):
            pairs = list(islice(rows, size))
        if not pairs:
            break
        empty = False
        lines = np.fromiter((line for _, line in pairs), np.int64, len(pairs))
        yield RowBlock([*zip(*(row for row, _ in pairs), strict=True)], lines, raw.tell())
    if empty:
        raise without_rows(path)


def _rows(
    path: Path, text: Iterable[str], separator: str, empty_rows: bool
) -> Iterator[tuple[list[str], int]]:
    """The names of the columns and then every row, with the line of its end.

    Empty lines are left out, and rows of empty cells unless `empty_rows` are wanted.
    """
    reader = csv.reader(text, delimiter=separator, strict=True)
    columns: list[str] = []
    try:
        for row in reader:
            if not row or len(row) != len(columns) or not row[0].strip():
                if not any(cell.strip() for cell in row):
                    if not empty_rows or len(row) < min(len(columns), 2) or not columns:
                        continue
                    row = [""] * len(columns)
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
def named_errors(path: Path, encoding: str = "") -> Iterator[None]:
    """Make errors of decoding name the file, and the line that has another encoding."""
    try:
        yield
    except UnicodeError as error:
        wrong, begin = 0, b""
        with path.open("rb") as raw, suppress(UnicodeError):
            decoder = codecs.getincrementaldecoder(_codec(encoding))()
            for line in _unpacked(raw):
                wrong, begin = wrong + 1, begin or line[:2]
                decoder.decode(line)
        raise _undecoded(str(path), wrong, encoding, begin) from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"got {path}, which gzip cannot unpack ({error}); copy it again"
        ) from error


def as_number(text: str, decimal_comma: bool = False) -> float | None:
    """The number that a text is; None if it is none or not finite."""
    try:
        number = float((text.replace(",", ".") if decimal_comma else text).replace("_", "?"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def looks_numeric(text: str) -> bool:
    """Whether a text is a number, a limit such as "<0.01", or a number with a comma."""
    return as_number(_LIMIT.sub("", text, count=1), decimal_comma=True) is not None


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


_CSV = (".csv", ".tsv", ".txt")
_OTHERS = (".smi", ".sdf", ".sd", ".parquet")


def is_table(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return _suffix(path) in (*_CSV, *_OTHERS)


def _suffix(path: Path) -> str:
    """How the name of a file ends, in lower case, without that of gzip."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _is_csv(path: Path) -> bool:
    return _suffix(path) not in _OTHERS


def text_of(name: str, content: bytes, encoding: str = "") -> str:
    """The text of a file's content, which may be gzip; `name` is for errors.

    `encoding` is that of the file, as Python names it; by default UTF-8.
    """
    if content.startswith(_GZIP):
        content = gunzip(name, content)
    codec = _codec(encoding)
    try:
        return content.decode(codec)
    except UnicodeError as error:
        line = content[: getattr(error, "start", 0)].count(b"\n") + 1
        raise _undecoded(name, line, encoding, content[:2]) from error


def _codec(encoding: str) -> str:
    """The codec of Python for an encoding; an error if there is none."""
    try:
        name = codecs.lookup(encoding or "utf-8").name
        "".encode(name)  # of some codecs, such as rot13, the code is text
    except LookupError as error:
        raise ValueError(
            f"got the encoding {encoding!r}, expected one that Python knows, such as latin-1, "
            "cp1252 or utf-16"
        ) from error
    return "utf-8-sig" if name == "utf-8" else name  # spreadsheets write a byte order mark


def _undecoded(name: str, line: int, encoding: str, begin: bytes) -> ValueError:
    likely = "utf-16" if begin in _UTF16 else "latin-1"
    more = f", or give its encoding (--encoding {likely})" if encoding else ""
    return ValueError(
        f"got {name}, which is not {(encoding or 'utf-8').upper()} in line {line}; save it as CSV "
        f"in UTF-8{more}"
    )
