"""Numbers printed in the paper, to compare with those measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

#: Where a number of the files was taken from.
ORIGINS = {
    "text": "the paper's text",
    "table": "a table in the authors' repository",
    "figure": "a figure in the authors' repository, to two digits",
    "memory": "memory of the paper",
    "specification": "the project's specification, which names no source",
}


@dataclass(frozen=True)
class Published:
    """A table of the paper. Rows are populations, by the names they have in results, and perhaps
    the baseline; columns are tasks, statistics of `Scores`, splits or `parameters`.
    """

    source: str = ""
    notes: str = ""
    rows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)  # by column; a row may have its own

    def get(self, row: str, column: str) -> float | None:
        """A number, or None where the paper has none."""
        return self.rows.get(row, {}).get(column)

    def origin(self, row: str, column: str) -> str:
        """Where a number was taken from, a key of `ORIGINS`."""
        return self.origins.get(row) or self.origins[column]

    def counted(self) -> str:
        """How many of the numbers were taken from where, in words."""
        used = [
            self.origin(row, column)
            for row, values in self.rows.items()
            for column, value in values.items()
            if value is not None
        ]
        return "; ".join(f"{used.count(o)} from {ORIGINS[o]}" for o in ORIGINS if o in used)


def published(experiment: str) -> Published:
    """The paper's table of an experiment; without rows if it printed no numbers."""
    file = files("pna.paper") / "published" / f"{experiment}.json"
    if not file.is_file():
        return Published()
    return parse(file.name, json.loads(file.read_text(encoding="utf-8")))


_PARTS = ("source", "notes", "columns", "origins", "rows")


def parse(name: str, content: dict[str, Any]) -> Published:
    """A table from the content of its file, after a check of its shape."""
    missing = {*_PARTS} ^ set(content)
    if missing:
        raise ValueError(
            f"got {name}, which lacks or should not have {', '.join(sorted(missing))}; expected "
            f"{', '.join(_PARTS)}"
        )
    columns, origins = content["columns"], content["origins"]
    for row, values in content["rows"].items():
        if len(values) != len(columns):
            raise ValueError(
                f"got {len(values)} numbers in row {row} of {name}, expected one for each of "
                f"{len(columns)} columns, null where there is none"
            )
    if without := [column for column in columns if column not in origins]:
        raise ValueError(
            f"got {name}, whose numbers of {', '.join(without)} do not say where they were taken "
            "from, expected an entry in origins for every column; add it"
        )
    for key, origin in origins.items():
        if (key not in columns and key not in content["rows"]) or origin not in ORIGINS:
            raise ValueError(
                f"got the origin {origin!r} of {key} in {name}, expected one of "
                f"{', '.join(ORIGINS)} for a column or a row"
            )
    rows = {row: dict(zip(columns, values, strict=True)) for row, values in content["rows"].items()}
    return Published(content["source"], content["notes"], rows, origins)
