"""The estimate of the memory of one graph, and the mode of training that follows from it."""

from __future__ import annotations

import gc
from dataclasses import replace

import networkx
import numpy as np
import pytest
import torch

from pna.adjacency import Adjacency
from pna.bench.measure import peak_memory
from pna.data import NodeGraph
from pna.data.graphset import GraphSet
from pna.train import memory
from pna.train.loop import configured, make_trainer, train
from pna.train.memory import full_batch_memory, in_words
from pna.train.settings import ModelSettings, Settings
from pna.waiting import displayed

CPU = torch.device("cpu")


def one_graph(nodes=40, edges=200, edge_columns=0):
    """A random graph with two classes of nodes and a split inside it."""
    rng = np.random.default_rng(0)
    made = GraphSet.from_arrays(
        [nodes], rng.integers(0, nodes, (2, edges)), [edges],
        x=rng.standard_normal((nodes, 8)).astype(np.float32),
        edge_attr=rng.standard_normal((edges, edge_columns)) if edge_columns else None,
        y_node=rng.integers(0, 2, (nodes, 1)), metadata={"losses": {"0": "bce"}},
    )  # fmt: skip
    parts = torch.from_numpy(rng.integers(0, 2, nodes).astype(np.uint8))
    return replace(made, split_of_node=parts, splits=("train", "validation")).with_scales()


def model(convolution="pna", hidden=8, architecture="stacked", **arguments):
    return ModelSettings(
        convolution, architecture, hidden, arguments=dict(final="none") | arguments
    )


def config_of(graphs, given, **settings):
    return configured(
        graphs, None, given, Settings(**settings), "bce", None, None, ("train", "validation")
    )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("convolution", "members", "arguments"),
    [
        ("pna", 1, dict(layers=3)),
        ("gat", 1, dict(layers=2)),
        pytest.param("gated-gcn", 1, dict(layers=2), marks=SLOW),
        pytest.param("pna", 1, dict(layers=1), marks=SLOW),
        pytest.param("pna", 3, dict(layers=2), marks=SLOW),
        pytest.param(
            "pna", 1, dict(layers=2, norm="layer", feed_forward=2.0, dropout=0.1), marks=SLOW
        ),
        pytest.param("pna", 1, dict(layers=3, edge_updates=True), marks=SLOW),
        pytest.param("pna-simple", 1, dict(layers=3), marks=SLOW),
        pytest.param("gcn", 1, dict(layers=3), marks=SLOW),
        pytest.param("gin", 1, dict(layers=3), marks=SLOW),
        pytest.param("sage", 1, dict(layers=3), marks=SLOW),
        pytest.param("monet", 1, dict(layers=2), marks=SLOW),
    ],
)
def test_near_what_a_cpu_needs(convolution, members, arguments):
    graphs = one_graph(6000, 60_000)
    config = config_of(graphs, model(convolution, 32, **arguments), members=members)

    def first_epoch():
        make_trainer(config, graphs, "cpu").run_epoch(0)

    gc.collect()  # what is freed in between counts as negative
    needed = peak_memory(first_epoch, CPU)
    assert full_batch_memory(config, graphs, CPU) == pytest.approx(needed, rel=0.25)


def test_more_of_everything_needs_more():
    graphs = one_graph(5000, 20_000)

    def needs(given, device="cpu", **settings):
        return full_batch_memory(config_of(graphs, given, **settings), graphs, torch.device(device))

    usual = needs(model(layers=2))
    assert needs(model(layers=4)) > 1.3 * usual
    assert needs(model(layers=2, hidden=16)) > 1.4 * usual
    assert needs(model(layers=2), members=10) > 8 * usual
    assert (
        needs(model(layers=2), precision="float64")
        > 1.4 * usual
        > 1.7 * needs(model(layers=2), precision="bfloat16")
    )
    on_gpu = needs(model(layers=2), "cuda")  # where the graph is copied
    assert on_gpu - usual >= graphs.x.nbytes + graphs.senders.nbytes
    recurrent = [needs(model(architecture="recurrent", depth=depth)) for depth in (2, 10, "N")]
    assert recurrent[2] > 100 * recurrent[1] > 300 * recurrent[0] / 2


