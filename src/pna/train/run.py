"""A run: the folder that holds a training, enough to resume, to rebuild and to repeat it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pna.data import tensor_file
from pna.files import alone, is_new, remove_leftovers, replacing
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.stored import check, fits, made, read_json, shown
from pna.train import metrics_file
from pna.train.arguments import decode, listed
from pna.train.models import build, count_parameters, outline
from pna.train.population import Population, changing_buffers
from pna.train.room import room
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import Task, as_dicts, check_apart, outputs_of

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
    def from_dict(cls, held: Any) -> Config:
        """What `as_dict` gave, read back from a file; a ValueError says what is wrong with it."""
        check(held, {"data": dict[str, Any], "tasks": list[Any]}, "the configuration")
        version = held.get("version", 0)
        if not fits(version, int) or version > _VERSION:
            raise ValueError(
                f"got a configuration of version {shown(version)}, expected {_VERSION} or older; "
                "upgrade pna"
            )
        check(held["data"], _OF_DATA, "data")
        if len(held["data"]["splits"]) != 2:
            raise ValueError("data has other than two splits, to train and to validate on")
        if not held["tasks"]:
            raise ValueError("it has no tasks, expected at least one")
        config = cls(
            data=held["data"],
            model=ModelSettings.from_dict(held.get("model")),
            tasks=tuple(made(Task, task, "a task") for task in held["tasks"]),
            settings=Settings.from_dict(held.get("settings")),
        )
        check_apart(config.tasks)
        if any(len(row) != len(config.tasks) for row in config.settings.task_weights):
            raise ValueError(f"task_weights are not of its {len(config.tasks)} tasks")
        outputs = {level: outputs_of(config.tasks, level) for level in ("node", "graph")}
        if outputs != {"node": config.model.node_targets, "graph": config.model.graph_targets}:
            raise ValueError("its tasks have other outputs than its model")
        return config

    def with_aggregators(self, classes: Sequence[type[Aggregator]]) -> Config:
        """The same with the classes of users' aggregators, which no file holds."""
        return replace(self, model=replace(self.model, own_aggregators=listed(classes)))


