"""`pna predict` for tables, SMILES and standard input, to files and standard output."""

import csv
import io

import pytest
from typer.testing import CliRunner

from pna.cli import app, shared
from pna.cli import predict as command
from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import Settings, predict_table, table_prediction, train

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

MORE = ["similarity", "extrapolates"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    rows = [["C" * k, str(k)] for k in range(1, 21)]
    graphs = from_table(Table("my.csv", ("smiles", "y"), rows, [*range(20)]), ["y"], split="random")
    folder = tmp_path_factory.mktemp("runs")
    graphs.save(folder / "my.safetensors")
    train(graphs, folder / "run", settings=Settings(epochs=1), device="cpu")
    return folder / "run"


def run(*arguments, given=None):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)], input=given)


def cells(text):
    return [*csv.reader(io.StringIO(text))]


def predicted(trained, *smiles):
    table = Table("", ("smiles",), [[one] for one in smiles], [*range(len(smiles))])
    return predict_table(trained, table).column("y predicted")


def test_smiles_as_arguments(trained, tmp_path):
    done = run(trained, "CCO", "c1ccccc1O")
    assert done.exit_code == 0, done.output
    first, *rows = cells(done.stdout)
    assert first == ["smiles", "y predicted", *MORE] and [row[0] for row in rows] == [
        "CCO",
        "c1ccccc1O",
    ]
    assert [row[1] for row in rows] == predicted(trained, "CCO", "c1ccccc1O")
    done = run(trained, "CCO", "-o", tmp_path / "out.csv")
    assert done.exit_code == 0 and len(Table.read(tmp_path / "out.csv").rows) == 1


@pytest.mark.parametrize(
    "given, columns",
    [("id,SMILES\n1,CCO\n2,C\n", ["id", "SMILES"]), ("CCO a\nC b\n", ["smiles", "name"])],
    ids=["csv", "lines"],
)
def test_standard_input(trained, given, columns):
    done = run(trained, "-", given=given)
    assert done.exit_code == 0, done.output
    first, *rows = cells(done.stdout)
    assert first == [*columns, "y predicted", *MORE]
    assert [row[-3] for row in rows] == predicted(trained, "CCO", "C")


def test_standard_input_whose_column_is_named(trained):
    done = run(trained, "-", "--smiles", "mol", given="mol,id\nCCO,1\nC,2\n")
    assert done.exit_code == 0, done.output
    first, *rows = cells(done.stdout)
    assert first[:2] == ["mol", "id"]
    assert [row[-3] for row in rows] == predicted(trained, "CCO", "C")


@pytest.mark.parametrize(
    "data, given, words",
    [
        (["-"], "smiles,y\nC,1,2\n", "error: got 3 cells in line 2 of standard input, expected"),
        (["-"], "", "error: got standard input without rows"),
        (["-"], "smiles\nC\n((\n", "cannot read 1 of 2 molecules of standard input: line 3"),
        (["C", "C C"], "", "in 1 of 2 molecules of the arguments (counted from line 2): line 3"),
    ],
)
def test_messages_name_no_temporary_file(trained, data, given, words):
    done = run(trained, *data, given=given)
    assert words in done.stderr, done.stderr


def test_standard_output(trained, tmp_path):
    path = tmp_path / "a.smi"
    path.write_text("CCO\n((\n")
    done = run(trained, path, "--out", "-")
    assert done.exit_code == 0 and cells(done.stdout)[1][0] == "CCO", done.output
    assert "cannot read 1 of 2" in done.stderr and [*tmp_path.iterdir()] == [path]
    done = run(trained, trained.parent / "my.safetensors", "--out", "-")
    assert done.exit_code == 0 and cells(done.stdout)[0] == ["graph", "y"], done.output
    done = run(trained, path)
    assert done.exit_code == 1 and "got no --out, expected a CSV file" in done.output


@pytest.mark.parametrize(
    "data, words",
    [
        (["nothing.csv"], "got nothing.csv, neither a file nor the SMILES of a molecule, expected"),
        (["C>>C"], "got 'C>>C', a reaction, expected a file or the SMILES of a molecule; give its"),
        (["CCO", "C>>C"], "got 'C>>C', a reaction"),
        (["CCO", "(("], "got '((' beside 1 more, expected one file, or SMILES only"),
        (["CCO", "-"], "got '-' beside 1 more"),
        (["CCO", "--resume"], "got --resume for standard output"),
        (["CCO", "--split", "test"], "which has no splits"),
    ],
)
def test_what_is_refused(trained, data, words):
    done = run(trained, *data)
    assert done.exit_code == 1 and words in done.output, done.output


def test_interrupted_and_resumed(trained, tmp_path, monkeypatch):
    path, out = tmp_path / "a.csv", tmp_path / "out.csv"
    path.write_text("smiles\n" + "CCO\nC\n" * 6)
    whole = run(trained, path, "-o", tmp_path / "whole.csv")
    assert whole.exit_code == 0, whole.output
    monkeypatch.setattr(table_prediction, "BLOCK", 4)

    class Broken(table_prediction.TablePredictor):
        def finish(self, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(table_prediction, "TablePredictor", Broken)
    done = run(trained, path, "-o", out)
    assert done.exit_code != 0 and "out.csv.partial has the rows so far; --resume" in done.output
    monkeypatch.undo()
    done = run(trained, path, "-o", out)
    assert done.exit_code == 1 and "--resume continues it, --force starts again" in done.output
    done = run(trained, path, "-o", out, "--resume")
    assert done.exit_code == 0 and [*map(str, Table.read(out).column("smiles"))] == ["CCO", "C"] * 6
    again = run(trained, path, "-o", out, "--resume")
    assert again.exit_code == 1 and "exists" in again.output


def test_rate_and_time_left(monkeypatch):
    seconds = iter([10.0, 12.0, 14.0])
    monkeypatch.setattr(shared.time, "monotonic", lambda: next(seconds))
    console = shared.Console(file=io.StringIO(), width=99)
    with shared.progress(console, "rows") as tell:
        for done in (100, 300, 1000):
            tell(done, 1000)
    assert console.file.getvalue().splitlines() == [
        "100 of 1,000 rows",
        "300 of 1,000 rows, 100 per second, 0:00:07 left",
        "1,000 of 1,000 rows",
    ]


def test_without_chemistry_arguments_are_files(monkeypatch):
    monkeypatch.setattr("pna.data.molecules.find_spec", lambda name: None)
    assert not command._is_smiles(["CCO"])


@pytest.mark.parametrize("name", ["out.csv.gz", "out.PARQUET", "out.tsv"])
def test_a_file_that_looks_like_another_format_is_not_written(trained, tmp_path, name):
    done = run(trained, "CCO", "-o", tmp_path / name)
    assert done.exit_code == 1 and "choose another name, such as out.csv" in done.output
    assert not [*tmp_path.iterdir()]
