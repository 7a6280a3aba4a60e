"""Runs keep the predictions of their calibration split, from which intervals are made."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from pna.cli import app
from pna.data.molecule_table import from_table
from pna.data.table import Table
from pna.train import Settings, evaluate, predict, predict_table, train
from pna.train.calibration import FILE, CalibrationRows
from pna.train.run import BEST, Run
from pna.train.temperature import best_temperature
from tests.train.small_runs import molecules, small_run

pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

NEW = Table("new.csv", ("smiles",), [["CCO"], ["(("], ["CCCCl"]], [2, 3, 4])


@pytest.fixture(scope="module")
def graphs():
    rows = [["C" * (k % 12 + 1) + "ONF"[k % 3], str(k % 12), str(k % 2)] for k in range(60)]
    table = Table("my.csv", ("smiles", "y", "active"), rows, [*range(60)])
    return from_table(table, ["y", "active"], split="random", calibration=0.3)


@pytest.fixture(scope="module")
def trained(graphs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(graphs, folder, settings=Settings(epochs=2, members=2), device="cpu")


def test_rows_are_those_of_the_split(graphs, trained, tmp_path):
    copy = Run(shutil.copytree(trained.folder, tmp_path / "copy"))
    (copy.folder / FILE).unlink()  # probabilities as the models give them
    part, rows = graphs.split("calibration"), CalibrationRows.of(trained)
    assert rows.members == [0, 1] and rows.targets.shape == (2, len(part)) and len(part) == 14
    for member in (0, 1):
        found = predict(copy, part, member).graph
        np.testing.assert_allclose(
            rows.predictions[:, member], [found["y"], found["active"]], rtol=1e-5
        )
    np.testing.assert_array_equal(rows.targets, part.y_graph.T)


def test_probabilities_are_scaled_in_their_order(graphs, trained, tmp_path):
    copy = Run(shutil.copytree(trained.folder, tmp_path / "copy"))
    (copy.folder / FILE).unlink()
    raw, found = (predict(run, graphs).graph["active"] for run in (copy, trained))
    given = CalibrationRows.of(trained)
    temperature = best_temperature(given.predictions[1].mean(0), given.targets[1])
    assert abs(temperature - 1) > 0.01
    odds, of_raw = (np.log(p / (1 - p)) for p in (found, raw))
    np.testing.assert_allclose(odds * temperature, of_raw, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(found.argsort(kind="stable"), raw.argsort(kind="stable"))


def test_evaluation_is_of_what_is_predicted(graphs, trained, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    copy = Run(shutil.copytree(trained.folder, tmp_path / "copy"))
    (copy.folder / FILE).unlink()
    y = graphs.split("test").y_graph[:, 1].numpy()
    found = [evaluate(run, graphs).tasks[1] for run in (trained, copy)]
    for run, scores in zip((trained, copy), found, strict=True):
        written = predict(run, graphs.split("test")).graph["active"]
        assert scores.probabilities["log_loss"] == pytest.approx(metrics.log_loss(y, written))
        classes = (written >= scores.ensemble_threshold) == y
        assert scores.ensemble["accuracy"] == classes.mean()
    assert abs(found[0].probabilities["temperature"] - 1) > 0.01
    assert found[1].probabilities["temperature"] == found[1].ensemble_threshold * 2 == 1
    assert found[0].probabilities["log_loss"] != found[1].probabilities["log_loss"]
    assert (found[0].ensemble, found[0].loss) == (found[1].ensemble, found[1].loss)
    done = CliRunner().invoke(app, ["evaluate", str(trained.folder), str(saved(graphs, tmp_path))])
    said = " ".join(done.output.split())
    assert f"active: log loss {found[0].probabilities['log_loss']:.4g} and calibration" in said


def saved(graphs, folder):
    graphs.save(folder / "graphs.safetensors")
    return folder / "graphs.safetensors"


def test_intervals_of_a_table(graphs, trained):
    with pytest.warns(UserWarning, match="cannot read 1 of 3"):
        found = predict_table(trained, NEW, interval=0.8)
    names = ("y predicted", "active predicted", "y_std", "y_low", "y_high", "active_std")
    assert found.columns[1:7] == names and not any(found.rows[1][1:])
    mean, low, high = (
        np.array([float(cell) for cell in found.column(name) if cell])
        for name in ("y predicted", "y_low", "y_high")
    )
    np.testing.assert_allclose(high - mean, mean - low, rtol=1e-4)
    held = predict(trained, graphs.split("calibration"), interval=0.8)
    ends, y = held.spread["graph"], graphs.split("calibration").y_graph[:, 0].numpy()
    # of these 14 rows, the 12 with the smallest scores are inside: 0.8 · 15 = 12
    assert ((ends["y_low"] - 1e-5 <= y) & (y <= ends["y_high"] + 1e-5)).sum() == 12


def test_one_member(graphs, trained):
    part = graphs.split("calibration")
    ends = predict(trained, part, 1, interval=0.8).spread["graph"]
    assert [*ends] == ["y_low", "y_high"]
    np.testing.assert_allclose(np.ptp(ends["y_high"] - ends["y_low"]), 0, atol=1e-9)


def test_what_is_refused(graphs, trained, tmp_path):
    with pytest.raises(ValueError, match=r"14 calibration rows with a known y .* at least 19"):
        predict_table(trained, NEW, interval=0.95)
    without = small_run(molecules(), tmp_path / "without", loss={"active": "bce"})
    with pytest.raises(ValueError, match=r"no calibration rows .*pna train TABLE --calibration"):
        predict(without, molecules(), interval=0.5)
    copy = Run(shutil.copytree(trained.folder, tmp_path / "copy"))
    with (copy.folder / BEST).open("r+b") as file:  # weights of a later epoch
        file.seek(-1, 2)
        file.write(b"\0")
    assert CalibrationRows.of(copy) is None
    shutil.copy(trained.folder / BEST, copy.folder / BEST)
    (copy.folder / FILE).write_bytes(b"short")
    with pytest.raises(ValueError, match=r"calibration\.safetensors"):
        predict(copy, graphs, interval=0.5)


def test_a_split_that_was_trained_on_calibrates_nothing(graphs, tmp_path):
    run = train(
        graphs, tmp_path / "run", settings=Settings(epochs=1), splits=("train", "calibration"),
        device="cpu",
    )  # fmt: skip
    assert CalibrationRows.of(run) is None
