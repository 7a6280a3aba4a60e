"""A sweep: trials of learning rates, decays, widths and dropouts, each a population.

What a trial is follows from the seed and its number alone, and what became of it from its folder.
So a sweep goes on where it was stopped from plain files, and nothing pickled is ever read back.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from pna.data.graphset import GraphSet
from pna.files import alone, is_new, remove_leftovers, replacing
from pna.stored import check, read_json
from pna.train.defaults import loss_for, model_for, settings_for
from pna.train.loop import Interrupted, Report, configured, train
from pna.train.run import Run, best_losses, write_json
from pna.train.settings import ModelSettings, Settings

PLAN, TRIALS, TABLE, BEST = "sweep.json", "trials", "sweep.csv", "best.json"
ERROR = "error.txt"  # in the folder of a trial that failed
_VERSION = 2


@dataclass(frozen=True)
class LogRange:
    """Numbers from `low` to `high`, whose logarithms are equally likely."""

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
    """ "1e-4..1e-2" is a range of logarithms, "16,32,64" a choice of equally likely numbers."""
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
    """What is searched, at one trial."""

    lr: float
    weight_decay: float
    width: int
    dropout: float


@dataclass(frozen=True)
class Space:
    """What is searched: a range of logarithms or a choice for each."""

    lr: Values = LogRange(1e-4, 1e-2)
    weight_decay: Values = LogRange(1e-8, 1e-4)
    width: Values = (16, 32, 64)
    dropout: Values = (0.0, 0.1, 0.3)

    def __post_init__(self) -> None:
        def check(name: str, fits: Callable[[float], bool], expected: str) -> None:
            held = getattr(self, name)
            values = (held.low, held.high) if isinstance(held, LogRange) else held
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
        """The point of a trial: a function of seed and number, and each of its values alone."""
        shares = np.random.default_rng([seed, number]).random(len(fields(self))).tolist()
        drawn = {}
        for field, share in zip(fields(self), shares, strict=True):
            values = getattr(self, field.name)
            log = isinstance(values, LogRange)
            drawn[field.name] = values.at(share) if log else values[int(share * len(values))]
        return Point(**(drawn | {"width": int(drawn["width"])}))


@dataclass(frozen=True)
class Plan:
    """All that decides what the trials of a sweep are."""

    data: str
    fingerprint: str  # of the graphs
    model: ModelSettings
    settings: Settings
    space: Space
    seed: int
    asha: bool
    loss: str | dict[str, str] = "mse"  # this and the following as `pna.train.train` takes them
    weights: dict[str, float] | None = None
    tasks: Sequence[str] | None = None
    splits: tuple[str, str] = ("train", "validation")

    def at(self, point: Point) -> tuple[ModelSettings, Settings]:
        """What is trained at a point, and how."""
        arguments = self.model.arguments | {"dropout": point.dropout}
        model = replace(self.model, hidden=point.width, arguments=arguments)
        return model, replace(self.settings, lr=(point.lr,), weight_decay=(point.weight_decay,))

    def as_dict(self) -> dict[str, Any]:
        whole = asdict(self) | {"model": self.model.as_dict()}
        held: dict[str, Any] = json.loads(json.dumps(whole))  # as it is read back
        return held


@dataclass(frozen=True)
class Trial:
    """What is known of a trial: a row of ``sweep.csv``."""

    number: int
    point: Point
    state: str = "waiting"  # of `_STATES`; "stopped" is early
    objective: float | None = None  # mean over the members of their least validation losses
    epochs: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.number:03d}"

    def as_dict(self) -> dict[str, Any]:
        known = {"trial": self.number} | asdict(self.point) | {"objective": self.objective}
        told = {"epochs": self.epochs, "seconds": round(self.seconds, 3), "state": self.state}
        return known | told | {"error": self.error}


_STATES = ("waiting", "finished", "stopped", "failed")


class Sweep:
    """The folder of a sweep: its plan, a folder for each trial, a table and the best of them."""

    def __init__(self, folder: Path, plan: Plan, trials: int) -> None:
        self.folder, self.plan = folder, plan
        self.trials = [Trial(k, plan.space.draw(plan.seed, k)) for k in range(trials)]

    def folder_of(self, trial: Trial) -> Path:
        return self.folder / TRIALS / trial.name

    @property
    def waiting(self) -> list[int]:
        """Numbers of the trials that are still to be run."""
        return [trial.number for trial in self.trials if trial.state == "waiting"]

    @property
    def best(self) -> Trial | None:
        """The finished trial of the least objective."""
        done = [
            (trial.objective, trial.number)
            for trial in self.trials
            if trial.state == "finished" and math.isfinite(trial.objective or 0.0)
        ]
        return self.trials[min(done)[1]] if done else None

    def begin(self) -> None:
        """Make the folder, and say in it what is about to be done."""
        if not is_new(self.folder):
            raise FileExistsError(
                f"got {self.folder}, which is not empty, expected a new folder; go on with the "
                "sweep in it with resume, or choose another"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_plan()

    def take_up(self) -> None:
        """Find out what is done of a sweep that was begun; failed trials are tried again."""
        path = self.folder / PLAN
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder}, which has no {PLAN}, expected the folder of a sweep to resume"
            )
        own = self.plan.as_dict()
        try:
            held = read_json(path)
            check(held, {"version": int, "trials": int})
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be read ({error}), expected what pna sweep wrote; "
                "restore the file, or begin the sweep in another folder"
            ) from error
        if held["version"] != _VERSION:
            raise ValueError(f"got {path} of version {held['version']}, expected {_VERSION}")
        differing = [k for k in own if k != "data" and held.get(k) != own[k]]
        if differing:
            raise ValueError(
                f"got other {', '.join(differing)} than {self.folder} was begun with, expected "
                f"the same to resume it; they are in {path}"
            )
        if held["trials"] > len(self.trials):
            raise ValueError(
                f"got {len(self.trials)} trials, expected at least the {held['trials']} that "
                f"{self.folder} was begun with"
            )
        self.update()  # reads all there is, before anything is written
        self._write_plan()
        for trial in self.trials:
            if trial.state == "failed":
                self.trials[trial.number] = Trial(trial.number, trial.point)

    def _write_plan(self) -> None:
        remove_leftovers(self.folder)
        facts = {"version": _VERSION, "trials": len(self.trials)}
        write_json(self.folder / PLAN, facts | self.plan.as_dict())

    def update(self) -> None:
        """Take in what the folder says: summaries of the finished, the table of the others."""
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

    def record(self, number: int, told: dict[str, Any], failed: bool = False) -> Trial:
        """Take in that a trial has ended, by what its last report told, and write the table."""
        trial = self.trials[number]
        ended = self._finished(trial) or replace(
            trial,
            state="failed" if failed else "stopped",
            objective=told.get("objective"),
            epochs=told.get("epoch", 0),
            seconds=told.get("seconds", 0.0),
            error=self._error(trial) if failed else "",
        )
        self.trials[number] = ended
        self.save()
        return ended

    def _error(self, trial: Trial) -> str:
        """The last line of what a trial left behind."""
        path = self.folder_of(trial) / ERROR
        if not path.is_file():
            return "its process was killed; for lack of memory, perhaps"
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it left an empty {ERROR}"

    def save(self) -> None:
        """Write the table and the best."""
        rows = [trial.as_dict() for trial in self.trials]
        with replacing(self.folder / TABLE) as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        if self.best is not None:
            folder = self.folder_of(self.best).relative_to(self.folder).as_posix()
            write_json(self.folder / BEST, self.best.as_dict() | {"folder": folder})

    def _rows(self) -> dict[str, dict[str, str]]:
        """The table's rows by trial. One that is damaged is refused, since only the table knows
        which trials were stopped early."""
        path = self.folder / TABLE
        if not path.is_file():
            if (self.folder / TRIALS).is_dir():
                warnings.warn(
                    f"{path} is missing: trials that were stopped early are run again", stacklevel=2
                )
            return {}
        rows: dict[str, dict[str, str]] = {}
        text = path.read_bytes().decode("utf-8", errors="replace")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        try:
            for row in reader:
                if None in row or None in row.values() or row["state"] not in _STATES:
                    raise ValueError("it has other cells than the header")
                _from_row(self.trials[0], row)
                rows[str(int(row["trial"]))] = row
            for trial in self.trials:
                if str(trial.number) not in rows and self.folder_of(trial).is_dir():
                    raise ValueError(f"there is no row of trial {trial.number}")
        except (csv.Error, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"got {path}, line {max(reader.line_num, 1)}, which is no row of a trial "
                f"({error}), expected what pna sweep wrote; restore the file, or remove it, and "
                "trials that were stopped early are run again"
            ) from error
        return rows


def _from_row(trial: Trial, row: dict[str, str]) -> Trial:
    """A trial that was stopped early or failed, from the table; else as it is."""
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
    """What is searched for the least of: the mean of the members' least validation losses."""
    return sum(best) / len(best)


