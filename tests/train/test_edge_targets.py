"""Training on the edges of one graph, whose split is inside it."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pna import GraphSet
from pna.cli import app
from pna.data import NodeGraph
from pna.data.edge_labels import message_edges
from pna.train import Settings, evaluate, export, layerwise, predict, train
from pna.train.loop import make_trainer
from pna.train.metrics import roc_auc
from pna.train.models import build
from pna.train.settings import ModelSettings

pytestmark = pytest.mark.filterwarnings("ignore:got (.* edges between two nodes|no test edges)")

SMALL = ModelSettings("pna", "stacked", 8, arguments=dict(layers=2, final="none"))
PARTS = ["train", "validation", "test", "train", ""]
NODES, EDGES = 12, 40


def rows():
    """Payments between 12 accounts; some pairs pay twice, and some pay themselves."""
    random = np.random.default_rng(0)
    for row in range(EDGES):
        source, dest = random.integers(NODES, size=2)
        amount, kind = random.normal(), "abc"[random.integers(3)]
        fraud = "" if row % 7 == 6 else "yes" if amount * (1 + source - dest) > 0 else "no"
        part = PARTS[row % len(PARTS)]
        yield f"account {source},account {dest},{amount:.4f},{kind},{fraud},{row / 9:.3f},{part}"


def tables(folder, without=()):
    """Files of nodes and edges, without the edges of some splits."""
    nodes = [f"account {n},{n % 5},{'xy'[n % 2]}" for n in range(NODES)]
    (folder / "nodes.csv").write_text("\n".join(["name,age,town", *nodes]))
    edges = [row for row in rows() if row.rsplit(",", 1)[1] not in without]
    (folder / "edges.csv").write_text(
        "\n".join(["from,to,amount,kind,fraud,delay,part", *edges]) + "\n"
    )
    return folder / "edges.csv", folder / "nodes.csv"


def payments(folder, *, directed=True, with_nodes=True, without=()):
    edges, nodes = tables(folder, without)
    return NodeGraph.from_tables(
        edges, nodes if with_nodes else None, directed=directed,
        edge_targets=["fraud", "delay"], edge_split="part",
    )  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return payments(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def path(graph, tmp_path_factory):
    graph.save(path := tmp_path_factory.mktemp("graph") / "payments.safetensors")
    return path


def settings(**given):
    return Settings(**(dict(epochs=2, batch_size=4, members=1) | given))


@pytest.fixture(scope="module")
def run(path, tmp_path_factory):
    """Two members, of which every edge sends messages."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(path, folder, SMALL, settings(members=2), device="cpu")


def test_a_split_has_the_targets_of_its_own_edges(graph):
    graphs = graph.graph_set()
    assert graphs.y_node is None and graphs.edge_targets == ("fraud", "delay")
    fraud, delay = map(graph.edges.target, ("fraud", "delay"))
    for name in ("train", "validation", "test"):
        part, own = graphs.split(name), graph.edges.part(name)
        assert torch.equal(part.label_ends, graphs.label_ends[own])
        assert torch.equal(part.y_edge[:, 1], delay.values[own])
        known = fraud.known[own]
        assert not known.all() and torch.equal(~part.y_edge[:, 0].isnan(), known)
        assert torch.equal(part.y_edge[known, 0].long(), fraud.values[own][known])
        assert part.senders.data_ptr() == graphs.senders.data_ptr()  # edges are not copied
    largest = graph.edges.target("delay").values[graph.edges.part("train")].max().item()
    assert graphs.edge_scale == (1.0, pytest.approx(largest))
    assert graphs.metadata["losses"] == {"fraud": "bce", "delay": "mse"}


