"""A run: a folder with all that is needed to resume, load and repeat a training."""

from __future__ import annotations

import csv
import json
import math
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pna.data import tensor_file
from pna.data.encoding import ENCODING
from pna.data.encoding import FACTS as ENCODING_FACTS
from pna.data.molecule_features import RECORD
from pna.files import alone, is_new, remove_leftovers, replacing
from pna.names import lookup
from pna.ops.aggregators import Aggregator
from pna.stored import check, fits, made, read_json, shown
from pna.train import metrics_file
from pna.train.arguments import decode, listed
from pna.train.disk_errors import disk_errors
from pna.train.models import build, count_parameters, outline
from pna.train.population import Population, changing_buffers
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import LEVELS, Task, check_apart, outputs_of

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.csv"
BEST, LAST, SUMMARY = "best.safetensors", "last.safetensors", "summary.json"
ERROR = "error.txt"
FOLDS = "folds.json"  # in a folder of several runs, of a cross-validation
_VERSION = 1


@dataclass(frozen=True)
class Config:
    """The configuration of a run: data, model, tasks and settings."""

    data: dict[str, Any]  # path, fingerprint, splits, names of features
    model: ModelSettings
    tasks: tuple[Task, ...]
    settings: Settings

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "data": self.data,
            "model": self.model.as_dict(),
            "tasks": [asdict(task) for task in self.tasks],
            "settings": self.settings.as_dict(),
        }

    @classmethod
    def from_dict(cls, content: Any) -> Config:
        """From the output of `as_dict`, read from a file; a ValueError says what is wrong."""
        check(content, {"data": dict[str, Any], "tasks": list[Any]}, "the configuration")
        version = content.get("version", 0)
        if not fits(version, int) or version > _VERSION:
            raise ValueError(
                f"got a configuration of version {shown(version)}, expected {_VERSION} or older; "
                "upgrade pna"
            )
        check(content["data"], _OF_DATA, "data")
        check({"classes": {}, **content["data"]}, {"classes": dict[str, list[str]]}, "data")
        check({ENCODING: {}, **content["data"]}, {ENCODING: dict[str, dict[str, Any]]}, "data")
        check({RECORD: {}, **content["data"]}, {RECORD: dict[str, Any]}, "data")
        check(
            {"features": [], "rdkit": "", **content["data"].get(RECORD, {})}, _OF_MOLECULES, RECORD
        )
        for what, encoding in content["data"].get(ENCODING, {}).items():
            check(encoding, ENCODING_FACTS, f"the encoding of {what}s")
        if len(content["data"]["splits"]) != 2:
            raise ValueError("data does not have two splits, to train and to validate on")
        if not content["tasks"]:
            raise ValueError("it has no tasks, expected at least one")
        config = cls(
            data=content["data"],
            model=ModelSettings.from_dict(content.get("model")),
            tasks=tuple(made(Task, task, "a task") for task in content["tasks"]),
            settings=Settings.from_dict(content.get("settings")),
        )
        check_apart(config.tasks)
        if any(len(row) != len(config.tasks) for row in config.settings.task_weights):
            raise ValueError(f"task_weights do not fit its {len(config.tasks)} tasks")
        outputs = [outputs_of(config.tasks, level) for level in LEVELS]
        if outputs != [getattr(config.model, f"{level}_targets") for level in LEVELS]:
            raise ValueError("its tasks do not have the outputs of its model")
        return config

    def with_epochs(self, epochs: int) -> Config:
        """The same with another number of epochs, which may change when a run is resumed."""
        return replace(self, settings=replace(self.settings, epochs=epochs))

    def with_aggregators(self, classes: Sequence[type[Aggregator]]) -> Config:
        """The same with the classes of users' own aggregators, which are in no file."""
        return replace(self, model=replace(self.model, own_aggregators=listed(classes)))


_OF_MOLECULES = {"features": list[str], "rdkit": str}
_OF_DATA = {"path": str | None, "fingerprint": str, "splits": list[str]}


def unusable(path: Path, error: Exception) -> ValueError:
    """The error of a file that training writes at its end, and can write again."""
    return ValueError(
        f"got {path}, which cannot be used ({error}), expected what pna train wrote; remove the "
        f"file, and write it again: pna train --resume {path.parent}"
    )


