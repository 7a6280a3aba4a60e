import csv
from pathlib import Path
from typing import Any

from pna.bench.results import write


def row(case: str, gpu: str | None, ms: float) -> dict[str, Any]:
    return {"case": case, "ms": ms, "device": "cuda", "cpu": "some", "gpu": gpu}


def test_rows_of_the_same_case_and_hardware_are_replaced_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.csv"
    write(path, [row("a", "X", 1.0), row("a", "X", 2.0), row("b", "X", 3.0)])
    write(path, [row("a", "Y", 4.0)])
    write(path, [row("a", "X", 5.0)])
    with path.open(newline="") as file:
        read = [(r["case"], r["gpu"], r["ms"]) for r in csv.DictReader(file)]
    assert read == [("b", "X", "3.0"), ("a", "Y", "4.0"), ("a", "X", "5.0")]
    assert [p.name for p in path.parent.iterdir()] == ["results.csv"]


def test_nothing_is_an_empty_cell(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    write(path, [row("a", None, 1.0)])
    assert path.read_text().splitlines() == ["case,ms,device,cpu,gpu", "a,1.0,cuda,some,"]
