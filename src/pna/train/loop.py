"""Training from a graph set to a run, interrupted or not."""

from __future__ import annotations

import gc
import hashlib
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pna.data.diameter import diameters
from pna.data.graphset import GraphSet
from pna.data.tensor_file import bytes_of
from pna.files import is_new
from pna.machine import machine
from pna.ops.aggregators import Aggregator
from pna.population.all_reduce import processes
from pna.train.defaults import loss_for, model_for, settings_for
from pna.train.distributed import any_of_all, device_of, is_first, joined, wait_for_all
from pna.train.metrics_file import Metrics, kept_rows, readable_rows
from pna.train.models import build, count_parameters, fitted
from pna.train.population import Population
from pna.train.prediction import check_features
from pna.train.run import BEST, CONFIG, LAST, METRICS, Config, Run
from pna.train.schedules import SCHEDULES
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import check_targets, tasks_of
from pna.train.trainer import Trainer


@dataclass(frozen=True)
class Report:
    """How training stands after an epoch, for whoever shows it."""

    epoch: int
    epochs: int
    seconds: float  # of this epoch
    training: list[float]  # loss of each member, NaN where it has left
    validation: list[float]
    best: list[float]  # least validation loss of each member
    alive: list[bool]
    broken: list[bool]
    lr: list[float]


