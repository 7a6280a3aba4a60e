"""Graph sets, runs and weights that an earlier version wrote still load, with the same results.

Each folder beside this file was written by `make.py` of the commit in its ``made-with.json``.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pna import GraphSet
from pna.nn import PNAConv
from pna.train import ModelSettings, Predictions, Run, load, predict, train
from pna.train.models import build, fitted
from pna.train.tasks import tasks_of
from tests.compatibility.make import (
    AGGREGATORS,
    CONTINUED,
    CONVOLUTIONS,
    FINISHED,
    INTERRUPTED,
    SCALERS,
)

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/made-with.json"))
assert FOLDERS, "got no stored files: all tests here would be skipped"
#: Other processors and versions of torch round differently, and training amplifies that. Three
#: epochs differ by 2.3e-4 between x86 and Arm; a step of the learning rate is 1e-2.
NEAR, TRAINED = {"rtol": 1e-4, "atol": 1e-4}, {"rtol": 1e-4, "atol": 1e-3}
#: Columns of the resumed recurrent run that depend on the outputs for graphs. Some gradients there
#: are only rounding, from which Adam makes steps of the learning rate, 0.01.
ROUNDED = (
    *("spectral_radius", "training", "validation"),
    *(f"validation {target}" for target in ("connected", "diameter", "spectral_radius")),
)

pytestmark = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def assert_near(names, found, expected, rounded=(), usual=NEAR) -> None:
    table, wanted = (np.array(rows, float) for rows in (found, expected))
    for column, name in enumerate(names):
        near = {"rtol": 1e-4, "atol": 0.02} if name in rounded else usual
        np.testing.assert_allclose(table[:, column], wanted[:, column], **near, err_msg=name)


def assert_as_stored(
    found: Predictions, stored: Path, tmp_path: Path, rounded=(), usual=NEAR
) -> None:
    """Predictions, and their columns, as they stand in the CSV files of the folder, which have no
    columns of uncertainty; those come last."""
    for path in found.save(tmp_path / stored.name):
        with path.open() as new, (stored.parent / path.name).open() as old:
            (names, *rows), (expected_names, *expected) = csv.reader(new), csv.reader(old)
        assert names[: len(expected_names)] == expected_names
        assert all(name.endswith("_std") for name in names[len(expected_names) :])
        names, rows = expected_names, [row[: len(expected_names)] for row in rows]
        assert len(rows) == len(expected)
        assert_near(names, rows, expected, rounded, usual)


def graphs_of(folder: Path, name: str) -> GraphSet:
    return GraphSet.load(folder / f"{name}.safetensors")


def test_folders_say_what_made_them(folder):
    assert json.loads((folder / "made-with.json").read_text())["commit"]


@pytest.mark.parametrize(
    ("name", "graphs", "node_columns", "edge_columns"),
    [
        ("multitask", 16, 2, 0),
        ("molecules", 16, 2, 1),
        ("superpixels", 16, 3, 1),
        ("table", 8, 9, 3),
    ],
)
def test_graph_sets(folder, name, graphs, node_columns, edge_columns):
    held = graphs_of(folder, name)
    assert len(held) == graphs and held.x.shape[1] == node_columns
    assert (0 if held.edge_attr is None else held.edge_attr.shape[1]) == edge_columns
    assert len(held.split("train")) and len(held.split("validation")) and len(held.split("test"))


@pytest.mark.parametrize("name", FINISHED)
def test_finished_runs_predict_the_same(folder, name, tmp_path):
    run = Run(folder / "finished" / name)
    assert run.summary["epochs"] == 2
    graphs = graphs_of(folder, FINISHED[name][0])
    found = predict(run, graphs, device="cpu")
    assert_as_stored(found, folder / f"finished-{name}.csv", tmp_path)
    load(run.folder)(graphs.batch())


@pytest.mark.parametrize("name", CONTINUED)
def test_finished_runs_go_on(folder, name, tmp_path):
    """Two epochs more end where four at once did."""
    graphs, copy = graphs_of(folder, FINISHED[name][0]), tmp_path / "run"
    shutil.copytree(folder / "finished" / name, copy)
    train(graphs, copy, resume=True, epochs=4, device="cpu")
    found = predict(copy, graphs, device="cpu")
    assert_as_stored(found, folder / f"continued-{name}.csv", tmp_path)


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupted_runs_resume(folder, name, tmp_path):
    """Stopped after three epochs of six, they end where the run that was not stopped did."""
    graphs, copy = graphs_of(folder, INTERRUPTED[name][0]), tmp_path / "run"
    shutil.copytree(folder / "interrupted" / name, copy)
    rounded = ROUNDED if name == "recurrent" else ()
    train(graphs, copy, resume=True, device="cpu")
    found = predict(copy, graphs, device="cpu")
    assert_as_stored(found, folder / f"resumed-{name}.csv", tmp_path, rounded, TRAINED)
    with (
        (copy / "metrics.csv").open() as new,
        (folder / f"resumed-{name}-metrics.csv").open() as old,
    ):
        (names, *rows), (expected_names, *expected) = csv.reader(new), csv.reader(old)
    assert names == expected_names and len(rows) == len(expected) == 12
    seconds = names.index("seconds")
    for row in (names, *rows, *expected):
        del row[seconds]
    assert_near(names, rows, expected, rounded, TRAINED)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_of_every_convolution(folder, name):
    graphs = graphs_of(folder, "superpixels")
    arguments = {"layers": 2, "edges": CONVOLUTIONS[name], "edge_width": 3}
    settings = ModelSettings(name, "stacked", 4, arguments=arguments)
    model = build(fitted(settings, graphs, tasks_of(graphs, "cross_entropy")), seed=1)
    weights = load_file(folder / "models.safetensors")
    own = {k.partition("/")[2]: v for k, v in weights.items() if k.startswith(f"{name}/")}
    model.load_state_dict(own)
    found = model.eval()(graphs.batch()).graph
    expected = load_file(folder / "models-outputs.safetensors")[name]
    torch.testing.assert_close(found, expected, **NEAR)


def test_layer(folder):
    batch = graphs_of(folder, "superpixels").batch()
    deg = torch.tensor(json.loads((folder / "degrees.json").read_text()))
    conv = PNAConv(3, 4, AGGREGATORS, SCALERS, deg, edge_dim=1, towers=2, train_norm=True)
    conv.load_state_dict(load_file(folder / "conv.safetensors"))
    found = conv(batch.x, batch.adjacency, batch.edge_attr).detach().numpy()
    np.testing.assert_allclose(found, np.loadtxt(folder / "conv.csv", delimiter=","), **NEAR)