@pytest.mark.parametrize("directed", [True, False])
def test_labelled_edges_are_the_rows_of_the_table(tmp_path, directed):
    graphs = payments(tmp_path, directed=directed).graph_set()
    given = [row.split(",")[:2] for row in rows()]
    graph = NodeGraph.from_tables(*tables(tmp_path), directed=directed)
    named = [[graph.nodes.name(end) for end in ends] for ends in graphs.label_ends.tolist()]
    assert named == given
    loops = sum(source == dest for source, dest in given)
    assert graphs.num_edges == (EDGES if directed else 2 * EDGES - loops)
    assert graphs.num_labels == EDGES


def plain_head(model, states, batch, features):
    """One edge after another."""
    found = []
    for edge, (sender, receiver) in enumerate(batch.labels.edge_index.t().tolist()):
        a, b = states[sender], states[receiver]
        ends = [a + b, (a - b).abs()] if model.edge_head.symmetric else [a, b]
        found.append(model.edge_head.mlp(torch.cat([*ends, features[edge]])[None])[0])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("architecture", "symmetric"),
    [("stacked", False), ("stacked", True), ("standard", True), ("recurrent", False)],
)
def test_the_head_reads_both_ends_and_the_features_of_the_edge(graph, architecture, symmetric):
    graphs = graph.graph_set()
    numeric = replace(graphs, x=graphs.x.float(), metadata={})
    widths = dict(edge_columns=2) if architecture == "stacked" else dict(edge_dim=2, depth=2)
    if architecture == "standard":
        widths = dict(edge_dim=2, layers=2)
    given = ModelSettings(
        "pna", architecture, 8, arguments=widths | dict(symmetric=symmetric),
        in_channels=2, edge_targets=3, degrees=(1, 3, 4),
    )  # fmt: skip
    model, batch = build(given).eval(), numeric.batch()
    states = []
    model.gate.register_forward_hook(lambda module, inputs, output: states.append(output))
    with torch.no_grad():
        found = model(batch).edge
        features = batch.label_attr
        if architecture == "stacked":
            features = model.embed_edges(features)
        torch.testing.assert_close(found, plain_head(model, states[0], batch, features))
        turned = replace(numeric, label_ends=numeric.label_ends.flip(1)).batch()
        same = torch.equal(model(turned).edge, found)
    assert same == symmetric


def test_the_loss_is_that_of_the_edges_of_a_split(graph, path, run):
    """Against the outputs of the trained model, with a formula of its own."""
    label = graph.edges.target("fraud")
    for member in range(2):
        predicted = predict(run, path, member, device="cpu").edge["fraud=yes"]
        for split in ("validation", "test"):
            own = (graph.edges.part(split) & label.known).numpy()
            truth = label.values.numpy()[own]
            chance = np.where(truth == 1, predicted[own], 1 - predicted[own])
            found = evaluate(run, path, split, member, device="cpu").tasks[0]
            assert found.loss[0] == pytest.approx(-np.log(chance).mean(), rel=1e-5)
            assert found.metrics["roc_auc"][0] == pytest.approx(roc_auc(predicted[own], truth))


def test_no_target_of_another_split_is_seen(graph, run):
    graphs = graph.graph_set()
    other = ~graph.edges.part("train")
    changed = replace(graphs, y_edge=torch.where(other[:, None], 1 - graphs.y_edge, graphs.y_edge))

    def weights(graphs):
        trainer = make_trainer(run.config, graphs, "cpu")
        trainer.run_epoch(0)
        return trainer.population.flat.detach()

    assert torch.equal(weights(graphs), weights(changed))
    for column, values in predict(run, graphs, device="cpu").edge.items():
        assert np.array_equal(values, predict(run, changed, device="cpu").edge[column])


@pytest.mark.parametrize("directed", [True, False])
def test_edges_that_send_messages(tmp_path, directed):
    """Those of a graph that was made without the others."""
    graphs = payments(tmp_path, directed=directed).graph_set()
    assert message_edges(graphs, "all", "train") is graphs
    for split, without in (
        ("train", ("validation", "test")), ("validation", ("validation", "test")),
        ("test", ("test",)), (None, ("test",)),
    ):  # fmt: skip
        kept = message_edges(graphs, "train", split)
        alone = NodeGraph.from_tables(*tables(tmp_path, without), directed=directed)
        assert sorted(kept.edges.t().tolist()) == sorted(alone.edge_index.t().tolist())
        assert kept.num_labels == EDGES and len(kept.edge_attr) == kept.num_edges


