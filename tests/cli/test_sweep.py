"""`pna sweep`: a table or JSON at the end, and what it refuses."""

import json
import sys

import pytest
from typer.testing import CliRunner

import pna.train
from pna.cli import app
from pna.data.multitask import multitask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "graphs.safetensors"
    multitask(0, sizes=(15,), counts={"train": 4, "validation": 2, "test": 1}).save(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_sweep(data, tmp_path):
    pytest.importorskip("ray.tune", reason="no ray: pip install 'pna[ray]'")
    small = ("--trials", 2, "--members", 2, "--epochs", 2, "--width", "4,8", "--model", "gcn")
    done = run(data, "--out", tmp_path / "out", *small, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [trial["state"] for trial in found["trials"]] == ["finished", "finished"]
    assert found["best"]["objective"] == min(trial["objective"] for trial in found["trials"])
    assert "2 of 2: trial" in done.stderr
    again = run(data, "--out", tmp_path / "out", *small, "--resume")
    assert again.exit_code == 0, again.output
    assert again.stdout.count("finished") == 2 and "wrote" in again.stdout
    assert "of 2" not in again.stderr  # nothing was left to do


@pytest.mark.parametrize(
    "arguments, message",
    [
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


def test_without_ray(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "pna.train.ray_tune", raising=False)
    monkeypatch.delattr(pna.train, "ray_tune", raising=False)
    done = run(data, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "pip install 'pna[ray]'" in done.output
