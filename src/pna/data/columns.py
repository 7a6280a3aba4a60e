"""A column of texts, which turns out to have numbers or categories while it is read in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pna.data.table import UNKNOWN

#: Largest number of categories of a column that was not declared categorical, and of one that was.
MOST_VALUES, MOST_DECLARED = 1_000, 100_000
#: Largest number of different whole numbers of a target that are taken for classes.
MOST_CLASSES = 100

Where = Callable[[int], str]  # a row in words, for errors: "line 3 of nodes.csv"

_RESOLUTION = 1e-6  # smallest deviation relative to the mean that float32 represents


class Numbers(NamedTuple):
    """Numbers of a column."""

    values: NDArray[np.float32]  # (rows,), NaN if missing


class Categories(NamedTuple):
    """Categories of a column."""

    codes: NDArray[np.int32]  # (rows,) indices in `values`, -1 if missing
    values: tuple[str, ...]  # sorted: by number if all are numbers, else as texts


class TextColumn:
    """Reads the cells of a column, and decides what they are.

    A column has numbers if every cell that is not empty is a number. Otherwise it has categories,
    of which there may be `MOST_VALUES`. Both are kept until one is ruled out, so the table is read
    once. `kind` ("numeric" or "categorical") decides beforehand. `remedy` ends the error of a
    column with too many texts.
    """

    def __init__(self, name: str, where: Where, kind: str = "", remedy: str = "") -> None:
        self.name, self.where, self.kind, self._remedy = name, where, kind, remedy
        self.most = MOST_DECLARED if kind == "categorical" else MOST_VALUES
        self._rows = 0
        self._numbers: list[NDArray[np.float32]] | None = None if kind == "categorical" else []
        self._codes: list[NDArray[np.int32]] | None = None if kind == "numeric" else []
        self._index: dict[str, int] = {}
        self._span = (math.inf, -math.inf)
        self._no_number = ""  # the first cell that is none, in words

    def add(self, cells: Sequence[str]) -> None:
        """Read the next cells."""
        if self._numbers is not None:
            self._add_numbers(cells)
        if self._codes is not None:
            self._add_codes(cells)
        if self._numbers is None and self._codes is None:
            raise ValueError(
                f"got more than {self.most:,} different texts in the column {self.name!r} "
                f"({self._no_number or self.where(self._rows)}), expected numbers, or categories "
                f"of which there are at most {self.most:,}; leave it out with --ignore "
                f"{self.name}{self._declare()}{self._remedy}"
            )
        self._rows += len(cells)

    def _declare(self) -> str:
        if self.kind:
            return ""
        return f", or allow {MOST_DECLARED:,} with --categorical {self.name}"

    def _add_numbers(self, cells: Sequence[str]) -> None:
        assert self._numbers is not None
        values = _parsed(cells)
        if values is None:
            row, cell = next((i, c) for i, c in enumerate(cells) if _parsed([c]) is None)
            self._no_number = f"{cell.strip()!r} in {self.where(self._rows + row)} is no number"
            if self.kind == "numeric":
                raise ValueError(
                    f"got {cell.strip()!r} as {self.name} in {self.where(self._rows + row)}, "
                    "expected a number with a decimal point, or nothing if it is not known; "
                    f"correct it, or leave out --numeric {self.name}"
                )
            self._numbers = None
            return
        check_finite(self.name, values, lambda row: self.where(self._rows + row))
        known = values[~np.isnan(values)]
        if len(known):
            low, high = self._span
            self._span = min(low, float(known.min())), max(high, float(known.max()))
        self._numbers.append(values.astype(np.float32))

    def _add_codes(self, cells: Sequence[str]) -> None:
        assert self._codes is not None
        texts = [*map(str.strip, cells)]
        for text in {*texts} - self._index.keys():
            self._index[text] = len(self._index)
        if len(self._index) - ("" in self._index) > self.most:
            self._codes, self._index = None, {}
            return
        self._codes.append(np.fromiter(map(self._index.__getitem__, texts), np.int32, len(texts)))

    def result(self) -> Numbers | Categories:
        """The whole column."""
        if self._numbers is not None:
            low, high = self._span
            if 0 < high - low <= _RESOLUTION * max(abs(low), abs(high)):
                raise ValueError(
                    f"got numbers as {self.name} that differ by at most {high - low:g}, too little "
                    f"for float32 at {low:g}; subtract that from all of them, or leave the column "
                    f"out with --ignore {self.name}"
                )
            return Numbers(np.concatenate([np.zeros(0, np.float32), *self._numbers]))
        codes = np.concatenate([np.zeros(0, np.int32), *(self._codes or [])])
        values = sorted((text for text in self._index if text), key=_by_number(self._index))
        new = np.full(len(self._index) + 1, -1, np.int32)
        for code, text in enumerate(values):
            new[self._index[text]] = code
        return Categories(new[codes], tuple(values))

    def target(self) -> Numbers | Categories:
        """The whole column as a target: few whole numbers are classes, named as they are written.

        Classes are made of texts, as float32 cannot tell all whole numbers apart.
        """
        if self.kind or self._numbers is None or self._codes is None:
            return self.result()
        known = {text: Decimal(text) for text in self._index if text.lower() not in UNKNOWN}
        known = {text: value for text, value in known.items() if not value.is_nan()}
        classes = sorted({*known.values()})
        whole = all(value == value.to_integral_value() for value in classes)
        if not whole or not 0 < len(classes) <= MOST_CLASSES:
            return self.result()
        code_of = {value: code for code, value in enumerate(classes)}
        codes = [code_of[known[text]] if text in known else -1 for text in self._index]
        names = []
        for value in classes:
            text, *others = (text for text in known if known[text] == value)
            names.append(str(int(value)) if others or not text.isdecimal() else text)
        return Categories(np.array(codes, np.int32)[np.concatenate(self._codes)], (*names,))


def check_finite(name: str, values: NDArray[np.float64], where: Where) -> None:
    """Raise for the first number that is infinite in float32; NaN is allowed."""
    large = np.abs(values) > np.finfo(np.float32).max
    if large.any():
        row = int(large.argmax())
        raise ValueError(
            f"got {values[row]:g} as {name} in {where(row)}, expected a finite number that float32 "
            "holds, or nothing if it is not known; correct it"
        )


def _parsed(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The numbers in these cells, NaN if unknown; None if one of them is something else."""
    try:
        if "_" in "".join(cells):  # Python allows it within numbers
            return None
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except ValueError:
            known = (math.nan if c.strip().lower() in UNKNOWN else float(c) for c in cells)
            return np.fromiter(known, np.float64, len(cells))
    except ValueError:
        return None


def _by_number(texts: dict[str, int]) -> Callable[[str], tuple[float, str]]:
    """A key that sorts texts as numbers if all of them are finite ones."""
    values = _parsed([text for text in texts if text])
    numeric = values is not None and bool(np.isfinite(values).all())
    return lambda text: (float(text) if numeric else 0.0, text)
