"""Numbers printed in the paper, to compare with those measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Published:
    """A table of the paper. Rows are populations, by the names they have in results, and perhaps
    the baseline; columns are tasks, statistics of `Scores`, splits or `parameters`.
    """

    source: str = ""
    notes: str = ""
    rows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def get(self, row: str, column: str) -> float | None:
        """A number, or None where the paper has none."""
        return self.rows.get(row, {}).get(column)


def published(experiment: str) -> Published:
    """The paper's table of an experiment; without rows if it printed no numbers."""
    file = files("pna.paper") / "published" / f"{experiment}.json"
    if not file.is_file():
        return Published()
    return parse(file.name, json.loads(file.read_text(encoding="utf-8")))


def parse(name: str, content: dict[str, Any]) -> Published:
    """A table from the content of its file, after a check of its shape."""
    missing = {"source", "notes", "columns", "rows"} ^ set(content)
    if missing:
        raise ValueError(
            f"got {name}, which lacks or should not have {', '.join(sorted(missing))}; expected "
            "source, notes, columns and rows"
        )
    columns = content["columns"]
    for row, values in content["rows"].items():
        if len(values) != len(columns):
            raise ValueError(
                f"got {len(values)} numbers in row {row} of {name}, expected one for each of "
                f"{len(columns)} columns, null where there is none"
            )
    rows = {row: dict(zip(columns, values, strict=True)) for row, values in content["rows"].items()}
    return Published(content["source"], content["notes"], rows)