class Run:
    """The folder of a training.

    ====================  ======================================================================
    config.json           data, model, tasks and settings
    environment.json      the machine and the command; in the list `resumed`, those of each resume,
                          and its epoch
    metrics.csv           one row of losses per member and epoch
    last.safetensors      the checkpoint from which training continues
    best.safetensors      the weights of every member at its lowest validation loss
    calibration           predictions of a calibration split, at the end of training
      .safetensors
    molecules             fingerprints of the training molecules of a table, and the ranges of
      .safetensors        their targets
    summary.json          the results at the end
    error.txt             the traceback of a training that failed among several
    ====================  ======================================================================
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._locked: os.stat_result | None = None  # the folder, while it is `alone`

    @property
    def exists(self) -> bool:
        return (self.folder / CONFIG).is_file()

    @property
    def config(self) -> Config:
        """The configuration, from `CONFIG`."""
        path = self.folder / CONFIG
        if not path.is_file():
            remedy = "pass the folder that pna train wrote"
            if self.folder.is_dir() and is_new(self.folder):
                remedy = "nothing was saved in it yet: start the training again, without --resume"
            if (self.folder / FOLDS).is_file():
                remedy = f"it is a cross-validation: pass a fold, such as {self.folder / 'fold-0'}"
            raise FileNotFoundError(
                f"got {self.folder}, which has no {CONFIG}, expected the folder of a run; {remedy}"
            )
        try:
            return Config.from_dict(read_json(path))
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be used ({error}), expected what pna train wrote; "
                "upgrade pna if a newer version wrote it, else restore the file or start a new run"
            ) from error

    @property
    def summary(self) -> dict[str, Any] | None:
        """The results at the end; None if the run is not finished."""
        if not (self.folder / SUMMARY).is_file():
            return None
        again = "remove the file"
        if (self.folder / LAST).is_file():
            again += f", and write it again: pna train --resume {self.folder}"
        content = self._read_json(SUMMARY, again, _SUMMED_UP)
        members = {len(content[name]) for name in ("best", "best_epoch", "broken")}
        if members != {self.config.settings.members}:
            raise ValueError(
                f"got {self.folder / SUMMARY}, which has another number of members than {CONFIG}, "
                f"expected what pna train wrote; {again}"
            )
        return content

    @property
    def environment(self) -> dict[str, Any]:
        """The machines on which it was started and resumed."""
        remedy = "restore the file, or write {} in it, to do without it"
        return self._read_json(ENVIRONMENT, remedy, {})

    def _read_json(self, name: str, remedy: str, expected: Mapping[str, Any]) -> dict[str, Any]:
        path = self.folder / name
        try:
            content = read_json(path)
            check({"resumed": [], **content}, {**expected, "resumed": list[dict[str, Any]]})
            for start in content.get("resumed", ()):
                check(start, {"after_epoch": int}, "resumed")
            return content
        except ValueError as error:
            raise ValueError(
                f"got {path}, which cannot be read ({error}), expected the JSON object that pna "
                f"train wrote; {remedy}"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder; raises if another process trains in it.

        A new folder in which nothing is written is removed again.
        """
        new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"got {self.folder}, which cannot be made ({error.strerror}), expected the name of "
                "a new folder; choose another (--out)"
            ) from error
        with alone(self.folder, wait=False):
            self._locked = self.folder.stat()
            try:
                yield
            finally:
                self._locked = None
                if new:
                    with suppress(OSError):  # it holds something, or is gone
                        self.folder.rmdir()

    @contextmanager
    def keeping_error(self) -> Iterator[None]:
        """Write the traceback of an error to the folder, and raise the error."""
        with suppress(OSError):
            (self.folder / ERROR).unlink(missing_ok=True)
        try:
            yield
        except Exception:
            with suppress(OSError):  # the disk may be full
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
            raise

    def start(self, config: Config, environment: dict[str, Any]) -> None:
        """Make the folder and write the configuration."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.folder)
            (self.folder / SUMMARY).unlink(missing_ok=True)  # of a run of 0 epochs
            write_json(self.folder / CONFIG, config.as_dict())
            write_json(self.folder / ENVIRONMENT, environment)

    def resume(self, config: Config, epoch: int, environment: dict[str, Any]) -> None:
        """Record that training continues after `epoch`, with `config`, on this machine."""
        changed = config != self.config
        is_over = self.summary is not None  # both are read before anything is written
        goes_on = changed or not is_over
        first = self.environment if goes_on else {}
        with disk_errors(self.folder):
            remove_leftovers(self.folder)
            if not goes_on:
                return
            if changed:
                # first: the run is not finished any more
                (self.folder / SUMMARY).unlink(missing_ok=True)
                write_json(self.folder / CONFIG, config.as_dict())
            # a resume without a later checkpoint changed nothing
            before = [start for start in first.get("resumed", []) if start["after_epoch"] < epoch]
            resumed = [*before, {"after_epoch": epoch, **environment}]
            write_json(self.folder / ENVIRONMENT, {**first, "resumed": resumed})

    def write(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write `BEST` or `LAST`, with a checksum and the configuration: it can be used alone."""
        on_host = {n: t.detach().cpu().contiguous() for n, t in tensors.items()}
        with disk_errors(self.folder):
            found = self.folder.stat()  # raises if the folder was removed
            if self._locked is not None and not os.path.samestat(found, self._locked):
                raise FileExistsError(
                    f"got {self.folder}, which was removed or moved during training, and another "
                    "folder of this name, expected it to stay; start this training again under "
                    "another name"
                )
            facts = facts | {"config": self.config.as_dict()}
            tensor_file.write(
                self.folder / name, on_host, facts,
                kind=_KINDS[name], version=_VERSION, force=True, checksum=True,
            )  # fmt: skip

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts of `BEST` or `LAST`; raises if they do not belong to this run."""
        path = self.folder / name
        own = self.config  # raises if this is not a run
        if not path.is_file():
            raise FileNotFoundError(
                f"got {self.folder}, which has no {name}, expected a run that was trained; "
                + self._how_to_train()
            )
        tensors, facts = tensor_file.read(path, kind=_KINDS[name], version=_VERSION)
        try:
            stored = _checked(name, tensors, facts)
            if stored.with_epochs(0) != own.with_epochs(0):
                raise ValueError("it belongs to another configuration")
        except ValueError as error:
            raise ValueError(
                f"got {path}, which does not belong to {self.folder}: {error}; restore the file, "
                "or start a new run in another folder"
            ) from error
        return tensors, facts

    def has_best_of(self, epoch: int) -> bool:
        """Whether `BEST` was written after this epoch. Raises if it is damaged or of another run:
        it must not be overwritten."""
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
        """The remedy for a run without weights."""
        again = f"pna train --resume {self.folder}"
        summary = self.summary
        if summary is None:
            return f"continue it: {again}"
        if summary.get("epochs") == 0:
            return f"it was trained for 0 epochs; train it for more: {again} --epochs 10"
        return "it was trained, but the file is gone: restore it, or start a new run"

    def metrics(self) -> list[dict[str, float]]:
        """Rows of `metrics.csv`."""
        return metrics_file.read(self.folder / METRICS)

    def finish(self, summary: dict[str, Any]) -> None:
        with disk_errors(self.folder):
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
    """The configuration in a file of weights; raises unless all tensors fit it.

    Without the classes of users' own `aggregators`, the weights of a model that needs them are not
    checked: it cannot be built. Shapes are compared with those of a model on the device "meta", so
    that no model is built that is larger than the file.
    """
    check(facts, _OF_WEIGHTS, "its header")
    config = Config.from_dict(facts.get("config")).with_aggregators(aggregators or ())
    members = config.settings.members
    if not fits(facts.get("rows", 0), int):
        raise ValueError(f"rows is {shown(facts['rows'])}, expected a whole number")
    if len(facts["best"]) != members:
        raise ValueError(f"it has {len(facts['best'])} members, expected {members}")
    if aggregators is None and _lacks_classes(config):
        return config
    decode(config.model.arguments, config.model.own_aggregators)  # raises if a class is missing
    expected = _expected_weights(name, tensors, config)
    if odd := sorted(expected.keys() ^ tensors.keys()) if name == BEST else ():
        raise ValueError(f"these tensors are missing or unknown: {', '.join(odd)}")
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
    """Whether the model has aggregators of users, whose classes are not known."""
    try:
        decode(config.model.arguments)
    except ValueError:
        return True
    return False


def _expected_weights(name: str, tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """The weights of a member that a file must have, on the device "meta": in `BEST` by name, in
    `LAST` all in one row."""
    if name == LAST and (missing := _IN_LAST - tensors.keys()):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    weights = [tensors["best"]] if name == LAST else list(tensors.values())
    model = outline(config.model, sum(t.numel() for t in weights) // config.settings.members)
    if name == LAST:
        row = torch.empty(count_parameters(model), device="meta")
        return {key: row for key in ("best", "final") if key in tensors}
    buffers = dict(model.named_buffers())
    return {**dict(model.named_parameters()), **{n: buffers[n] for n in changing_buffers(model)}}


_IN_LAST = {"best", "ids", "standing.alive", "weights"}


def write_json(path: Path, content: dict[str, Any], indent: int = 2) -> None:
    with replacing(path) as file:
        json.dump(content, file, indent=indent, ensure_ascii=False)
        file.write("\n")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def load(
    run: str | Path | Run,
    member: int | None = None,
    *,
    aggregators: Sequence[type[Aggregator]] = (),
) -> nn.Module:
    """The trained model of a run, in evaluation mode.

    Args:
        run: a run, its folder, or its ``best.safetensors``, which has the configuration too.
        member: which member. Default: the one with the lowest validation loss.
        aggregators: the classes of your own aggregators, if the model has any.
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
    """The lowest validation loss of every member; infinite if it was never finite."""
    return [math.inf if loss is None else loss for loss in facts["best"]]


