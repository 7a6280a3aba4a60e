"""`pna train TABLE --folds`, and what other commands do with its folder."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.cli.data.stored import tables
from pna.data.describe import Description
from pna.train.fold_runs import FoldRuns
from tests.train.small_runs import molecules

SMALL = ("--hidden", "4", "--layers", "1", "--epochs", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    path = tmp_path_factory.mktemp("folds") / "measured.csv"
    rows = [f"{'C' * (k + 1)}O,{k / 2},{['train', 'test'][k % 2]}" for k in range(20)]
    path.write_text("\n".join(["smiles,logS,part", *rows]) + "\n")
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


def train(*arguments: object):
    return run("train", *arguments, *SMALL)


def test_a_table_from_the_command_line(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = (table, "--folds", 2, "--split", "random", "--members", 2, "--schedule", "constant")
    found = train(*options)
    assert found.exit_code == 0, found.output
    parts = "8 train, 2 validation, 10 test"
    assert f"fold 1 of 2, in runs/measured-pna-folds-1/fold-0: {parts}\nepoch 1 of" in found.output
    assert re.search(
        r"  fold .* graphs .*\n.*\n  0 +10 .*\n  1 +10 .*\n.*\n  mean ± std", found.output
    )
    folder = Path("runs/measured-pna-folds-1")
    first = found.output[found.output.index("test, mean prediction") :]
    assert all(len(line) <= 80 for line in first.splitlines()[2:-1])
    again = train(*options)  # in the same folder, with nothing to train
    assert again.exit_code == 0 and "2 of 2 folds are trained already" in again.output
    assert "epoch" not in again.output and again.output.endswith(first)
    page = run("report", folder)
    assert page.exit_code == 1 and "a cross-validation, expected a run" in page.output
    shown = run("evaluate", folder, "--device", "cpu")
    assert shown.exit_code == 0 and shown.output.strip() in first
    found = run("predict", folder, "CCO", "--device", "cpu")
    assert found.exit_code == 0, found.output
    assert found.output.startswith("smiles,logS predicted,logS_std,similarity,extrapolates\nCCO,")
    resumed = run("train", "--resume", folder, "--epochs", 2, "--json", "--device", "cpu")
    assert resumed.exit_code == 0, resumed.output
    *_, last = map(json.loads, resumed.output.splitlines())
    assert [fold["repeat"] for fold in last["folds"]] == [0, 0]
    assert last["mean"]["logS"]["rmse"] > 0 and last["std"]["logS"].keys() == {
        *last["mean"]["logS"]
    }
    assert {run.summary["epochs"] for run in FoldRuns.load(folder).runs} == {2}


def test_a_set_of_graphs_without_splits(tmp_path):
    graphs = replace(molecules(), split_of_graph=None, splits=())
    graphs.save(tmp_path / "set.safetensors")
    found = train(tmp_path / "set.safetensors", "--repeats", 2, "--split-seed", 4, "--tasks",
                  "size", "--out", tmp_path / "cv")  # fmt: skip
    assert found.exit_code == 0, found.output
    assert re.search(r"  repeat 0, 0 +2 .*\n  repeat 1, 0 +2 ", found.output)
    folds = FoldRuns.load(tmp_path / "cv").folds
    assert [(fold.repeat, fold.train, fold.validation, fold.test) for fold in folds] == [
        (0, 20, 2, 2), (1, 20, 2, 2)
    ]  # fmt: skip
    graphs = molecules()
    graphs.save(tmp_path / "split.safetensors")
    found = train(tmp_path / "split.safetensors", "--folds", 2)
    assert found.exit_code == 1 and "splits of their own" in found.output
    found = train(tmp_path / "set.safetensors", "--folds", 2, "--split", "scaffold")
    assert found.exit_code == 1 and "got --split scaffold for" in found.output


def test_the_description_of_a_set_does_not_list_the_parts_of_all_graphs():
    metadata = {"folds": {"repeats": 1, "parts": ["0" * 9999]}}
    shown = "".join(next(tables(Description((), (), metadata))).columns[1].cells)
    assert shown.startswith("{'repeats': 1, 'parts': ['000") and len(shown) < 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--folds", 1), "got 1 folds, expected at least 2; change --folds"),
        (("--folds", 3, "--repeats", 0), "got 0 repeats, expected at least 1; change --repeats"),
        (("--folds", 21, "--split", "random"), "got 20 molecules for 21 folds"),
        (("--folds", 3), "got 1 scaffold for 3 folds, expected at least 3; use --split random"),
        (("--folds", 3, "--split", "part"), "got the split 'part' with folds or repeats"),
        (("--folds", 3, "--calibration", 0.1), "for calibration with folds or repeats"),
        (("--folds", 3, "--mask-column", "1"), "got --mask-column with --folds or --repeats"),
    ],
)
def test_what_folds_are_refused(table, tmp_path, options, message):
    found = train(table, *options, "--out", tmp_path / "cv")
    assert found.exit_code == 1 and message in found.output
    assert not (tmp_path / "cv").exists()


def test_what_a_folder_of_folds_is_not_for(table, tmp_path, monkeypatch):
    folder = tmp_path / "cv"
    folder.mkdir()
    entry = {"repeat": 0, "fold": 0, "train": 1, "validation": 1, "test": 1}
    (folder / "folds.json").write_text(json.dumps({"version": 1, "folds": [entry]}))
    for arguments, message in (
        (("evaluate", folder, "--per-class"), "got --per-class or --slice-nodes for"),
        (("train", "--resume", folder, "--lr", 1), "got --lr with --resume of"),
        (("train", "--resume", folder, "--repair-metrics"), "got --repair-metrics with --resume"),
        (("train", "--resume", folder), "give the command that started it again"),
        (("train", "--folds", 3), "without data, expected a table of molecules"),
    ):
        found = run(*arguments)
        assert found.exit_code == 1 and message in found.output
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = train(table, "--folds", 3)
    assert found.exit_code == 1 and "several processes, expected one; start it" in found.output
