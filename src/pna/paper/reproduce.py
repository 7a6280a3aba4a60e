"""Run an experiment: make its graphs, train its populations, and test them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.files import alone
from pna.machine import machine
from pna.paper.experiment import Experiment, PlannedRun, Progress, Source, Variant
from pna.paper.results import ResultsFolder, ScoredRow, load, recorded
from pna.paper.scores import Member, Numbers, ScoredPopulation, Scores
from pna.paper.workers import OnEpoch, run_jobs
from pna.train.evaluation import evaluate
from pna.train.loop import check_data, train
from pna.train.metrics import METRICS, measure
from pna.train.run import ERROR, Run
from pna.train.tasks import column_of, targets_by_name

_FEW_EPOCHS, _LOG_EVERY = 1000, 10  # longer runs log every tenth epoch
#: Settings that are newer than some results, and their defaults, which do not change names of runs.
_ADDED: dict[str, Any] = {
    "class_weights": {}, "balance_classes": False, "message_edges": "all", "sample": (),
    "full_batch": False, "threshold": "half", "mask_column": "0", "edge_targets": 0,
    "out_degrees": (),
}  # fmt: skip
_MOST_NAMED = 4  # populations named in a message
_SILENCE = 5.0  # seconds between messages while graphs are made

Measured = Mapping[str, tuple[str, str]]  # split and epoch, by the name of the test


@dataclass(frozen=True)
class Options:
    """Which part of an experiment to run, and how. None stands for the experiment's default."""

    protocol: str | None = None  # of the graphs
    recipe: str | None = None  # how models are trained, one of the experiment's
    members: int | None = None  # of each population
    quick: bool = False  # fewer graphs and epochs, to see that everything works
    models: Sequence[str | Variant] = ()  # some rows or populations; empty: all
    device: str | None = None  # None: a GPU if there is one
    workers: int = 1  # populations trained at a time
    threads: int | None = None  # of each worker, if there are several
    resume: bool = False  # continue runs that were interrupted
    again: Path | None = None  # folder of models, if those of `runs` are to be trained again


def plan(
    experiment: Experiment, out: Path, options: Options
) -> tuple[ResultsFolder, list[str], list[PlannedRun]]:
    """The results in a folder, and the populations that are asked for: the names of those whose
    results it has, and those to train."""
    protocol = options.protocol or experiment.protocols[0]
    recipe, quick = options.recipe or experiment.recipes[0], options.quick
    experiment = experiment.prepared(out.parent.parent, protocol)
    about = {
        "experiment": experiment.name, "protocol": protocol, "recipe": recipe, "quick": quick
    }  # fmt: skip
    results = ResultsFolder.open(out, experiment, about)
    stored, trials = [], []
    for trial in experiment.trials(protocol, recipe, options.members, quick, options.models):
        if results.has(trial.variant.name, folder_of(trial), trial.settings.as_dict()):
            stored.append(trial.variant.name)
        else:
            trials.append(trial)
    return results, stored, trials


def reproduce(
    experiment: Experiment,
    out: Path,
    runs: Path,
    options: Options,
    on_epoch: OnEpoch = lambda *_: None,
    log: Callable[[str], None] = lambda _: None,
) -> Scores:
    """Train and test the populations of an experiment; return its scores, also written to `out`.

    Args:
        experiment: what to run.
        out: folder of its results. Every row is written as soon as it is finished. Rows that the
            folder has already are kept; a row of exactly the run asked for is not run again.
        runs: folder of graph sets and runs, which experiments share: a population that is
            already trained is not trained again.
        options: see `Options`.
        on_epoch: called with the name of a population and the epochs it has done.
        log: called with messages on what is being done.
    """
    start = time.monotonic()
    results, stored, trials = plan(experiment, out, options)
    protocol, quick = str(results.about["protocol"]), options.quick
    if stored:
        log(_told(stored, results, options.again is not None))
    if not trials:
        return load(out)[0]
    for trial in trials:
        name = trial.variant.name
        count = len(results.rows[name].population.members) if name in results.rows else 0
        if count > trial.settings.members:
            raise ValueError(
                f"got {trial.settings.members} members for {name}, of which {out} has {count}, "
                f"expected at least as many, as they would be replaced; choose another folder "
                "(--out), or leave --members out"
            )
        if count:
            log(f"{name}: a row of {count} members is there, and will be replaced")
    by_folder: dict[Path, list[PlannedRun]] = {}  # some trials are the same where it is quick
    for trial in trials:
        by_folder.setdefault((options.again or runs) / folder_of(trial), []).append(trial)
    _check_unfinished(by_folder, options.resume)
    is_first = not results.rows and not any(Run(folder).exists for folder in by_folder)
    tests = experiment.tests(protocol, quick)
    files = _make_files({trial.graphs for trial in trials} | {tests}, runs, options.workers, log)
    tasks, baseline = baseline_errors(files[tests], experiment.measured, experiment.metric)
    results.check(baseline)
    counts = sorted({trial.settings.members for trial in trials})
    log(f"training {len(trials)} populations of {', '.join(map(str, counts))}")
    jobs = [
        (trial, files[trial.graphs], folder, files[experiment.tests_of(trial, protocol, quick)],
         experiment.measured, experiment.metric, options.device)
        for folder, (trial, *_) in by_folder.items()
    ]  # fmt: skip

    def done(index: int, row: ScoredRow) -> None:
        """Keep a row as soon as it is there, even if others fail later."""
        for trial in list(by_folder.values())[index]:
            on_epoch(trial.variant.name, trial.settings.epochs)
            results.add(trial.variant.name, _named(row, trial))
        results.save(tasks, baseline)

    failed: list[str] = []

    def on_failed(index: int, error: Exception) -> None:
        folder, (trial, *_) = list(by_folder.items())[index]
        failed.append(trial.variant.name)
        log(f"{failed[-1]} failed, the others go on: {error} (traceback: {folder / ERROR})")

    run_jobs(
        _train_and_test, jobs, options.workers, on_epoch, options.threads, done,
        on_failed if len(jobs) > 1 else None,
    )  # fmt: skip
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(jobs)} populations failed: {', '.join(failed)}; the results of "
            f"the others are in {out}; to try these again, run the same command with --resume"
        )
    seconds = round(time.monotonic() - start, 1)
    # the time is unknown if some rows or runs were there before
    took = {"seconds": seconds, "at a time": options.workers} if is_first else None
    return results.save(tasks, baseline, took)


