"""Validation judged by the area under the ROC curve: the metric's own, in batches and padded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pna.data.graphset import GraphSet
from pna.nn.architectures import Prediction
from pna.train.evaluation import evaluate
from pna.train.loop import train
from pna.train.metrics import roc_auc
from pna.train.selection import RocAuc
from pna.train.settings import Settings
from pna.train.tasks import tasks_of
from tests.train.cases import SMALL, random_graphs


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


def test_areas_are_those_of_the_metric():
    """Of three members, with ties, in batches of any order, one of them padded."""
    graphs = active(train=40, validation=0)
    tasks = tasks_of(graphs, "bce")
    selection = RocAuc(tasks, graphs, learned(3, len(tasks)), torch.float64)
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.integers(0, 6, (3, 40)) / 2)
    for _ in range(2):  # what was seen is forgotten
        for start in (25, 0):
            ids = torch.arange(start, min(start + 25, 40))
            batch = graphs.batch(ids)
            given = outputs[:, ids]
            if start == 25:
                batch = replace(batch, real=torch.arange(len(ids)) < 15)
            columns = torch.stack([selection.columns(Prediction(None, o[:, None])) for o in given])
            selection.keep(torch.arange(3), batch, columns)
        y = graphs.y_graph[:, 0].numpy()
        known = ~np.isnan(y)
        expected = [1 - roc_auc(row[known], y[known]) for row in outputs.numpy()]
        np.testing.assert_allclose(selection.score().numpy(), expected, rtol=1e-12)


def test_what_is_not_finite_is_not_judged():
    graphs = active(train=40, validation=0)
    selection = RocAuc(tasks_of(graphs, "bce"), graphs, learned(2), torch.float64)
    outputs = torch.rand(2, 40).double()
    outputs[1, 3] = torch.nan
    selection.keep(torch.arange(2), graphs.batch(), outputs)
    score = selection.score()
    assert score[0].isfinite() and score[1].isnan()


def test_the_best_epoch_is_that_of_the_largest_area(tmp_path):
    graphs = active(train=30, validation=30)
    settings = Settings(
        members=2, epochs=6, patience=None, lr=3e-2, batch_size=8, select="roc_auc",
        keep_last=True, precision="float64",
    )  # fmt: skip
    run = train(graphs, tmp_path, SMALL["pna stacked"], settings, loss="bce", device="cpu")
    best, last = (evaluate(run, graphs, "validation", device="cpu", epoch=e).tasks[0].metrics
                  for e in ("best", "last"))  # fmt: skip
    np.testing.assert_allclose(1 - np.array(best["roc_auc"]), run.summary["best"], rtol=1e-9)
    assert all(b >= e for b, e in zip(best["roc_auc"], last["roc_auc"], strict=True))


def test_what_is_refused():
    graphs = active()
    with pytest.raises(ValueError, match=r"select='roc_auc' with active, expected .* bce"):
        RocAuc(tasks_of(graphs, "mse"), graphs, learned(1), torch.float64)
    none = replace(graphs, y_graph=torch.zeros_like(graphs.y_graph))
    with pytest.raises(ValueError, match="'active' has only one class"):
        RocAuc(tasks_of(none, "bce"), none, learned(1), torch.float64)
    with pytest.raises(ValueError, match="unknown select 'auc'"):
        Settings(select="auc")
