"""Training on the nodes of one graph with sampled neighbours."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from pna.cli import app
from pna.data import NeighbourBatches
from pna.train import Settings, evaluate, train
from pna.train.loop import make_trainer
from pna.train.run import LAST, Run
from pna.train.settings import ModelSettings
from tests import processes
from tests.train.cases import labelled, one_graph, random_graphs

SMALL = ModelSettings("pna", "stacked", 8, arguments=dict(layers=2, final="none", dropout=0.2))


GRAPH = one_graph()


def settings(**given):
    return Settings(**(dict(epochs=2, batch_size=16, sample=(4, 3)) | given))


def test_a_step_is_that_of_torch():
    """The loss of the seeds alone, over the batches of `NeighbourBatches`, with torch's Adam."""
    given = settings(precision="float64", lr=1e-2, data_seed=5)
    model = replace(SMALL, arguments=SMALL.arguments | {"dropout": 0.0})
    config = _config(GRAPH, model, given)
    trainer = make_trainer(config, GRAPH, "cpu")
    own = make_trainer(config, GRAPH, "cpu").population.model.double().train()
    optimiser = torch.optim.Adam(own.parameters(), lr=1e-2)
    for epoch in range(2):
        losses = trainer.run_epoch(epoch)[0]
        total, count = 0.0, 0
        batches = NeighbourBatches(GRAPH.split("train"), (4, 3), 16, seed=5)
        for batch in batches.epoch(epoch):
            own.train()
            optimiser.zero_grad()
            y = batch.y_node.double()
            assert len(y) == batch.num_seeds <= 16
            loss = torch.nn.functional.binary_cross_entropy_with_logits(own(batch).node, y)
            loss.backward()
            optimiser.step()
            total, count = total + loss.item() * len(y), count + len(y)
        assert losses.item() == pytest.approx(total / count, rel=1e-9)
    assert count == int((GRAPH.split_of_node == 0).sum())


def test_a_step_on_edges_is_that_of_torch():
    """A batch has labelled edges, and the seeds are their ends."""
    graph = labelled(GRAPH)
    given = settings(precision="float64", lr=1e-2, batch_size=60)
    model = replace(SMALL, arguments=SMALL.arguments | {"dropout": 0.0})
    config = _config(graph, model, given)
    trainer = make_trainer(config, graph, "cpu")
    own = make_trainer(config, graph, "cpu").population.model.double().train()
    optimiser = torch.optim.Adam(own.parameters(), lr=1e-2)
    losses, total = trainer.run_epoch(0)[0], 0.0
    for batch in NeighbourBatches(graph.split("train"), (4, 3), 60).epoch(0):
        optimiser.zero_grad()
        y = batch.y_edge.double()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(own(batch).edge, y)
        loss.backward()
        optimiser.step()
        total += loss.item() * len(y)
    assert losses.item() == pytest.approx(total / graph.split("train").num_labels, rel=1e-9)


def test_edges_to_the_command(tmp_path):
    labelled(GRAPH).save(path := tmp_path / "graph.safetensors")
    arguments = ["train", path, "--sample", "4,3", "--epochs", "1", "--device", "cpu", "--quiet"]
    done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    found = evaluate(tmp_path / "run", path, "test", device="cpu")
    assert 0 < found.loss[0] < 2


def test_nodes_and_edges_cannot_be_sampled_at_once(tmp_path):
    both = replace(labelled(GRAPH), y_node=GRAPH.y_node, node_targets=("class",),
                   split_of_node=GRAPH.split_of_node, node_scale=(1.0,))  # fmt: skip
    with pytest.raises(ValueError, match=r"for targets of nodes and of edges.*--tasks"):
        train(both, tmp_path / "run", SMALL, settings(), device="cpu")
    run = train(both, tmp_path / "run", SMALL, settings(), tasks=["class"], device="cpu")
    assert run.summary["epochs"] == 2


def _config(graphs, model, given):
    from pna.train.loop import configured

    return configured(graphs, None, model, given, "bce", None, None, ("train", "validation"))


@pytest.mark.slow
def test_it_learns_and_is_validated_on_the_whole_graph(tmp_path):
    graph = one_graph(400, 1600)
    run = train(graph, tmp_path / "run", "pna", settings(epochs=12, batch_size=32, lr=1e-2),
                device="cpu")  # fmt: skip
    found = evaluate(run, graph, "validation", device="cpu")
    assert run.summary["best"][0] == pytest.approx(found.loss[0], rel=1e-5)
    assert evaluate(run, graph, "test", device="cpu").metrics["roc_auc"][0] > 0.8


def test_validation_in_slices(tmp_path, monkeypatch):
    """If the whole graph does not fit into memory; with the best epoch by loss and by ROC-AUC."""
    for select in ("loss", "roc_auc"):
        given = settings(select=select, members=2, average=0.9)
        whole = train(GRAPH, tmp_path / select, SMALL, given, device="cpu")
        with monkeypatch.context() as patched:
            patched.setattr("pna.train.trainer.is_at_once", lambda *_: False)
            sliced = train(GRAPH, tmp_path / f"{select}-sliced", SMALL, given, device="cpu")
        assert sliced.summary["best"] == pytest.approx(whole.summary["best"], rel=1e-5)
        for row, expected in zip(sliced.metrics(), whole.metrics(), strict=True):
            assert row["validation"] == pytest.approx(expected["validation"], rel=1e-5)
            assert row["training"] == expected["training"]


