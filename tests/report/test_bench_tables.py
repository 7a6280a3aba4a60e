"""Tables of the documentation that are made of benchmark results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pna.bench.contenders import BOTH, CONTENDERS, OURS, PYG
from pna.bench.layer_cases import MOLECULES
from pna.bench.molecule_tables import RATE
from pna.bench.results import write
from pna.cli import app
from pna.report.bench_tables import (
    NOT_MEASURED,
    TABLES,
    WAYS,
    epochs,
    molecule_errors,
    molecule_rates,
    molecule_times,
    molecules_on_gpus,
    nodes,
    peers,
    shapes,
    ways,
    with_tables,
)

ROOT = Path(__file__).parents[2]
MACHINE = {"device": "cuda", "cpu": "a CPU", "gpu": "a GPU", "threads": "8"}


def layer_row(case: str, contender: str, ms: str, work: str = BOTH, **more: Any) -> dict[str, Any]:
    return MACHINE | {"case": case, "contender": contender, "work": work, "ms": ms} | more


@pytest.mark.parametrize("page", sorted({page for page, _ in TABLES}))
def test_pages_have_the_tables_of_the_results(page: str) -> None:
    """If not: pna bench tables"""
    text = (ROOT / "docs" / page).read_text()
    assert text == with_tables(page, text, ROOT / "benchmarks" / "results")


def test_every_way_is_measured() -> None:
    cases = {case.name for case in MOLECULES if case.compiled and case.recorded}
    names = {entry.name for entry in CONTENDERS}
    for way in WAYS:
        assert way.case in cases
        assert {way.pyg, way.ours} <= names


def test_ways_are_compared_on_each_machine(tmp_path: Path) -> None:
    assert NOT_MEASURED in ways(tmp_path)
    rows = [
        layer_row("molecules", PYG, "4.0"),
        layer_row("molecules", OURS, "1.0"),
        layer_row("molecules, fresh edges", OURS, "1.5"),
        layer_row("molecules", PYG, "9.0", device="cpu", gpu=""),
        layer_row("molecules", OURS, "3.0", device="cpu", gpu=""),
        layer_row("molecules", "pna, compiled", "", note="failed"),
    ]
    write(tmp_path / "layer.csv", [{"note": ""} | row for row in rows])
    _, _, *lines = ways(tmp_path).splitlines()
    assert lines == [
        f"| a GPU | {WAYS[0].words} | not measured yet | 1.50 ms |  |",
        f"| a GPU | {WAYS[1].words} | 4.00 ms | 1.00 ms | 4.00× |",
        f"| a CPU, 8 threads | {WAYS[1].words} | 9.00 ms | 3.00 ms | 3.00× |",
    ]


def test_peers_are_compared_with_ours(tmp_path: Path) -> None:
    assert NOT_MEASURED in peers(tmp_path)
    rows = [
        layer_row("layer", OURS, "2.0"),
        layer_row("layer", PYG, "9.0"),
        layer_row("layer", "JAX segment operations", "5.0"),
    ]
    write(tmp_path / "layer.csv", rows)
    _, _, line = peers(tmp_path).splitlines()
    assert line == "| a GPU | layer | JAX segment operations | 5.00 ms | 2.00 ms | 2.50× |"


def test_shapes_are_compared_in_time_and_memory(tmp_path: Path) -> None:
    assert NOT_MEASURED in shapes(tmp_path)
    rows = [
        layer_row("autocast", OURS, "2.0", mib="100"),
        layer_row("autocast", PYG, "9.0", mib="1250"),
        layer_row("autocast", PYG, "8.0", "forward", mib="50"),
        layer_row("bfloat16", PYG, "9.0", mib="1250"),
        layer_row("layer", PYG, "9.0", mib="1250"),
    ]
    write(tmp_path / "layer.csv", rows)
    _, _, line = shapes(tmp_path).splitlines()
    assert line == (
        "| a GPU | 100,000 nodes, 1,600,000 edges, F = 128, autocast | 9.00 ms | 2.00 ms | 4.50× "
        "| 1,250 MiB | 100 MiB | 12.50× |"
    )


def test_steps_on_nodes(tmp_path: Path) -> None:
    assert NOT_MEASURED in nodes(tmp_path)
    rows = [
        layer_row("all", OURS, "4.0", "full batch", mib="2048"),
        layer_row("some", OURS, "2.0", "10 seeds, 3,2", mib="512"),
        layer_row("some", PYG, "9.0", "10 seeds, 3,2", mib="9000"),
    ]
    write(tmp_path / "nodes.csv", rows)
    _, _, *lines = nodes(tmp_path).splitlines()
    assert lines == [
        "| a GPU | all | full batch | not run | 4.0 ms |  | 2.0 GiB |",
        "| a GPU | some | 10 seeds, 3,2 | 9.0 ms | 2.0 ms | 4.50× | 0.5 GiB |",
    ]


def test_epochs_of_the_example_and_of_training(tmp_path: Path) -> None:
    assert NOT_MEASURED in epochs(tmp_path)
    shared = {"case": "example", "graphs": "2000"}
    times = {"PyG": "3000.0", "pna": "1000.0", "no layer": "500.0"}
    rows = [MACHINE | shared | {"contender": name, "ms": ms} for name, ms in times.items()]
    write(tmp_path / "example.csv", rows)
    write(tmp_path / "train.csv", [rows[1] | {"case": "zinc-sized"}])
    _, _, ours, bound, trained = epochs(tmp_path).splitlines()
    assert "2,000 graphs" in ours and ours.endswith("| 3.00 s | 1.00 s | 3.00× |")
    assert "no layer" in bound and bound.endswith("| 3.00 s | 0.50 s | 6.00× |")
    assert "`pna train`" in trained and trained.endswith(f"| {NOT_MEASURED} | 1.00 s |  |")


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected the table"):
        with_tables("which-way.md", "no table", tmp_path)


def test_the_command_rewrites_the_pages(tmp_path: Path) -> None:
    for page in {page for page, _ in TABLES}:
        text = (ROOT / "docs" / page).read_text()
        stale = re.sub(r"(?s)(begin -->\n).*?(\n<!-- table)", r"\1stale\2", text)
        assert stale != text
        (tmp_path / page).write_text(stale)
    results = str(ROOT / "benchmarks" / "results")
    asked = ["bench", "tables", "--docs", str(tmp_path), "--results", results]
    assert CliRunner().invoke(app, asked).exit_code == 0
    for page in {page for page, _ in TABLES}:
        assert (tmp_path / page).read_text() == (ROOT / "docs" / page).read_text()


def molecule_row(contender: str, model: str, value: str, cpu_seconds: str, **more: str):
    return {"table": "esol", "split": "scaffold 0", "contender": contender, "metric": "rmse",
            "molecules": "1128", "model": model, "value": value, "cpu_seconds": cpu_seconds,
            "cpu": "Xeon", "gpu": "", "seconds": "", "predict_seconds": "",
            "predict_cpu_seconds": ""} | more  # fmt: skip


KEY = ("contender", "model", "cpu", "gpu")


def test_models_of_molecules_are_compared(tmp_path: Path) -> None:
    for table in (molecule_errors, molecule_times, molecule_rates):
        assert NOT_MEASURED in table(tmp_path)
    rows = [
        molecule_row("chemprop", "seed 1", "0.95", "500", cpu="another"),
        molecule_row("chemprop", "seed 0", "0.99", "500", cpu="another"),
        molecule_row("pna", "seed 0", "0.7", "15"),
        molecule_row("pna", "seed 1", "0.9", ""),  # a member of the ensemble
        molecule_row("pna", "ensemble of 2", "0.6", "30"),
        molecule_row("chemprop", "seed 0", "0.85", "60"),
    ]
    write(tmp_path / "molecules.csv", rows, KEY)
    (_, _, errors), (_, _, *times) = (
        table(tmp_path).splitlines() for table in (molecule_errors, molecule_times)
    )
    assert errors == (
        "| esol | 1,128 | rmse | 0.900 ± 0.071 (2) | 0.800 ± 0.141 (2) | not measured yet | "
        "0.600 (2) |"
    )
    assert times == ["| esol | Xeon | 60 s | 15 s | 4.0× | ≈ 120 s | 30 s | 4.0× |"]
    larger = molecule_row("chemprop", "ensemble of 3", "1", "240")  # of other sizes, times differ
    (tmp_path / "larger").mkdir()
    write(tmp_path / "larger" / "molecules.csv", [*rows, larger], KEY)
    assert molecule_times(tmp_path / "larger").endswith("| ≈ 120 s | 30 s | 4.0× |")
    write(tmp_path / "molecules.csv", [molecule_row("chemprop", "ensemble of 2", "1", "90")], KEY)
    assert molecule_times(tmp_path).endswith("| 90 s | 30 s | 3.0× |")


def test_models_on_a_gpu_have_a_table_of_their_own(tmp_path: Path) -> None:
    assert NOT_MEASURED in molecules_on_gpus(tmp_path)
    rows = [
        molecule_row("pna", "seed 0", "0.7", "15"),
        molecule_row("chemprop", "seed 0", "0.85", "60"),
        molecule_row("chemprop", "seed 0", "0.9", "30", gpu="H200", seconds="27"),
        molecule_row("pna", "seed 0", "0.6", "20", gpu="H200", seconds="18"),
        molecule_row("pna", "seed 1", "0.8", "", gpu="H200"),  # a member of the ensemble
        molecule_row("pna", "ensemble of 2", "0.5", "30", gpu="H200", seconds="13"),
    ]
    write(tmp_path / "molecules.csv", rows, KEY)
    assert molecules_on_gpus(tmp_path).splitlines()[2:] == [
        "| esol | H200 | chemprop | rmse | 0.900 (1) | 27 s | not measured yet | ≈ 54 s |",
        "| esol | H200 | pna | rmse | 0.700 ± 0.141 (2) | 18 s | 0.500 (2) | 13 s |",
    ]
    assert "0.850 (1) | 0.700 (1)" in molecule_errors(tmp_path)


def test_rates_of_prediction_are_shown(tmp_path: Path) -> None:
    times = {"metric": RATE, "molecules": "1000", "predict_seconds": "20",
             "predict_cpu_seconds": "30"}  # fmt: skip
    rows = [
        molecule_row("pna", "prediction, seed 0", "100.0", "", **times),
        molecule_row("pna", "seed 0", "0.7", "15"),
    ]
    write(tmp_path / "molecules.csv", rows, KEY)
    assert molecule_rates(tmp_path).splitlines()[2:] == [
        "| esol | Xeon | pna, seed 0 | 100 | 50 | 30.0 ms |"
    ]
