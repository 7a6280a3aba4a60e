"""Training on the nodes of one graph, whose split is inside it."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from pna import GraphSet
from pna.data import NodeGraph
from pna.train import Settings, evaluate, layerwise, predict, train
from pna.train.loop import make_trainer
from pna.train.metrics import roc_auc
from pna.train.settings import ModelSettings

nx = pytest.importorskip("networkx")

SMALL = ModelSettings("pna", "stacked", 8, arguments=dict(layers=2, final="none"))


@pytest.fixture(scope="module")
def club():
    """34 people and their 78 friendships; the club each joined, and a number, are to predict."""
    graph = nx.karate_club_graph()
    for node, of_node in graph.nodes(data=True):
        of_node |= {"age": node % 7, "town": "AB"[node % 2], "height": node / 10}
    nx.relabel_nodes(graph, {n: f"person {n}" for n in graph}, copy=False)
    return NodeGraph.from_networkx(graph, target=["club", "height"], random_split=(0.5, 0.25, 0.25))


@pytest.fixture(scope="module")
def path(club, tmp_path_factory):
    club.save(path := tmp_path_factory.mktemp("graph") / "club.safetensors")
    return path


def settings(**given):
    return Settings(**(dict(epochs=3, batch_size=4, members=1) | given))


def test_a_split_has_the_targets_of_its_own_nodes(club):
    graphs, label = club.graph_set(), club.nodes.target("club")
    assert len(graphs) == 1 and graphs.num_edges == 156
    seen = torch.zeros(34)
    for name in ("train", "validation", "test"):
        part = graphs.split(name)
        own = club.nodes.part(name)
        assert torch.equal(~part.y_node[:, 0].isnan(), own)
        assert torch.equal(part.y_node[own, 0].long(), label.values[own])
        assert part.senders.data_ptr() == graphs.senders.data_ptr()  # edges are not copied
        seen += own
    assert torch.equal(seen, torch.ones(34))
    with pytest.raises(ValueError, match="tests"):
        graphs.split("tests")


def test_features_are_categories_and_standardised_numbers(club):
    graphs = club.graph_set()
    assert graphs.node_features == ("town", "age")
    assert graphs.metadata["node_values"] == [2, 0]
    assert torch.equal(graphs.x[:, 0].long(), club.nodes.codes[:, 0].long())
    of_training = graphs.x[club.nodes.part("train"), 1]
    assert of_training.mean().abs() < 1e-6
    assert (of_training.std(unbiased=False) - 1).abs() < 1e-6
    assert graphs.metadata["losses"] == {"club": "bce", "height": "mse"}
    assert graphs.node_scale[1] == pytest.approx(
        club.nodes.target("height").values[club.nodes.part("train")].max().item()
    )


@pytest.mark.parametrize("shift", [-1000.5, -13.5])
def test_the_scale_of_a_number_is_its_largest_magnitude(shift):
    """The largest of numbers that are mostly negative may be 0 or small."""
    graph = nx.path_graph(16)
    for node, of_node in graph.nodes(data=True):
        part = "test" if node == 0 else ("train", "validation")[node % 2]
        of_node |= {"y": node + shift, "part": part}
    graphs = NodeGraph.from_networkx(graph, target="y", split="part").graph_set()
    expected = max(abs(node + shift) for node in range(2, 16, 2))
    assert graphs.node_scale == pytest.approx((expected,))


def test_a_set_with_splits_of_nodes_is_stored(club, tmp_path):
    graphs = club.graph_set()
    graphs.save(tmp_path / "set.safetensors")
    again = GraphSet.load(tmp_path / "set.safetensors")
    assert torch.equal(again.split_of_node, graphs.split_of_node) and again.splits == graphs.splits
    wrong = replace(graphs, split_of_node=graphs.split_of_node + 3)
    wrong.save(tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match="split_of_node are not 34 indices in splits"):
        GraphSet.load(tmp_path / "wrong.safetensors")
    joined = GraphSet.concat([graphs, graphs])
    assert int((~joined.split("train").y_node[:, 0].isnan()).sum()) == 2 * int(
        club.nodes.part("train").sum()
    )
    with pytest.raises(ValueError, match="nodes with other splits in the parts 0 and 1"):
        GraphSet.concat([graphs, replace(graphs, split_of_node=None)])


def test_a_graph_without_targets_of_nodes_cannot_be_trained():
    graph = NodeGraph.from_networkx(nx.path_graph(4))
    with pytest.raises(
        ValueError, match=r"expected targets of nodes or edges to train on.*--target"
    ):
        graph.graph_set()


def test_the_loss_is_that_of_the_nodes_of_a_split(club, path, tmp_path):
    """Against the outputs of the trained model, with a formula of its own."""
    run = train(path, tmp_path / "run", SMALL, settings(), tasks=["club"], device="cpu")
    predicted = predict(run, path, device="cpu").node["club=Officer"]
    label = club.nodes.target("club").values.numpy()
    for split in ("validation", "test"):
        own = club.nodes.part(split).numpy()
        chance = np.where(label[own] == 1, predicted[own], 1 - predicted[own])
        found = evaluate(run, path, split, device="cpu").tasks[0]
        assert found.class_1 == "Officer" and found.rows == int(club.nodes.part(split).sum())
        assert found.loss[0] == pytest.approx(-np.log(chance).mean(), rel=1e-5)
        assert found.metrics["roc_auc"][0] == pytest.approx(roc_auc(predicted[own], label[own]))


def test_training_sees_no_target_of_other_splits(club, tmp_path):
    def weights(graphs):
        config = train(graphs, tmp_path / str(len(list(tmp_path.iterdir()))), SMALL, settings(),
                       device="cpu").config  # fmt: skip
        trainer = make_trainer(config, graphs, "cpu")
        trainer.run_epoch(0)
        return trainer.population.flat.detach()

    graphs = club.graph_set()
    other = ~club.nodes.part("train")
    changed = torch.where(other[:, None], 1 - graphs.y_node, graphs.y_node)
    assert torch.equal(weights(graphs), weights(replace(graphs, y_node=changed)))


def test_predictions_have_names_and_labels(club, path, tmp_path):
    run = train(path, tmp_path / "run", SMALL, settings(members=2), device="cpu")
    found = predict(run, path, split="test", device="cpu")
    (written,) = found.save(tmp_path / "p.csv")
    rows = list(csv.DictReader(written.open()))
    names = ["node", "club", "club=Officer", "height", "club_std", "height_std"]
    assert list(rows[0]) == names
    tested = club.nodes.part("test").nonzero()[:, 0].tolist()
    assert [row["node"] for row in rows] == [club.nodes.name(i) for i in tested]
    for row in rows:
        assert row["club"] == ("Officer" if float(row["club=Officer"]) >= 0.5 else "Mr. Hi")


def test_predictions_in_slices_are_the_same(path, tmp_path, monkeypatch):
    run = train(path, tmp_path / "run", SMALL, settings(members=2), device="cpu")
    whole, loss = predict(run, path, device="cpu").node, evaluate(run, path, device="cpu").loss
    nodes = []
    seen = layerwise._Blocks._batch
    monkeypatch.setattr(
        layerwise._Blocks, "_batch", lambda self, a, b: nodes.append(b - a) or seen(self, a, b)
    )

    def check(**given):
        sliced = predict(run, path, device="cpu", **given).node
        assert np.allclose(sliced["club=Officer"], whole["club=Officer"], atol=1e-6)
        assert np.allclose(evaluate(run, path, device="cpu", **given).loss, loss, rtol=1e-5)

    check()
    assert nodes == []  # there is enough memory
    check(slice_nodes=20)
    assert nodes == [20, 14] * 4  # two layers, of two calls
    monkeypatch.setattr(layerwise, "free_memory", lambda device: 2**15)
    check()
    assert len(nodes) > 12


def test_a_resumed_run_is_the_same(path, tmp_path):
    whole = train(path, tmp_path / "whole", SMALL, settings(epochs=4), device="cpu")
    train(path, tmp_path / "parts", SMALL, settings(epochs=2), device="cpu")
    parts = train(path, tmp_path / "parts", resume=True, epochs=4, device="cpu")
    for name, tensor in whole.read("last.safetensors")[0].items():
        assert torch.equal(tensor, parts.read("last.safetensors")[0][name]), name


def test_the_best_epoch_by_roc_auc(club, path, tmp_path):
    run = train(path, tmp_path / "run", SMALL, settings(select="roc_auc", epochs=5),
                tasks=["club"], device="cpu")  # fmt: skip
    best = run.summary["best"][0]
    assert 1 - best == pytest.approx(
        evaluate(run, path, "validation", device="cpu").tasks[0].metrics["roc_auc"][0]
    )
    two = GraphSet.concat([club.graph_set()] * 2)
    with pytest.raises(ValueError, match="nodes of several graphs"):
        train(
            two, tmp_path / "two", SMALL, settings(select="roc_auc"), tasks=["club"], device="cpu"
        )


def test_members_train_with_a_split_each(club, tmp_path):
    """As alone with that split, but for the outputs of the other splits."""
    splits = torch.stack([club.nodes.split[:, 0], club.nodes.split[:, 0].roll(5)], 1)
    both = replace(
        club, nodes=replace(club.nodes, split=splits, targets=club.nodes.targets[:1],
                            mean=club.nodes.mean.expand(2, -1), std=club.nodes.std.expand(2, -1))
    )  # fmt: skip
    graphs = both.graph_set(None)
    assert graphs.node_targets == ("club of split 0", "club of split 1")
    for k in range(2):
        for name in ("train", "validation"):
            known = ~graphs.split(name).y_node[:, k].isnan()
            assert torch.equal(known, both.nodes.part(name, k))
    given = settings(members=2, task_weights=np.eye(2).tolist(), select="roc_auc")
    run = train(graphs, tmp_path / "both", SMALL, given, device="cpu")
    for k in range(2):
        found = evaluate(run, graphs, "validation", device="cpu").tasks[k].metrics["roc_auc"][k]
        assert 1 - run.summary["best"][k] == pytest.approx(found)
    graphs.save(tmp_path / "both.safetensors")
    assert torch.equal(
        GraphSet.load(tmp_path / "both.safetensors").split_of_node, graphs.split_of_node
    )
