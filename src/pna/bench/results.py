"""The one file of results of a benchmark, from as many machines as were measured."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pna.files import make_folder, replacing


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(
    path: Path,
    rows: Sequence[dict[str, Any]],
    key: Sequence[str] = ("case", "device", "cpu", "gpu"),
) -> None:
    """Put these rows in place of those with the same values in the columns of `key`."""
    new = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    replaced = {tuple(row[name] for name in key) for row in new}
    kept = [row for row in read(path) if tuple(row[name] for name in key) not in replaced]
    make_folder(path.parent)
    with replacing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(new[0]))
        writer.writeheader()
        writer.writerows(kept + new)
