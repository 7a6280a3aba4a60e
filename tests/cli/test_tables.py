"""`pna train` with a table of molecules."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.train.run import Run

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

SMALL = ("--hidden", "4", "--layers", "1", "--epochs", "1", "--members", "1", "--device", "cpu")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "measured.csv"
    rows = [f"{'C' * (k + 1)}O,{k / 2},{k}" for k in range(12)] + ["Q,1,1", "CO,7,2"]
    path.write_text("\n".join(["smiles,logS,log P", *rows]) + "\n")
    return path


def train(*arguments: str):
    return CliRunner().invoke(app, ["train", *arguments, *SMALL])


def test_a_table_is_trained_on_and_its_graphs_are_kept(table, tmp_path):
    options = [str(table), "--targets", "logS", "--split", "random", "--skip"]
    first = train(*options, "--out", str(tmp_path / "one"))
    assert first.exit_code == 0, first.output
    assert "11 train, 1 validation, 1 test" in first.output
    (graphs,) = tmp_path.glob("measured.csv-*.safetensors")
    assert "wrote the graphs of" in first.output
    assert "unreadable" in graphs.with_suffix(".rows.csv").read_text()
    again = train(*options, "--out", str(tmp_path / "two"))
    assert again.exit_code == 0 and "the graphs of" in again.output
    assert "wrote the graphs" not in again.output
    assert [task.name for task in Run(tmp_path / "two").config.tasks] == ["logS"]


def test_intervals_from_the_command_line(table, tmp_path):
    run = tmp_path / "run"
    options = ["--targets", "logS", "--split", "random", "--skip", "--calibration", "0.4"]
    found = train(str(table), *options, "--out", str(run))
    assert found.exit_code == 0 and "7 train, 1 validation, 1 test, 4 cal" in found.output
    found = CliRunner().invoke(app, ["predict", str(run), "CCO", "--interval", "0.8"])
    assert found.exit_code == 0, found.output
    assert found.output.startswith("smiles,logS predicted,logS_low,logS_high")
    found = CliRunner().invoke(app, ["predict", str(run), "CCO", "--interval", "0.9"])
    assert found.exit_code == 1 and "got 4 calibration rows" in found.output


def test_an_unreadable_row_is_an_error_that_names_the_remedy(table, tmp_path):
    found = train(str(table), "--split", "random", "--out", str(tmp_path / "run"))
    assert found.exit_code == 1 and "line 14" in found.output and "--skip" in found.output
    assert not (tmp_path / "run").exists()


def test_options_of_a_table_need_a_table(tmp_path):
    found = train(str(tmp_path / "graphs.safetensors"), "--targets", "a", "--split-seed", "2")
    assert found.exit_code == 1
    assert "got --targets, --split-seed with" in found.output
