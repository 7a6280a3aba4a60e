"""A run: the folder that holds a training, enough to resume, to rebuild and to repeat it."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pna.data import tensor_file
from pna.files import alone, is_new, naming, remove_leftovers, replacing
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.train.models import build
from pna.train.population import Population, changing_buffers
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import Task, as_dicts

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.csv"
BEST, LAST, SUMMARY = "best.safetensors", "last.safetensors", "summary.json"
_VERSION = 1


@dataclass(frozen=True)
class Config:
    """What a run is: its data, model, tasks and settings."""

    data: dict[str, Any]  # path, fingerprint, splits, names of features
    model: ModelSettings
    tasks: tuple[Task, ...]
    settings: Settings

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "data": self.data,
            "model": self.model.as_dict(),
            "tasks": as_dicts(self.tasks),
            "settings": self.settings.as_dict(),
        }

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Config:
        if held.get("version", 0) > _VERSION:
            raise ValueError(
                f"got a configuration of version {held['version']}, expected {_VERSION} or older; "
                "upgrade pna"
            )
        return cls(
            data=held["data"],
            model=ModelSettings.from_dict(held["model"]),
            tasks=tuple(Task(**task) for task in held["tasks"]),
            settings=Settings.from_dict(held["settings"]),
        )

    def with_aggregators(self, classes: Sequence[type[Aggregator]]) -> Config:
        """The same with the classes of users' aggregators, which no file holds."""
        return replace(self, model=replace(self.model, own_aggregators=tuple(classes)))


