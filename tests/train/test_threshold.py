"""Thresholds chosen on validation, and metrics of single classes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data import NodeGraph
from pna.train import Settings, evaluate, predict, train
from pna.train.metrics import BY_CLASS, by_class, measure
from pna.train.run import SUMMARY
from pna.train.settings import ModelSettings
from pna.train.threshold import best_threshold

nx = pytest.importorskip("networkx")

SMALL = ModelSettings("gcn", "stacked", 8, arguments={"layers": 1, "final": "none"})


@pytest.mark.parametrize("metric", ["f1", "balanced_accuracy"])
def test_no_other_threshold_is_better(metric: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = rng.random(30).round(1 + seed % 2)  # with ties
        y = np.where(rng.random(30) < 0.1, np.nan, rng.random(30) < 0.2 + 0.6 * p)
        if len(np.unique(y[~np.isnan(y)])) < 2:
            continue
        found = best_threshold(p, y, metric)
        tried = {t: measure(metric, (p >= t).astype(float), y) for t in np.linspace(0, 1, 201)}
        assert measure(metric, (p >= found).astype(float), y) == pytest.approx(max(tried.values()))


def test_thresholds_by_hand() -> None:
    p, y = np.array([0.1, 0.2, 0.3, 0.9]), np.array([0.0, 0, 1, 1])
    assert best_threshold(p, y, "f1") == best_threshold(p, y, "balanced_accuracy") == 0.25
    # 0.2 finds all ones, 0.71 all zeros, and half of the others each; the latter is nearer to 0.5
    p, y = np.array([0.1, 0.3, 0.62, 0.8]), np.array([0.0, 1, 0, 1])
    assert best_threshold(p, y, "balanced_accuracy") == pytest.approx(0.71)
    for odd in (np.array([np.nan, 0.3, 0.6, 0.8]), np.full(4, 0.9)):
        wanted = y if np.isnan(odd).any() else np.ones(4)
        assert best_threshold(odd, wanted, "f1") == 0.5


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """60 people of whom every fifth joined the club, as their neighbours' ages tell."""
    graph = nx.random_regular_graph(3, 60, seed=0)
    for node, of_node in graph.nodes(data=True):
        of_node |= {"age": (node % 5) + node / 40, "club": "in" if node % 5 == 0 else "no"}
    found = NodeGraph.from_networkx(graph, target="club", random_split=(0.4, 0.3, 0.3))
    found.save(path := tmp_path_factory.mktemp("graph") / "club.safetensors")
    return path


