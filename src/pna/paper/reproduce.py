"""From an experiment to its scores: graphs are made, populations trained and tested."""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.files import replacing
from pna.machine import machine
from pna.paper.experiment import Experiment, Source, Trial, Variant
from pna.paper.scores import Member, Numbers, Population, Scores
from pna.paper.workers import Told, all_of
from pna.train.evaluation import evaluate
from pna.train.loop import train
from pna.train.metrics import BETTER, measure
from pna.train.run import Run
from pna.train.tasks import column_of, targets_by_name

SCORES, FACTS, CURVES = "scores.csv", "facts.json", "curves.csv"
_LOG_EVERY = 10  # epochs: of ten members and thousands of epochs every row would be too many
_FEW_EPOCHS = 1000  # of which every one is logged

Measured = Mapping[str, tuple[str, str]]  # split and epoch, by the name of the test


@dataclass(frozen=True)
class Tested:
    """A population that was trained and tested, and what it took."""

    population: Population
    facts: dict[str, Any]
    curve: list[dict[str, float]]  # of every epoch that was logged: mean losses of the members


def reproduce(
    experiment: Experiment,
    out: Path,
    runs: Path,
    *,
    protocol: str | None = None,
    recipe: str | None = None,
    members: int | None = None,
    quick: bool = False,
    models: Sequence[str | Variant] = (),
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
        out: folder of its results, made if need be. Rows of the same graphs and training that it
            has stay, but for those that are run now.
        runs: folder of graph sets and runs, which experiments share: a population that is
            trained already is not trained again.
        protocol: of the graphs; the experiment's usual one if left out, as of the next two.
        recipe: how models are trained, one of the experiment's.
        members: of each population.
        quick: fewer graphs and epochs, to see that everything works.
        models: some rows of the experiment alone, or some of its populations.
        device: a GPU if there is one, if left out.
        workers: populations trained at a time.
        threads: of each worker, where there are several.
        resume: go on with runs that were interrupted.
        told: hears of every epoch; `said` of what is being done.
    """
    begin = time.monotonic()
    protocol = experiment.protocols[0] if protocol is None else protocol
    recipe = experiment.recipes[0] if recipe is None else recipe
    members = experiment.members if members is None else members
    about = {
        "experiment": experiment.name, "protocol": protocol, "recipe": recipe, "quick": quick
    }  # fmt: skip
    kept = _kept(out, experiment, about)
    trials = experiment.trials(protocol, recipe, members, quick, models)
    folders = [runs / folder_of(trial) for trial in trials]
    _check_unfinished(folders, resume)
    is_first = not any(Run(folder).exists for folder in folders)
    held = {trial.graphs for trial in trials} | {experiment.tests(protocol, quick)}
    files: dict[Source, Path] = {}
    for graphs in sorted(held, key=lambda g: g.name):
        if not (runs / f"{graphs.name}.safetensors").is_file():
            said(f"making the graphs {graphs.name}")
        files[graphs] = graphs.made(runs, workers)
    tests = files[experiment.tests(protocol, quick)]
    said(f"training {len(trials)} populations of {members}")
    jobs = {
        folder: (
            trial,
            files[trial.graphs],
            folder,
            files[experiment.tests_of(trial, protocol, quick)],
            experiment.measured,
            experiment.metric,
            device,
        )
        for trial, folder in zip(trials, folders, strict=True)
    }  # those that differ: where it is quick, some do not
    found = all_of(_train_and_test, list(jobs.values()), workers, told, threads)
    of_folder = dict(zip(jobs, found, strict=True))
    for trial in trials:  # those of a population that another row has as well, too
        told(trial.variant.name, trial.settings.epochs)
    run_now = {
        trial.variant.name: _named(of_folder[folder], trial)
        for trial, folder in zip(trials, folders, strict=True)
    }
    every = kept | run_now
    rows = {v.name: every[v.name] for v in experiment.variants if v.name in every}
    names_of_tasks, baseline = _baseline(tests, experiment.measured, experiment.metric)
    scores = Scores(
        names_of_tasks,
        tuple(experiment.measured),
        {name: row.population for name, row in rows.items()},
        baseline,
        experiment.metric,
    )
    facts = about | {"populations": {name: row.facts for name, row in rows.items()}}
    if is_first and len(rows) == len(run_now):  # else the clock says nothing of what was before
        facts["took"] = {"seconds": round(time.monotonic() - begin, 1), "at a time": workers}
    out.mkdir(parents=True, exist_ok=True)
    scores.save(out / SCORES)
    _save_curves(out / CURVES, rows)
    with replacing(out / FACTS) as file:
        json.dump(facts, file, indent=1, ensure_ascii=False)
        file.write("\n")
    return scores


def _kept(out: Path, experiment: Experiment, about: Mapping[str, Any]) -> dict[str, Tested]:
    """Rows that a folder has already, if it is about the same; none if it was never finished."""
    if not ((out / SCORES).is_file() and (out / FACTS).is_file()):
        return {}
    try:
        scores, facts = load(out)
        same = all(facts[name] == value for name, value in about.items())
        if not same or scores.splits != tuple(experiment.measured):
            return {}
        where = {"evaluated on": facts.get("evaluated on")}  # once told of all rows at a time
        curves = load_curves(out / CURVES)
        return {
            name: Tested(population, where | facts["populations"][name], curves.get(name, []))
            for name, population in scores.populations.items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"got {out}, whose results cannot be read ({error}), expected some to add to; move "
            "them away"
        ) from error


def _named(tested: Tested, trial: Trial) -> Tested:
    """With what the row is called."""
    variant = trial.variant
    names = {"label": variant.label, "row": variant.row, "group": variant.group}
    return replace(tested, facts=names | tested.facts)


def folder_of(trial: Trial) -> str:
    """Where a population belongs: a name for people, and a hash of all that decides about it, so
    that experiments which ask for the same one share it."""
    decided = {
        "graphs": trial.graphs.name,
        "model": trial.model.as_dict(),
        "settings": trial.settings.as_dict(),
        "loss": trial.loss,
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
    measured: Measured,
    metric: str,
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
            loss=trial.loss,
            device=device,
            resume=run.exists,
            log_every=1 if trial.settings.epochs <= _FEW_EPOCHS else _LOG_EVERY,
            report=lambda now: told(name, now.epoch),
        )
    told(name, trial.settings.epochs)
    return test(run, tests, measured, metric, device)


def test(
    run: Run, tests: Path, measured: Measured, metric: str = "mse", device: str | None = None
) -> Tested:
    """A metric of all members of a finished run, on some splits and at some of its epochs."""
    summary, config = run.summary, run.config
    assert summary is not None
    graphs = GraphSet.load(tests)
    errors = {}
    worst = np.inf if BETTER[metric] > 0 else 0.0
    for name, (split, epoch) in measured.items():
        found = evaluate(run, graphs, split, device=device, epoch=epoch)
        table = np.full((config.settings.members, len(found.tasks)), np.nan)
        values = np.array([task.metrics[metric] for task in found.tasks]).T
        # a model that overflows is as wrong as can be; NaN means that a task was not learned
        table[found.members] = np.nan_to_num(values, nan=worst, posinf=worst)
        errors[name] = table
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
    environment = run.environment
    facts = {
        "parameters": summary["parameters"],
        "epochs": summary["epochs"],
        "seconds": round(summary["seconds"], 1),
        "broken": summary["broken"],
        "peak_memory": summary.get("peak_memory"),
        "model": config.model.as_dict() | {"degrees": None},
        "settings": settings.as_dict(),
        "graphs": {**config.data, "path": None},
        "environment": environment,
        "evaluated on": machine(),
    }
    return Tested(Population(members, errors), facts, _curve(run))


def _baseline(
    path: Path, measured: Measured, metric: str
) -> tuple[tuple[str, ...], dict[str, Numbers]]:
    """Names of the tasks, and the metric of predicting the mean of training, by test."""
    graphs = GraphSet.load(path)
    names = targets_by_name(graphs)
    known = {split: graphs.split(split) for split in {"train", *(s for s, _ in measured.values())}}
    errors = {
        name: np.array([_of_the_mean(known["train"], known[split], *place, metric)
                        for place in names.values()])
        for name, (split, _) in measured.items()
    }  # fmt: skip
    return tuple(names), errors


def _of_the_mean(train: GraphSet, test: GraphSet, level: str, column: int, metric: str) -> float:
    """A metric of one target where the mean of training is predicted: of classes, their shares."""
    seen, wanted = (column_of(part, level, column).double().numpy() for part in (train, test))
    scales = train.node_scale if level == "node" else train.graph_scale
    scale = scales[column] if metric == "mse" else 1.0
    if metric == "accuracy":
        shares = np.bincount(seen[~np.isnan(seen)].astype(int)) / len(seen)
        return measure(metric, np.tile(shares, (len(wanted), 1)), wanted)
    mean = np.full(len(wanted), np.nanmean(seen) / scale)
    return measure(metric, mean, wanted / scale)


def _curve(run: Run) -> list[dict[str, float]]:
    """Mean losses over the members that each epoch trained."""
    by_epoch: dict[float, list[dict[str, float]]] = {}
    for row in run.metrics():
        by_epoch.setdefault(row["epoch"], []).append(row)
    return [
        {"epoch": epoch, "members": len(rows)}
        | {name: float(np.mean([row[name] for row in rows])) for name in ("training", "validation")}
        for epoch, rows in by_epoch.items()
    ]


def _save_curves(path: Path, tested: Mapping[str, Tested]) -> None:
    with replacing(path) as file:
        writer = csv.DictWriter(file, ("population", "epoch", "members", "training", "validation"))
        writer.writeheader()
        for name, one in tested.items():
            writer.writerows({"population": name, **row} for row in one.curve)


def load_curves(path: Path) -> dict[str, list[dict[str, float]]]:
    """Losses by epoch of every population, from ``curves.csv``; of none where there is no such
    file."""
    curves: dict[str, list[dict[str, float]]] = {}
    if path.is_file():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                curves.setdefault(row.pop("population"), []).append(
                    {name: float(value) for name, value in row.items()}
                )
    return curves


def load(folder: Path) -> tuple[Scores, dict[str, Any]]:
    """Scores and facts of a folder that `reproduce` wrote."""
    if not (folder / SCORES).is_file() or not (folder / FACTS).is_file():
        raise FileNotFoundError(
            f"got {folder}, which has no {SCORES} and {FACTS}, expected results of pna reproduce"
        )
    return Scores.load(folder / SCORES), json.loads((folder / FACTS).read_text())