class Run:
    """A folder of a training.

    `config.json` says what it is; `environment.json` where it ran and, in the list `resumed`, where
    it was gone on with, after which epoch; `metrics.csv` has a row for each member and epoch,
    `last.safetensors` all that training goes on from, `best.safetensors` the weights of every
    member at its least validation loss, `summary.json` how it ended.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @property
    def exists(self) -> bool:
        return (self.folder / CONFIG).is_file()

    @property
    def config(self) -> Config:
        """What was asked for."""
        path = self.folder / CONFIG
        if not path.is_file() and self.folder.is_dir() and is_new(self.folder):
            raise FileNotFoundError(
                f"got {self.folder}, which has no {CONFIG}, nor anything else that was saved yet, "
                "expected the folder of a run; start the training again, without --resume"
            )
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder}, which has no {CONFIG}, expected the folder of a run; "
                "pass the folder that pna train wrote"
            )
        try:
            return Config.from_dict(json.loads(path.read_text()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"got {path}, which cannot be used ({error!r}), expected what pna train wrote; "
                "upgrade pna if a newer one wrote it, else restore the file or train anew"
            ) from error

    @property
    def summary(self) -> dict[str, Any] | None:
        """How it ended; None if it has not."""
        if not (self.folder / SUMMARY).is_file():
            return None
        again = f"remove the file, and have it made again: pna train --resume {self.folder}"
        return self._read_json(SUMMARY, again, _SUMMED_UP)

    @property
    def environment(self) -> dict[str, Any]:
        """Where it ran, and was resumed."""
        return self._read_json(
            ENVIRONMENT, "restore the file, or write {} in it, to do without what it said"
        )

    def _read_json(self, name: str, remedy: str, keys: Iterable[str] = ()) -> dict[str, Any]:
        path = self.folder / name
        try:
            held = json.loads(path.read_text())
            if not isinstance(held, dict):
                raise ValueError(f"it holds a {type(held).__name__}")
            if missing := [key for key in keys if key not in held]:
                raise ValueError(f"it lacks {', '.join(missing)}")
            return held
        except (OSError, ValueError) as error:
            raise ValueError(
                f"got {path}, which cannot be read ({error}), expected the JSON object that pna "
                f"train wrote; {remedy}"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Train here, which no other process may do at the same time: it is raised where one does.

        A new folder in which nothing comes to be written is removed again.
        """
        new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone(self.folder, wait=False):
            try:
                yield
            finally:
                if new:
                    with suppress(OSError):  # it holds something, or is gone
                        self.folder.rmdir()

    def begin(self, config: Config, environment: dict[str, Any]) -> None:
        """Make the folder, and say in it what is about to be done."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        (self.folder / SUMMARY).unlink(missing_ok=True)  # of no epochs, if there is one
        write_json(self.folder / CONFIG, config.as_dict())
        write_json(self.folder / ENVIRONMENT, environment)

    def take_up(self, config: Config, epoch: int, environment: dict[str, Any]) -> None:
        """Go on after `epoch` with what is in the folder, as `config` has it, and say where."""
        changed = config != self.config
        goes_on = changed or self.summary is None
        first = self.environment if goes_on else {}  # read before anything is written
        remove_leftovers(self.folder)
        if not goes_on:
            return
        with _room(self.folder):
            if changed:
                (self.folder / SUMMARY).unlink(missing_ok=True)  # first: it is finished no more
                write_json(self.folder / CONFIG, config.as_dict())
            # a start that came to no checkpoint left nothing behind
            before = [start for start in first.get("resumed", []) if start["after_epoch"] < epoch]
            resumed = [*before, {"after_epoch": epoch, **environment}]
            write_json(self.folder / ENVIRONMENT, {**first, "resumed": resumed})

    def save_last(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write what training goes on from, in place of what was there."""
        self._write(LAST, tensors, facts)

    def save_best(
        self,
        population: Population,
        best: Tensor,
        buffers: dict[str, Tensor],
        facts: dict[str, Any],
    ) -> None:
        """Write the best weights of every member, by their names in the model."""
        self._write(BEST, {**population.parameters_from(best), **buffers}, facts)

    def _write(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """With the configuration, by which it can be used and known without the folder, and with a
        checksum."""
        facts = facts | {"config": self.config.as_dict()}
        on_host = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
        with _room(self.folder):
            tensor_file.write(
                self.folder / name, on_host, facts,
                kind=_KINDS[name], version=_VERSION, force=True, checksum=True,
            )  # fmt: skip

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts of `BEST` or `LAST`, if they are of this run."""
        path = self.folder / name
        own = self.config  # says so where this is no run at all
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder}, which has no {name}, expected a run that was trained; "
                + self._how_to_train()
            )
        tensors, facts = tensor_file.read(path, kind=_KINDS[name], version=_VERSION)
        try:
            held = Config.from_dict(facts["config"])
            if _without_epochs(held) != _without_epochs(own):
                raise ValueError("it is of another configuration")
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"got {path}, which does not belong to {self.folder}: {error}; restore the file, "
                "or train anew in another folder"
            ) from error
        return tensors, facts

    def _how_to_train(self) -> str:
        """What to do about a run without its weights."""
        again = f"pna train --resume {self.folder}"
        summary = self.summary
        if summary is None:
            return f"go on with it: {again}"
        if summary.get("epochs") == 0:
            return f"it was trained for 0 epochs; train it for more: {again} --epochs 10, say"
        return "it was, and the file is gone: restore it, or train anew in another folder"

    def metrics(self) -> list[dict[str, float]]:
        """Rows of `metrics.csv`."""
        path = self.folder / METRICS
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder} without {METRICS}, expected what pna train wrote; restore the "
                "file, or move the folder away to train anew"
            )
        rows: list[dict[str, float]] = []
        try:
            with path.open(newline="", errors="replace") as file:
                for row in csv.DictReader(file):
                    if None in row or None in row.values():
                        raise ValueError("it has more or fewer numbers than there are columns")
                    rows.append({k: float(v) if v else math.nan for k, v in row.items()})
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(
                f"got {path}, line {len(rows) + 2}, which is no row of losses ({error}), expected "
                "what pna train wrote; restore the file, or move the folder away to train anew"
            ) from error
        return rows

    def finish(self, summary: dict[str, Any]) -> None:
        with _room(self.folder):
            write_json(self.folder / SUMMARY, summary)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


_KINDS = {BEST: "pna.train.best", LAST: "pna.train.last"}
_SUMMED_UP = ("epochs", "seconds", "parameters", "best", "best_epoch", "broken")


def _without_epochs(config: Config) -> Config:
    """A run that goes on for longer is the same run."""
    return replace(config, settings=replace(config.settings, epochs=0))


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Where the disk is full, the error says how to go on with the run in this folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = OSError(f"{error}; free some space, then pna train --resume {folder}")
        full.errno = error.errno
        raise full from error


class Metrics:
    """Rows of numbers appended to a CSV file, cut back to an epoch when a run is resumed."""

    def __init__(self, path: Path, names: Sequence[str], until: int) -> None:
        self._path, self._names = path, list(names)
        kept: list[dict[str, str]] = []
        if until > 0 and path.is_file():
            with path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if _epoch(row) <= until]
        with _room(path.parent), replacing(path) as file:
            writer = csv.DictWriter(file, self._names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(kept)
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self._names)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        with _room(self._path.parent), naming(self._path):
            self._writer.writerows(rows)

    def flush(self) -> None:
        """Have what was added survive whatever comes."""
        with _room(self._path.parent), naming(self._path):
            self._sync()

    def close(self) -> None:
        with _room(self._path.parent), naming(self._path), self._file:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def _epoch(row: dict[str, str]) -> float:
    """The epoch of a row, which a killed process may have left unfinished."""
    try:
        return int(row["epoch"]) if None not in row.values() else float("inf")
    except (KeyError, ValueError, TypeError):
        return float("inf")


def write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")


def load(
    run: str | Path | Run,
    member: int | None = None,
    *,
    aggregators: Sequence[type[Aggregator]] = (),
) -> nn.Module:
    """The trained model of a run, ready to use; without `member`, the best on validation.

    `run` is the folder, or its ``best.safetensors`` alone, which holds the configuration too.
    `aggregators` are the classes of those aggregators of the model that are your own.
    """
    path = run.folder if isinstance(run, Run) else Path(run)
    if path.is_dir():
        tensors, facts = Run(path).read(BEST)
    else:
        tensors, facts = tensor_file.read(path, kind=_KINDS[BEST], version=_VERSION)
    config = Config.from_dict(facts["config"]).with_aggregators(aggregators)
    losses = torch.tensor(best_losses(facts), dtype=torch.float64)
    if member is None:
        member = int(losses.nan_to_num(float("inf")).argmin())
    if not 0 <= member < len(losses):
        raise IndexError(
            f"got member {member} of a run of {len(losses)}, expected one of 0 to "
            f"{len(losses) - 1}; leave it out for the best"
        )
    return _rebuilt(config, tensors, member).eval()


def best_losses(facts: dict[str, Any]) -> list[float]:
    """The least validation loss of every member; infinite for one that was never validated."""
    return [math.inf if loss is None else loss for loss in facts["best"]]


def load_population(
    run: Run, epoch: str = "best", aggregators: Sequence[type[Aggregator]] = ()
) -> tuple[Population, Config]:
    """All members of a run at their "best", or after their "last" epoch, if that was kept;
    `aggregators` as for `load`."""
    tensors, facts = run.read(lookup("epoch", epoch, {"best": BEST, "last": LAST}))
    config = Config.from_dict(facts["config"]).with_aggregators(aggregators)
    if epoch == "last":
        if "final" not in tensors:
            raise ValueError(
                f"got {run.folder}, which has the best weights of its members alone, expected "
                "those of their last epoch too; train with keep_last"
            )
        named = Population([build(config.model)]).parameters_from(tensors["final"])
        begin = "final.buffer."
        buffers = {n.removeprefix(begin): t for n, t in tensors.items() if n.startswith(begin)}
        tensors = named | buffers
    models = [_rebuilt(config, tensors, member) for member in range(len(facts["best"]))]
    return Population(models), config


def _rebuilt(config: Config, tensors: dict[str, Tensor], member: int) -> nn.Module:
    """The model of one member, in the type of its weights."""
    model = build(config.model)
    model.to(next(t.dtype for t in tensors.values() if t.is_floating_point()))
    expected = {*dict(model.named_parameters()), *changing_buffers(model)}
    if expected != set(tensors):
        odd = ", ".join(sorted(expected ^ set(tensors)))
        raise ValueError(f"got {BEST} that lacks, or has but should not: {odd}; copy it again")
    model.load_state_dict({n: t[member] for n, t in tensors.items()}, strict=False)
    return model
