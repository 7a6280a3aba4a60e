"""Rows of a table of molecules that a chemist wants to know of: what they are and what was done."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pna.data.molecules import Molecules, Note
from pna.data.table import Table
from pna.files import replacing

#: A molecule is large if it has more atoms than this many times the median of the table.
LARGE = 5

_NAMED = 10  # largest number of lines that a warning names


class Kind(NamedTuple):
    """A kind of special row: what it is, and whether `RowRules.strict` refuses it."""

    words: str
    doubtful: bool


#: The kinds of special rows, by the name that the file of special rows uses.
KINDS = {
    "unreadable": Kind("RDKit cannot read the SMILES", True),
    "over-valent": Kind("RDKit refuses them: an atom has too many bonds", True),
    "contradicting duplicate": Kind("same molecule as an earlier row, other target", True),
    "duplicate": Kind("same molecule as an earlier row", False),
    "fragments": Kind("salts and mixtures: several fragments", False),
    "isotope": Kind("atoms with a stated isotope", False),
    "wildcard": Kind("atoms of no element (*)", True),
    "single atom": Kind("one atom without bonds", False),
    "large": Kind(f"more than {LARGE} times as many atoms as the median", False),
    "text after SMILES": Kind("text after a blank, taken as a name", True),
    "limit": Kind("a limit such as <0.01 instead of a number", True),
}

_OF_NOTES = {
    Note.UNREADABLE: "unreadable",
    Note.OVERVALENT: "over-valent",
    Note.FRAGMENTS: "fragments",
    Note.ISOTOPE: "isotope",
    Note.WILDCARD: "wildcard",
    Note.SINGLE: "single atom",
    Note.NAMED: "text after SMILES",
}

KEPT, LEFT_OUT, TAKEN = "kept", "left out", "limit taken"


class SpecialRow(NamedTuple):
    """One line of the file of special rows."""

    line: int
    smiles: str
    what: str  # a key of `KINDS`
    detail: str
    done: str


def warn_of_rows(name: str, rows: Sequence[SpecialRow]) -> None:
    """Warn of the rows of the table `name` that were left out or read in part, and name their
    lines."""
    lost = dict.fromkeys(row.line for row in rows if row.done == LEFT_OUT)
    in_part = [row.line for row in rows if row.what == _OF_NOTES[Note.NAMED]]
    for lines, words in (
        ([*lost], f"left out {len(lost):,} molecules of {name} that RDKit refuses"),
        (in_part, f"took text after a blank as a name in {len(in_part):,} SMILES of {name}"),
    ):
        if lines:
            more = f" and {len(lines) - _NAMED:,} more" if len(lines) > _NAMED else ""
            named = ", ".join(map(str, lines[:_NAMED]))
            warnings.warn(f"{words}: line {named}{more}", stacklevel=4)


@dataclass(frozen=True)
class RowRules:
    """What is done with special rows of a table of molecules.

    Args:
        skip: leave out rows that RDKit refuses. By default the first one that it cannot read is an
            error; molecules with too many bonds at an atom are kept, without that check.
        keep: with `skip`, keep molecules with too many bonds at an atom.
        strict: rows that RDKit refuses and doubtful rows (see `KINDS`) are an error.
        take_limits: take 0.01 for a cell such as "<0.01". By default it is an error.
        report: called with the name of the table and its special rows. Default: a warning names
            the rows that were left out.
    """

    skip: bool = False
    keep: bool = False
    strict: bool = False
    take_limits: bool = False
    report: Callable[[str, list[SpecialRow]], None] = warn_of_rows

    def __post_init__(self) -> None:
        if self.keep and self.strict:
            raise ValueError(
                "got --keep and --strict, expected one of them: --strict refuses the molecules "
                "that --keep keeps; leave one out"
            )

    @property
    def refuses_overvalent(self) -> bool:
        """Whether molecules with too many bonds at an atom are refused or left out."""
        return self.strict or (self.skip and not self.keep)


def special_rows(
    table: Table,
    smiles: Sequence[str],
    found: Molecules,
    targets: Mapping[str, NDArray[np.float32]],
    rules: RowRules,
) -> list[SpecialRow]:
    """The special rows of a table, by line. With strict `rules`, a doubtful one is an error.

    `smiles` and `targets` are the table's columns, and `found` its molecules.
    """
    rows: list[tuple[int, str, str]] = []
    for row in np.flatnonzero(found.notes).tolist():
        rows += [(row, kind, "") for note, kind in _OF_NOTES.items() if found.notes[row] & note]
    rows += _duplicates(table, found, targets)
    median = float(np.median(found.sizes))
    for place in np.flatnonzero(found.sizes > LARGE * median).tolist():
        detail = f"{found.sizes[place]} atoms, median {median:g}"
        rows.append((int(found.indices[place]), "large", detail))
    for name in targets:
        rows += [(row, "limit", f"{name} {cell}") for row, cell in table.limits(name)]
    kept = {*found.indices.tolist()}
    special = []
    for row, kind, detail in sorted(rows, key=lambda entry: entry[0]):
        used = TAKEN if kind == "limit" else KEPT
        done = used if row in kept else LEFT_OUT
        special.append(SpecialRow(table.lines[row], smiles[row], kind, detail, done))
    for one in special:
        if rules.strict and KINDS[one.what].doubtful and one.done != LEFT_OUT:
            raise ValueError(
                f"got {one.smiles!r} in line {one.line} of {table.name}, which is special "
                f"({_said(one)}), expected no such row with --strict; correct it, leave it out of "
                "the table, or leave out --strict"
            )
    return special


def _said(row: SpecialRow) -> str:
    return ": ".join(filter(None, (row.what, row.detail)))


def _duplicates(
    table: Table, found: Molecules, targets: Mapping[str, NDArray[np.float32]]
) -> list[tuple[int, str, str]]:
    """Rows whose molecule is that of an earlier row."""
    groups: dict[str, list[int]] = {}
    for row, text in zip(found.indices.tolist(), found.canonical, strict=True):
        groups.setdefault(text, []).append(row)
    rows = []
    for first, *others in groups.values():
        if not others:
            continue
        said = f"same molecule as line {table.lines[first]}"
        differing = []
        for name, numbers in targets.items():
            known = numbers[[first, *others]]
            known = known[~np.isnan(known)]
            if len(known) and known.min() < known.max():
                differing.append(f"{name} from {known.min():g} to {known.max():g}")
        kind = "contradicting duplicate" if differing else "duplicate"
        rows += [(other, kind, "; ".join([said, *differing])) for other in others]
    return rows


def save_rows(path: Path, rows: Sequence[SpecialRow]) -> None:
    """Write special rows as a CSV file, completely or not at all."""
    with replacing(path) as file:
        csv.writer(file).writerows([SpecialRow._fields, *rows])


def read_rows(path: Path) -> list[SpecialRow]:
    """The special rows that `save_rows` wrote."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        head, *rows = [*csv.reader(file)] or [[]]
    fits = all(len(row) == len(head) and row[0].isdecimal() for row in rows)
    if tuple(head) != SpecialRow._fields or not fits:
        raise ValueError(
            f"got {path}, which is not a list of special rows, expected what pna wrote beside the "
            "graphs; restore it, or remove it"
        )
    return [SpecialRow(int(line), *cells) for line, *cells in rows]


def summary(rows: Sequence[SpecialRow]) -> list[str]:
    """One line for each kind of special row: how many there are, and what was done."""
    counts = Counter((row.what, row.done) for row in rows)
    return [
        f"{counts[kind, done]:,} {kind}, {done} ({words})"
        for kind, (words, _) in KINDS.items()
        for done in (KEPT, LEFT_OUT, TAKEN)
        if counts[kind, done]
    ]
