"""Weights of classes, beside those of torch and scikit-learn."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from pna import GraphSet
from pna.cli import app
from pna.data import NodeGraph
from pna.nn.architectures import Prediction
from pna.train import Settings, evaluate, train
from pna.train.class_weights import with_class_weights
from pna.train.run import Config, Run
from pna.train.settings import ModelSettings
from pna.train.tasks import count_targets, summed_errors, targets_of, tasks_of

KINDS = [0.0, 2, 2, 1, 2, np.nan, 0, 2, 2, 2]
TOXIC = [1.0, 0, 0, 0, 0, 0, np.nan, 0, 1, 0]
LOSS = {"kind": "cross_entropy", "toxic": "bce", "size": "mse"}


@pytest.fixture(scope="module")
def graphs():
    rng = np.random.default_rng(0)
    return GraphSet.from_arrays(
        [2] * 30, np.tile([[0, 1], [1, 0]], 30), [2] * 30, x=rng.random((60, 2), np.float32),
        y_graph=np.tile(np.stack([KINDS, TOXIC, rng.random(10)], 1), (3, 1)),
        graph_targets=["kind", "toxic", "size"],
        split=["train"] * 10 + ["validation"] * 10 + ["test"] * 10,
    )  # fmt: skip


def weighted(graphs, **given):
    balance = given.pop("balance", False)
    return with_class_weights(tasks_of(graphs, LOSS), graphs.split("train"), given, balance)


def test_losses_are_those_of_torch(graphs) -> None:
    tasks = weighted(graphs, kind=(0.2, 3.0, 0.5), toxic=(1.0, 4.0))
    batch = graphs.split("train").batch()
    outputs = torch.randn(10, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    outputs.requires_grad_()
    targets = targets_of(tasks, batch, torch.float64)
    sums = summed_errors(tasks, Prediction(None, outputs), targets)
    got = sums / count_targets(targets, 3)
    kind, toxic = torch.tensor(KINDS), torch.tensor(TOXIC)
    known = ~kind.isnan()
    weight = torch.tensor([0.2, 3.0, 0.5], dtype=torch.float64)
    of_kind = F.cross_entropy(outputs[known, :3], kind[known].long(), weight=weight)
    known = ~toxic.isnan()
    of_toxic = F.binary_cross_entropy_with_logits(
        outputs[known, 3], toxic[known].double(), pos_weight=torch.tensor(4.0), reduction="sum"
    )
    expected = torch.stack([of_kind, of_toxic / (7 + 2 * 4.0)])
    torch.testing.assert_close(got[:2], expected)
    ours, theirs = (torch.autograd.grad(x.sum(), outputs)[0][:, :4] for x in (got[:2], expected))
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(count_targets(targets, 3)[2:], torch.tensor([10.0], dtype=torch.float64))


def test_balanced_weights_are_those_of_scikit_learn(graphs) -> None:
    found = {task.name: task.class_weights for task in weighted(graphs, balance=True)}
    # 9 rows of three classes (2, 1 and 6), and 9 rows of two (7 and 2)
    assert found["kind"] == pytest.approx((9 / 6, 9 / 3, 9 / 18))
    assert found["toxic"] == pytest.approx((9 / 14, 9 / 4))
    assert found["size"] == ()
    mixed = {t.name: t.class_weights for t in weighted(graphs, balance=True, toxic=(1.0, 5.0))}
    assert mixed["toxic"] == (1.0, 5.0) and mixed["kind"] == found["kind"]


def test_a_class_that_training_has_not() -> None:
    few = GraphSet.from_arrays(
        [1] * 4, np.zeros((2, 0), int), [0] * 4, x=np.ones((4, 1)), graph_targets=["kind"],
        y_graph=np.array([0.0, 0, 2, 1]), split=["train"] * 3 + ["validation"],
    )  # fmt: skip
    tasks = tasks_of(few, "cross_entropy")
    (task,) = with_class_weights(tasks, few.split("train"), {}, True)
    assert task.class_weights == (3 / 4, 1.0, 3 / 2)


def test_the_scale_of_weights_does_not_matter(graphs) -> None:
    """Also of very small ones, whose sum in a batch is far below 1."""
    batch = graphs.batch()
    outputs = torch.randn(30, 5, dtype=torch.float64, generator=torch.manual_seed(1))
    found = []
    for times in (1.0, 1e-9, 1e9):
        tasks = weighted(graphs, kind=(1 * times, 0.0, 3 * times), toxic=(2 * times, times))
        targets = targets_of(tasks, batch, torch.float64)
        sums = summed_errors(tasks, Prediction(None, outputs), targets)
        found.append(sums / count_targets(targets, 3).clamp(min=1))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_run_keeps_its_weights(graphs, tmp_path) -> None:
    """And its validation loss is what `evaluate` finds."""
    model = ModelSettings("gcn", "stacked", 4, arguments={"layers": 1})
    settings = Settings(epochs=2, balance_classes=True, class_weights={"toxic": [1, 4]})
    run = train(graphs, tmp_path / "run", model, settings, loss=LOSS, device="cpu")
    stored = Run(run.folder).config
    assert stored.tasks[1].class_weights == (1.0, 4.0) and stored.settings == settings
    assert stored.tasks[0].class_weights == pytest.approx((1.5, 3, 0.5))
    assert Config.from_dict(json.loads(json.dumps(stored.as_dict()))) == stored
    best = run.summary["best"][0]
    found = evaluate(run, graphs, "validation", device="cpu")
    assert found.loss[0] == pytest.approx(best, rel=1e-5)
    plain = replace(settings, balance_classes=False, class_weights={})
    other = train(graphs, tmp_path / "plain", model, plain, loss=LOSS, device="cpu")
    assert other.summary["best"][0] != pytest.approx(best, rel=1e-3)
    again = train(graphs, run.folder, resume=True, epochs=3, device="cpu")
    assert again.config.tasks == stored.tasks


def test_classes_of_edges(tmp_path) -> None:
    """Balanced, and with a threshold: 20 edges, of which 4 are frauds."""
    nx = pytest.importorskip("networkx")
    graph = nx.cycle_graph(20)
    for index, (_, _, edge) in enumerate(graph.edges(data=True)):
        part = "train" if index < 15 else "validation" if index < 18 else "test"
        edge |= {"fraud": "no" if index % 5 else "yes", "part": part}
    found = NodeGraph.from_networkx(graph, edge_target="fraud", edge_split="part")
    settings = Settings(epochs=2, balance_classes=True, threshold="f1")
    model = ModelSettings("gcn", "stacked", 4, arguments={"layers": 1, "final": "none"})
    run = train(found.graph_set(), tmp_path / "run", model, settings, device="cpu")
    (task,) = run.config.tasks
    assert task.level == "edge" and task.class_weights == pytest.approx((15 / 24, 15 / 6))
    assert 0 < run.summary["thresholds"]["fraud"]["mean"] < 1


def test_on_the_command_line(graphs, tmp_path) -> None:
    graphs.save(tmp_path / "g.safetensors")
    options = ["--loss", "kind=cross_entropy,toxic=bce,size=mse", "--class-weights", "toxic=1:4"]
    done = CliRunner().invoke(app, [
        "train", str(tmp_path / "g.safetensors"), "--out", str(tmp_path / "run"), "--epochs", "0",
        "--device", "cpu", "--balance-classes", "--model", "gcn", *options,
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    kind, toxic, size = Run(tmp_path / "run").config.tasks
    assert (toxic.class_weights, size.class_weights) == ((1.0, 4.0), ())
    assert kind.class_weights == pytest.approx((1.5, 3, 0.5))


def test_what_is_refused(graphs) -> None:
    for given, message in (
        (
            {"size": (1.0, 2.0)},
            r"class weights 1, 2 for the target 'size', expected none, .*number",
        ),
        ({"toxic": (1.0,)}, r"class weights 1 for the target 'toxic', expected 2, one for each"),
        ({"kind": (1.0, -1.0, 2.0)}, r"expected 3, one for each class: finite, at least 0"),
        ({"toxic": (0.0, 0.0)}, "not all 0"),
        ({"toxic": (1.0, math.inf)}, "finite"),
        ({"toxik": (1.0, 2.0)}, "unknown target 'toxik'; did you mean 'toxic'"),
    ):
        with pytest.raises(ValueError, match=message):
            weighted(graphs, **given)
    training = graphs.split("train")
    with pytest.raises(ValueError, match="got balance_classes for targets that are numbers"):
        with_class_weights(tasks_of(graphs, "mse"), training, {}, True)
    soft = replace(graphs, y_graph=graphs.y_graph * 0.5)
    with pytest.raises(ValueError, match=r"got 0.5 for the target 'toxic', expected 0 or 1"):
        with_class_weights(tasks_of(soft, "bce", chosen=["toxic"]), soft, {}, True)


#: Two targets of two classes and one of three, with missing values.
TABLE = """smiles,toxic,active,kind,part
CCO,0,1,0,train
CCN,0,,1,train
CCCl,1,0,1,train
CC#N,0,0,2,train
CCCO,,1,1,train
CCCN,0,0,,train
CC,1,0,0,validation
c1ccccc1O,0,1,1,validation
CO,0,,2,validation
CCC,0,1,1,test
"""


@pytest.mark.parametrize("given", [False, True], ids=["balanced", "given"])
def test_the_loss_of_a_table_by_hand(given, tmp_path) -> None:
    """From the probabilities that `pna predict` writes of the validation molecules."""
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")
    path, run = tmp_path / "table.csv", str(tmp_path / "run")
    path.write_text(TABLE)
    # of the training molecules, 5 are known to be toxic or not, 5 active or not, 5 of a kind
    weights = {"toxic": (5 / 8, 5 / 2), "active": (5 / 6, 5 / 4), "kind": (5 / 3, 5 / 9, 5 / 3)}
    how = ["--balance-classes"]
    if given:
        weights = {"toxic": (1, 4), "active": (1, 1), "kind": (3, 1, 2)}
        how = ["--class-weights", "toxic=1:4,kind=3:1:2"]

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    small = ("--members", "1", "--hidden", "8", "--layers", "1", "--epochs", "2", "--device", "cpu")
    call("train", str(path), "--split", "part", "--loss", "kind=cross_entropy", *how, *small,
         "--out", run)  # fmt: skip
    head, *rows = (
        line.split(",") for line in call("predict", run, str(path), "--out", "-").splitlines()
    )
    validation = [dict(zip(head, row, strict=True)) for row in rows if "validation" in row]
    expected = {}
    for name, of_classes in weights.items():
        known = [row for row in validation if row[name]]
        if name == "kind":
            chances = [float(row[f"kind={row['kind']} predicted"]) for row in known]
        else:
            ones = [(float(row[f"{name} predicted"]), row[name]) for row in known]
            chances = [p if y == "1" else 1 - p for p, y in ones]
        own = [of_classes[int(row[name])] for row in known]
        losses = [-w * math.log(p) for w, p in zip(own, chances, strict=True)]
        expected[name] = sum(losses) / sum(own)
    found = json.loads(call("evaluate", run, "--split", "validation", "--json"))
    assert {t["name"]: t["loss"][0] for t in found["tasks"]} == pytest.approx(expected, rel=1e-5)
    assert Run(run).summary["best"] == pytest.approx([sum(expected.values()) / 3], rel=1e-5)