@pytest.mark.parametrize("with_nodes", [True, False])
def test_edges_to_be_tested_have_no_effect_on_training(tmp_path, with_nodes):
    """Without nodes of a table, degrees are the features, which must not count these edges."""

    def losses(messages, *without):
        graphs = payments(tmp_path, with_nodes=with_nodes, without=without).graph_set()
        name = f"{messages}-{len(without)}"
        given = settings(message_edges=messages)
        run = train(graphs, tmp_path / name, SMALL, given, device="cpu")
        with (run.folder / "metrics.csv").open() as file:
            return [(row["training"], row["validation"]) for row in csv.DictReader(file)]

    assert losses("train") == losses("train", "test")
    assert losses("all") != losses("all", "test")


def test_an_edge_to_be_predicted_sends_no_message(graph, path, tmp_path):
    """Evaluation of a split depends on the edges before it only, and so does its best epoch."""
    given = settings(message_edges="train", select="roc_auc")
    run = train(path, tmp_path / "run", SMALL, given, tasks=["fraud"], device="cpu")
    best = evaluate(run, path, "validation", device="cpu").tasks[0].metrics["roc_auc"]
    assert 1 - run.summary["best"][0] == pytest.approx(best[0])
    graphs = graph.graph_set()
    test = graphs.split_of_message == 2
    moved = replace(graphs, edge_attr=torch.where(test[:, None], 0, graphs.edge_attr))
    new = replace(graphs, split_of_message=None, split_of_edge=None)  # edges of no split send
    found = [predict(run, g, device="cpu").edge["fraud=yes"] for g in (graphs, new)]
    assert not np.array_equal(*found)
    for split in ("validation", "test"):
        found = [evaluate(run, g, split, device="cpu").loss for g in (graphs, moved)]
        assert found[0] == found[1]
    earlier = replace(graphs, edge_attr=torch.where(test[:, None], graphs.edge_attr, 0))
    assert evaluate(run, earlier, "test", device="cpu").loss != found[0]


def test_predictions_have_names_and_labels(graph, path, run, tmp_path):
    found = predict(run, path, split="test", device="cpu")
    (written,) = found.save(tmp_path / "p.csv")
    lines = list(csv.DictReader(written.open()))
    names = ["edge", "source", "dest", "fraud", "fraud=yes", "delay", "fraud_std", "delay_std"]
    assert list(lines[0]) == names
    tested, given = graph.edges.part("test").nonzero()[:, 0].tolist(), list(rows())
    assert [int(line["edge"]) for line in lines] == tested
    for line in lines:
        assert given[int(line["edge"])].split(",")[:2] == [line["source"], line["dest"]]
        assert line["fraud"] == ("yes" if float(line["fraud=yes"]) >= 0.5 else "no")


def test_edges_without_targets_are_predicted(graph, path, run, tmp_path):
    replace(graph, edges=replace(graph.edges, targets=(), split=None)).save(tmp_path / "new")
    for column, values in predict(run, tmp_path / "new", device="cpu").edge.items():
        assert np.array_equal(values, predict(run, path, device="cpu").edge[column])


def test_a_resumed_run_is_the_same(path, tmp_path):
    given = dict(message_edges="train", members=2)
    whole = train(path, tmp_path / "whole", SMALL, settings(epochs=2, **given), device="cpu")
    train(path, tmp_path / "parts", SMALL, settings(epochs=1, **given), device="cpu")
    parts = train(path, tmp_path / "parts", resume=True, epochs=2, device="cpu")
    for name, tensor in whole.read("last.safetensors")[0].items():
        assert torch.equal(tensor, parts.read("last.safetensors")[0][name]), name


