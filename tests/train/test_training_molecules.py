"""Predictions of tables say how far molecules are from those of the training set."""

import shutil

import numpy as np
import pytest

from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import Settings, predict_table, train
from pna.train.run import Run
from pna.train.training_molecules import FILE, TrainingMolecules

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

TRAINED = ["CCO", "CCN", "CCCO", "c1ccccc1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """On four molecules; others are validated and tested on, and one was not measured."""
    smiles = [*TRAINED, "CCCCCCCCCCCCBr", "CCCCCCCCCCCCCCCl"]
    words = ["train"] * 4 + ["validation", "test"]
    rows = [[s, str(k), word] for k, (s, word) in enumerate(zip(smiles, words, strict=True))]
    rows.append(["CCCCCCCCCCCCI", "", "train"])
    table = Table("my.csv", ("smiles", "y", "fold"), rows, [*range(7)])
    graphs = from_table(table, ["y"], split="fold")
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(graphs, folder, settings=Settings(epochs=1), device="cpu")


def test_what_a_run_keeps(trained):
    found = TrainingMolecules.of(trained)
    assert found.fingerprints.shape == (4, 256) and found.atoms == 6
    assert found.ranges == {"y": [0.0, 3.0]}


def test_columns_of_a_table(trained):
    smiles = ["CCO", "CCCCCCCCCCCCBr", "C" * 12, "C" * 13]
    found = predict_table(trained, Table("", ("smiles",), [[s] for s in smiles], [*range(4)]))
    nearest = [float(cell) for cell in found.column("similarity")]
    assert nearest[0] == 1 and 0 < nearest[1] < 0.6
    reasons = found.column("extrapolates")
    assert ["atoms" in reason for reason in reasons] == [False, True, False, True]
    assert reasons[1].startswith("13 atoms, at most 6 in training")
    assert reasons[3].startswith("13 atoms, at most 6 in training")


def test_far_predictions_are_marked():
    known = TrainingMolecules(np.zeros((1, 256), np.uint8), 10, {"y": [-2.0, 2.0]})
    sizes = np.array([20, 21, 5, 5, 1000])
    predicted = {"y": np.array([3.9, 0.0, -4.1, 4.1, 60.0])}
    assert known.extrapolation(sizes, predicted).tolist() == [
        "",
        "21 atoms, at most 10 in training",
        "y of -4.1, from -2 to 2 in training",
        "y of 4.1, from -2 to 2 in training",
        "1000 atoms, at most 10 in training; y of 60, from -2 to 2 in training",
    ]


def test_runs_without_the_file_have_no_such_columns(trained, tmp_path):
    copy = Run(shutil.copytree(trained.folder, tmp_path / "copy"))
    (copy.folder / FILE).unlink()
    found = predict_table(copy, Table("", ("smiles",), [["C"]], [1]))
    assert found.columns == ("smiles", "y predicted")
    (copy.folder / FILE).write_bytes(b"short")
    with pytest.raises(ValueError, match=r"molecules\.safetensors"):
        predict_table(copy, Table("", ("smiles",), [["C"]], [1]))
