"""`pna train` with a table of molecules."""

import json
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


def test_json_and_quiet_commands_print_nothing_else(table, tmp_path):
    options = (str(table), "--targets", "logS", "--skip", "--split", "random")
    quiet = train(*options, "--out", str(tmp_path / "quiet"), "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")
    for name, folds in (("again", ()), ("folds", ("--folds", "2"))):
        as_json = train(*options, *folds, "--out", str(tmp_path / name), "--json")
        assert as_json.exit_code == 0, as_json.output
        assert [*map(json.loads, as_json.stdout.splitlines())]
        assert "the graphs of" in as_json.stderr


def test_a_column_that_is_almost_of_numbers_is_told(tmp_path):
    path = tmp_path / "measured.csv"
    rows = [f"{'C' * (k + 1)}O,{k / 2},{'<' * (k == 3)}{k / 4},x{k}" for k in range(12)]
    path.write_text("\n".join(["smiles,logS,IC50,name", *rows]) + "\n")
    found = train(str(path), "--split", "random", "--out", str(tmp_path / "one"))
    assert found.exit_code == 0, found.output
    assert "warning: IC50 is not taken as a target: got '<0.75' as IC50 in line 5" in found.output
    assert "name is not taken" not in found.output
    found = train(str(path), "--split", "random", "--take-limits", "--out", str(tmp_path / "two"))
    assert found.exit_code == 0, found.output
    assert [task.name for task in Run(tmp_path / "two").config.tasks] == ["logS", "IC50"]


def test_what_was_assumed_is_said_again(tmp_path):
    path = tmp_path / "measured.csv"
    rows = [f"{'C' * (k + 1)}O,{k / 2},{'<' * (k == 3)}{k / 4}" for k in range(12)]
    path.write_text("\n".join(["smiles,logS,IC50", *rows, "CO,7,2"]) + "\n")
    for name in ("one", "two"):
        found = train(str(path), "--split", "random", "--out", str(tmp_path / name))
        assert found.exit_code == 0, found.output
        assert "warning: IC50 is not taken as a target: got '<0.75'" in found.output
        assert "11 train, 1 validation, 1 test" in found.output
        assert ".rows.csv" in found.output and "lists the special rows" in found.output
    assert "wrote the graphs" not in found.output


def test_columns_of_one_name_are_told(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text("smiles,y,y\nCO,1,2\nCCO,2,3\n")
    found = train(str(path), "--out", str(tmp_path / "run"))
    assert found.exit_code == 1 and "have the same name: rename y" in found.output


def test_what_was_assumed_is_said_before_an_error(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text("smiles,y\n" + "".join(f"{'C' * k}O,{k}\n" for k in range(1, 9)) + "CC,n.d.\n")
    found = train(str(path), "--out", str(tmp_path / "run"))
    assert found.exit_code == 1 and "without a column of numbers" in found.output
    assert "warning: y is not taken as a target: got 'n.d.' as y in line 10" in found.output


def test_eigenvectors_in_a_population(table, tmp_path):
    """Members in one pass have signs of their own, beside categories."""
    how = ("--targets", "logS", "--split", "random", "--skip", "--features", "ogb,laplacian=3")
    found = train(str(table), *how, "--members", "2", "--out", str(tmp_path / "run"))
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "CCO"])
    assert found.exit_code == 0, found.output


def test_a_run_that_has_not_ended_says_so(table, tmp_path):
    how = ("--targets", "logS", "--split", "random", "--skip", "--out", str(tmp_path / "run"))
    assert train(str(table), *how).exit_code == 0
    predict = ["predict", str(tmp_path / "run"), "CCO"]
    before = CliRunner().invoke(app, predict)
    (tmp_path / "run" / "summary.json").unlink()
    found = CliRunner().invoke(app, predict)
    assert found.exit_code == 0 and found.stdout == before.stdout
    assert "similarity" in found.stdout and "has not ended" not in before.stderr
    assert "has not ended; these are the best weights so far: pna train --resume" in found.stderr
    assert "has not ended" in CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")]).stderr


def test_targets_whose_names_have_commas(tmp_path):
    path = tmp_path / "measured.csv"
    rows = [f"{'C' * (k + 1)}O,{k / 2},{k % 2},{k / 4}" for k in range(12)]
    path.write_text("\n".join(['smiles,"logS, 25 °C",a=b,c', *rows]) + "\n")
    found = train(
        str(path), "--split", "random", "--targets", '"logS, 25 °C",a=b', "--loss",
        '"logS, 25 °C=mae",a=b=bce', "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    tasks = Run(tmp_path / "run").config.tasks
    assert [(task.name, task.loss) for task in tasks] == [("logS, 25 °C", "mae"), ("a=b", "bce")]
    for option, given, words in (
        ("--targets", ",", "without a name"),
        ("--targets", '"a', "no list of names"),
        ("--loss", "logS, 25 °C=mae", "put double quotes"),
    ):
        found = train(str(path), "--split", "random", option, given)
        assert found.exit_code == 1 and words in found.output
