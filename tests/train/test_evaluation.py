"""Evaluations agree with training, and with metrics of the predictions."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pna.train import evaluate, predict
from pna.train.evaluation import _targets
from pna.train.metrics import measure
from pna.train.task_metrics import TaskPredictions
from pna.train.tasks import Task
from tests.train.small_runs import molecules, small_multitask, small_run

LOSSES = {"active": "bce", "kind": "cross_entropy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def multitask_run(folder):
    return small_run(small_multitask(), folder / "multitask")


@pytest.fixture(scope="module")
def molecules_run(folder):
    return small_run(molecules(), folder / "molecules", loss=LOSSES)


@pytest.mark.parametrize("which", ["multitask_run", "molecules_run"])
def test_validation_loss_is_that_of_training(which, request):
    run = request.getfixturevalue(which)
    found = evaluate(run, split="validation")
    assert found.members == [0, 1]
    assert found.loss == pytest.approx(run.summary["best"], rel=1e-4)
    assert found.best == int(np.argmin(run.summary["best"]))
    last = [row for row in run.metrics() if row["epoch"] == run.summary["best_epoch"][0]]
    for task in found.tasks:
        assert task.loss[0] == pytest.approx(last[0][f"validation {task.name}"], rel=1e-4)


def test_metrics_are_of_the_predictions(multitask_run):
    graphs = small_multitask().split("test")
    found = evaluate(multitask_run)
    assert found.split == "test" and found.graphs == len(graphs)
    for task in found.tasks:
        level = graphs.node_targets if task.level == "node" else graphs.graph_targets
        column = level.index(task.name)
        y = (graphs.y_node if task.level == "node" else graphs.y_graph)[:, column].numpy()
        scale = (graphs.node_scale if task.level == "node" else graphs.graph_scale)[column]
        given = predict(multitask_run, graphs, 1)
        own = (given.node if task.level == "node" else given.graph)[task.name]
        assert task.metrics["mae"][1] == pytest.approx(measure("mae", own, y))
        assert task.metrics["rmse"][1] == pytest.approx(math.sqrt(np.mean((own - y) ** 2)))
        assert task.scaled["mae"][1] == pytest.approx(measure("mae", own, y) / scale)
        assert task.scaled["mse"][1] == pytest.approx(task.loss[1])
        assert task.metrics["log10_mse"][1] == pytest.approx(math.log10(task.loss[1]))
    for name in ("log10_mse", "rmse"):  # of targets in other units too, as MoleculeNet's
        assert found.metrics[name][0] == pytest.approx(
            np.mean([task.metrics[name][0] for task in found.tasks])
        )
    assert found.metrics["log10_of_mean_mse"][0] == pytest.approx(math.log10(found.loss[0]))


def read(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_the_ensemble_is_what_predict_writes(molecules_run, tmp_path):
    """Read back from the file, and measured by scikit-learn and scipy."""
    sklearn = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    graphs = molecules()
    (path,) = predict(molecules_run, graphs).save(tmp_path / "given.csv")
    given, (active, kind, size) = read(path), graphs.y_graph.double().numpy().T
    found = evaluate(molecules_run, graphs, split=None)
    of_active, of_kind, of_size = (task.ensemble for task in found.tasks)
    known = ~np.isnan(active)
    y, p = active[known], np.array(given["active"], float)[known]
    assert of_active == {
        "roc_auc": pytest.approx(sklearn.roc_auc_score(y, p)),
        "average_precision": pytest.approx(sklearn.average_precision_score(y, p)),
        "f1": pytest.approx(sklearn.f1_score(y, p >= 0.5)),
        "mcc": pytest.approx(sklearn.matthews_corrcoef(y, p >= 0.5)),
        "accuracy": pytest.approx(sklearn.accuracy_score(y, p >= 0.5)),
        "balanced_accuracy": pytest.approx(sklearn.balanced_accuracy_score(y, p >= 0.5)),
    }
    chosen = np.array(given["kind"], float)
    assert of_kind["accuracy"] == pytest.approx(sklearn.accuracy_score(kind, chosen))
    assert of_kind["mcc"] == pytest.approx(sklearn.matthews_corrcoef(kind, chosen))
    p = np.array(given["size"], float)
    assert of_size["rmse"] == pytest.approx(sklearn.root_mean_squared_error(size, p))
    assert of_size["mae"] == pytest.approx(sklearn.mean_absolute_error(size, p))
    assert of_size["r2"] == pytest.approx(sklearn.r2_score(size, p), rel=1e-5)
    assert of_size["spearman"] == pytest.approx(stats.spearmanr(size, p).statistic)
    assert of_size["rmse"] < np.mean(found.tasks[2].metrics["rmse"])  # the squared error is convex


def test_one_member_is_its_own_ensemble(molecules_run):
    found = evaluate(molecules_run, member=1, per_class=True)
    for task in found.tasks:
        assert task.ensemble == {name: value for name, (value,) in task.metrics.items()}
    active = found.tasks[0]
    for label, of_class in active.ensemble_classes.items():
        assert of_class == {name: value for name, (value,) in active.classes[label].items()}
    assert active.ensemble_threshold == 0.5 and found.tasks[2].ensemble_classes is None


def test_means_leave_out_targets_for_which_a_metric_is_not_defined(tmp_path):
    """As MoleculeNet does: each target over its known rows, then the mean over targets."""
    rng = np.random.default_rng(0)
    graphs = molecules(40)
    y = torch.from_numpy((rng.random((40, 3)) < 0.5).astype(np.float32))
    y[3::8, 0] = math.nan
    is_test = graphs.split_of_graph == graphs.splits.index("test")
    y[is_test, 1] = 1
    graphs = replace(graphs, y_graph=y)
    run = small_run(graphs, tmp_path / "run", loss="bce")
    first, constant, last = (found := evaluate(run)).tasks
    assert constant.undefined == ("roc_auc", "average_precision", "mcc")
    assert first.undefined == last.undefined == ()
    for name in ("roc_auc", "mcc"):
        assert math.isnan(constant.ensemble[name])
        both = [first.ensemble[name], last.ensemble[name]]
        assert found.ensemble[name] == pytest.approx(np.mean(both))
        both = [first.metrics[name], last.metrics[name]]
        assert found.metrics[name] == pytest.approx(np.mean(both, 0))
    every = [task.ensemble["f1"] for task in found.tasks]
    assert found.ensemble["f1"] == pytest.approx(np.mean(every))


def test_classes(molecules_run):
    graphs = molecules()
    found = evaluate(molecules_run, graphs, split=None, member=1)
    assert found.members == [1] and found.best == 0 and found.graphs == len(graphs)
    active, kind, size = found.tasks
    given, y = predict(molecules_run, graphs, 1).graph, graphs.y_graph.numpy()
    assert active.metrics == {
        name: [pytest.approx(measure(name, given["active"], y[:, 0]))]
        for name in ("roc_auc", "average_precision", "f1", "mcc", "accuracy", "balanced_accuracy")
    }
    assert set(kind.metrics) == {"accuracy", "balanced_accuracy", "f1", "mcc"}
    assert kind.metrics["accuracy"] == [pytest.approx((given["kind"] == y[:, 1]).mean())]
    shares = [(given["kind"] == c)[y[:, 1] == c].mean() for c in np.unique(y[:, 1])]
    assert kind.metrics["balanced_accuracy"] == [pytest.approx(np.mean(shares))]
    assert set(size.metrics) == {"rmse", "mae", "r2", "spearman", "mse", "log10_mse"}
    assert found.metrics == found.ensemble == {}  # nothing that all three have


def test_areas_are_of_what_a_model_says_before_it_is_a_probability():
    """The larger of which are all 1."""
    task = Task("active", "graph", 0, "bce", 0, 1)
    logits, y = np.array([[[50.0], [40.0], [60.0], [-1.0]]]), np.array([1.0, 0.0, 1.0, 0.0])
    found = TaskPredictions.of(task, logits, [0.5])
    assert found.metric("roc_auc", y) == found.metric("average_precision", y) == [1.0]


def test_targets_are_found_by_name(molecules_run):
    graphs = molecules()
    turned = replace(
        graphs, y_graph=graphs.y_graph.flip(1), graph_targets=graphs.graph_targets[::-1]
    )
    assert evaluate(molecules_run, turned) == evaluate(molecules_run, graphs)
    fewer = replace(graphs, y_graph=graphs.y_graph[:, :2], graph_targets=graphs.graph_targets[:2])
    with pytest.raises(
        ValueError, match=r"without the graph target 'size'.*: active, kind; evaluate"
    ):
        evaluate(molecules_run, fewer)


def test_a_target_that_is_all_missing_is_left_out_of_the_means(multitask_run):
    graphs = small_multitask()
    whole = evaluate(multitask_run, graphs)
    graphs.y_node[:, 1] = math.nan
    with pytest.warns(UserWarning, match=r"target 'eccentricity' in the split 'test', all are"):
        found = evaluate(multitask_run, graphs)
    assert all(math.isnan(loss) for loss in found.tasks[1].loss)
    others = [task.loss for task in whole.tasks if task.name != "eccentricity"]
    assert found.loss == pytest.approx(np.mean(others, 0))
    scaled = [task.scaled["mse"] for task in found.tasks if task.name != "eccentricity"]
    assert np.mean(scaled, 0) == pytest.approx(found.loss)
    assert found.metrics["log10_of_mean_mse"] == pytest.approx(np.log10(found.loss))
    graphs.y_node[:], graphs.y_graph[:] = math.nan, math.nan
    with pytest.raises(ValueError, match=r"'sssp', .*, all are missing .*, expected some"):
        evaluate(multitask_run, graphs)


def test_targets_that_a_file_lacks(multitask_run, tmp_path):
    path = tmp_path / "bare.safetensors"
    replace(small_multitask(), y_node=None, node_targets=(), node_scale=()).save(path)
    with pytest.raises(
        ValueError, match=r"of .*bare\.safetensors without the node target 'sssp'.*"
    ):
        evaluate(multitask_run, path)


def test_refuses(multitask_run):
    with pytest.raises(ValueError, match="unknown split 'tests'; did you mean 'test'"):
        evaluate(multitask_run, split="tests")
    bare = replace(small_multitask(), split_of_graph=None, splits=())
    with pytest.raises(ValueError, match=r"got graphs without splits.*--split ''"):
        evaluate(multitask_run, bare)
    with pytest.raises(ValueError, match="got no graphs"):
        evaluate(multitask_run, small_multitask()[:0])


@pytest.mark.parametrize(
    "target, value, message",
    [
        (1, 3.0, "got 3 for the target 'kind' in {}, expected 0 to 2, the classes that the model"),
        (1, 0.5, r"got 0\.5 for the target 'kind' in {}, expected classes 0, 1, 2"),
        (0, 2.0, "got 2 for the target 'active' in {}, expected numbers from 0 to 1"),
    ],
    ids=["a class that it does not know", "no class", "no probability"],
)
def test_targets_that_the_model_does_not_know_are_refused(molecules_run, target, value, message):
    graphs = molecules()
    graphs.y_graph[-1, target] = value
    for split, where in ((None, "the graphs"), ("test", "the split 'test'")):
        with pytest.raises(ValueError, match=message.format(where)):
            evaluate(molecules_run, graphs, split=split)


def test_a_level_in_a_name_is_found_without_it(molecules_run):
    """Where the set that was trained on had the name at both levels, and this one does not."""
    graphs, tasks = molecules(), molecules_run.config.tasks
    assert _targets(tasks[2], graphs, "it").tolist() == graphs.y_graph[:, 2].tolist()
    named = replace(tasks[2], name="graph.size")
    assert _targets(named, graphs, "it").tolist() == graphs.y_graph[:, 2].tolist()


def test_own_data_must_be_what_it_was(folder):
    graphs = small_multitask()
    run = small_run(graphs, folder / "moved", members=1, epochs=1)
    path = folder / "moved.safetensors"
    graphs[5:].save(path, force=True)
    with pytest.raises(ValueError, match="has changed since"):
        evaluate(run)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"moved\.safetensors, but that is gone"):
        evaluate(run)
    assert evaluate(run, graphs).graphs == 8