def load_population(
    run: Run, epoch: str = "best", aggregators: Sequence[type[Aggregator]] = ()
) -> tuple[Population, Config]:
    """All members of a run, with the weights of their "best" or "last" epoch."""
    tensors, facts, config = _weights(run, epoch, aggregators)
    return Population([_rebuilt(config, tensors, k) for k in range(len(facts["best"]))]), config


def write_member(
    run: Run, member: int, folder: str | Path, epoch: str = "best", data: str | None = None
) -> Run:
    """Write one member of a run as a run of its own, with its "best" or "last" weights as the best.

    The new run can be evaluated and predict, but not be trained further. It has no losses, no
    thresholds and no calibration. `data` is where it looks for its graphs. Default: where the run
    does.
    """
    tensors, facts, config = _weights(run, epoch)
    summary, settings = run.summary, config.settings
    if summary is None:
        raise ValueError(f"got {run.folder}, which is not finished, expected a finished run")
    own = replace(
        settings,
        members=1,
        seed=settings.seeds[member],
        lr=(settings.of_members("lr")[member],),
        weight_decay=(settings.of_members("weight_decay")[member],),
        task_weights=settings.task_weights[member : member + 1],
    )
    alone, path = Run(folder), data or config.data["path"]
    own_config = replace(config, settings=own, data=config.data | {"path": path})
    alone.start(own_config, run.environment)
    lists = {name: [summary[name][member]] for name in ("best", "best_epoch", "broken")}
    named = {name: tensor[member : member + 1] for name, tensor in tensors.items()}
    alone.write(BEST, named, {"epoch": facts["epoch"], "seconds": facts["seconds"], **lists})
    alone.finish({name: summary[name] for name in _SUMMED_UP} | lists)
    return alone


def _weights(
    run: Run, epoch: str, aggregators: Sequence[type[Aggregator]] = ()
) -> tuple[dict[str, Tensor], dict[str, Any], Config]:
    """The weights of all members by name, and the facts and the configuration in their file."""
    tensors, facts = run.read(lookup("epoch", epoch, {"best": BEST, "last": LAST}))
    config = _checked(BEST if epoch == "best" else LAST, tensors, facts, aggregators)
    if epoch == "last":
        if "final" not in tensors:
            raise ValueError(
                f"got {run.folder}, which has only the best weights of its members, expected "
                "those of their last epoch; train with keep_last"
            )
        named = Population([build(config.model)]).parameters_from(tensors["final"])
        begin = "final.buffer."
        buffers = {n.removeprefix(begin): t for n, t in tensors.items() if n.startswith(begin)}
        tensors = named | buffers
    return tensors, facts, config


def _rebuilt(config: Config, tensors: dict[str, Tensor], member: int) -> nn.Module:
    """The model of one member, with the dtype of its weights."""
    model = build(config.model)
    model.to(next(t.dtype for t in tensors.values() if t.is_floating_point()))
    model.load_state_dict({n: t[member] for n, t in tensors.items()}, strict=False)
    return model
