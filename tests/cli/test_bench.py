import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pna.bench import layer_cases
from pna.bench.results import write
from pna.cli import app, bench
from tests.bench.once import time_once

SMALL = ["bench", "layer", "--device", "cpu", "--small", "--seconds", "0.01", "--no-compile"]
needs_pyg = pytest.mark.skipif(
    not layer_cases.has_pyg(), reason="needs PyG: pip install 'pna[pyg]'"
)


def run(*more: str) -> Result:
    result = CliRunner().invoke(app, [*SMALL, *more])
    assert result.exit_code == 0, result.output
    return result


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@needs_pyg
def test_everything_is_printed_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every small case is measured, also compiled; the first use of PyG takes seconds."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    time_once(monkeypatch)
    path = tmp_path / "layer.csv"
    with monkeypatch.context() as patch:
        patch.setattr(layer_cases, "SMALL", layer_cases.SMALL[:1])
        run("--out", str(path))
    elsewhere = [{**row, "cpu": "another machine"} for row in read(path)]
    write(path, elsewhere)
    printed = run("--out", str(path)).output

    rows = read(path)
    assert [row for row in rows if row["cpu"] == "another machine"] == elsewhere
    here = [row for row in rows if row["cpu"] != "another machine"]
    assert {row["case"] for row in here} == {case.name for case in layer_cases.SMALL}
    assert sum(row["case"] == elsewhere[0]["case"] for row in here) == len(elsewhere)
    for row in here:
        assert row["ms"] or row["error"] or row["note"].startswith("not run")
        assert row["torch"] and row["measured"] and row["device"] == "cpu"

    for case in layer_cases.SMALL:
        assert f"{case.name}: {case.nodes:,} nodes" in printed
    for line in printed.splitlines():
        if line.strip().startswith(("forward  ", "error of ")):
            assert "×" in line
    assert "first call of PyG" in printed  # progress, in plain lines
    assert "layer.svg" in printed.replace("\n", "")  # long paths are wrapped
    svg = tmp_path / "layer.svg"
    assert "as fast" in svg.read_text()


def test_without_pyg_a_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(layer_cases, "find_spec", lambda name: None)
    monkeypatch.setattr(layer_cases, "SMALL", layer_cases.SMALL[-2:])
    monkeypatch.chdir(tmp_path)
    printed = run().output
    assert "PyG not found, so pna is measured alone: pip install 'pna[pyg]'" in printed
    assert "forward+backward   pna" in printed


def test_without_matplotlib_a_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench.shared, "find_spec", lambda name: None)
    monkeypatch.setattr(layer_cases, "SMALL", tuple(c for c in layer_cases.SMALL if c.alone))
    monkeypatch.chdir(tmp_path)
    assert "matplotlib not found, so no figure: pip install 'pna[plot]'" in run().output
    assert list(tmp_path.iterdir()) == []


def test_the_figure_is_here_when_no_file_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    monkeypatch.setattr(layer_cases, "SMALL", tuple(c for c in layer_cases.SMALL if c.alone))
    monkeypatch.chdir(tmp_path)
    assert "wrote layer.svg" in run().output
    assert [path.name for path in tmp_path.iterdir()] == ["layer.svg"]


def test_an_unknown_device_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "layer", "--device", "meta"])
    assert result.exit_code == 2
    assert "expected cpu or cuda" in result.output


@needs_pyg
def test_training_is_printed_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models of the paper's size are trained, also of PyG's layers, whose first use is slow."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    time_once(monkeypatch)
    path = tmp_path / "train.csv"
    asked = ["bench", "train", "--device", "cpu", "--small", "--seconds", "0.01"]
    result = CliRunner().invoke(app, [*asked, "--out", str(path)])
    assert result.exit_code == 0, result.output
    rows = {(row["case"], row["contender"]): row for row in read(path)}
    assert list(rows) == [
        ("small population", "pna, 10 members"),
        ("small population", "pna, 1 member"),
        ("small multitask", "pna"),
        ("small multitask", "PyG"),
        ("small zinc-sized", "pna"),
        ("small zinc-sized", "PyG"),
    ]
    for row in rows.values():
        assert row["ms"] and row["per_second"] and row["torch"] and not row["note"]
    assert rows["small multitask", "PyG"]["parameters"] == "8350"
    assert "10 members take" in result.output
    assert "times PyG" in result.output
    assert "as fast" in (tmp_path / "train.svg").read_text()


def test_an_unknown_case_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "train", "--device", "cpu", "--only", "all"])
    assert result.exit_code == 2
    assert "population" in result.output


@needs_pyg
def test_steps_on_nodes_are_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'pna[plot]'")
    time_once(monkeypatch)
    path = tmp_path / "nodes.csv"
    asked = ["bench", "nodes", "--device", "cpu", "--small", "--rows", "small nodes"]
    result = CliRunner().invoke(app, [*asked, "--out", str(path)])
    assert result.exit_code == 0, result.output
    assert [row["contender"] for row in read(path)] == ["pna", "PyG"]
    assert "full batch" in result.output and (tmp_path / "nodes.svg").is_file()
