"""One graph with several given splits: training with one of them, or with all."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data import NodeGraph
from pna.train import Settings, evaluate, predict, train
from pna.train.run import Run
from pna.train.settings import ModelSettings

data = pytest.importorskip("torch_geometric.data")

SMALL = ModelSettings("gcn", "stacked", 4, arguments={"layers": 1, "final": "none"})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """48 nodes with three splits, and two targets."""
    make = torch.Generator().manual_seed(0)
    part = torch.stack([torch.randperm(48, generator=make) % 4 for _ in range(3)], 1)
    edges = torch.randint(48, (2, 100), generator=make)
    graph = NodeGraph.from_pyg(data.Data(
        x=torch.rand(48, 2, generator=make), edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.stack([torch.arange(48) % 2, torch.arange(48) // 3 % 2], 1),
        train_mask=part < 2, val_mask=part == 2, test_mask=part == 3,
    ))  # fmt: skip
    graph.save(path := tmp_path_factory.mktemp("graph") / "g.safetensors")
    return path


def call(*words):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done


def area_of(found, graph, target, name, split):
    """The area of the predictions on the test nodes of a split, by comparing all pairs."""
    rows = graph.nodes.part("test", split).numpy()
    y, p = graph.nodes.target(target).values.numpy()[rows], found.node[f"{name}=1"][rows]
    gaps = p[y == 1][:, None] - p[y == 0]
    return ((gaps > 0) + 0.5 * (gaps == 0)).mean()


def test_one_split_is_trained_evaluated_and_predicted(path, tmp_path) -> None:
    graph, out = NodeGraph.load(path), tmp_path / "run"
    given = ("--model", "gcn", "--hidden", 4, "--layers", 1, "--device", "cpu")
    call("train", path, "--out", out, "--epochs", 2, "--mask-column", 2, *given)
    assert Run(out).config.settings.mask_column == "2"
    known = evaluate(out, device="cpu")
    assert known.metrics == evaluate(out, graph.graph_set(2), device="cpu").metrics
    assert known.metrics != evaluate(out, graph.graph_set(1), device="cpu").metrics
    predicted = predict(out, path, split="test", device="cpu")
    assert predicted.names == [str(i) for i in graph.nodes.part("test", 2).nonzero()[:, 0].tolist()]
    expected = predict(out, graph.graph_set(2), device="cpu").node["y 0=1"]
    np.testing.assert_array_equal(predict(out, path, device="cpu").node["y 0=1"], expected)
    call("train", "--resume", out, "--epochs", 3, "--device", "cpu")
    assert Run(out).summary["epochs"] == 3


def test_all_splits_are_a_population(path, tmp_path) -> None:
    """Members are tested on the nodes of their own split, and predict its targets alone."""
    graph, out = NodeGraph.load(path), tmp_path / "run"
    given = ("--model", "gcn", "--hidden", 4, "--layers", 1, "--device", "cpu", "--epochs", 3)
    call("train", path, "--out", out, "--mask-column", "all", "--threshold", "f1", *given)
    config = Run(out).config
    assert config.settings.members == 3
    assert np.array_equal(config.settings.task_weights, 3 * np.tile(np.eye(3), 2))
    found = evaluate(out, device="cpu")
    mean = predict(out, path, device="cpu").node
    for index, task in enumerate(found.tasks):
        target, split = f"y {index // 3}", index % 3
        assert task.name == f"{target} of split {split}"
        learned = ~np.isnan(task.metrics["roc_auc"])
        assert learned.tolist() == [member == split for member in range(3)]
        alone = predict(out, path, split, device="cpu")
        area = area_of(alone, graph, target, task.name, split)
        assert task.metrics["roc_auc"][split] == pytest.approx(area)
        np.testing.assert_allclose(mean[f"{task.name}=1"], alone.node[f"{task.name}=1"])
    validated = evaluate(out, split="validation", device="cpu")
    assert Run(out).summary["best"] == pytest.approx(validated.loss, rel=1e-5)
    f1 = np.array([task.metrics["f1"][index % 3] for index, task in enumerate(found.tasks)])
    assert found.metrics["f1"] == pytest.approx(f1.reshape(2, 3).mean(0))
    stored = Run(out).summary["thresholds"]["y 0 of split 1"]
    assert stored["mean"] == stored["members"][1]
    shown = call("evaluate", out, "--device", "cpu", "--per-class").output
    assert f"{np.mean(found.metrics['roc_auc']):.4f}" in shown
    assert "each split with its own members" in " ".join(shown.split())
    call("evaluate", out, "--device", "cpu", "--member", 1)
    assert len(json.loads(call("evaluate", out, "--device", "cpu", "--json").stdout)["tasks"]) == 6


def test_what_is_refused(path, tmp_path) -> None:
    def refused(message, **given):
        settings = Settings(epochs=1, **given)
        with pytest.raises(ValueError, match=message):
            train(path, tmp_path / "run", SMALL, settings, device="cpu")

    refused(r"got split 3, expected 0 to 2, .*choose another \(--mask-column\)", mask_column="3")
    refused(r"got 2 members for 3 splits, .*--members 3", mask_column="all", members=2)
    with pytest.raises(ValueError, match="got mask_column='first', expected the number of a split"):
        Settings(mask_column="first")
    done = CliRunner().invoke(app, ["train", str(path), "--mask-column", "first"])
    assert "got mask_column='first', expected the number of a split" in done.output
    NodeGraph.load(path).graph_set(0).save(tmp_path / "set.safetensors")
    with pytest.raises(ValueError, match=r"got mask_column='1' for .*a set of graphs with one"):
        train(tmp_path / "set.safetensors", tmp_path / "run", SMALL, Settings(mask_column="1"))
    settings = Settings(epochs=1, members=3, mask_column="all")
    run = train(path, tmp_path / "all", SMALL, settings, device="cpu")
    with pytest.raises(ValueError, match=r"got the split 'test' for .*trained with all splits"):
        predict(run, path, split="test", device="cpu")
