"""Contributions of atoms: Shapley values by their formula, and what they add up to."""

import csv
import io
from dataclasses import replace
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import ModelSettings, Settings, explain, predict, predict_table, train
from pna.train.explanation import _orders

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

SMILES = [f"{chain}{ring}" for ring in ("C1CC1", "c1ccccc1") for chain in "CNOFI"] * 2
ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def table_of(*smiles):
    return Table("my.csv", ("smiles",), [[one] for one in smiles], [*range(2, len(smiles) + 2)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two members that use descriptors, a number and a calibrated probability."""
    rows = [[text, str(-k), str(k % 2)] for k, text in enumerate(SMILES)]
    table = Table("my.csv", ("smiles", "logS", "active"), rows, [*range(len(rows))])
    graphs = from_table(
        table, ["logS", "active"],
        split="random", features=["ogb", "descriptors"], calibration=0.2,
    )  # fmt: skip
    model = ModelSettings("pna", "stacked", hidden=8, arguments={"layers": 2})
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(graphs, folder, model, Settings(epochs=4, members=2), device="cpu")


@pytest.mark.parametrize("target", ["logS", "active"])
def test_they_add_up_to_the_prediction(trained, target):
    (found,) = explain(trained, ASPIRIN, target)
    cells = predict_table(trained, table_of(ASPIRIN)).column(f"{target} predicted")
    assert found.prediction == pytest.approx(float(cells[0]), rel=1e-5)
    total = found.baseline + found.atoms.sum() + found.features
    assert total == pytest.approx(found.prediction, abs=1e-12)
    assert found.features != 0 and found.features_error > 0 and (found.errors > 0).all()
    assert np.abs(found.atoms).max() > 1e-3 * abs(found.prediction)


def test_the_formula_of_shapley(trained):
    """By sums over all sets of atoms. With so many permutations the values are exact."""
    smiles = "CC(F)=O"
    graphs = from_table(table_of(smiles, "CCC"), features=["ogb", "descriptors"])
    real, carbon = graphs[[0]], graphs[[1]].x[1]
    parts = 5  # the atoms and the descriptors

    sets = [frozenset(s) for n in range(parts + 1) for s in combinations(range(parts), n)]
    every = real[torch.zeros(len(sets), dtype=torch.int64)]
    x = [real.x[k] if k in present else carbon for present in sets for k in range(4)]
    none = torch.full_like(real.x_graph, torch.nan)
    x_graph = [real.x_graph if 4 in present else none for present in sets]
    changed = replace(every, x=torch.stack(x), x_graph=torch.cat(x_graph))
    values = dict(zip(sets, predict(trained, changed).graph["logS"], strict=True))
    expected = [
        sum(
            factorial(len(s)) * factorial(parts - 1 - len(s)) / factorial(parts)
            * (values[s | {part}] - values[s])
            for s in sets if part not in s
        )
        for part in range(parts)
    ]  # fmt: skip
    (found,) = explain(trained, smiles, "logS", permutations=120)
    assert found.baseline == pytest.approx(values[frozenset()], rel=1e-6)
    np.testing.assert_allclose([*found.atoms, found.features], expected, rtol=1e-4, atol=1e-5)
    assert not found.errors.any()
    (sampled,) = explain(trained, smiles, "logS", permutations=16)
    off = np.abs(sampled.atoms - found.atoms)
    assert off.max() > 0 and (off < 5 * sampled.errors + 1e-9).all()


def test_a_prediction_that_is_a_sum_over_atoms(trained, monkeypatch):
    """Whatever the orders, each atom contributes its own number less that of CH2."""
    from pna.train import explanation

    weights = torch.linspace(-1, 1, 9, dtype=torch.float64)

    def predicted(self, graphs):
        sums = torch.stack([(graphs[[k]].x.double() @ weights).sum() for k in range(len(graphs))])
        return {"logS": sums.numpy() + 3.0}

    monkeypatch.setattr(explanation.TableExplainer, "_predicted", predicted)
    (found,) = explain(trained, "CCN[C@H](F)O", "logS", permutations=4)
    x = from_table(table_of("CCN[C@H](F)O", "CCC")).x.double()
    own = (x @ weights).numpy()
    np.testing.assert_allclose(found.atoms, own[:6] - own[7], atol=1e-12)
    assert found.atoms[1] == 0 and found.features == 0 and found.baseline == 3.0 + 6 * own[7]
    np.testing.assert_allclose(found.errors, 0, atol=1e-12)


def test_neither_company_nor_the_way_of_writing_matters(trained):
    (alone,) = explain(trained, "OCC(C)(C)C", "logS")
    _, beside = explain(trained, ["c1ccccc1CCCl", "OCC(C)(C)C"], "logS")
    np.testing.assert_array_equal(alone.atoms, beside.atoms)
    (other,) = explain(trained, "C(C(C)(C)C)O", "logS")
    np.testing.assert_allclose(other.atoms[[5, 0, 1, 2, 3, 4]], alone.atoms, rtol=1e-4, atol=1e-5)
    assert len({*alone.atoms[3:]}) == 1  # methyl groups of tert-butyl


def test_orders():
    found, is_all = _orders(3, 6)
    assert is_all and len({*map(tuple, found.tolist())}) == 6
    found, is_all = _orders(4, 8)
    assert not is_all and found.shape == (8, 4) and (np.sort(found) == np.arange(4)).all()
    assert (found[1::2] == found[::2, ::-1]).all() and len({*map(tuple, found.tolist())}) > 2


def test_what_is_refused(trained):
    with pytest.raises(ValueError, match="got no target, expected one of logS, active; choose"):
        explain(trained, "CCO")
    with pytest.raises(ValueError, match="'logs'"):
        explain(trained, "CCO", "logs")
    with pytest.raises(ValueError, match="got 3 permutations, expected an even number"):
        explain(trained, "CCO", "logS", permutations=3)
    with pytest.warns(UserWarning, match="cannot read 1 of 2 molecules of the list: line 1"):
        assert [one.smiles for one in explain(trained, ["((", "CCO"], "logS")] == ["CCO"]


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_files(trained, tmp_path):
    given = (trained.folder, "--target", "active", "--member", 1)
    (expected,) = explain(trained, "CCO", "active", 1)
    done = run(*given, "CCO")
    assert done.exit_code == 0, done.output
    first, *rows = csv.reader(io.StringIO(done.stdout))
    assert first == ["row", "smiles", "target", "atom", "symbol", "contribution", "error"]
    assert {row[0] for row in rows} == {"1"}
    assert [row[3:5] for row in rows] == [
        ["baseline", ""], ["0", "C"], ["1", "C"], ["2", "O"], ["features", ""],
    ]  # fmt: skip
    assert sum(float(row[5]) for row in rows) == pytest.approx(expected.prediction, abs=1e-7)
    done = run(*given, "CCO", "-o", tmp_path / "one.svg")
    assert done.exit_code == 0 and "one.csv and 1 drawing" in done.output, done.output
    assert [*csv.reader((tmp_path / "one.csv").open())] == [first, *rows]
    drawing = (tmp_path / "one.svg").read_text()
    assert drawing == expected.svg() and f">active: {expected.prediction:.3g} = " in drawing
    done = run(*given, "CCO", "CCN", "-o", tmp_path / "two")
    assert done.exit_code == 0 and "and 2 drawings" in done.output, done.output
    names = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert names == ["1.svg", "2.svg", "contributions.csv"]
    table = tmp_path / "table.csv"
    table.write_text("smiles\n((\nCCO\nCCN\n")
    done = run(*given, table, "-o", tmp_path / "rows")
    assert done.exit_code == 0 and "1 of 3 molecules" in done.stderr, done.output
    names = sorted(path.name for path in (tmp_path / "rows").iterdir())
    assert names == ["2.svg", "3.svg", "contributions.csv"]  # as in the table
    _, *found = csv.reader((tmp_path / "rows" / "contributions.csv").open())
    assert {(row[0], row[1]) for row in found} == {("2", "CCO"), ("3", "CCN")}
    for arguments, words in (
        (["CCO", "-o", tmp_path / "one.svg"], "--force overwrites it"),
        (["CCO", "CCN", "-o", tmp_path / "new.svg"], "for 2 molecules, expected a folder"),
        (["CCO", "-o", tmp_path / "two"], "which is not empty"),
    ):
        done = run(*given, *arguments)
        assert done.exit_code == 1 and words in done.output, done.output
