"""Nodes of one graph: tolokers and minesweeper, which have ten given splits each.

They are not experiments of the paper. Ten members train at once, each with a split of its own; the
score is the mean over the splits of the area under the ROC curve, at each member's best epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.data.node_benchmarks import node_benchmark
from pna.paper.claims import Claim, best, measured_as
from pna.paper.experiment import Experiment, PlannedRun, Progress, Source, Variant
from pna.paper.real_world import LABELS
from pna.paper.thresholds import reaches
from pna.train.settings import ModelSettings, Settings

SPLITS, QUICK_EPOCHS = 10, 3
_TEST = "test, best epoch"
_ROWS = ("pna", "gcn", "gin", "gat", "sage")


@dataclass(frozen=True)
class NodesOfGraph:
    """One graph, whose targets have a column for each of its splits."""

    name: str

    def made(self, folder: Path, workers: int = 1, progress: Progress | None = None) -> Path:
        """The file of the graph in a folder, made if it is not there."""
        path = folder / f"{self.name}.safetensors"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            node_benchmark(self.name).graph_set(None).save(path)
            return path
        found = GraphSet.load(path)
        if found.metadata.get("graph") != self.name or len(found.node_targets) != SPLITS:
            raise ValueError(
                f"got {path} with another graph or other splits, expected {self.name} with "
                f"{SPLITS} splits; move it away, and the graph is made"
            )
        return path


@dataclass(frozen=True)
class NodeExperiment(Experiment):
    """All rows on the nodes of one graph. A row's `arguments` and `changes` are added to those of
    the experiment."""

    protocols: tuple[str, ...] = ("benchmark",)
    recipes: tuple[str, ...] = ("full-batch",)
    epochs: tuple[str, ...] = ("last", "best")
    splits: tuple[str, ...] = ("test", "validation")
    members: int = SPLITS
    metric: str = "roc_auc"
    loss: str = "bce"
    figure: str = "benchmark"
    ordered: bool = True
    hidden: int = 64
    arguments: dict[str, Any] = field(default_factory=dict)  # of every model
    settings: dict[str, Any] = field(default_factory=dict)  # of every training

    def tests(self, protocol: str, quick: bool = False) -> Source:
        return NodesOfGraph(self.name)

    def _trial(
        self, variant: Variant, protocol: str, recipe: str, members: int, quick: bool
    ) -> PlannedRun:
        # the loss of a member is a mean over all splits, of which it learns one
        own = np.eye(SPLITS)[np.arange(members) % SPLITS] * SPLITS
        settings = {
            "members": members, "patience": None, "select": "roc_auc", "keep_last": True,
            "full_batch": True, "task_weights": own.tolist(), **self.settings, **variant.changes,
        }  # fmt: skip
        if quick:
            settings["epochs"] = QUICK_EPOCHS
        arguments = self.arguments | variant.arguments
        model = ModelSettings(
            variant.convolution, variant.architecture, self.hidden, "default", arguments
        )
        return PlannedRun(variant, NodesOfGraph(self.name), model, Settings(**settings), self.loss)


def _row(name: str) -> Variant:
    heads = {"heads": 8} if name == "gat" else {}
    return Variant(name, LABELS[name], name, architecture="stacked", arguments=heads)


def _claims(least: float) -> tuple[Claim, ...]:
    return (
        Claim("Ours, not the paper's: PNA has the largest area",
              best("pna", _ROWS, measured_as("roc_auc", _TEST))),
        Claim(f"Ours, not the paper's: the area of PNA is at least {least}%",
              reaches("pna", least, _TEST)),
    )  # fmt: skip


TOLOKERS = NodeExperiment(
    "tolokers",
    "Tolokers: banned workers, nodes of one graph, area under the ROC curve",
    tuple(map(_row, _ROWS)),
    arguments={"layers": 5, "norm": "layer", "dropout": 0.2},
    settings={"epochs": 1000, "lr": 1e-3},
    claims=_claims(84.5),
)

MINESWEEPER = NodeExperiment(
    "minesweeper",
    "Minesweeper: squares with a mine, nodes of one graph, area under the ROC curve",
    tuple(map(_row, _ROWS)),
    arguments={"layers": 15, "norm": "batch", "dropout": 0.2, "feed_forward": 1.0},
    settings={"epochs": 2000, "lr": 5e-3, "schedule": "cosine"},
    claims=_claims(95.0),
)

EXPERIMENTS = (TOLOKERS, MINESWEEPER)