@pytest.fixture(scope="module")
def run(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    settings = Settings(epochs=15, members=2, lr=3e-2, threshold="f1")
    return train(path, out, SMALL, settings, device="cpu")


def test_a_run_stores_what_it_chose(run, path) -> None:
    """By member, and of the mean of the members; labels and metrics follow from it."""
    stored = json.loads((run.folder / SUMMARY).read_text())["thresholds"]["club"]
    graph = NodeGraph.load(path)
    target = graph.nodes.targets[0]
    assert target.classes == ("in", "no")
    for member in (0, 1, None):
        found = predict(run, path, member, device="cpu")
        p, labels = found.node["club=no"], found.node["club"]
        threshold = stored["mean"] if member is None else stored["members"][member]
        assert labels.tolist() == [target.classes[int(x >= threshold)] for x in p]
        valid = graph.nodes.part("validation").numpy()
        truth = target.values.numpy().astype(float)
        assert threshold == pytest.approx(best_threshold(p[valid], truth[valid], "f1"), abs=1e-6)
        if member is None:
            continue
        (task,) = evaluate(run, split="validation", member=member, device="cpu").tasks
        assert task.thresholds == [threshold]
        right = (p >= threshold) == truth
        assert task.metrics["accuracy"] == pytest.approx([right[valid].mean()])
        expected = measure("f1", (p >= threshold)[valid].astype(float), truth[valid])
        assert task.metrics["f1"] == pytest.approx([expected])
    assert stored["members"] != [0.5, 0.5]


def test_without_a_choice_it_is_a_half(path, tmp_path) -> None:
    other = train(path, tmp_path / "run", SMALL, Settings(epochs=2), device="cpu")
    assert "thresholds" not in other.summary
    found = predict(other, path, device="cpu")
    assert ((found.node["club"] == "no") == (found.node["club=no"] >= 0.5)).all()
    assert evaluate(other, device="cpu").tasks[0].thresholds == [0.5]


def test_what_is_refused(run, path, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"unknown threshold 'f2'.*half, f1, balanced"):
        Settings(threshold="f2")
    with pytest.raises(ValueError, match="got threshold='f1' for targets that are not trained"):
        train(path, tmp_path / "run", SMALL, Settings(threshold="f1"), loss="cross_entropy")
    content = json.loads((run.folder / SUMMARY).read_text())
    text = json.dumps(content)
    try:
        for odd in ({"club": {"members": [0.5], "mean": 0.5}}, {"club": 1}, {}):
            (run.folder / SUMMARY).write_text(json.dumps(content | {"thresholds": odd}))
            with pytest.raises(ValueError, match=r"summary.json, which cannot be used .*--resume"):
                predict(run, path, device="cpu")
        (run.folder / SUMMARY).unlink()
        with pytest.warns(UserWarning, match="is not finished, and thresholds are chosen at the"):
            predict(run, path, device="cpu")
    finally:
        (run.folder / SUMMARY).write_text(text)


def test_single_classes_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 50)
    scores = torch.from_numpy(rng.standard_normal((50, 4)) + 2 * np.eye(4)[y]).softmax(1).numpy()
    chosen = scores.argmax(1)
    found = by_class(scores, chosen, y)
    named = {"labels": range(4), "average": None, "zero_division": np.nan}
    np.testing.assert_allclose(found["f1"], metrics.f1_score(y, chosen, **named))
    np.testing.assert_allclose(found["accuracy"], metrics.recall_score(y, chosen, **named))
    for c in range(3):
        areas = metrics.roc_auc_score(y == c, scores[:, c])
        precision = metrics.average_precision_score(y == c, scores[:, c])
        assert found["roc_auc"][c] == pytest.approx(areas)
        assert found["average_precision"][c] == pytest.approx(precision)
    assert np.isnan(found["roc_auc"][3]) and np.isnan(found["accuracy"][3])
    assert found["rows"] == [*np.bincount(y), 0]


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_metrics_of_every_class(loss, run, path, tmp_path) -> None:
    if loss == "cross_entropy":
        run = train(path, tmp_path / "run", SMALL, Settings(epochs=2), loss=loss, device="cpu")
    (task,) = evaluate(run, per_class=True, device="cpu").tasks
    assert list(task.classes) == ["in", "no"]
    if loss == "bce":  # class 1 as without, class 0 turned round
        for name in ("f1", "average_precision", "roc_auc"):
            assert task.classes["no"][name] == pytest.approx(task.metrics[name])
        assert task.classes["in"]["roc_auc"] == pytest.approx(task.metrics["roc_auc"])
    else:
        mean = np.mean([task.classes[name]["accuracy"] for name in task.classes], 0)
        assert mean == pytest.approx(task.metrics["balanced_accuracy"])
    (task,) = evaluate(run, device="cpu").tasks
    assert task.classes is None


def test_on_the_command_line(path, tmp_path) -> None:
    def call(*words):
        done = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
        assert done.exit_code == 0, done.output
        return done

    out = tmp_path / "run"
    given = ("--epochs", 8, "--lr", 0.03, "--threshold", "balanced_accuracy", "--model", "gcn")
    call("train", path, "--out", out, *given, "--hidden", 8, "--layers", 1)
    shown = call("evaluate", out, "--per-class").output
    assert "class of club" in shown and "mean" in shown
    assert "club: no is predicted from a probability of 0." in shown
    assert "test, 18 nodes; member 0:" in shown
    (task,) = json.loads(call("evaluate", out, "--per-class", "--json").stdout)["tasks"]
    assert [*task["classes"]["no"]] == [*BY_CLASS, "rows"]
    call("predict", out, path, "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        rows = [*csv.DictReader(file)]
    threshold = task["thresholds"][0]
    assert threshold != 0.5
    assert all((float(r["club=no"]) >= threshold) == (r["club"] == "no") for r in rows)


def test_thresholds_are_of_the_best_weights(run, path, tmp_path) -> None:
    """The last weights have a half."""
    settings = replace(run.config.settings, keep_last=True)
    other = train(path, tmp_path / "run", SMALL, settings, device="cpu")
    assert evaluate(other, epoch="last", device="cpu").tasks[0].thresholds == [0.5, 0.5]
    assert (
        evaluate(other, device="cpu").tasks[0].thresholds
        == other.summary["thresholds"]["club"]["members"]
    )
