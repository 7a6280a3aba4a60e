"""The best epoch is selected by any metric: the metric's own value, in batches and padded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.train.evaluation import evaluate
from pna.train.loop import train
from pna.train.metrics import METRICS, measure
from pna.train.selection import as_metric, selection_of
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import LOSSES, tasks_of
from tests.train.cases import random_graphs


def learned(members, tasks=1):
    """Every member learns every task."""
    return torch.ones(members, tasks, dtype=torch.bool)


def active(**given) -> GraphSet:
    """Graphs of which some are active, and some not known to be."""
    graphs = random_graphs(**given)
    rng = np.random.default_rng(1)
    y = torch.from_numpy((rng.random((len(graphs), 1)) < 0.4).astype(float))
    y[::7] = torch.nan
    return replace(
        graphs, y_node=None, y_graph=y, node_targets=(), graph_targets=("active",),
        node_scale=(), graph_scale=(1.0,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        (name, loss)
        for name, metric in METRICS.items()
        for loss in ("mse", "bce", "cross_entropy")
        if metric.suits(LOSSES[loss].outputs)
    ],
)
def test_scores_are_those_of_the_metric(name, loss):
    """Of three members and two targets, in batches of any order, one of them padded."""
    graphs = active(train=40, validation=0)
    graphs = replace(
        graphs, y_graph=torch.cat([graphs.y_graph, 1 - graphs.y_graph.roll(3, 0)], 1),
        graph_targets=("active", "other"), graph_scale=(4.0, 0.5),
    )  # fmt: skip
    tasks = tasks_of(graphs, loss)
    selection = selection_of(name, tasks, graphs, learned(3, 2), torch.float64)
    width = sum(task.outputs for task in tasks)
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.integers(-5, 6, (3, 40, width)) / 2)  # with ties
    for _ in range(2):  # what was seen is forgotten
        for start in (25, 0):
            ids = torch.arange(start, min(start + 25, 40))
            batch, given = graphs.batch(ids), outputs[:, ids]
            if start == 25:  # the rest is in no batch, as if it were padding
                batch = replace(batch, real=torch.arange(len(ids)) < 15)
            columns = torch.stack([selection.columns(Prediction(None, o)) for o in given])
            selection.keep(torch.arange(3), batch, columns)
        expected = [
            np.mean([
                measure(name, *_meant(task, name, row), graphs.y_graph[:, task.column] / scale)
                for task in tasks
                for scale in [task.scale if name == "log10_mse" else 1]
            ])
            for row in outputs
        ]  # fmt: skip
        found = np.array([as_metric(score, name) for score in selection.score().tolist()])
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def _meant(task, name, outputs):
    """The predictions of a task by its outputs (rows, outputs) of one member."""
    own = outputs[:, task.first : task.end]
    if task.loss == "cross_entropy":
        return [own.softmax(1)]
    if task.loss == "bce":
        return [own[:, 0].sigmoid()]
    return [own[:, 0] * (1 if name == "log10_mse" else task.scale)]


def test_what_is_not_finite_is_not_judged():
    graphs = active(train=40, validation=0)
    selection = selection_of("roc_auc", tasks_of(graphs, "bce"), graphs, learned(2), torch.float64)
    outputs = torch.rand(2, 40).double()
    outputs[1, 3] = torch.nan
    selection.keep(torch.arange(2), graphs.batch(), outputs)
    score = selection.score()
    assert score[0].isfinite() and score[1].isnan()


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("rmse", "mse"),
        ("roc_auc", "bce"),
        pytest.param("mcc", "bce", marks=pytest.mark.slow),
        pytest.param("f1", "cross_entropy", marks=pytest.mark.slow),
    ],
)
def test_the_best_epoch_is_that_of_the_best_metric(name, loss, tmp_path):
    """Of a run that is resumed after every epoch, and so with every metric of its last weights."""
    graphs = active(train=30, validation=30)
    other = torch.arange(60)[:, None] % 5 % 2
    graphs = replace(graphs, y_graph=torch.cat([graphs.y_graph, other], 1),
                     graph_targets=("active", "other"), graph_scale=(4.0, 0.5))  # fmt: skip
    settings = Settings(
        members=2, epochs=1, patience=None, lr=3e-2, batch_size=15, select=name, keep_last=True,
        precision="float64",
    )  # fmt: skip
    model = ModelSettings("gcn", "stacked", 4, arguments={"layers": 1, "final": "none"})
    values = []
    for epoch in range(1, 5):
        given = {"settings": settings} if epoch == 1 else {"resume": True, "epochs": epoch}
        run = train(graphs, tmp_path / "run", model, loss=loss, device="cpu", **given)
        found = evaluate(run, graphs, "validation", device="cpu", epoch="last")
        values.append(found.metrics[name])  # mean over both targets
    signed = METRICS[name].sign * np.array(values)
    assert run.summary["best_epoch"] == (1 + signed.argmin(0)).tolist()
    best = [as_metric(score, name) for score in run.summary["best"]]
    np.testing.assert_allclose(best, METRICS[name].sign * signed.min(0), rtol=1e-9)
    whole = train(graphs, tmp_path / "whole", model, replace(settings, epochs=4), loss=loss,
                  device="cpu")  # fmt: skip
    for key in ("best", "best_epoch"):
        assert whole.summary[key] == run.summary[key]
    found = evaluate(run, graphs, "validation", device="cpu").metrics[name]
    np.testing.assert_allclose(found, best, rtol=1e-9)


def test_targets_without_the_metric_are_left_out():
    graphs = active(train=40, validation=0)
    constant = torch.ones(40, 1)
    graphs = replace(graphs, y_graph=torch.cat([constant, graphs.y_graph], 1),
                     graph_targets=("constant", "active"), graph_scale=(1.0, 1.0))  # fmt: skip
    outputs = torch.rand(1, 40, 2, generator=torch.Generator().manual_seed(0)).double()
    y = graphs.y_graph[:, 1]
    for name in ("roc_auc", "average_precision"):
        with pytest.warns(UserWarning, match=r"values of 'constant' are equal, .* other targets"):
            selection = selection_of(name, tasks_of(graphs, "bce"), graphs, learned(1, 2),
                                     torch.float64)  # fmt: skip
        columns = selection.columns(Prediction(None, outputs[0]))[None]
        selection.keep(torch.arange(1), graphs.batch(), columns)
        expected = measure(name, outputs[0, :, 1], y)
        assert 1 - selection.score().item() == pytest.approx(expected)
    only = torch.tensor([[True, False], [True, True]])  # member 0 learns no other
    with pytest.raises(ValueError, match=r"'constant' are equal.*expected a target with several"):
        selection_of("roc_auc", tasks_of(graphs, "bce"), graphs, only, torch.float64)


@pytest.mark.parametrize(
    ("name", "loss", "fits"),
    [
        ("roc_auc", "mse", "loss, rmse, mae, r2, spearman, mse, log10_mse"),
        ("rmse", "bce", "loss, roc_auc, average_precision, f1, mcc, accuracy, balanced_accuracy"),
        ("r2", {"active": "bce", "other": "mse"}, "loss"),
    ],
)
def test_metrics_that_do_not_suit_the_targets_are_refused(name, loss, fits, tmp_path):
    graphs = active()
    graphs = replace(graphs, y_graph=graphs.y_graph.repeat(1, 2), graph_scale=(1.0, 1.0),
                     graph_targets=("active", "other"))  # fmt: skip
    with pytest.raises(ValueError, match=rf"select='{name}' with active \(trained with .*one of "
                                         rf"{fits} \(--select\)$"):  # fmt: skip
        train(graphs, tmp_path / "run", "gcn", Settings(select=name), loss=loss, device="cpu")
    assert not (tmp_path / "run").exists()


def test_what_is_refused():
    none = active()
    none = replace(none, y_graph=torch.zeros_like(none.y_graph))
    with pytest.raises(ValueError, match=r"'active' are equal, so that ROC AUC is not defined"):
        selection_of("roc_auc", tasks_of(none, "bce"), none, learned(1), torch.float64)
    graphs = random_graphs()
    with pytest.raises(ValueError, match=r"select='rmse' with targets .* several levels"):
        selection_of("rmse", tasks_of(graphs), graphs, learned(1), torch.float64)
    with pytest.raises(ValueError, match="unknown select 'auc'"):
        Settings(select="auc")
