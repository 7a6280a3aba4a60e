"""Weights of graphs in the loss: beside repeated graphs, and beside sums by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pna import GraphSet
from pna.cli import app
from pna.nn.architectures import Prediction
from pna.train import Run, Settings, evaluate, train
from pna.train.class_weights import with_class_weights
from pna.train.settings import ModelSettings
from pna.train.tasks import count_targets, summed_errors, targets_of, tasks_of
from tests.train.cases import labelled, one_graph, random_graphs, trainer_of

#: Without batch normalisation and δ, which would count a repeated graph twice.
MODEL = ModelSettings("pna-no-scalers", "stacked", 4, arguments={"layers": 2, "norm": "layer"})
WHOLE = Settings(members=2, batch_size=100, shuffle=False, epochs=5, lr=(1e-2, 3e-3))


def weighted(graphs: GraphSet, weights) -> GraphSet:
    return replace(graphs, sample_weight=torch.as_tensor(weights, dtype=torch.float32))


@pytest.mark.parametrize("pad", [False, True])
def test_a_weight_of_three_is_a_graph_three_times(pad):
    graphs = random_graphs(train=6, validation=4, missing=True)
    times = torch.tensor([1, 3, 2, 1, 2, 1, 2, 1, 1, 3])
    repeated = graphs[torch.repeat_interleave(torch.arange(10), times)]
    one = trainer_of(weighted(graphs, times / 4), MODEL, WHOLE, pad=pad)
    other = trainer_of(repeated, MODEL, WHOLE)
    for epoch in range(3):
        for found, expected in zip(one.run_epoch(epoch), other.run_epoch(epoch), strict=True):
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(one.population.flat, other.population.flat)
    plain = trainer_of(graphs, MODEL, WHOLE)
    assert (one.run_epoch(0)[0] != plain.run_epoch(0)[0]).all()


def test_equal_weights_change_nothing():
    graphs, settings = random_graphs(), replace(WHOLE, batch_size=4, shuffle=True)
    one = trainer_of(weighted(graphs, [0.3] * 15), MODEL, settings, dtype=torch.float32)
    other = trainer_of(graphs, MODEL, settings, dtype=torch.float32)
    for epoch in range(2):
        for found, expected in zip(one.run_epoch(epoch), other.run_epoch(epoch), strict=True):
            assert torch.equal(found, expected)
    assert torch.equal(one.population.flat, other.population.flat)


def test_a_batch_of_weight_0_gives_no_gradient():
    graphs = weighted(random_graphs(train=8), [0.0] * 4 + [0.5] * 2 + [1.0] * 7)
    settings = replace(WHOLE, batch_size=4)
    found = trainer_of(graphs, MODEL, settings).run_epoch(0)[0]
    torch.testing.assert_close(found, trainer_of(graphs[4:], MODEL, settings).run_epoch(0)[0])


def test_a_batch_is_divided_by_its_own_weights():
    """So that a weight changes nothing in a batch of one graph, small as it may be."""
    graphs, settings = random_graphs(), replace(WHOLE, batch_size=1)
    one = trainer_of(weighted(graphs, np.logspace(-7, 0, 15)), MODEL, settings)
    other = trainer_of(graphs, MODEL, settings)
    one.run_epoch(0), other.run_epoch(0)
    torch.testing.assert_close(one.population.flat, other.population.flat)


def test_sums_by_hand_with_classes_and_missing_targets():
    """A weight of the sample and one of the class are multiplied."""
    y = np.array([[1.0, 5.0], [0.0, np.nan], [1.0, 1.0]])
    graphs = GraphSet.from_arrays(
        [1, 2, 1], np.zeros((2, 0), int), [0] * 3, x=np.ones((4, 1)), y_graph=y,
        graph_targets=["toxic", "size"], y_node=np.array([1.0, 2, 3, 4]), node_targets=["node"],
        sample_weight=[1, 2, 4],
    )  # fmt: skip
    tasks = tasks_of(graphs, {"toxic": "bce", "size": "mae_in_units", "node": "mae_in_units"})
    tasks = with_class_weights(tasks, graphs, {"toxic": (1.0, 3.0)}, False)
    targets = targets_of(tasks, graphs.batch(), torch.float64)
    outputs = torch.tensor([[0.0, 4.0], [0.0, 9.0], [0.0, 3.0]], dtype=torch.float64)
    given = Prediction(torch.zeros(4, 1, dtype=torch.float64), outputs)
    sums = dict(zip([t.name for t in tasks], summed_errors(tasks, given, targets), strict=True))
    counts = dict(zip([t.name for t in tasks], count_targets(targets, 3), strict=True))
    log2 = np.log(2)  # the loss of an even chance
    assert sums["toxic"].item() == pytest.approx((1 * 3 + 2 * 1 + 4 * 3) * log2)
    assert counts["toxic"].item() == 1 * 3 + 2 * 1 + 4 * 3
    assert (sums["size"].item(), counts["size"].item()) == (1 * 1 + 4 * 2, 5)
    assert (sums["node"].item(), counts["node"].item()) == (1 * 1 + 2 * (2 + 3) + 4 * 4, 9)


def test_a_run_says_that_losses_are_weighted(tmp_path):
    graphs = weighted(random_graphs(), np.arange(15) % 4)
    run = train(graphs, tmp_path / "run", MODEL, WHOLE, device="cpu")
    assert Run(run.folder).config.data["weighted"] is True
    found = evaluate(run, graphs, "validation", device="cpu")
    assert found.weighted and found.loss == pytest.approx(run.summary["best"], rel=1e-5)
    plain = evaluate(run, replace(graphs, sample_weight=None), "validation", device="cpu")
    assert not plain.weighted and plain.loss != pytest.approx(found.loss, rel=1e-3)
    assert plain.metrics == found.metrics


def test_what_is_refused(tmp_path):
    graphs, edges = random_graphs(), labelled(one_graph())
    for weights, message in (
        ([1.0] * 14, r"shape \(14,\), expected \(15,\)"),
        ([-1.0] + [1.0] * 14, "got -1 as sample_weight of graph 0, expected a finite number"),
        ([1.0] * 14 + [np.nan], "got nan as sample_weight of graph 14"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphSet.from_arrays(
                [1] * 15, np.zeros((2, 0), int), [0] * 15, sample_weight=weights
            )  # fmt: skip
        weighted(graphs, weights).save(tmp_path / "odd.safetensors", force=True)
        with pytest.raises(ValueError, match=message):
            GraphSet.load(tmp_path / "odd.safetensors")
    for odd, message in (
        (weighted(graphs, [1.0] * 10 + [0.0] * 5), "weights of 0 for all values of the target 'a'"),
        (weighted(edges, [1.0]), "for targets of edges, expected targets of graphs or nodes"),
    ):
        with pytest.raises(ValueError, match=message):
            train(odd, tmp_path / "run", "gcn", WHOLE, device="cpu")
    with pytest.raises(ValueError, match="got weights in one of the parts 0 and 1"):
        GraphSet.concat([graphs, weighted(graphs, [1.0] * 15)])


class TestTables:
    pytest.importorskip("rdkit", reason="reading molecules needs pna[chem]")
    pytest.importorskip("ogb", reason="reading molecules needs pna[chem]")

    ROWS = (
        *(("CCO", 1.5, 2, "train"), ("CCN", 1.1, 0.5, "train"), ("CCCl", -1, 1, "train")),
        *(("CC#N", 0.2, 3, "validation"), ("CCC", 2.5, 1, "validation"), ("C", 7, 0, "test")),
    )

    def table(self, folder, **cells):
        lines = ["smiles,logS,trust,part", *(",".join(map(str, row)) for row in self.ROWS)]
        lines[3] = lines[3].replace(",1,", f",{cells.get('weight', 1)},")
        path = folder / "measured.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    def train(self, path, folder, *options):
        small = (
            "--members",
            "1",
            "--hidden",
            "4",
            "--layers",
            "1",
            "--epochs",
            "2",
            "--device",
            "cpu",
        )
        given = ("--split", "part", "--out", str(folder / "run"), *small)
        return CliRunner().invoke(app, ["train", str(path), *given, *options])

    def test_the_loss_by_hand(self, tmp_path):
        path = self.table(tmp_path)
        done = self.train(path, tmp_path, "--weight", "trust")
        assert done.exit_code == 0, done.output
        assert "weights in the loss: from 0 to 3" in done.output
        assert "losses are weighted by the weights of the graphs; metrics are not" in done.output
        run = Run(tmp_path / "run")
        (task,) = run.config.tasks  # the weight is no target
        assert task.name == "logS"
        shown = CliRunner().invoke(app, ["predict", str(run.folder), str(path), "--out", "-"])
        lines = [line.split(",") for line in shown.output.strip().splitlines()]
        predicted = [float(line[lines[0].index("logS predicted")]) for line in lines[4:6]]
        errors = [((p - y) / task.scale) ** 2 for p, y in zip(predicted, (0.2, 2.5), strict=True)]
        by_hand = (3 * errors[0] + 1 * errors[1]) / 4
        found = CliRunner().invoke(
            app, ["evaluate", str(run.folder), "--split", "validation", "--json"]
        )
        scores = json.loads(found.output)
        assert scores["weighted"] is True
        assert scores["loss"] == pytest.approx([by_hand], rel=1e-4)
        assert run.summary["best"] == pytest.approx([by_hand], rel=1e-4)

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            ("", "got '' as trust in line 4 of"),
            ("-2", "got '-2' as trust in line 4 of"),
            ("much", "got 'much' as trust in line 4 of"),
        ],
    )
    def test_odd_weights_have_a_line(self, weight, message, tmp_path):
        done = self.train(self.table(tmp_path, weight=weight), tmp_path, "--weight", "trust")
        assert done.exit_code == 1 and message in " ".join(done.output.split())

    def test_columns_that_are_no_weights(self, tmp_path):
        path = self.table(tmp_path)
        done = self.train(path, tmp_path, "--weight", "logS", "--targets", "logS")
        assert done.exit_code == 1 and "as a target and as the weight" in done.output
        path.write_text(path.read_text().replace(",2,", ",0,").replace(",0.5,", ",0,")
                        .replace(",1,", ",0,").replace(",3,", ",0,"))  # fmt: skip
        done = self.train(path, tmp_path, "--weight", "trust")
        assert done.exit_code == 1 and "got 0 as trust in all rows" in done.output
