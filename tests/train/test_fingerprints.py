"""Fingerprints are the vectors from which models predict, for tables, graph sets and every file."""

import csv
import io

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

import pna
from pna.cli import app
from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import ModelSettings, Settings, fingerprint, train
from pna.train.prediction import Ensemble

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

SMILES = [f"{chain}{ring}" for ring in ("C1CC1", "c1ccccc1") for chain in "CNOFI"] * 2


def table_of(*smiles):
    return Table("my.csv", ("smiles",), [[one] for one in smiles], [*range(2, len(smiles) + 2)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members, whose heads see encoded descriptors too."""
    rows = [[text, str(-k)] for k, text in enumerate(SMILES)]
    table = Table("my.csv", ("smiles", "logS"), rows, [*range(len(rows))])
    graphs = from_table(table, ["logS"], split="random", features=["ogb", "descriptors"])
    folder = tmp_path_factory.mktemp("runs") / "run"
    model = ModelSettings("pna", "stacked", hidden=8, arguments={"layers": 1})
    return train(graphs, folder, model, Settings(epochs=1, members=2), device="cpu")


def test_the_head_makes_predictions_of_them(trained):
    table = table_of("CCO", "c1ccccc1N", "O")
    vectors, graphs = (
        fingerprint(trained, table),
        from_table(table, features=["ogb", "descriptors"]),
    )
    outputs = Ensemble.of(trained, device="cpu").outputs(graphs)["graph"]
    assert vectors.shape == (3, 2 * 16) and vectors.dtype == np.float32
    for member in range(2):
        model = pna.load(trained, member)
        own = vectors[:, 16 * member : 16 * (member + 1)]
        assert model.graph_head is not None
        got = model.graph_shift(model.graph_head(torch.from_numpy(own)))
        np.testing.assert_allclose(got.detach().numpy(), outputs[member], rtol=1e-5)
        alone = fingerprint(trained, table, member)
        np.testing.assert_allclose(alone, own, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fingerprint(trained, graphs), vectors, rtol=1e-5, atol=1e-6)


def test_rows_in_blocks(trained, monkeypatch):
    whole = fingerprint(trained, table_of("CCO", "CCN", "CCC", "CC"))
    monkeypatch.setattr("pna.train.fingerprints.BLOCK", 2)
    told = []
    with pytest.warns(UserWarning, match="cannot read 3 of 7 molecules of my.csv: line 3, 4, 5"):
        found = fingerprint(
            trained, table_of("CCO", "((", "))", "((", "CCN", "CCC", "CC"),
            progress=lambda *n: told.append(n),
        )  # fmt: skip
    assert np.isnan(found[1:4]).all() and told == [(2, 7), (4, 7), (6, 7), (7, 7)]
    np.testing.assert_allclose(found[[0, 4, 5, 6]], whole, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="a column 'member1_fp_3', which would be added again"):
        fingerprint(trained, Table("my.csv", ("smiles", "member1_fp_3"), [["C", ""]], [2]))


def run(*arguments, given=None):
    return CliRunner().invoke(app, ["fingerprint", *map(str, arguments)], input=given)


def test_files(trained, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tSMILES\n1\tCCO\n2\t((\n3\tC\n")
    with pytest.warns(UserWarning, match="cannot read"):
        expected = fingerprint(trained, path)
    for name in ("out.csv", "out.npz", "out.safetensors"):
        done = run(trained.folder, path, "-o", tmp_path / name)
        assert done.exit_code == 0 and f"wrote {tmp_path / name}" in done.output, done.output
        assert "cannot read 1 of 3" in done.output
    first, *rows = csv.reader((tmp_path / "out.csv").open())
    begin = ["id", "SMILES", "member0_fp_0", "member0_fp_1"]
    assert first[:4] == begin and first[-1] == "member1_fp_15"
    assert [row[:2] for row in rows] == [["1", "CCO"], ["2", "(("], ["3", "C"]]
    assert set(rows[1][2:]) == {""}
    np.testing.assert_array_equal(np.array(rows[0][2:], np.float32), expected[0])  # all digits
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["vectors"], expected)
    np.testing.assert_array_equal(load_file(tmp_path / "out.safetensors")["vectors"], expected)
    done = run(trained.folder, path, "-o", tmp_path / "out.npz")
    assert done.exit_code == 1 and "--force overwrites it" in done.output
    done = run(trained.folder, path, "-o", tmp_path / "new.npz", "--resume")
    assert done.exit_code == 1 and "expected a CSV file; leave it out" in done.output
    done = run(trained.folder, trained.folder / "best.safetensors", "-o", tmp_path / "new.csv")
    assert done.exit_code == 1 and "call pna.train.fingerprint in Python" in done.output


def test_standard_input_and_output(trained):
    done = run(trained.folder, "-", "--member", 1, given="smiles\nCCO\nC\n")
    assert done.exit_code == 0, done.output
    first, *rows = csv.reader(io.StringIO(done.stdout))
    assert first[:2] == ["smiles", "fp_0"] and len(first) == 17 and len(rows) == 2
    done = run(trained.folder, "CCO", "C", "--member", 1)
    assert done.exit_code == 0 and [*csv.reader(io.StringIO(done.stdout))] == [first, *rows]