def _make_files(
    sources: Iterable[Source], runs: Path, workers: int, log: Callable[[str], None]
) -> dict[Source, Path]:
    """The files of graphs; missing ones are made."""
    files = {}
    runs.mkdir(parents=True, exist_ok=True)
    for source in sorted(sources, key=lambda g: g.name):
        if not (runs / f"{source.name}.safetensors").is_file():
            log(f"making the graphs {source.name}")
        with alone(runs):  # a second process finds the graphs that the first has made
            files[source] = source.made(runs, workers, throttled(log))
    return files


def throttled(log: Callable[[str], None]) -> Progress:
    """Report how many graphs are made, every few seconds."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SILENCE:
            last = time.monotonic()
            log(f"{done:,} of {total:,} graphs")

    return progress


def _told(names: Sequence[str], results: ResultsFolder, is_again: bool) -> str:
    """That rows are shown as they are stored, where they were trained, and how to train anew."""
    facts = [results.rows[name].facts for name in names]
    more = len(names) - _MOST_NAMED
    some = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"These are stored results, not trained now: {some}. They are in {results.folder}. Trained "
        f"on: {recorded(facts, 'gpu', 'cpu')}; commit: {recorded(facts, 'commit')}; command: "
        f"{recorded(facts, 'command')}. "
        + ("To train them once more, move that folder away" if is_again else
           "To train them anew and compare, add --again to this command")
    )  # fmt: skip


def _named(row: ScoredRow, trial: PlannedRun) -> ScoredRow:
    """Add the names of a row, and the folder of its run."""
    variant = trial.variant
    names = {"label": variant.label, "row": variant.row, "group": variant.group}
    return replace(row, facts=names | {"run": folder_of(trial)} | row.facts)


def folder_of(trial: PlannedRun) -> str:
    """Folder of a population: a readable name and a hash of all its settings, so that experiments
    with the same population share it."""
    decided = {
        "graphs": trial.graphs.name,
        "model": _without_added(trial.model.as_dict()),
        "settings": _without_added(trial.settings.as_dict()),
        "loss": trial.loss,
    }
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return f"{trial.graphs.name}/{trial.model.convolution}-{digest[:8]}"


def _without_added(content: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in content.items() if n not in _ADDED or v != _ADDED[n]}


def _check_unfinished(folders: Iterable[Path], resume: bool) -> None:
    begun = [str(f) for f in folders if Run(f).exists and Run(f).summary is None]
    if begun and not resume:
        for folder in begun:
            with alone(Path(folder), wait=False):  # raises if another command trains it now
                pass
        raise FileExistsError(
            f"got {', '.join(begun)}, begun and not finished; go on with --resume, or remove them"
        )


def _train_and_test(
    trial: PlannedRun,
    data: Path,
    folder: Path,
    tests: Path,
    measured: Measured,
    metric: str,
    device: str | None,
    on_epoch: OnEpoch,
) -> ScoredRow:
    run = Run(folder)
    name = trial.variant.name
    with run.keeping_error():
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
                report=lambda now: on_epoch(name, now.epoch),
            )
        else:
            check_data(run.config, GraphSet.load(data), run)
        on_epoch(name, trial.settings.epochs)
        return test(run, tests, measured, metric, device)


def test(
    run: Run, tests: Path, measured: Measured, metric: str = "mse", device: str | None = None
) -> ScoredRow:
    """A metric of all members of a finished run, on some splits and at some of its epochs."""
    summary, config = run.summary, run.config
    assert summary is not None
    graphs = GraphSet.load(tests)
    errors = {}
    worst = np.inf if METRICS[metric].sign > 0 else 0.0
    for name, (split, epoch) in measured.items():
        found = evaluate(run, graphs, split, device=device, epoch=epoch)
        table = np.full((config.settings.members, len(found.tasks)), np.nan)
        values = np.array([(task.metrics | task.scaled)[metric] for task in found.tasks]).T
        # an overflow gets the worst score; NaN means that a task was not learned
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
    return ScoredRow(ScoredPopulation(members, errors), facts, _curve(run))


def baseline_errors(
    path: Path, measured: Measured, metric: str
) -> tuple[tuple[str, ...], dict[str, Numbers]]:
    """Names of the tasks, and the metric of predicting the mean of training, by test."""
    graphs = GraphSet.load(path)
    names = targets_by_name(graphs)
    known = {split: graphs.split(split) for split in {"train", *(s for s, _ in measured.values())}}
    errors = {
        name: np.array([_of_the_mean(known["train"], known[split], *target, metric)
                        for target in names.values()])
        for name, (split, _) in measured.items()
    }  # fmt: skip
    return tuple(names), errors


def _of_the_mean(train: GraphSet, test: GraphSet, level: str, column: int, metric: str) -> float:
    """The metric of predicting the mean of training; of classes, their shares."""
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
