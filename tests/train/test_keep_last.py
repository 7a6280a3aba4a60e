"""Weights of the last epoch, kept beside the best ones, also of members that stop earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pna.train.evaluation import evaluate
from pna.train.loop import train
from pna.train.run import load_population
from pna.train.settings import Settings
from tests.train.cases import SMALL, random_graphs

MODEL = SMALL["pna stacked"]
SETTINGS = Settings(
    members=4, epochs=7, patience=None, lr=(0.0, 1e-2, 1e-3, 0.0), batch_size=4, keep_last=True,
    schedule="plateau", plateau=1, min_lr=1e-4, precision="float64",
)  # fmt: skip


@pytest.mark.slow
def test_a_member_that_stops_is_kept_as_it_was_when_it_did(tmp_path):
    """Members without a learning rate stop after an epoch, and are left out of the population."""
    graphs = random_graphs()
    run = train(graphs, tmp_path / "all", MODEL, SETTINGS, device="cpu")
    rows = run.metrics()
    epochs = [max(int(r["epoch"]) for r in rows if r["member"] == k) for k in range(4)]
    assert epochs[0] < epochs[1]
    last = load_population(run, "last")[0]
    for k in range(4):
        alone = replace(SETTINGS, members=1, seed=k, lr=(SETTINGS.lr[k],), epochs=epochs[k])
        single = train(graphs, tmp_path / str(k), MODEL, alone, device="cpu")
        expected = load_population(single, "last")[0]
        torch.testing.assert_close(last.flat[k], expected.flat[0], rtol=1e-7, atol=1e-7)
        for name, buffer in expected.buffers.items():
            torch.testing.assert_close(last.buffers[name][k], buffer[0], rtol=1e-6, atol=1e-7)


def test_the_last_loss_is_that_of_the_metrics(tmp_path):
    graphs = random_graphs()
    run = train(graphs, tmp_path, MODEL, replace(SETTINGS, lr=(1e-2,), members=2), device="cpu")
    found = evaluate(run, graphs, "validation", device="cpu", epoch="last")
    rows = run.metrics()
    for k in range(2):
        row = max((r for r in rows if r["member"] == k), key=lambda r: r["epoch"])
        assert found.loss[k] == pytest.approx(row["validation"], rel=1e-9)


@pytest.mark.slow
def test_resumed_it_is_the_same(tmp_path):
    graphs = random_graphs()
    whole = train(graphs, tmp_path / "whole", MODEL, SETTINGS, device="cpu")
    part = train(graphs, tmp_path / "part", MODEL, replace(SETTINGS, epochs=3), device="cpu")
    train(graphs, part.folder, resume=True, epochs=7, device="cpu")
    assert torch.equal(
        load_population(part, "last")[0].flat, load_population(whole, "last")[0].flat
    )


def test_what_was_not_kept_is_refused(tmp_path):
    graphs = random_graphs()
    run = train(graphs, tmp_path, MODEL, replace(SETTINGS, keep_last=False, epochs=1), device="cpu")
    with pytest.raises(ValueError, match=r"only the best weights of its members.*keep_last"):
        evaluate(run, graphs, "validation", epoch="last")
    with pytest.raises(ValueError, match="unknown epoch 'first'"):
        evaluate(run, graphs, "validation", epoch="first")
