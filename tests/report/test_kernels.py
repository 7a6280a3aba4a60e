"""The table of fast paths in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pna.bench.results import read
from pna.fast_paths import FAST_PATHS
from pna.report.kernels import table, with_table

ROOT = Path(__file__).parents[2]


def line(row: str, path: str, gain: str, device: str = "cpu") -> dict[str, str]:
    return {"row": row, "device": device, "path": path, "gain": gain}


def test_the_page_has_the_table_of_the_results() -> None:
    """If not: pna bench kernels --table docs/kernels.md --out benchmarks/results/kernels.csv"""
    page = (ROOT / "docs" / "kernels.md").read_text()
    assert page == with_table(page, read(ROOT / "benchmarks" / "results" / "kernels.csv"))


def test_every_path_is_in_the_table_once_for_each_device() -> None:
    _, _, *lines = table([]).splitlines()
    assert len(lines) == sum(len(path.devices) for path in FAST_PATHS.values())


def test_gains_are_told_with_their_rows() -> None:
    results = [
        line("a", "set2set_cpu", "1.5"),
        line("b, synthetic graphs", "set2set_cpu", "10.25"),
        line("c", "degree_groups", ""),
        line("c", "", ""),
    ]
    by_path = {cells.split(" | ")[0]: cells for cells in table(results).splitlines()}
    assert by_path["| `set2set_cpu`"].endswith("| 10.25× (b) | 1.50× (a) | 2 |")
    assert "| fails |" in by_path["| `degree_groups`"]
    assert "| no measured row takes it |" in by_path["| `cpu`"]
    assert "| not measured yet |" in by_path["| `gru`"]


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the table"):
        with_table("no table", [])
