"""From an experiment to its scores: graphs are made, populations trained and tested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.describe import describe
from pna.data.graphset import GraphSet
from pna.files import replacing
from pna.machine import machine
from pna.paper.experiment import Experiment, Trial
from pna.paper.scores import Member, Numbers, Population, Scores
from pna.paper.workers import Told, all_of
from pna.train.evaluation import evaluate
from pna.train.loop import train
from pna.train.run import Run

SCORES, FACTS = "scores.csv", "facts.json"
_LOG_EVERY = 10  # epochs: of ten members and thousands of epochs every row would be too many


@dataclass(frozen=True)
class Tested:
    """A population that was trained and tested, and what it took."""

    population: Population
    facts: dict[str, Any]


def reproduce(
    experiment: Experiment,
    out: Path,
    runs: Path,
    *,
    protocol: str = "paper",
    recipe: str = "plain",
    members: int = 10,
    quick: bool = False,
    models: Sequence[str] = (),
    device: str | None = None,
    workers: int = 1,
    threads: int | None = None,
    resume: bool = False,
    told: Told = lambda *_: None,
    said: Callable[[str], None] = lambda _: None,
) -> Scores:
    """Train and test what an experiment asks for; its scores, also written to the folder `out`.

    Args:
        experiment: what to run.
        out: folder of its results, made if need be; results there are replaced at the end.
        runs: folder of graph sets and runs, which experiments share: a population that is
            trained already is not trained again.
        protocol: of the graphs.
        recipe: of `pna.paper.recipes.RECIPES`, how models are trained.
        members: of each population.
        quick: fewer graphs and epochs, to see that everything works.
        models: some rows of the experiment alone.
        device: a GPU if there is one, if left out.
        workers: populations trained at a time.
        threads: of each worker, where there are several.
        resume: go on with runs that were interrupted.
        told: hears of every epoch; `said` of what is being done.
    """
    trials = experiment.trials(protocol, recipe, members, quick, models)
    folders = [runs / folder_of(trial) for trial in trials]
    _check_unfinished(folders, resume)
    held = {trial.graphs for trial in trials} | {experiment.tests(protocol, quick)}
    files = {}
    for graphs in sorted(held, key=lambda g: g.name):
        if not (runs / f"{graphs.name}.safetensors").is_file():
            said(f"making the graphs {graphs.name}")
        files[graphs] = graphs.made(runs, workers)
    tests = files[experiment.tests(protocol, quick)]
    said(f"training {len(trials)} populations of {members}")
    jobs = [
        (trial, files[trial.graphs], folder, tests, experiment.splits, device)
        for trial, folder in zip(trials, folders, strict=True)
    ]
    tested = all_of(_train_and_test, jobs, workers, told, threads)
    names = [trial.variant.name for trial in trials]
    tasks, baseline = _baseline(tests, experiment.splits)
    scores = Scores(
        tasks,
        experiment.splits,
        {name: one.population for name, one in zip(names, tested, strict=True)},
        baseline,
    )
    facts = {
        "experiment": experiment.name,
        "protocol": protocol,
        "recipe": recipe,
        "quick": quick,
        "populations": {
            trial.variant.name: {"label": trial.variant.label, "row": trial.variant.row,
                                 "group": trial.variant.group, **one.facts}
            for trial, one in zip(trials, tested, strict=True)
        },
        "evaluated on": machine(),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    scores.save(out / SCORES)
    with replacing(out / FACTS) as file:
        json.dump(facts, file, indent=1, ensure_ascii=False)
        file.write("\n")
    return scores


def folder_of(trial: Trial) -> str:
    """Where a population belongs: a name for people, and a hash of all that decides about it, so
    that experiments which ask for the same one share it."""
    decided = {
        "graphs": trial.graphs.name,
        "model": trial.model.as_dict(),
        "settings": trial.settings.as_dict(),
    }
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return f"{trial.graphs.name}/{trial.model.convolution}-{digest[:8]}"


def _check_unfinished(folders: Sequence[Path], resume: bool) -> None:
    begun = [str(f) for f in folders if Run(f).exists and Run(f).summary is None]
    if begun and not resume:
        raise FileExistsError(
            f"got {', '.join(begun)}, begun and not finished; go on with --resume, or remove them"
        )


def _train_and_test(
    trial: Trial,
    data: Path,
    folder: Path,
    tests: Path,
    splits: Sequence[str],
    device: str | None,
    told: Told,
) -> Tested:
    run = Run(folder)
    name = trial.variant.name
    if run.summary is None:
        train(
            data,
            folder,
            trial.model,
            trial.settings,
            device=device,
            resume=run.exists,
            log_every=_LOG_EVERY,
            report=lambda now: told(name, now.epoch),
        )
    told(name, trial.settings.epochs)
    return test(run, tests, splits, device)


def test(run: Run, tests: Path, splits: Sequence[str], device: str | None = None) -> Tested:
    """Errors of all members of a finished run on some splits."""
    summary, config = run.summary, run.config
    assert summary is not None
    graphs = GraphSet.load(tests)
    errors = {}
    for split in splits:
        found = evaluate(run, graphs, split, device=device)
        table = np.full((config.settings.members, len(found.tasks)), np.nan)
        measured = np.array([task.metrics["mse"] for task in found.tasks]).T
        # a model that overflows is as wrong as can be; NaN means that a task was not learned
        table[found.members] = np.nan_to_num(measured, nan=np.inf, posinf=np.inf)
        errors[split] = table
    weights = config.settings.task_weights
    if weights:
        unlearned = np.array(weights) == 0
        errors = {split: np.where(unlearned, np.nan, table) for split, table in errors.items()}
    settings = config.settings
    members = tuple(
        Member(k, seed, lr, decay, float("inf") if best is None else best, epoch)
        for k, (seed, lr, decay, best, epoch) in enumerate(
            zip(
                settings.seeds, settings.of_members("lr"), settings.of_members("weight_decay"),
                summary["best"], summary["best_epoch"], strict=True,
            )
        )
    )  # fmt: skip
    environment = json.loads((run.folder / "environment.json").read_text())
    facts = {
        "parameters": summary["parameters"],
        "epochs": summary["epochs"],
        "seconds": round(summary["seconds"], 1),
        "broken": summary["broken"],
        "model": config.model.as_dict() | {"degrees": None},
        "settings": settings.as_dict(),
        "graphs": {**config.data, "path": None},
        "environment": environment,
    }
    return Tested(Population(members, errors), facts)


def _baseline(path: Path, splits: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Numbers]]:
    """Names of the tasks, and the error of predicting the mean of training, by split."""
    targets = describe(GraphSet.load(path)).targets
    errors = {split: 10.0 ** np.array([t.baseline[split] for t in targets]) for split in splits}
    return tuple(target.name for target in targets), errors


def load(folder: Path) -> tuple[Scores, dict[str, Any]]:
    """Scores and facts of a folder that `reproduce` wrote."""
    if not (folder / SCORES).is_file() or not (folder / FACTS).is_file():
        raise FileNotFoundError(
            f"got {folder}, which has no {SCORES} and {FACTS}, expected results of pna reproduce"
        )
    return Scores.load(folder / SCORES), json.loads((folder / FACTS).read_text())
