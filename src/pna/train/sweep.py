"""A sweep: trials of learning rates, weight decays, widths and dropouts, each a population.

The point of a trial follows from the seed and its number, and its result from its folder. A sweep
is therefore resumed from plain files, and nothing pickled is read.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from pna.files import alone, is_new, remove_leftovers
from pna.names import renamed_keywords
from pna.stored import check, read_json
from pna.train.defaults import loss_for, model_for, settings_for
from pna.train.loop import Interrupted, Report, configured, train
from pna.train.mask_columns import graphs_of
from pna.train.run import ERROR, Run, best_losses, write_csv, write_json
from pna.train.settings import ModelSettings, Settings

PLAN, TRIALS, TABLE, BEST = "sweep.json", "trials", "sweep.csv", "best.json"
_VERSION = 2


@dataclass(frozen=True)
class LogRange:
    """Numbers from `low` to `high`, uniform on a logarithmic scale."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                f"got a range {self.low:g}..{self.high:g}, expected two numbers above 0, the "
                "smaller one first"
            )

    def at(self, share: float) -> float:
        return self.low * (self.high / self.low) ** share


Values = LogRange | tuple[float, ...]


def parse_values(text: str) -> Values:
    """Parse "1e-4..1e-2", a `LogRange`, or "16,32,64", values of equal probability."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            return LogRange(float(low), float(high))
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        if str(error).startswith("got"):
            raise
        raise ValueError(
            f"got {text!r}, expected a range such as 1e-4..1e-2 or numbers such as 16,32,64"
        ) from None


@dataclass(frozen=True)
class Point:
    """The searched values of one trial."""

    lr: float
    weight_decay: float
    width: int
    dropout: float


@dataclass(frozen=True)
class Space:
    """The search space: a `LogRange` or a choice of values for each hyper-parameter."""

    lr: Values = LogRange(1e-4, 1e-2)
    weight_decay: Values = LogRange(1e-8, 1e-4)
    width: Values = (16, 32, 64)
    dropout: Values = (0.0, 0.1, 0.3)

    def __post_init__(self) -> None:
        def check(name: str, fits: Callable[[float], bool], expected: str) -> None:
            setting = getattr(self, name)
            values = (setting.low, setting.high) if isinstance(setting, LogRange) else setting
            if not values or not all(math.isfinite(v) and fits(v) for v in values):
                shown = ",".join(f"{v:g}" for v in values)
                raise ValueError(f"got {name} {shown or 'of no values'}, expected {expected}")

        check("lr", lambda v: v > 0, "numbers above 0")
        check("weight_decay", lambda v: v >= 0, "numbers of at least 0")
        check("dropout", lambda v: 0 <= v < 1, "numbers from 0 up to 1")
        if isinstance(self.width, LogRange):
            raise ValueError("got a range of widths, expected a choice such as 16,32,64")
        check("width", lambda v: v >= 1 and v == int(v), "whole numbers above 0")

    def draw(self, seed: int, number: int) -> Point:
        """The point of a trial; it depends only on the seed and the number."""
        shares = np.random.default_rng([seed, number]).random(len(fields(self))).tolist()
        drawn = {}
        for field, share in zip(fields(self), shares, strict=True):
            values = getattr(self, field.name)
            log = isinstance(values, LogRange)
            drawn[field.name] = values.at(share) if log else values[int(share * len(values))]
        return Point(**(drawn | {"width": int(drawn["width"])}))


@dataclass(frozen=True)
class Plan:
    """Everything that defines the trials of a sweep."""

    data: str
    fingerprint: str  # of the graphs
    model: ModelSettings
    settings: Settings
    space: Space
    seed: int
    asha: bool
    loss: str | dict[str, str] = "mse"  # this and the following: arguments of `pna.train.train`
    weights: dict[str, float] | None = None
    tasks: Sequence[str] | None = None
    splits: tuple[str, str] = ("train", "validation")

    def at(self, point: Point) -> tuple[ModelSettings, Settings]:
        """Model and settings of the trial at a point."""
        arguments = self.model.arguments | {"dropout": point.dropout}
        model = replace(self.model, hidden=point.width, arguments=arguments)
        return model, replace(self.settings, lr=(point.lr,), weight_decay=(point.weight_decay,))

    def as_dict(self) -> dict[str, Any]:
        content = asdict(self) | {"model": self.model.as_dict()}
        stored: dict[str, Any] = json.loads(json.dumps(content))  # with the types that JSON has
        return stored


@dataclass(frozen=True)
class Trial:
    """The state of a trial: a row of ``sweep.csv``."""

    number: int
    point: Point
    state: str = "waiting"  # of `_STATES`; "stopped": by ASHA
    objective: float | None = None  # mean of the lowest validation losses of its members
    epochs: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.number:03d}"

    def as_dict(self) -> dict[str, Any]:
        known = {"trial": self.number} | asdict(self.point) | {"objective": self.objective}
        ended = {"epochs": self.epochs, "seconds": round(self.seconds, 3), "state": self.state}
        return known | ended | {"error": self.error}


_STATES = ("waiting", "finished", "stopped", "failed")


class Sweep:
    """The folder of a sweep: its plan, a folder for each trial, a table and the best trial."""

    def __init__(self, folder: Path, plan: Plan, trials: int) -> None:
        self.folder, self.plan = folder, plan
        self.trials = [Trial(k, plan.space.draw(plan.seed, k)) for k in range(trials)]

    def folder_of(self, trial: Trial) -> Path:
        return self.folder / TRIALS / trial.name

    @property
    def waiting(self) -> list[int]:
        """Numbers of the trials that are not done."""
        return [trial.number for trial in self.trials if trial.state == "waiting"]

    @property
    def best(self) -> Trial | None:
        """The finished trial with the lowest objective."""
        done = [
            (trial.objective, trial.number)
            for trial in self.trials
            if trial.state == "finished" and math.isfinite(trial.objective or 0.0)
        ]
        return self.trials[min(done)[1]] if done else None

    def start(self) -> None:
        """Make the folder and write the plan."""
        if not is_new(self.folder):
            raise FileExistsError(
                f"got {self.folder}, which is not empty, expected a new folder; continue the "
                "sweep in it with resume, or choose another"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_plan()

    def resume(self) -> None:
        """Read the state of all trials; failed trials will run again."""
        path = self.folder / PLAN
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder}, which has no {PLAN}, expected the folder of a sweep to resume"
            )
        own = self.plan.as_dict()
        try:
            stored = read_json(path)
            check(stored, {"version": int, "trials": int})
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be read ({error}), expected what pna sweep wrote; "
                "restore the file, or start the sweep in another folder"
            ) from error
        if stored["version"] != _VERSION:
            raise ValueError(f"got {path} of version {stored['version']}, expected {_VERSION}")
        differing = [k for k in own if k != "data" and stored.get(k) != own[k]]
        if differing:
            raise ValueError(
                f"got other {', '.join(differing)} than {self.folder} was started with, "
                f"expected the same to resume it; they are in {path}"
            )
        if stored["trials"] > len(self.trials):
            raise ValueError(
                f"got {len(self.trials)} trials, expected at least the {stored['trials']} that "
                f"{self.folder} was started with"
            )
        self.update()  # reads everything before anything is written
        self._write_plan()
        for trial in self.trials:
            if trial.state == "failed":
                self.trials[trial.number] = Trial(trial.number, trial.point)

    def _write_plan(self) -> None:
        remove_leftovers(self.folder)
        facts = {"version": _VERSION, "trials": len(self.trials)}
        write_json(self.folder / PLAN, facts | self.plan.as_dict())

    def update(self) -> None:
        """Read the state of all trials, from the summaries of finished ones and from the table."""
        rows = self._rows()
        for trial in self.trials:
            self.trials[trial.number] = self._finished(trial) or _from_row(
                trial, rows.get(str(trial.number), {})
            )

    def _finished(self, trial: Trial) -> Trial | None:
        summary = Run(self.folder_of(trial)).summary
        if summary is None:
            return None
        return replace(
            trial,
            state="finished",
            objective=objective(best_losses(summary)),
            epochs=summary["epochs"],
            seconds=summary["seconds"],
        )

    def record(self, number: int, metrics: dict[str, Any], failed: bool = False) -> Trial:
        """Record that a trial has ended, with its last report, and write the table."""
        trial = self.trials[number]
        ended = self._finished(trial) or replace(
            trial,
            state="failed" if failed else "stopped",
            objective=metrics.get("objective"),
            epochs=metrics.get("epoch", 0),
            seconds=metrics.get("seconds", 0.0),
            error=self._error(trial) if failed else "",
        )
        self.trials[number] = ended
        self.save()
        return ended

    def _error(self, trial: Trial) -> str:
        """The last line of the traceback of a failed trial."""
        path = self.folder_of(trial) / ERROR
        if not path.is_file():
            return "its process was killed, perhaps because memory was full"
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it left an empty {ERROR}"

    def save(self) -> None:
        """Write the table and the best trial."""
        rows = [trial.as_dict() for trial in self.trials]
        write_csv(self.folder / TABLE, list(rows[0]), rows)
        if self.best is not None:
            folder = self.folder_of(self.best).relative_to(self.folder).as_posix()
            write_json(self.folder / BEST, self.best.as_dict() | {"folder": folder})

    def _rows(self) -> dict[str, dict[str, str]]:
        """The rows of the table by trial. Raises if it is damaged, since no other file knows which
        trials were stopped early."""
        path = self.folder / TABLE
        if not path.is_file():
            if (self.folder / TRIALS).is_dir():
                warnings.warn(
                    f"{path} is missing: trials that were stopped early will run again",
                    stacklevel=2,
                )
            return {}
        rows: dict[str, dict[str, str]] = {}
        text = path.read_bytes().decode("utf-8", errors="replace")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        try:
            for row in reader:
                if None in row or None in row.values() or row["state"] not in _STATES:
                    raise ValueError("its cells do not fit the header")
                _from_row(self.trials[0], row)
                rows[str(int(row["trial"]))] = row
            for trial in self.trials:
                if str(trial.number) not in rows and self.folder_of(trial).is_dir():
                    raise ValueError(f"there is no row of trial {trial.number}")
        except (csv.Error, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"got {path}, line {max(reader.line_num, 1)}, which is not a row of a trial "
                f"({error}), expected what pna sweep wrote; restore the file, or remove it: "
                "trials that were stopped early will run again"
            ) from error
        return rows


def _from_row(trial: Trial, row: dict[str, str]) -> Trial:
    """The trial with its state from the table, if it was stopped early or failed."""
    if not row or row["state"] not in ("stopped", "failed"):
        return trial
    return replace(
        trial,
        state=row["state"],
        objective=float(row["objective"]) if row["objective"] else None,
        epochs=int(row["epochs"]),
        seconds=float(row["seconds"]),
        error=row["error"],
    )


def objective(best: list[float]) -> float:
    """What a sweep minimises: the mean of the lowest validation losses of the members."""
    return sum(best) / len(best)


ReportMetrics = Callable[[dict[str, Any]], None]  # as `ray.tune.report`


def run_trial(sweep: Sweep, number: int, device: str, report_metrics: ReportMetrics) -> None:
    """Train or resume the population of a trial; `report_metrics` is called after each epoch.

    The traceback of an error is written to its folder, and the error is raised.
    """
    run = Run(sweep.folder_of(sweep.trials[number]))
    if not run.exists:
        # of a trial that failed before its first checkpoint
        shutil.rmtree(run.folder, ignore_errors=True)
    with run.keeping_error():
        _train(sweep.plan, sweep.trials[number].point, run, device, report_metrics)


def _train(plan: Plan, point: Point, run: Run, device: str, report_metrics: ReportMetrics) -> None:
    seconds = 0.0

    def each_epoch(report: Report) -> None:
        nonlocal seconds
        seconds += report.seconds
        # Ray may stop the trial here; the last epoch is reported after it was saved.
        if report.epoch < report.epochs and any(report.alive):
            metrics = {"objective": objective(report.best), "epoch": report.epoch}
            report_metrics(metrics | {"seconds": seconds})

    train(
        plan.data,
        run.folder,
        *plan.at(point),
        loss=plan.loss,
        weights=plan.weights,
        tasks=plan.tasks,
        splits=plan.splits,
        device=device,
        resume=run.exists,
        aggregators=plan.model.own_aggregators,
        report=each_epoch,
    )
    summary = run.summary
    assert summary is not None
    metrics = {"objective": objective(best_losses(summary)), "epoch": summary["epochs"]}
    report_metrics(metrics | {"seconds": summary["seconds"]})


@renamed_keywords(say="report")
def sweep(
    data: str | Path,
    out: str | Path,
    model: ModelSettings | str = "pna",
    settings: Settings | None = None,
    space: Space | None = None,
    *,
    loss: str | dict[str, str] | None = None,
    weights: dict[str, float] | None = None,
    tasks: Sequence[str] | None = None,
    splits: tuple[str, str] = ("train", "validation"),
    trials: int = 20,
    seed: int = 0,
    asha: bool = False,
    address: str = "local",
    cpus_per_trial: int = 1,
    gpus_per_trial: float | None = None,
    resume: bool = False,
    report: Callable[[Sweep, Trial], None] | None = None,
) -> Sweep:
    """Search for the lowest validation loss with Ray Tune, each trial in ``out/trials``.

    Args:
        data: file of a graph set, which every machine of the cluster can read.
        out: folder of the sweep, which every machine of the cluster can write.
        model: settings of the model, or the name of a convolution; width and dropout are searched.
        settings: settings of the training; learning rate and weight decay are searched.
        space: the search space.
        loss, weights, tasks, splits: as for `pna.train.train`.
        trials: number of trials; there may be more when a sweep is resumed.
        seed: random seed of the points.
        asha: stop the worse two thirds at 1/27, 1/9 and 1/3 of the epochs.
        address: "local", or a cluster: "auto", "host:port", "ray://host:port".
        cpus_per_trial: number of CPU cores per trial.
        gpus_per_trial: number of GPUs per trial, such as 0.25. Default: 1 if the cluster has any.
        resume: continue the sweep in `out`. Trials that failed run again.
        report: callback after every trial.
    """
    try:
        from pna.train import ray_tune
    except ImportError as error:
        raise ModuleNotFoundError(
            f"a sweep runs on Ray Tune, 2.60 or later, and Python says: {error}; "
            "pip install 'pna[ray]'"
        ) from error
    for name, value, least in (
        ("trials", trials, 1),
        ("seed", seed, 0),
        ("cpus", cpus_per_trial, 1),
    ):
        if value < least:
            raise ValueError(f"got {name}={value}, expected at least {least}")
    graphs = graphs_of(data, (settings or Settings()).mask_column)
    path = Path(data).resolve()
    loss = loss_for(graphs, loss)
    kind = model_for(graphs, model, {}, loss) if isinstance(model, str) else model
    usual = settings_for(graphs, {}) if settings is None else settings
    target = (loss, weights, tasks, splits)
    # errors that every trial would have are raised before the first one
    found = configured(graphs, path, kind, usual, *target).data["fingerprint"]
    plan = Plan(str(path), found, kind, usual, space or Space(), seed, asha, *target)
    state = Sweep(Path(os.path.realpath(out)), plan, trials)
    ray_tune.check_address(address)
    if not resume:
        state.start()
    with alone(state.folder, wait=False) if state.folder.is_dir() else nullcontext():
        if resume:
            state.resume()
        state.save()
        try:
            if state.waiting:
                ray_tune.run(state, address, cpus_per_trial, gpus_per_trial, report)
        except KeyboardInterrupt:
            done = trials - len(state.waiting)
            raise Interrupted(
                f"stopped with {done} of {trials} trials done; {state.folder} can be resumed"
            ) from None
    return state
