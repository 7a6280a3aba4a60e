"""`pna sweep`: a table or JSON at the end, and what it refuses."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

import pna.train.sweep
from pna.cli import app
from pna.data.multitask import multitask
from pna.train.run import Run
from pna.train.settings import ModelSettings, Settings
from pna.train.sweep import Space


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "graphs.safetensors"
    multitask(0, sizes=(15,), counts={"train": 4, "validation": 2, "test": 1}).save(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_sweep(data, tmp_path):
    pytest.importorskip("ray.tune", reason="no ray: pip install 'pna[ray]'")
    small = ("--trials", 2, "--members", 2, "--epochs", 2, "--width", "4,8", "--model", "gcn",
             "--tasks", "sssp", "--loss", "mae", "--weights", "sssp=2")  # fmt: skip
    done = run(data, "--out", tmp_path / "out", *small, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [trial["state"] for trial in found["trials"]] == ["finished", "finished"]
    assert found["best"]["objective"] == min(trial["objective"] for trial in found["trials"])
    tasks = Run(tmp_path / "out" / "trials" / "001").config.tasks
    assert [(task.name, task.loss, task.weight) for task in tasks] == [("sssp", "mae", 2.0)]
    assert "2 of 2: trial" in done.stderr
    again = run(data, "--out", tmp_path / "out", *small, "--resume")
    assert again.exit_code == 0, again.output
    assert again.stdout.count("finished") == 2 and "wrote" in again.stdout
    assert "of 2" not in again.stderr  # nothing was left to do


def test_options_arrive(data, tmp_path, monkeypatch):
    """Those of `pna train` but for what is searched; without Ray, which would train."""
    found = {}

    def search(*given, **asked):
        found.update(asked, data=given[0], out=given[1])
        raise ValueError("enough")

    monkeypatch.setattr(pna.train.sweep, "sweep", search)
    done = run(
        data, "--out", tmp_path / "out", "--model", "gin", "--architecture", "standard",
        "--towers", 2, "--layers", 2, "--readout", "max", "--init", "published", "--members", 3,
        "--epochs", 7, "--data-seed", 4, "--patience", 0, "--batch-size", 8, "--shuffle",
        "--optimiser", "adamw", "--schedule", "plateau", "--warmup", 1, "--decay", 0.8,
        "--plateau", 5, "--min-lr", "1e-5", "--clip", 2, "--average", 0.9, "--precision", "float64",
        "--balance", "--tasks", "sssp, connected", "--loss", "connected=bce", "--weights", "sssp=2",
        "--splits", "train,test", "--lr", "1e-3,1e-2", "--width", 8, "--dropout", 0.5, "--seed", 9,
    )  # fmt: skip
    assert "error: enough" in done.output
    assert found["settings"] == Settings(
        members=3, data_seed=4, epochs=7, patience=None, batch_size=8, optimiser="adamw",
        schedule="plateau", warmup=1, decay=0.8, plateau=5, min_lr=1e-5, clip=2, average=0.9,
        precision="float64", balance=True,
    )  # fmt: skip
    assert (found["model"].convolution, found["model"].init) == ("gin", "published")
    assert found["model"].arguments == {
        "towers": 2, "layers": 2, "readout": "max", "final": "none",
    }  # fmt: skip
    assert found["loss"] == {"connected": "bce"} and found["weights"] == {"sssp": 2}
    assert found["tasks"] == ["sssp", "connected"] and found["splits"] == ("train", "test")
    assert found["space"] == Space(lr=(1e-3, 1e-2), width=(8,), dropout=(0.5,))
    assert found["seed"] == 9


def test_commands_that_train_have_the_same_options():
    """All of `pna train` but for its folders, and for what a sweep searches itself."""
    train, sweep = ({p.name for p in typer.main.get_command(app).commands[name].params}
                    for name in ("train", "sweep"))  # fmt: skip
    own = {"hidden", "device", "save_every", "log_every", "quiet", "repair_metrics"}
    own |= {"folds", "repeats", "recipe"}
    assert train - sweep == own


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--loss", "cross_entropy"], "expected classes 0, 1, 2"),
        (["--tasks", "sss"], "unknown target 'sss'"),
        (["--splits", "train,valid"], "unknown split 'valid'"),
        (["--layers", "3"], "layers=3 for a recurrent model"),
        (["--lr", "1e-2..1e-4"], "the smaller one first"),
        (["--width", "8.5"], "whole numbers above 0"),
        (["--trials", "0"], "got trials=0"),
        (["--members", "0"], "got members=0"),
        (["--model", "pnaa"], "unknown convolution 'pnaa'"),
        (["--resume"], "has no sweep.json"),
    ],
)
def test_refuses(data, tmp_path, arguments, message):
    pytest.importorskip("ray.tune", reason="no ray: pip install 'pna[ray]'")
    done = run(data, "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()


def test_no_trial_left(data, tmp_path, monkeypatch):
    """Says what to do about it."""
    space, settings = Space(), Settings(members=1)
    plan = pna.train.sweep.Plan("graphs", "0", ModelSettings("gcn", "recurrent"), settings, space,
                                seed=0, asha=False)  # fmt: skip
    none = pna.train.sweep.Sweep(tmp_path, plan, 1)
    monkeypatch.setattr(pna.train.sweep, "sweep", lambda *_, **__: none)
    done = run(data, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "Lower --lr or set --clip" in done.stderr


def test_without_ray(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "pna.train.ray_tune", raising=False)
    monkeypatch.delattr(pna.train, "ray_tune", raising=False)
    done = run(data, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "pip install 'pna[ray]'" in done.output
