"""The one file of results of a benchmark, from as many machines as were measured."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from pna.files import make_folder, replacing


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put these rows in place of those of the same hardware and case."""
    rows = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    new = {(row["case"], row["device"], row["cpu"], row["gpu"]) for row in rows}
    kept: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [
                row
                for row in csv.DictReader(file)
                if (row["case"], row["device"], row["cpu"], row["gpu"]) not in new
            ]
    make_folder(path.parent)
    with replacing(path) as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(kept + rows)
