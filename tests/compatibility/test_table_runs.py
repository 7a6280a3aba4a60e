r"""A run of a table that an earlier version wrote still predicts and is evaluated as it was.

`table-run` was made by these commands at commit 0bb608f, and `last.safetensors` removed:

    pna train table.csv --split part --members 2 --hidden 4 --layers 1 --epochs 3 --lr 0.05 \
        --out run
    pna predict run table.csv --interval 0.5 --out predicted.csv
    pna evaluate run --split test --json > evaluated.json
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pna.cli import app

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

HERE = Path(__file__).parent / "table-run"
RUN, TABLE = str(HERE / "run"), str(HERE / "table.csv")


def call(*arguments: str):
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    assert done.exit_code == 0, done.output
    return done


def test_predictions(tmp_path):
    out = tmp_path / "predicted.csv"
    call("predict", RUN, TABLE, "--interval", "0.5", "--out", str(out))
    with out.open() as new, (HERE / "predicted.csv").open() as old:
        (names, *found), (expected_names, *expected) = csv.reader(new), csv.reader(old)
    assert names == expected_names and len(found) == len(expected)
    given = names.index("part") + 1
    assert [row[:given] for row in found] == [row[:given] for row in expected]
    assert [row[-1] for row in found] == [row[-1] for row in expected]  # extrapolations
    numbers = (np.array([row[given:-1] for row in rows], float) for rows in (found, expected))
    np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)


def test_evaluation():
    options = ("--split", "test", "--json")
    found = json.loads(call("evaluate", RUN, str(HERE / "table.safetensors"), *options).stdout)
    expected = json.loads((HERE / "evaluated.json").read_text())
    for own, stored in zip(found["tasks"], expected["tasks"], strict=True):
        for what in ("ensemble", "metrics"):
            for name, value in stored[what].items():
                assert own[what][name] == pytest.approx(value, rel=1e-4), (what, name)
        assert own["loss"] == pytest.approx(stored["loss"], rel=1e-4)


def test_another_version_of_rdkit_is_said(monkeypatch):
    monkeypatch.setattr("rdkit.__version__", "2019.03.1")
    stored = json.loads((HERE / "run" / "config.json").read_text())["data"]["molecules"]["rdkit"]
    said = " ".join(call("predict", RUN, "CCO").output.split())
    assert f"read by RDKit {stored}, and this is RDKit 2019.03.1: features may differ" in said