def notes_of(*args, **kwargs):
    """The run, and what it says about its mode."""
    said = []
    with displayed(lambda what: None, said.append):
        run = train(*args, **kwargs, device="cpu")
    return run, said


def test_a_full_batch_that_fits(tmp_path):
    run, said = notes_of(one_graph(), tmp_path / "run", model(layers=2), Settings(epochs=1))
    assert run.config.settings.sample == ()
    (line,) = said
    assert line.startswith("full batch: needs about ") and line.endswith("iB free")


def test_neighbours_are_sampled_if_a_full_batch_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**12)
    graphs = one_graph()
    run, said = notes_of(graphs, tmp_path / "run", model(layers=4), Settings(epochs=1))
    assert run.config.settings.sample == (15, 10, 5, 5)
    assert run.config.settings.batch_size == 1024
    (line,) = said
    assert "15,10,5,5" in line and "1,024 nodes a step" in line and "0.00391 MiB free" in line

    given = Settings(epochs=1, sample=(3, 2), batch_size=7)
    run, said = notes_of(graphs, tmp_path / "given", model(layers=2), given)
    assert run.config.settings == given and "(3,2), 7 nodes" in said[0]

    forced = Settings(epochs=1, full_batch=True)
    run, said = notes_of(graphs, tmp_path / "forced", model(layers=2), forced)
    assert run.config.settings == forced and said[0].startswith("full batch")

    run, said = notes_of(graphs, tmp_path / "forced", resume=True, epochs=2)
    assert run.summary["epochs"] == 2 and said[0].startswith("full batch")


def test_a_model_that_needs_the_whole_graph_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**12)
    refused = r"40 nodes.*needs about .*MiB.*free on cpu.*virtual_node.*--members.*--full-batch"
    with pytest.raises(MemoryError, match=refused):
        train(
            one_graph(),
            tmp_path / "run",
            model(virtual_node=True),
            Settings(epochs=1),
            device="cpu",
        )
    assert not (tmp_path / "run").exists()


def test_targets_of_nodes_and_edges_are_refused_if_they_do_not_fit(tmp_path, monkeypatch):
    """Only one of both can be sampled, and the user did not ask for samples."""
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**12)
    graph = networkx.cycle_graph(12)
    for elements in (graph.nodes, graph.edges):
        for i, of in enumerate(elements.values()):
            of |= {"y": i % 5 / 2, "part": ("train", "validation", "test")[i % 3]}
    uses = dict(target="y", split="part", edge_target="y", edge_split="part")
    graphs = NodeGraph.from_networkx(graph, **uses).graph_set()
    small, out = Settings(epochs=1), tmp_path / "run"
    with pytest.raises(MemoryError, match=r"12 nodes.*free on cpu.*--tasks.*--full-batch"):
        train(graphs, out, model(layers=2), small, device="cpu")
    _, said = notes_of(graphs, out, model(layers=4), small, tasks=["edge.y"])
    assert "1,024 edges a step" in said[0]


def test_a_full_batch_cannot_be_sampled():
    with pytest.raises(ValueError, match=r"sample=\(3, 2\) and full_batch=True"):
        Settings(sample=(3, 2), full_batch=True)


def test_training_and_validation_share_the_adjacency(monkeypatch):
    made = []
    build = Adjacency.from_csr

    def counted(*args, **kwargs):
        made.append(args)
        return build(*args, **kwargs)

    monkeypatch.setattr(Adjacency, "from_csr", counted)
    graphs = one_graph()
    trainer = make_trainer(config_of(graphs, model(layers=2)), graphs, "cpu")
    losses = [trainer.run_epoch(epoch) for epoch in range(2)]
    assert len(made) == 1
    assert not torch.equal(losses[0][0], losses[0][1])  # the targets are not shared


def test_bytes_in_words():
    assert [in_words(n) for n in (0, 3 * 2**19, 2**30, 33 * 2**30)] == [
        "0 MiB", "1.5 MiB", "1 GiB", "33 GiB",
    ]  # fmt: skip
