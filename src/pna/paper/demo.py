"""The multi-task comparison in small: PNA and its rivals on tiny graphs, within minutes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.paper.models import LABELS
from pna.paper.reproduce import baseline_errors, test
from pna.paper.scores import ScoredPopulation, Scores
from pna.paper.workers import OnEpoch, run_jobs
from pna.train.loop import train
from pna.train.run import Run
from pna.train.settings import ModelSettings, Settings

#: Convolutions by the names they are shown under.
MODELS = {name: LABELS[name] for name in ("pna", "mpnn-sum", "mpnn-max", "gat", "gcn", "gin")}
SIZES = range(6, 10)  # nodes of a graph
GRAPHS = 256  # of each size, to train and to test
EPOCHS = 50
MEMBERS = 2  # runs of each model
_MEASURED = {"test": ("test", "best")}  # split and epoch of the only test


def make_graphs(path: Path, graphs: int = GRAPHS) -> GraphSet:
    """Small graphs with the six targets, written in place of those there were.

    Their sizes are mixed once and for all, so that batches need not be drawn anew.
    """
    counts = {"train": graphs, "validation": max(graphs // 8, 1), "test": graphs}
    made = multitask(0, "paper", sizes=SIZES, counts=counts)
    made = made[np.random.default_rng(0).permutation(len(made))]
    made.save(path, force=True)
    return made


def compare(
    data: Path,
    runs: Path,
    epochs: int = EPOCHS,
    workers: int = 1,
    on_epoch: OnEpoch = lambda *_: None,
) -> Scores:
    """Train every model of `MODELS` on the graphs in `data`, each to a run of its name in `runs`.

    Runs that are there already are replaced. `on_epoch` is called after every epoch.
    """
    for model in MODELS:
        if Run(runs / model).exists:
            shutil.rmtree(runs / model)
    tasks, baseline = baseline_errors(data, _MEASURED, "mse")
    jobs = [(model, data, runs / model, epochs) for model in MODELS]
    # one thread each: steps are so small that more would wait for each other
    populations = run_jobs(_train, jobs, workers, on_epoch, threads=1)
    return Scores(tasks, ("test",), dict(zip(MODELS, populations, strict=True)), baseline)


def _train(model: str, data: Path, run: Path, epochs: int, on_epoch: OnEpoch) -> ScoredPopulation:
    settings = Settings(
        members=MEMBERS, epochs=epochs, patience=None, batch_size=64, shuffle=False, lr=(0.01,),
        weight_decay=(1e-6,), schedule="cosine", clip=1.0,
    )  # fmt: skip
    arguments: dict[str, Any] = {"final": "none"}
    if model.startswith(("pna", "mpnn")):
        arguments["towers"] = 4
    model_settings = ModelSettings(convolution=model, arguments=arguments)
    finished = train(
        data,
        run,
        model_settings,
        settings,
        device="cpu",
        report=lambda report: on_epoch(model, report.epoch),
    )
    return test(finished, data, _MEASURED, device="cpu").population
