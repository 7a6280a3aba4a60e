"""The multi-task comparison in small: PNA and its rivals on tiny graphs, within minutes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pna.data.describe import describe
from pna.data.graphset import GraphSet
from pna.data.multitask import multitask
from pna.paper.workers import Told, all_of
from pna.train.loop import train
from pna.train.population import Population
from pna.train.run import Run, load_population
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import Task, count_targets, summed_errors, targets_of

#: Convolutions by the names they are shown under.
MODELS = {
    "pna": "PNA",
    "mpnn-sum": "MPNN (sum)",
    "mpnn-max": "MPNN (max)",
    "gat": "GAT",
    "gcn": "GCN",
    "gin": "GIN",
}
SIZES = range(6, 10)  # nodes of a graph
GRAPHS = 256  # of each size, to train and to test
EPOCHS = 60
MEMBERS = 2  # runs of each model


@dataclass(frozen=True)
class Score:
    """How a model did on the test graphs."""

    model: str  # of `MODELS`
    seconds: float
    errors: tuple[tuple[float, ...], ...]  # log10 of the mean square error: members, tasks

    @property
    def averages(self) -> list[float]:
        """Of the tasks, for each member."""
        return [sum(member) / len(member) for member in self.errors]

    @property
    def average(self) -> float:
        return sum(self.averages) / len(self.averages)

    @property
    def tasks(self) -> list[float]:
        """Of the members, for each task."""
        return [sum(task) / len(task) for task in zip(*self.errors, strict=True)]


@dataclass(frozen=True)
class Comparison:
    """All models, and how far the mean of the training set gets as every prediction."""

    tasks: tuple[str, ...]
    baseline: tuple[float, ...]  # log10 of its mean square error, by task
    scores: tuple[Score, ...]

    @property
    def baseline_average(self) -> float:
        return sum(self.baseline) / len(self.baseline)


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
    data: Path, runs: Path, epochs: int = EPOCHS, workers: int = 1, told: Told = lambda *_: None
) -> Comparison:
    """Train every model of `MODELS` on the graphs in `data`, each to a run of its name in `runs`.

    Runs that are there already are replaced. `told` hears of every epoch.
    """
    for model in MODELS:
        if Run(runs / model).exists:
            shutil.rmtree(runs / model)
    graphs = GraphSet.load(data)
    targets = describe(graphs).targets
    jobs = [(model, data, runs / model, epochs) for model in MODELS]
    # one thread each: steps are so small that more would wait for each other
    scores = all_of(_train, jobs, workers, told, threads=1)
    return Comparison(
        tuple(target.name for target in targets),
        tuple(target.baseline["test"] for target in targets),
        tuple(scores),
    )


def _train(model: str, data: Path, run: Path, epochs: int, told: Told) -> Score:
    settings = Settings(
        members=MEMBERS, epochs=epochs, patience=None, batch_size=64, shuffle=False, lr=(0.01,),
        weight_decay=(1e-6,), schedule="cosine", clip=1.0,
    )  # fmt: skip
    arguments: dict[str, Any] = {"final": "none"}
    if model.startswith(("pna", "mpnn")):
        arguments["towers"] = 4
    kind = ModelSettings(convolution=model, arguments=arguments)
    done = train(data, run, kind, settings, device="cpu", report=lambda now: told(model, now.epoch))
    population, config = load_population(done)
    errors = errors_on(population, config.tasks, GraphSet.load(data).split("test"))
    summary = done.summary
    assert summary is not None
    return Score(model, summary["seconds"], errors)


@torch.no_grad()
def errors_on(
    population: Population, tasks: Sequence[Task], graphs: GraphSet
) -> tuple[tuple[float, ...], ...]:
    """log10 of the mean error of every member and task."""
    population.train(False)
    batch = graphs.batch()
    targets = targets_of(tasks, batch, population.flat.dtype)
    sums = population.apply(batch, lambda p: summed_errors(tasks, p, targets))
    errors = (sums / count_targets(targets, len(tasks))).double().log10()
    return tuple(tuple(member) for member in errors.tolist())
