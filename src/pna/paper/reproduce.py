"""From an experiment to its scores: graphs are made, populations trained and tested."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pna.data.graphset import GraphSet
from pna.files import alone
from pna.machine import machine
from pna.paper.experiment import Experiment, Progress, Source, Trial, Variant
from pna.paper.results import Results, Row, load
from pna.paper.scores import Member, Numbers, Population, Scores
from pna.paper.workers import Told, all_of
from pna.train.evaluation import evaluate
from pna.train.loop import check_data, train
from pna.train.metrics import BETTER, measure
from pna.train.run import Run
from pna.train.tasks import column_of, targets_by_name

_LOG_EVERY = 10  # epochs: of ten members and thousands of epochs every row would be too many
_FEW_EPOCHS = 1000  # of which every one is logged
_SILENCE = 5.0  # seconds without a word while graphs are made

Measured = Mapping[str, tuple[str, str]]  # split and epoch, by the name of the test


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
        out: folder of its results, made if need be; every row is written when it is finished. Rows
            that it has, of the same graphs and training, stay; those of the very runs asked for
            are not run again.
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
    results = Results.begun(out, experiment, about)
    asked = experiment.trials(protocol, recipe, members, quick, models)
    trials = [t for t in asked if not results.has(t.variant.name, folder_of(t))]
    for trial in asked:
        if trial not in trials:
            told(trial.variant.name, trial.settings.epochs)
    if len(trials) < len(asked):
        said(f"{out} has {len(asked) - len(trials)} of {len(asked)} populations already")
    if not trials:
        return load(out)[0]
    folders = [runs / folder_of(trial) for trial in trials]
    _check_unfinished(folders, resume)
    is_first = not results.rows and not any(Run(folder).exists for folder in folders)
    tests = experiment.tests(protocol, quick)
    files = _made({trial.graphs for trial in trials} | {tests}, runs, workers, said)
    tasks, baseline = _baseline(files[tests], experiment.measured, experiment.metric)
    results.check(baseline)
    for name in [t.variant.name for t in trials if t.variant.name in results.rows]:
        count = len(results.rows[name].population.members)
        said(f"{name}: a row of {count} members is there, and will be replaced")
    said(f"training {len(trials)} populations of {members}")
    of_folder: dict[Path, list[Trial]] = {}  # those that differ: where it is quick, some do not
    for trial, folder in zip(trials, folders, strict=True):
        of_folder.setdefault(folder, []).append(trial)
    jobs = [
        (
            trial,
            files[trial.graphs],
            folder,
            files[experiment.tests_of(trial, protocol, quick)],
            experiment.measured,
            experiment.metric,
            device,
        )
        for folder, (trial, *_) in of_folder.items()
    ]

    def done(place: int, row: Row) -> None:
        """A row is kept as soon as there is one, whatever becomes of the others."""
        for trial in list(of_folder.values())[place]:
            told(trial.variant.name, trial.settings.epochs)
            results.add(trial.variant.name, _named(row, trial))
        results.save(tasks, baseline)

    all_of(_train_and_test, jobs, workers, told, threads, done)
    seconds = round(time.monotonic() - begin, 1)
    # of rows that were there before the clock says nothing
    return results.save(
        tasks, baseline, {"seconds": seconds, "at a time": workers} if is_first else None
    )


def _made(
    held: Iterable[Source], runs: Path, workers: int, said: Callable[[str], None]
) -> dict[Source, Path]:
    """The files of graphs, made where there are none."""
    files = {}
    runs.mkdir(parents=True, exist_ok=True)
    for graphs in sorted(held, key=lambda g: g.name):
        if not (runs / f"{graphs.name}.safetensors").is_file():
            said(f"making the graphs {graphs.name}")
        with alone(runs):  # who comes second finds what the first has made
            files[graphs] = graphs.made(runs, workers, _now_and_then(said))
    return files


def _now_and_then(said: Callable[[str], None]) -> Progress:
    """Says how many graphs there are, where making them takes long."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SILENCE:
            last = time.monotonic()
            said(f"{done:,} of {total:,} graphs")

    return progress


def _named(row: Row, trial: Trial) -> Row:
    """With what the row is called, and the run that it is of."""
    variant = trial.variant
    names = {"label": variant.label, "row": variant.row, "group": variant.group}
    return replace(row, facts=names | {"run": folder_of(trial)} | row.facts)


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
) -> Row:
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
    else:
        check_data(run.config, GraphSet.load(data), run)
    told(name, trial.settings.epochs)
    return test(run, tests, measured, metric, device)


def test(
    run: Run, tests: Path, measured: Measured, metric: str = "mse", device: str | None = None
) -> Row:
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
        "graphs": {"path": None} | {name: config.data[name] for name in ("fingerprint", "splits")},
        "environment": environment,
        "evaluated on": machine(),
    }
    return Row(Population(members, errors), facts, _curve(run))


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
        {"epoch": int(epoch), "members": len(rows)}
        | {name: float(np.mean([row[name] for row in rows])) for name in ("training", "validation")}
        for epoch, rows in by_epoch.items()
    ]