@pytest.mark.parametrize("change", [{}, {"convolution": "gcn", "architecture": "standard"}])
def test_members_train_as_alone(change, tmp_path):
    """All members see the same batches; dropout is that of the member."""
    model = replace(SMALL, **change)
    if change:
        model = replace(model, arguments=model.arguments | {"edges": False})
    both = train(GRAPH, tmp_path / "both", model, settings(members=2, precision="float64"),
                 device="cpu")  # fmt: skip
    for seed in range(2):
        given = settings(seed=seed, precision="float64")
        alone = train(GRAPH, tmp_path / str(seed), model, given, device="cpu")
        for rows in zip([r for r in both.metrics() if r["member"] == seed], alone.metrics(),
                        strict=True):  # fmt: skip
            assert rows[0]["training"] == pytest.approx(rows[1]["training"], rel=1e-8)
            assert rows[0]["validation"] == pytest.approx(rows[1]["validation"], rel=1e-8)


def test_members_with_a_split_each():
    """Seeds are the training nodes of all splits; a member learns from those of its own."""
    tags = torch.stack([GRAPH.split_of_node, GRAPH.split_of_node.roll(7)], 1)
    both = replace(
        GRAPH, split_of_node=tags, y_node=GRAPH.y_node.repeat(1, 2), node_targets=("a", "b"),
        node_scale=(1.0, 1.0),
    )  # fmt: skip
    given = settings(members=2, task_weights=((1, 0), (0, 1)))

    def weights(graphs):
        trainer = make_trainer(_config(graphs, SMALL, given), graphs, "cpu")
        trainer.run_epoch(0)
        return trainer, trainer.population.flat.detach()

    trainer, expected = weights(both)
    seeds = sorted(trainer.training._batches.nodes.tolist())
    assert seeds == (tags == 0).any(1).nonzero()[:, 0].tolist()
    _, got = weights(replace(both, y_node=both.y_node.clone().index_fill_(1, torch.tensor(1), 0)))
    assert torch.equal(got[0], expected[0]) and not torch.equal(got[1], expected[1])


class StoppedError(Exception):
    """Raised in the report of an epoch, before its checkpoint is written."""


@pytest.mark.parametrize(
    "killed",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.slow,  # starts a process
                pytest.mark.skipif(os.name != "posix", reason="needs signals and fork"),
            ],
        ),
    ],
)
def test_a_run_that_was_stopped_resumes_to_the_same_bits(killed, tmp_path):
    given = settings(epochs=4, members=2, schedule="plateau", plateau=1, average=0.9)
    GRAPH.save(path := tmp_path / "graph.safetensors")
    whole = train(path, tmp_path / "whole", SMALL, given, loss="bce", device="cpu")
    asked = {"data": path, "out": tmp_path / "parts", "model": SMALL, "settings": given,
             "loss": "bce", "save_every": 0.0}  # fmt: skip
    if killed:
        process = processes.started(tmp_path, partial(stopped_after, 3, True, **asked))
        assert processes.ended(process, tmp_path).returncode == -signal.SIGKILL
    else:
        with pytest.raises(StoppedError):
            stopped_after(3, False, **asked)
    assert Run(tmp_path / "parts").read(LAST)[1]["epoch"] == 2
    parts = train(path, tmp_path / "parts", resume=True, device="cpu")
    (expected, _), (got, _) = whole.read(LAST), parts.read(LAST)
    for name, tensor in expected.items():
        assert torch.equal(tensor, got[name]), name


def stopped_after(epochs, killed, **asked):
    def report(done):
        if done.epoch == epochs and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if done.epoch == epochs:
            raise StoppedError

    train(**asked, device="cpu", report=report)


def test_the_command(tmp_path):
    GRAPH.save(path := tmp_path / "graph.safetensors")
    arguments = ["train", path, "--sample", "4,3", "--epochs", "1", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["settings"]["sample"] == [4, 3] and stored["settings"]["batch_size"] == 1024
    assert stored["model"]["arguments"]["layers"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample", "4,0"], "got sample=4, 0, expected a number of in-neighbours for each layer"),
        (["--sample", "4,x"], "got sample '4,x', expected whole numbers separated by commas"),
        (["--sample", "4,3", "--layers", "3"], "got 2 fan-outs in sample for a model of 3 layers"),
        (["--sample", "4", "--architecture", "recurrent"], "for a recurrent model"),
        (["--sample", "4,3", "--virtual-node"], "a model with virtual_node, which needs"),
        (["--sample", "4,3", "--model", "gated-gcn"], "with edge states, of gated-gcn"),
        (["--sample", "4,3", "--edge-updates"], "a model with edge_updates, which needs"),
        (["--sample", "4,3", "--direction", "both"], "with messages along outgoing edges"),
    ],
)
def test_what_cannot_be_sampled(options, message, tmp_path):
    GRAPH.save(path := tmp_path / "graph.safetensors")
    done = CliRunner().invoke(
        app, ["train", str(path), "--out", str(tmp_path / "run"), "--device", "cpu", *options]
    )
    assert done.exit_code != 0 and message in " ".join(done.output.split())
    assert not (tmp_path / "run").exists()


def test_many_graphs_cannot_be_sampled(tmp_path):
    with pytest.raises(ValueError, match=r"got 10 graphs to sample .* expected one; leave out"):
        train(random_graphs(), tmp_path / "run", SMALL, settings(), device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("members", [1, 2])
def test_training_on_a_gpu(members, tmp_path):
    runs = [
        train(GRAPH, tmp_path / device, SMALL, settings(members=members), device=device)
        for device in ("cpu", "cuda")
    ]
    for row, expected in zip(*(run.metrics() for run in reversed(runs)), strict=True):
        assert row["training"] == pytest.approx(expected["training"], rel=1e-3)
        assert row["validation"] == pytest.approx(expected["validation"], rel=1e-3)