def test_members_train_as_alone(path, run, tmp_path):
    alone = train(path, tmp_path / "alone", SMALL, settings(seed=1), device="cpu")
    assert run.summary["best"][1] == pytest.approx(alone.summary["best"][0], rel=1e-4)


def test_members_train_with_a_split_each(graph, tmp_path):
    own = graph.edges.split[:, 0]
    edges = replace(
        graph.edges, split=torch.stack([own, own.roll(2)], 1), targets=graph.edges.targets[:1],
        mean=graph.edges.mean.expand(2, -1), std=graph.edges.std.expand(2, -1),
    )  # fmt: skip
    graphs = replace(graph, edges=edges).graph_set(None)
    assert graphs.edge_targets == ("fraud of split 0", "fraud of split 1")
    known = graph.edges.target("fraud").known
    for k in range(2):
        part = graphs.split("train")
        assert int((~part.y_edge[:, k].isnan()).sum()) == int(
            (edges.part("train", k) & known).sum()
        )
    given = settings(members=2, task_weights=((1, 0), (0, 1)), select="roc_auc")
    run = train(graphs, tmp_path / "run", SMALL, given, device="cpu")
    for k, task in enumerate(evaluate(run, graphs, "validation", device="cpu").tasks):
        assert 1 - run.summary["best"][k] == pytest.approx(task.metrics["roc_auc"][k])
    with pytest.raises(ValueError, match="targets and one split of edges"):
        train(graphs, tmp_path / "a", SMALL, settings(message_edges="train"), device="cpu")


def test_nodes_and_edges_are_trained_together(tmp_path):
    nx = pytest.importorskip("networkx")
    graph = nx.karate_club_graph()
    for a, b, of_edge in graph.edges(data=True):
        of_edge["club"] = "same" if graph.nodes[a]["club"] == graph.nodes[b]["club"] else "other"
    made = NodeGraph.from_networkx(
        graph, target="club", edge_target="club", random_split=(0.6, 0.2, 0.2)
    )
    made.save(tmp_path / "club")
    run = train(tmp_path / "club", tmp_path / "run", SMALL, settings(), device="cpu")
    assert [task.name for task in run.config.tasks] == ["node.club", "edge.club"]
    found = predict(run, tmp_path / "club", device="cpu")
    assert list(found.node) == ["node.club", "node.club=Officer"]
    assert list(found.edge) == ["edge.club", "edge.club=same"]
    written = found.save(tmp_path / "p.csv")
    assert [file.name for file in written] == ["p-nodes.csv", "p-edges.csv"]


def test_several_graphs_are_predicted_as_alone(graph, run):
    graphs = graph.graph_set()
    three = GraphSet.concat([graphs] * 3)[[2, 0]]
    found = predict(run, three, device="cpu")
    assert found.edge_ids["graph"].tolist() == [0] * EDGES + [1] * EDGES
    alone = predict(run, graphs, device="cpu").edge["fraud=yes"]
    np.testing.assert_allclose(found.edge["fraud=yes"], np.tile(alone, 2), rtol=1e-5)
    with pytest.raises(ValueError, match="edges with other splits in the parts 0 and 1"):
        GraphSet.concat([graphs, replace(graphs, split_of_edge=None)])


def test_a_set_with_labelled_edges_is_stored(graph, tmp_path):
    graphs = graph.graph_set()
    graphs.save(tmp_path / "set")
    again = GraphSet.load(tmp_path / "set")
    for name in ("label_offsets", "label_ends", "label_attr", "split_of_edge", "split_of_message"):
        assert torch.equal(getattr(again, name), getattr(graphs, name))
    assert torch.equal(again.y_edge.nan_to_num(-1), graphs.y_edge.nan_to_num(-1))
    assert again.edge_targets == graphs.edge_targets and again.edge_scale == graphs.edge_scale