_OF_DATA = {"path": str | None, "fingerprint": str, "splits": list[str]}


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
            return Config.from_dict(read_json(path))
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be used ({error}), expected what pna train wrote; "
                "upgrade pna if a newer one wrote it, else restore the file or train anew"
            ) from error

    @property
    def summary(self) -> dict[str, Any] | None:
        """How it ended; None if it has not."""
        if not (self.folder / SUMMARY).is_file():
            return None
        again = f"remove the file, and have it made again: pna train --resume {self.folder}"
        held = self._read_json(SUMMARY, again, _SUMMED_UP)
        members = {len(held[name]) for name in ("best", "best_epoch", "broken")}
        if members != {self.config.settings.members}:
            raise ValueError(
                f"got {self.folder / SUMMARY}, which is not of as many members as {CONFIG} has, "
                f"expected what pna train wrote; {again}"
            )
        return held

    @property
    def environment(self) -> dict[str, Any]:
        """Where it ran, and was resumed."""
        remedy = "restore the file, or write {} in it, to do without what it said"
        return self._read_json(ENVIRONMENT, remedy, {}, {"resumed": list[dict[str, Any]]})

    def _read_json(
        self,
        name: str,
        remedy: str,
        expected: Mapping[str, Any],
        optional: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        path = self.folder / name
        try:
            held = read_json(path)
            check(held, {n: kind for n, kind in (optional or {}).items() if n in held})
            check(held, expected)
            for start in held.get("resumed", ()):
                check(start, {"after_epoch": int}, "resumed")
            return held
        except ValueError as error:
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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"got {self.folder}, which cannot be made ({error.strerror}), expected the name of "
                "a folder that can; choose another (--out)"
            ) from error
        with alone(self.folder, wait=False):
            try:
                yield
            finally:
                if new:
                    with suppress(OSError):  # it holds something, or is gone
                        self.folder.rmdir()

    def begin(self, config: Config, environment: dict[str, Any]) -> None:
        """Make the folder, and say in it what is about to be done."""
        with room(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            (self.folder / SUMMARY).unlink(missing_ok=True)  # of no epochs, if there is one
            write_json(self.folder / CONFIG, config.as_dict())
            write_json(self.folder / ENVIRONMENT, environment)

    def take_up(self, config: Config, epoch: int, environment: dict[str, Any]) -> None:
        """Go on after `epoch` with what is in the folder, as `config` has it, and say where."""
        changed = config != self.config
        is_over = self.summary is not None  # read, as the next, before anything is written
        goes_on = changed or not is_over
        first = self.environment if goes_on else {}
        with room(self.folder):
            remove_leftovers(self.folder)
            if not goes_on:
                return
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
        on_host = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
        with room(self.folder):
            self.folder.stat()  # one that was removed is not made anew, without what it had
            facts = facts | {"config": self.config.as_dict()}
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
            held = _checked(name, tensors, facts)
            if _without_epochs(held) != _without_epochs(own):
                raise ValueError("it is of another configuration")
        except ValueError as error:
            raise ValueError(
                f"got {path}, which does not belong to {self.folder}: {error}; restore the file, "
                "or train anew in another folder"
            ) from error
        return tensors, facts

    def has_best_of(self, epoch: int) -> bool:
        """Whether `BEST` was written after this epoch; one that is damaged or not of this run is
        refused, and is not to be overwritten."""
        if not (self.folder / BEST).exists():
            return False
        try:
            return bool(self.read(BEST)[1]["epoch"] == epoch)
        except ValueError as error:
            raise ValueError(
                f"{error}; or move it away: {LAST} has the same weights, and pna train --resume "
                f"{self.folder} writes the file again"
            ) from error

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
        return metrics_file.read(self.folder / METRICS)

    def finish(self, summary: dict[str, Any]) -> None:
        with room(self.folder):
            write_json(self.folder / SUMMARY, summary)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


_KINDS = {BEST: "pna.train.best", LAST: "pna.train.last"}
_SUMMED_UP = {
    "epochs": int, "seconds": float, "parameters": int, "best": list[float | None],
    "best_epoch": list[int], "broken": list[bool],
}  # fmt: skip
_OF_WEIGHTS = {"epoch": int, "seconds": float, "best": list[float | None]}


def _checked(
    name: str,
    tensors: dict[str, Tensor],
    facts: Any,
    aggregators: Sequence[type[Aggregator]] | None = None,
) -> Config:
    """The configuration in a file of weights, if all in the file is as it says.

    Without the classes of users' `aggregators`, weights of a model that needs some are not looked
    at: it cannot be built.

    Shapes are compared with those of a model that takes no memory, so that no model is built that
    is larger than the file.
    """
    check(facts, _OF_WEIGHTS, "what it says of itself")
    config = Config.from_dict(facts.get("config")).with_aggregators(aggregators or ())
    members = config.settings.members
    if not fits(facts.get("rows", 0), int):
        raise ValueError(f"rows is {shown(facts['rows'])}, expected a whole number")
    if len(facts["best"]) != members:
        raise ValueError(f"it is of {len(facts['best'])} members, expected {members}")
    if aggregators is None and _lacks_classes(config):
        return config
    decode(config.model.arguments, config.model.own_aggregators)  # says which class is missing
    expected = _expected_weights(name, tensors, config)
    if odd := sorted(expected.keys() ^ tensors.keys()) if name == BEST else ():
        raise ValueError(f"it lacks, or has but should not: {', '.join(odd)}")
    for key, own in expected.items():
        shape = (members, *own.shape)
        if tuple(tensors[key].shape) != shape:
            raise ValueError(
                f"{key} has the shape {tuple(tensors[key].shape)}, expected {shape}, as the "
                "model in its configuration has"
            )
        if tensors[key].is_floating_point() is not own.is_floating_point():
            raise ValueError(f"{key} is of type {tensors[key].dtype}, expected {own.dtype}")
    return config


def _lacks_classes(config: Config) -> bool:
    """Whether the model has aggregators that are not this package's."""
    try:
        decode(config.model.arguments)
    except ValueError:
        return True
    return False


def _expected_weights(name: str, tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """The weights of a member that a file must have, without memory for them: in `BEST` those of
    the model by name, in `LAST` all of them in a row."""
    if name == LAST and (missing := _IN_LAST - tensors.keys()):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    held = [tensors["best"]] if name == LAST else list(tensors.values())
    model = outline(config.model, sum(t.numel() for t in held) // config.settings.members)
    if name == LAST:
        row = torch.empty(count_parameters(model), device="meta")
        return {key: row for key in ("best", "final") if key in tensors}
    buffers = dict(model.named_buffers())
    return {**dict(model.named_parameters()), **{n: buffers[n] for n in changing_buffers(model)}}


_IN_LAST = {"best", "ids", "standing.alive", "weights"}


def _without_epochs(config: Config) -> Config:
    """A run that goes on for longer is the same run."""
    return replace(config, settings=replace(config.settings, epochs=0))


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
    try:
        config = _checked(BEST, tensors, facts, aggregators)
    except ValueError as error:
        raise ValueError(
            f"got {path}, which cannot be used ({error}), expected what pna train wrote; restore it"
        ) from error
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
    config = _checked(BEST if epoch == "best" else LAST, tensors, facts, aggregators)
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
    return Population([_rebuilt(config, tensors, k) for k in range(len(facts["best"]))]), config


def _rebuilt(config: Config, tensors: dict[str, Tensor], member: int) -> nn.Module:
    """The model of one member, in the type of its weights."""
    model = build(config.model)
    model.to(next(t.dtype for t in tensors.values() if t.is_floating_point()))
    model.load_state_dict({n: t[member] for n, t in tensors.items()}, strict=False)
    return model
