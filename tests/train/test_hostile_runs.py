"""Runs that somebody has damaged, or made to do harm: one line that names the file, no more.

Each case changes the files of a trained run. Everything that reads a run then refuses it, in Python
with a ValueError or an OSError, on the command line with a line; no model is built that is larger
than the file of its weights.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data import tensor_file
from pna.train import evaluate, load, predict, train
from pna.train.run import BEST, CONFIG, ENVIRONMENT, LAST, METRICS, SUMMARY, Run
from tests.train.small_runs import small_multitask, small_run

Damage = Callable[[Path], None]


def text(name: str, content: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        raw = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(raw)

    return damage


def link(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.symlink(folder / name, folder / name)

    return damage


def config(*keys: str | int, value: Any) -> Damage:
    """One value of the configuration, in its file and in those of the weights, whose checksums
    are right."""

    def changed(held: dict[str, Any]) -> dict[str, Any]:
        held = json.loads(json.dumps(held))
        inner: Any = held
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return held

    def damage(folder: Path) -> None:
        for name, kind in ((BEST, "pna.train.best"), (LAST, "pna.train.last")):
            tensors, facts = tensor_file.read(folder / name, kind=kind, version=1)
            tensors = {key: t.clone() for key, t in tensors.items()}
            facts["config"] = changed(facts["config"])
            tensor_file.write(
                folder / name, tensors, facts, kind=kind, version=1, force=True, checksum=True
            )
        held = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(changed(held)))

    return damage


DEEP = "[" * 100_000 + "]" * 100_000
HOSTILE: dict[str, Damage] = {
    "configuration: not UTF-8": text(CONFIG, b'{"data": "\xff\xfe"}'),
    "configuration: nested": text(CONFIG, f'{{"data": {DEEP}}}'),
    "configuration: a list": text(CONFIG, "[1, 2]"),
    "configuration: null": text(CONFIG, "null"),
    "configuration: half a character": text(CONFIG, '{"data": "\\ud800"}'),
    "configuration: a link to itself": link(CONFIG),
    "configuration: a number of 5,000 digits": text(CONFIG, f'{{"version": {"1" * 5000}}}'),
    "version: text": config("version", value="new"),
    "tasks: none": config("tasks", value=[]),
    "tasks: text": config("tasks", value="all"),
    "task: unknown level": config("tasks", 0, "level", value="edge"),
    "task: unknown loss": config("tasks", 0, "loss", value="hinge"),
    "task: negative column": config("tasks", 0, "column", value=-1),
    "task: many outputs": config("tasks", 0, "outputs", value=10**9),
    "task: a scale of 0": config("tasks", 0, "scale", value=0),
    "task: a negative scale": config("tasks", 0, "scale", value=-2.0),
    "task: a scale that is not a number": config("tasks", 0, "scale", value=math.nan),
    "task: an infinite scale": config("tasks", 0, "scale", value=math.inf),
    "task: a negative weight": config("tasks", 0, "weight", value=-1.0),
    "task: a weight that is not a number": config("tasks", 0, "weight", value=math.nan),
    "task: an infinite weight": config("tasks", 0, "weight", value=math.inf),
    "task: the outputs of another": config("tasks", 1, "first", value=0),
    "task: outputs that there are not": config("tasks", 0, "first", value=99),
    "task: the name of another": config("tasks", 1, "name", value="sssp"),
    "task: unknown argument": config("tasks", 0, "colour", value="red"),
    "task: a number for a name": config("tasks", 0, "name", value=3),
    "data: splits of one": config("data", "splits", value=["train"]),
    "data: path of a number": config("data", "path", value=3),
    "model: a number": config("model", value=7),
    "model: hidden of 200,000": config("model", "hidden", value=200_000),
    "model: hidden of text": config("model", "hidden", value="16"),
    "model: hidden of none": config("model", "hidden", value=0),
    "model: negative hidden": config("model", "hidden", value=-8),
    "model: a billion inputs": config("model", "in_channels", value=10**9),
    "model: no degrees": config("model", "degrees", value=[]),
    "model: degrees of text": config("model", "degrees", value=["many"]),
    "model: unknown convolution": config("model", "convolution", value="os.system"),
    "model: unknown architecture": config("model", "architecture", value="tall"),
    "model: unknown arguments": config("model", "arguments", "colour", value="red"),
    "model: nested arguments": config("model", "arguments", "towers", value=[[[[]]]]),
    "model: a billion towers": config("model", "arguments", "towers", value=10**9),
    "model: an argument given twice": config("model", "arguments", "deg", value=1),
    "settings: a billion members": config("settings", "members", value=10**9),
    "settings: 2**70 epochs": config("settings", "epochs", value=2**70),
    "settings: epochs of text": config("settings", "epochs", value="10"),
    "settings: lr of text": config("settings", "lr", value=["fast"]),
    "settings: an infinite lr": config("settings", "lr", value=[math.inf]),
    "settings: an lr that is not a number": config("settings", "lr", value=[math.nan]),
    "settings: infinite weight decay": config("settings", "weight_decay", value=[math.inf]),
    "settings: an infinite min_lr": config("settings", "min_lr", value=math.inf),
    "settings: task weights of nothing": config("settings", "task_weights", value=[[], []]),
    "settings: more task weights": config("settings", "task_weights", value=[[1.0] * 9] * 2),
    "settings: unknown": config("settings", "warp", value=9),
    "settings: unknown schedule": config("settings", "schedule", value="spiral"),
    "best: no file of tensors": text(BEST, b"\x00" * 100),
    "best: a link to itself": link(BEST),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    run = small_run(small_multitask(), tmp_path_factory.mktemp("runs") / "run", epochs=1)
    return run.folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def data(trained: Path) -> Path:
    return trained.with_suffix(".safetensors")


def no_building(*_: Any) -> None:
    raise AssertionError("a model was built of what was not checked")


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_runs_are_refused(trained, folder, tmp_path, monkeypatch, case):
    HOSTILE[case](folder)
    monkeypatch.setattr("pna.train.run.build", no_building)
    monkeypatch.setattr("pna.train.loop.build", no_building)
    graphs = data(trained)
    readers: list[Callable[[], Any]] = [
        lambda: evaluate(folder, graphs),
        lambda: predict(folder, graphs),
        lambda: load(folder),
    ]
    if not case.startswith("best"):
        readers.append(lambda: train(graphs, folder, resume=True, epochs=2))
    for reader in readers:
        with pytest.raises((ValueError, OSError)) as error:
            reader()
        assert str(folder) in str(error.value) and "\n" not in str(error.value)
        assert len(str(error.value)) < 600
    for asked in (
        ("evaluate", folder, graphs),
        ("predict", folder, graphs, "-o", tmp_path / "out.csv"),
        ("train", "--resume", folder, graphs, "--epochs", 2),
    ):
        if asked[0] == "train" and case.startswith("best"):
            continue
        done = CliRunner().invoke(app, [str(word) for word in asked])
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
        assert done.output.startswith("error: ") and str(folder) in done.output
        assert done.output.count("\n") == 1


def test_a_scale_of_0_is_refused_by_its_file(trained, folder):
    """It was accepted, and targets were divided by it."""
    held = json.loads((folder / CONFIG).read_text())
    held["tasks"][0]["scale"] = 0
    (folder / CONFIG).write_text(json.dumps(held))
    with pytest.raises(ValueError, match=r"run/config\.json, .*'sssp' with a scale of 0.* above 0"):
        evaluate(folder, data(trained))


@pytest.mark.parametrize("name", [SUMMARY, ENVIRONMENT])
@pytest.mark.parametrize(
    "content",
    [b"\xff", DEEP, "[]", '{"resumed": 3, "epochs": 1}', '{"resumed": [{}], "epochs": "1"}'],
    ids=["not UTF-8", "nested", "a list", "other types", "others still"],
)
def test_other_files_of_a_run_are_refused_by_name(trained, folder, name, content):
    text(name, content)(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(ValueError, match=f"run/{name}, which cannot be read"):
        train(data(trained), folder, resume=True, epochs=2)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_summary_of_other_members(folder):
    held = json.loads((folder / SUMMARY).read_text())
    (folder / SUMMARY).write_text(json.dumps(held | {"best": [0.5]}))
    with pytest.raises(ValueError, match=r"summary\.json, which has another number of members"):
        _ = Run(folder).summary


def test_weights_alone_are_refused_by_name(folder, tmp_path):
    """A file that was sent by somebody, without its folder."""
    config("model", "hidden", value=200_000)(folder)
    with pytest.raises(
        ValueError, match=r"best\.safetensors, which cannot be used .*weights in the file"
    ):
        load(folder / BEST)
    tensors = {"a": torch.zeros(1)}
    tensor_file.write(tmp_path / "own", tensors, {}, kind="pna.train.best", version=1)
    with pytest.raises(ValueError, match=r"own, which cannot be used .*lacks epoch, seconds, best"):
        load(tmp_path / "own")


def test_a_run_without_a_checkpoint_is_checked_against_its_graphs(trained, folder):
    """Nothing was trained yet: there are no weights to compare with."""
    for name in (BEST, LAST, SUMMARY, METRICS):
        (folder / name).unlink()
    whole = (folder / CONFIG).read_text()
    for keys, value in (
        (("tasks", 0, "column"), 99),
        (("model", "in_channels"), 5),
        (("data", "splits"), ["train", "moon"]),
    ):
        held = json.loads(whole)
        inner = held
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (folder / CONFIG).write_text(json.dumps(held))
        with pytest.raises(ValueError, match=r"config\.json, which does not fit these graphs"):
            train(data(trained), folder, resume=True)


def test_a_trained_run_without_its_checkpoint_is_not_begun_again(trained, folder):
    """It was trained from the start, over what it had."""
    (folder / LAST).unlink()
    for _ in range(2):
        before = {p.name: p.read_bytes() for p in folder.iterdir()}
        with pytest.raises(FileNotFoundError, match=r"no last\.safetensors .*restore"):
            train(data(trained), folder, resume=True, epochs=2)
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
        (folder / BEST).unlink(missing_ok=True)


def test_the_best_weights_are_written_again_from_the_last(trained, folder):
    (folder / BEST).unlink()
    train(data(trained), folder, resume=True)
    for name in (BEST, LAST):
        (tensors, facts), (others, wanted) = Run(folder).read(name), Run(trained).read(name)
        assert facts == wanted and tensors.keys() == others.keys()
        assert all(torch.equal(tensors[key], others[key]) for key in tensors)


def test_damaged_best_weights_are_not_overwritten(trained, folder):
    (folder / BEST).write_bytes((folder / BEST).read_bytes()[:-9])
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(ValueError, match=r"best\.safetensors.*; or move it away: last.*has"):
        train(data(trained), folder, resume=True, epochs=2)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_graphs_behind_a_link_to_itself(tmp_path):
    loop = tmp_path / "loop.safetensors"
    os.symlink(loop, loop)
    with pytest.raises(OSError, match=r"loop\.safetensors"):
        train(loop, tmp_path / "run")
    done = CliRunner().invoke(app, ["train", str(loop), "--out", str(tmp_path / "run")])
    assert done.exit_code == 1 and done.output.startswith("error: got ")
    done = CliRunner().invoke(app, ["evaluate", str(loop)])
    assert done.exit_code == 1 and done.output.startswith("error: got ")