def test_pyg_gets_the_labelled_edges(graph):
    pytest.importorskip("torch_geometric")
    (data,) = graph.graph_set().to_pyg()
    assert torch.equal(data.edge_label_index, graph.ends)
    assert data.edge_label.shape == (EDGES, 2)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("label_ends", lambda t: t + 1, "label_ends lead out of their graph"),
        ("label_ends", lambda t: t[:, :1], "label_ends are not two numbers"),
        ("label_ends", lambda t: None, "labelled edges but no label_ends"),
        ("label_offsets", lambda t: t - 1, "label_offsets do not lead from 0 to 40"),
        ("label_offsets", lambda t: t[:1], "label_offsets are not those of the graphs"),
        ("label_attr", lambda t: t[:, :1], "label_attr are not the features"),
        ("y_edge", lambda t: t[:9], r"y_edge has shape \(9, 2\), expected \(40, 2\)"),
        ("split_of_edge", lambda t: t + 1, "split_of_edge are not 40 indices in splits"),
        ("split_of_message", lambda t: t + 1, "split_of_message are not 40 indices in splits"),
    ],
)
def test_a_damaged_file_is_refused(graph, tmp_path, name, change, message):
    graphs = graph.graph_set()
    replace(graphs, **{name: change(getattr(graphs, name))}).save(tmp_path / "set")
    with pytest.raises(ValueError, match=message):
        GraphSet.load(tmp_path / "set")


def test_what_is_refused(graph, run, tmp_path):
    nodes = replace(graph.graph_set(), split_of_message=None)
    with pytest.raises(ValueError, match="edges have no split"):
        train(nodes, tmp_path / "a", SMALL, settings(message_edges="train"), device="cpu")
    with pytest.raises(ValueError, match="unknown message edges 'tran'; did you mean 'train'"):
        settings(message_edges="tran")
    other = payments(tmp_path, directed=False).graph_set()
    with pytest.raises(ValueError, match="got undirected edges, expected directed ones"):
        predict(run, other, device="cpu")
    with pytest.raises(ValueError, match="got graphs without labelled edges"):
        predict(run, graph.graph_set(levels=["node"]), device="cpu")
    with pytest.raises(ValueError, match="predict targets of edges, which cannot be exported"):
        export(run, "torch")


def test_from_tables_to_predictions_by_commands(tmp_path):
    edges, _ = tables(tmp_path)

    def call(*given):
        done = CliRunner().invoke(app, [str(word) for word in given])
        assert done.exit_code == 0, done.output

    file, run = tmp_path / "g.safetensors", tmp_path / "run"
    call("data", "graph", "--edges", edges, "--edge-target", "fraud", "--edge-split", "part",
         "--out", file)  # fmt: skip
    call("train", file, "--out", run, "--epochs", 1, "--hidden", 8, "--message-edges", "train",
         "--edge-updates", "--direction", "both", "--device", "cpu")  # fmt: skip
    call("predict", run, file, "--out", tmp_path / "p.csv", "--device", "cpu")
    lines = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [f"{line['source']},{line['dest']}" for line in lines] == [
        ",".join(row.split(",")[:2]) for row in rows()
    ]


def test_edges_in_slices(path, tmp_path, monkeypatch):
    """Predictions, metrics and the validation in training are those of the whole graph."""
    whole = train(path, tmp_path / "whole", SMALL, Settings(epochs=2, members=2), device="cpu")
    expected = predict(whole, path, device="cpu").edge
    found = predict(whole, path, device="cpu", slice_nodes=5).edge
    for name in ("fraud=yes", "delay"):
        assert np.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    losses = [evaluate(whole, path, device="cpu", slice_nodes=n).loss for n in (None, 5)]
    assert np.allclose(*losses, rtol=1e-5)
    monkeypatch.setattr(layerwise, "free_memory", lambda device: 2**10)
    given = Settings(epochs=2, members=2, full_batch=True)
    sliced = train(path, tmp_path / "sliced", SMALL, given, device="cpu")
    for row, wanted in zip(sliced.metrics(), whole.metrics(), strict=True):
        assert row["validation"] == pytest.approx(wanted["validation"], rel=1e-5)