Reporter = Callable[[Report], None]


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and has saved where it was."""


def train(
    data: GraphSet | str | Path,
    out: str | Path,
    model: ModelSettings | str = "pna",
    settings: Settings | None = None,
    *,
    loss: str | dict[str, str] | None = None,
    weights: dict[str, float] | None = None,
    tasks: Sequence[str] | None = None,
    splits: tuple[str, str] = ("train", "validation"),
    device: str | torch.device | None = None,
    resume: bool = False,
    epochs: int | None = None,
    aggregators: Sequence[type[Aggregator]] = (),
    save_every: float = 60.0,
    log_every: int = 1,
    report: Reporter | None = None,
    repair_metrics: bool = False,
) -> Run:
    """Train a population on one split of a graph set, and stop each member by another.

    Args:
        data: a graph set or its file.
        out: folder of the run, which must be new unless it is resumed.
        model: its settings, or the name of a convolution, in a model that suits the graphs.
        settings: of the training; those that suit the graphs if left out.
        loss: for all targets, or for each by name; that of the field for a benchmark's graphs, and
            mse for others, if left out.
        weights: of the targets' losses, 1 where not given.
        tasks: which targets; all if left out.
        splits: names of those to train and to validate on.
        device: a GPU if there is one, if left out.
        resume: go on with the run in `out`; its model, settings and tasks are then what it was
            begun with.
        epochs: of a run that is resumed, how many there shall be of them in all, if not as many
            as it was begun with.
        aggregators: of a run that is resumed, the classes of those that are your own.
        save_every: seconds between checkpoints.
        log_every: epochs between rows of ``metrics.csv``, which has the last one too.
        report: called after every epoch.
        repair_metrics: resume a run whose ``metrics.csv`` is damaged or missing, which is refused
            otherwise: go on with the rows that can be read. The damaged file is kept under another
            name. If it is not damaged, a warning says so, and nothing is repaired.
    """
    if repair_metrics and not resume:
        raise ValueError("got repair_metrics for a new run, expected it with resume alone")
    if epochs is not None and not resume:
        raise ValueError(
            f"got epochs={epochs} for a new run, expected it in the settings: Settings(epochs=…)"
        )
    if log_every < 1:
        raise ValueError(f"got log_every={log_every}, expected at least 1")
    where = device_of(device)
    with joined(where):
        graphs = data if isinstance(data, GraphSet) else GraphSet.load(data)
        path = None if isinstance(data, GraphSet) else Path(data).resolve()
        run = Run(out)
        if resume:
            config = _until(run, epochs).with_aggregators(aggregators)
            _warn_of_other_settings(settings, config)
            check_data(config, graphs, run)
            _check_fit(config, graphs, run)
        else:
            _check_new(run)
            loss = loss_for(graphs, loss)
            kind = model_for(graphs, model, {}, loss) if isinstance(model, str) else model
            given = settings_for(graphs, {}) if settings is None else settings
            config = configured(graphs, path, kind, given, loss, weights, tasks, splits)
        wait_for_all()  # nothing is written before all have looked
        with run.alone() if is_first() else nullcontext():
            if not resume and is_first():
                _check_new(run)  # another may have begun in the meantime
            begun = _checkpoint(run, config, repair_metrics) if resume else None
            return _train(run, config, graphs, begun, where, save_every, log_every, report)


def _warn_of_other_settings(given: Settings | None, config: Config) -> None:
    """A run that is resumed goes on with its own."""
    if given is None:
        return
    stored = config.settings
    differ = [f.name for f in fields(given) if getattr(given, f.name) != getattr(stored, f.name)]
    if differ:
        warnings.warn(
            f"got settings that are not those of the run ({', '.join(differ)}); they are ignored: "
            "a run goes on as it was begun. For more epochs: train(…, resume=True, epochs=…)",
            stacklevel=3,
        )


def configured(
    graphs: GraphSet,
    path: Path | None,
    model: ModelSettings,
    settings: Settings,
    loss: str | dict[str, str],
    weights: dict[str, float] | None,
    chosen: Sequence[str] | None,
    splits: tuple[str, str],
) -> Config:
    """What a run is, from what `train` is given; raises if it cannot be."""
    for name in splits:
        if len(graphs.split(name)) == 0:
            raise ValueError(f"got no graphs in the split {name!r}, expected some to train with")
    training = graphs.split(splits[0])
    tasks = tasks_of(graphs, loss, weights, chosen)
    for name in splits:
        check_targets(tasks, graphs.split(name), f"the split {name!r}")
        _check_features(graphs.split(name), f"the split {name!r}")
    held = {
        "path": None if path is None else str(path),
        "fingerprint": fingerprint(graphs),
        "splits": list(splits),
        "features": {"node": list(graphs.node_features), "edge": list(graphs.edge_features)},
    }
    return Config(held, fitted(model, training, tasks, graphs), tasks, settings)


def _check_features(graphs: GraphSet, where: str) -> None:
    """Raise where a feature is not a number: every loss would be none."""
    for level, features, names, offsets in (
        ("node", graphs.x, graphs.node_features, graphs.node_offsets),
        ("edge", graphs.edge_attr, graphs.edge_features, graphs.edge_offsets),
    ):
        if features is None or not bool((odd := ~features.isfinite()).any()):
            continue
        row, column = odd.nonzero()[0].tolist()
        graph = int(torch.searchsorted(offsets, row, right=True)) - 1
        raise ValueError(
            f"got {features[row, column].item():g} for the {level} feature {names[column]!r} of "
            f"graph {graph} of {where}, expected finite numbers; mend the graph set"
        )


@dataclass(frozen=True)
class _Checkpoint:
    """What a run goes on from: all of it is read and checked before anything is written."""

    tensors: dict[str, Tensor]
    config: Config
    epoch: int
    seconds: float
    rows: list[list[str]]  # of `METRICS`, up to the epoch
    is_whole: bool  # whether what it knows of the other files is so


def _checkpoint(run: Run, config: Config, repair_metrics: bool) -> _Checkpoint | None:
    """That of a run which is resumed; None if none was written yet."""
    if not (run.folder / LAST).is_file():
        _check_untrained(run)
        return None
    tensors, facts = run.read(LAST)
    epoch, rows = facts["epoch"], list[list[str]]()
    is_whole = True
    if is_first():
        is_whole = run.has_best_of(epoch)
        kept = (run.folder / METRICS, _columns(config), epoch)
        try:
            rows = kept_rows(*kept, facts.get("rows"))
        except ValueError:
            if not repair_metrics:
                raise
            rows, is_whole = readable_rows(*kept), False
        else:
            if repair_metrics:
                warnings.warn(f"{kept[0]} is not damaged: there is nothing to repair", stacklevel=2)
    held = Config.from_dict(facts["config"])
    return _Checkpoint(tensors, held, epoch, facts["seconds"], rows, is_whole)


def _check_untrained(run: Run) -> None:
    """Raise if a run without `LAST` was trained: going on would begin it again, over the rest."""
    summary = run.summary
    if (run.folder / BEST).exists() or (summary is not None and summary["epochs"] > 0):
        raise FileNotFoundError(
            f"got {run.folder}, which was trained but has no {LAST} to go on from; restore the "
            "file, or train anew in another folder"
        )


def _columns(config: Config) -> list[str]:
    names = ["epoch", "member", "training", "validation", "lr", "seconds"]
    return names + [f"validation {task.name}" for task in config.tasks]


def _train(
    run: Run,
    config: Config,
    graphs: GraphSet,
    begun: _Checkpoint | None,
    device: torch.device,
    save_every: float,
    log_every: int,
    report: Reporter | None,
) -> Run:
    settings = config.settings
    _forget_peak_memory(device)
    trainer = make_trainer(config, graphs, device)
    done, seconds, kept = 0, 0.0, list[list[str]]()
    writes = is_first()
    if begun is not None:
        _restore(run, trainer, config, begun)
        done, seconds, kept = begun.epoch, begun.seconds, begun.rows
        if writes:
            run.take_up(config, done, machine())
    elif writes:
        run.begin(config, machine())
    metrics = Metrics(run.folder / METRICS, _columns(config), kept) if writes else None
    if metrics is not None and begun is not None and not begun.is_whole:
        _save(run, trainer, done, seconds, metrics.rows)
    saved = time.monotonic()
    finished = done >= settings.epochs or not bool(trainer.standing.alive.any())
    try:
        with _asked_to_stop() as stop:
            while not finished:
                begin = time.monotonic()
                trainer.compact()
                standing = trainer.standing
                before = (standing.alive.clone(), standing.lr.clone())
                training, validation = trainer.run_epoch(done)
                rows = _rows(trainer, training, validation, *before)  # waits for the device
                done += 1
                taken = time.monotonic() - begin
                seconds += taken
                finished = done >= settings.epochs or not any(rows["alive"])
                if metrics is not None and (finished or done % log_every == 0):
                    metrics.add(_lines(done, rows, taken))
                if report is not None and writes:
                    report(_report(done, settings.epochs, taken, rows))
                late = time.monotonic() - saved >= save_every
                stopping = any_of_all(stop.is_set(), trainer.population.device)
                if metrics is not None and (late or finished or stopping):
                    metrics.flush()
                    _save(run, trainer, done, seconds, metrics.rows)
                    saved = time.monotonic()
                if stopping and not finished:
                    raise Interrupted(f"stopped after epoch {done}; {run.folder} can be resumed")
    finally:
        if metrics is not None:
            metrics.close()
    if writes:
        run.finish(_summary(trainer, config, done, seconds))
    return run


def make_trainer(
    config: Config, graphs: GraphSet, device: str | torch.device | None = None, **options: Any
) -> Trainer:
    """The population of a configuration, with its graphs, where it is to be trained."""
    settings = config.settings
    where = device_of(device)
    dtype = torch.float64 if settings.precision == "float64" else torch.float32
    population = Population([build(config.model, seed) for seed in settings.seeds])
    population.to(where, dtype)
    parts = [graphs.split(name) for name in config.data["splits"]]
    far = None
    if config.model.arguments.get("depth") == "diameter":
        far = (diameters(parts[0]), diameters(parts[1]))
    on_device = [part.to(where) for part in parts]
    return Trainer(population, config.tasks, settings, *on_device, diameters=far, **options)


def _restore(run: Run, trainer: Trainer, config: Config, begun: _Checkpoint) -> None:
    try:
        held = begun.config
        if not SCHEDULES[held.settings.schedule].needs_epochs:
            held = _with_epochs(held, config.settings.epochs)
        if held != config:
            raise ValueError("it is of another configuration")
        trainer.load_state(begun.tensors)
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"got {run.folder / LAST}, which does not belong to {run.folder}: {error}; restore "
            "the file, or train anew in another folder"
        ) from error


def _until(run: Run, epochs: int | None) -> Config:
    """What a run that is resumed is, with so many epochs, if they are given."""
    config = run.config
    settings = config.settings
    if epochs is None or epochs == settings.epochs:
        return config
    if SCHEDULES[settings.schedule].needs_epochs:
        raise ValueError(
            f"got epochs={epochs} for {run.folder}, whose schedule {settings.schedule!r} was "
            f"planned over {settings.epochs} epochs, expected {settings.epochs}: another number "
            "changes the learning rates from the start; train anew in another folder"
        )
    if (run.folder / LAST).is_file():
        tensors, facts = run.read(LAST)
        if epochs < facts["epoch"]:
            raise ValueError(
                f"got epochs={epochs} for {run.folder}, expected at least the {facts['epoch']} "
                "that are done"
            )
        if not tensors["standing.alive"].any():
            raise ValueError(
                f"got epochs={epochs} for {run.folder}, but all of its members have stopped or "
                "broken, expected one to train on; train anew, with more patience, say"
            )
    return _with_epochs(config, epochs)


def _with_epochs(config: Config, epochs: int) -> Config:
    return replace(config, settings=replace(config.settings, epochs=epochs))


def _save(run: Run, trainer: Trainer, epoch: int, seconds: float, rows: int) -> None:
    """What is last comes first: it holds the best weights too, so that a run which is killed
    before these are written again has all it needs."""
    standing = trainer.standing
    facts = {"epoch": epoch, "seconds": seconds, "best": finite(standing.best),
             "best_epoch": standing.best_epoch.tolist()}  # fmt: skip
    run.save_last(trainer.state(), facts | {"rows": rows})
    run.save_best(trainer.population, trainer.best, trainer.best_buffers, facts)


def _rows(
    trainer: Trainer, training: Tensor, validation: Tensor, trained: Tensor, lr: Tensor
) -> dict[str, Any]:
    """Everything told of an epoch, fetched from the device at once; which members it trained, and
    with what learning rates, is from before it."""
    standing = trainer.standing
    totals = [trainer.weights.judge(losses)[:, None] for losses in (training, validation)]
    columns = [
        *totals, standing.best[:, None], lr[:, None], standing.alive[:, None],
        standing.broken[:, None], trained[:, None], validation,
    ]  # fmt: skip
    table = torch.cat([c.to(torch.float64) for c in columns], 1).cpu().tolist()
    return {
        "training": [row[0] for row in table],
        "validation": [row[1] for row in table],
        "best": [row[2] for row in table],
        "lr": [row[3] for row in table],
        "alive": [bool(row[4]) for row in table],
        "broken": [bool(row[5]) for row in table],
        "trained": [bool(row[6]) for row in table],
        "tasks": [row[7:] for row in table],
        "names": [task.name for task in trainer.tasks],
    }


def _lines(epoch: int, rows: dict[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    for member, loss in enumerate(rows["training"]):
        if not rows["trained"][member]:
            continue
        yield {
            "epoch": epoch, "member": member, "training": loss,
            "validation": rows["validation"][member], "lr": rows["lr"][member],
            "seconds": round(seconds, 6),
            **{f"validation {name}": value for name, value in
               zip(rows["names"], rows["tasks"][member], strict=True)},
        }  # fmt: skip


def _report(epoch: int, epochs: int, seconds: float, rows: dict[str, Any]) -> Report:
    held = {f.name: rows[f.name] for f in fields(Report) if f.name in rows}
    return Report(epoch=epoch, epochs=epochs, seconds=seconds, **held)


def finite(numbers: Tensor) -> list[float | None]:
    """Numbers as JSON has them: None for what is not finite."""
    return [n if math.isfinite(n) else None for n in numbers.tolist()]


def _summary(trainer: Trainer, config: Config, epoch: int, seconds: float) -> dict[str, Any]:
    standing = trainer.standing
    return {
        "epochs": epoch,
        "seconds": seconds,
        "parameters": count_parameters(trainer.population.model),
        "best": finite(standing.best),
        "best_epoch": standing.best_epoch.tolist(),
        "broken": standing.broken.tolist(),
        "seeds": config.settings.seeds,
        "processes": processes(),
        "device": str(trainer.population.device),
        "peak_memory": _peak_memory(trainer.population.device),
    }


def _forget_peak_memory(device: torch.device) -> None:
    """So that what another training of this process has held is not told of the next."""
    if device.type == "cuda" and torch.cuda.is_initialized():  # else nothing was held
        gc.collect()  # a trainer and what it has recorded hold each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that this training has held at most; None of a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM wait for the end of an epoch; a second Ctrl-C does not. Where the process
    ignores one of them, as in the background, so does this."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    heard = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, ask)
        for number in heard
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fingerprint(graphs: GraphSet) -> str:
    """What tells this set from others: a hash of all its tensors."""
    digest = hashlib.sha256()
    for f in fields(graphs):
        value = getattr(graphs, f.name)
        if isinstance(value, Tensor):
            digest.update(f"{f.name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(bytes_of(value.cpu().contiguous()))
    return digest.hexdigest()


def _check_new(run: Run) -> None:
    if not is_new(run.folder):
        raise FileExistsError(
            f"got {run.folder}, which is not empty, expected a new folder; go on with the run in "
            "it with resume, or choose another"
        )


def _check_fit(config: Config, graphs: GraphSet, run: Run) -> None:
    """Raise unless a configuration, which may have been changed, can be of these graphs."""
    try:
        for name in config.data["splits"]:
            graphs.split(name)
        for task in config.tasks:
            y = graphs.y_node if task.level == "node" else graphs.y_graph
            if y is None or task.column >= y.shape[1]:
                raise ValueError(f"the graphs have no target for the task {task.name!r}")
        check_features(config, graphs)
    except ValueError as error:
        raise ValueError(
            f"got {run.folder / CONFIG}, which is not of these graphs ({error}); restore the "
            "file, or train anew in another folder"
        ) from error


def check_data(config: Config, graphs: GraphSet, run: Run) -> None:
    """Raise unless a run was begun with these graphs."""
    if config.data["fingerprint"] != fingerprint(graphs):
        raise ValueError(
            f"got other graphs than those that {run.folder} was begun with "
            f"({config.data['path'] or 'a set in memory'}), expected the same; restore them, or "
            "move the folder away to train anew"
        )