Tell = Callable[[dict[str, Any]], None]


def run_trial(sweep: Sweep, number: int, device: str, tell: Tell) -> None:
    """Train the population of a trial, or go on with it; `tell` how it stands after each epoch.

    What goes wrong is left in its folder, and raised.
    """
    run = Run(sweep.folder_of(sweep.trials[number]))
    if not run.exists:
        shutil.rmtree(run.folder, ignore_errors=True)  # of a trial that failed before it began
    (run.folder / ERROR).unlink(missing_ok=True)
    try:
        _train(sweep.plan, sweep.trials[number].point, run, device, tell)
    except Exception:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        raise


def _train(plan: Plan, point: Point, run: Run, device: str, tell: Tell) -> None:
    seconds = 0.0

    def each_epoch(report: Report) -> None:
        nonlocal seconds
        seconds += report.seconds
        # Whoever is told may stop the trial, which at its end must have been saved before.
        if report.epoch < report.epochs and any(report.alive):
            told = {"objective": objective(report.best), "epoch": report.epoch}
            tell(told | {"seconds": seconds})

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
    told = {"objective": objective(best_losses(summary)), "epoch": summary["epochs"]}
    tell(told | {"seconds": summary["seconds"]})


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
    say: Callable[[Sweep, Trial], None] | None = None,
) -> Sweep:
    """Search the least validation loss with Ray Tune, each trial in ``out/trials``.

    Args:
        data: file of a graph set, which every machine of the cluster can read.
        out: folder of the sweep, which every machine of the cluster can write.
        model: its settings, or the name of a convolution; width and dropout are searched.
        settings: of every trial's training; learning rate and weight decay are searched.
        space: what is searched.
        loss, weights, tasks, splits: what is trained on, as `pna.train.train` takes them.
        trials: how many; when a sweep is resumed there may be more.
        seed: of the trials' points.
        asha: stop the worse two thirds at 1/27, 1/9 and 1/3 of the epochs.
        address: "local", or that of a cluster: "auto", "host:port", "ray://host:port".
        cpus_per_trial: processors for each.
        gpus_per_trial: GPUs for each, such as 0.25; if left out, one where the cluster has any.
        resume: go on with the sweep in `out`. Trials that failed are tried again.
        say: called after every trial.
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
    graphs = GraphSet.load(data)
    path = Path(data).resolve()
    loss = loss_for(graphs, loss)
    kind = model_for(graphs, model, {}, loss) if isinstance(model, str) else model
    usual = settings_for(graphs, {}) if settings is None else settings
    target = (loss, weights, tasks, splits)
    # as the trials will, so that what none of them can do is refused before they begin
    found = configured(graphs, path, kind, usual, *target).data["fingerprint"]
    plan = Plan(str(path), found, kind, usual, space or Space(), seed, asha, *target)
    held = Sweep(Path(os.path.realpath(out)), plan, trials)
    ray_tune.check_address(address)
    if not resume:
        held.begin()
    with alone(held.folder, wait=False) if held.folder.is_dir() else nullcontext():
        if resume:
            held.take_up()
        held.save()
        try:
            if held.waiting:
                ray_tune.run(held, address, cpus_per_trial, gpus_per_trial, say)
        except KeyboardInterrupt:
            done = trials - len(held.waiting)
            raise Interrupted(
                f"stopped with {done} of {trials} trials done; {held.folder} can be resumed"
            ) from None
    return held
