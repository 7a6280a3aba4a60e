"""Results that nobody trained, to be shown."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pna.data.multitask.labels import SIX
from pna.paper.experiment import PROPERTIES, Variant
from pna.paper.registry import EXPERIMENTS
from pna.paper.results import CURVES, FACTS, SCORES
from pna.paper.scores import Member, ScoredPopulation, Scores

Errors = NDArray[np.float64]


def steadily(variant: Variant, split: int, members: int) -> Errors:
    """log10 errors: members are 0.01 apart, tasks and splits 0.1; PNA is 0.5 ahead."""
    ahead = 0.5 if variant.row in ("pna", "redrawn") else 0.0
    rows, columns = np.arange(members)[:, None], np.arange(len(SIX))[None]
    return -2.0 - ahead + 0.01 * rows + 0.1 * columns + 0.1 * split


def make(
    folder: Path,
    name: str,
    members: int = 6,
    quick: bool = False,
    errors: Callable[[Variant, int, int], Errors] = steadily,
    label: Callable[[str], str] = str,
) -> Path:
    """A folder as `pna reproduce` writes it. Members are better in validation the earlier."""
    experiment = EXPERIMENTS[name]
    splits, populations, facts = tuple(experiment.measured), {}, {}
    tasks = PROPERTIES["tasks"] if experiment.properties else SIX
    tasks = tasks if experiment.metric == "mse" else ("target",)
    protocol, recipe = experiment.protocols[0], experiment.recipes[0]
    for trial in experiment.trials(protocol, recipe, members, quick):
        variant, count = trial.variant, trial.settings.members
        logs = [errors(variant, s, count)[:, : len(tasks)] for s in range(len(splits))]
        found = {split: 10.0**log for split, log in zip(splits, logs, strict=True)}
        if variant.alone:
            unlearned = np.array(trial.settings.task_weights) == 0
            found = {split: np.where(unlearned, np.nan, mse) for split, mse in found.items()}
        broken = [bool(np.isposinf(log).all()) for log in logs[0]]
        populations[variant.name] = ScoredPopulation(
            tuple(
                Member(k, k, lr, 1e-6, float("inf") if broken[k] else 0.1 + k, 100)
                for k, lr in enumerate(trial.settings.of_members("lr"))
            ),
            found,
        )
        facts[variant.name] = {
            "label": label(variant.label), "row": variant.row, "group": variant.group,
            "parameters": 8350 + 10 * variant.hidden, "epochs": 9 * trial.settings.epochs // 10,
            "seconds": 90.0, "broken": broken, "peak_memory": 3 * 2**30,
            "model": trial.model.as_dict() | {"degrees": None},
            "settings": trial.settings.as_dict(), "graphs": {"path": None},
            "environment": {"gpu": "a card", "cpu": "a chip", "torch": "2.11.0", "commit": "abc"},
        }  # fmt: skip
    baseline = {split: np.full(len(tasks), 10.0**-1.5) for split in splits}
    folder.mkdir(parents=True, exist_ok=True)
    Scores(tasks, splits, populations, baseline, experiment.metric).save(folder / SCORES)
    lines = [f"{name},{epoch},{members},{1 / epoch},{2 / epoch}"
             for name in populations for epoch in range(1, 4)]  # fmt: skip
    head = "population,epoch,members,training,validation"
    (folder / CURVES).write_text("\n".join([head, *lines]))
    held = {"experiment": name, "protocol": protocol, "recipe": recipe, "quick": quick,
            "populations": facts,
            "took": {"seconds": 200.0, "at a time": 7}}  # fmt: skip
    (folder / FACTS).write_text(json.dumps(held))
    return folder


def save_scores(folder: Path, scores: Scores) -> None:
    """Scores as results, with facts of no population."""
    folder.mkdir(parents=True, exist_ok=True)
    scores.save(folder / SCORES)
    protocol, recipe = folder.name.split("-", 1)
    facts = {"experiment": folder.parent.name, "protocol": protocol, "recipe": recipe,
             "quick": False, "populations": {}}  # fmt: skip
    (folder / FACTS).write_text(json.dumps(facts))
