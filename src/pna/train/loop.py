"""Training: from a graph set to a run on disk, which can be interrupted and resumed."""

from __future__ import annotations

import gc
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pna.data.diameter import diameters
from pna.data.edge_labels import message_edges
from pna.data.encoding import ENCODING
from pna.data.graphset import GraphSet
from pna.data.molecule_features import RECORD
from pna.data.tensor_file import bytes_of
from pna.files import is_new
from pna.machine import command, machine
from pna.ops.aggregators import Aggregator
from pna.population.all_reduce import world_size
from pna.signals import stop_when_asked
from pna.train import training_molecules
from pna.train.class_weights import with_class_weights
from pna.train.defaults import loss_for, model_for, settings_for
from pna.train.distributed import (
    any_process,
    device_of,
    is_first,
    is_lost,
    joined,
    wait_for_all,
)
from pna.train.mask_columns import graphs_of, with_a_split_each
from pna.train.memory import mode_of, with_mode
from pna.train.memory_errors import explained, is_out_of_memory
from pna.train.metrics_file import Metrics, kept_rows, readable_rows
from pna.train.models import build, count_parameters, fitted
from pna.train.population import Population
from pna.train.prediction import check_features
from pna.train.run import BEST, CONFIG, LAST, METRICS, Config, Run
from pna.train.schedules import SCHEDULES
from pna.train.settings import PRECISIONS, ModelSettings, Settings
from pna.train.tasks import check_targets, is_binary, names_of, tasks_of
from pna.train.trainer import Trainer
from pna.waiting import note, waiting_for


@dataclass(frozen=True)
class Report:
    """The results of an epoch, for callbacks."""

    epoch: int
    epochs: int
    seconds: float  # of this epoch
    training: list[float]  # loss of each member; NaN if it has stopped
    validation: list[float]
    best: list[float]  # lowest validation loss of each member so far, or score of `select`
    alive: list[bool]
    broken: list[bool]
    lr: list[float]
    select: str = "loss"  # what `best` is of: `Settings.select`. If higher is better: 1 - metric


#: Called after every epoch.
Callback = Callable[[Report], None]


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and has saved a checkpoint."""


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
    report: Callback | None = None,
    repair_metrics: bool = False,
) -> Run:
    """Train a population on one split of a graph set, with early stopping on another.

    Args:
        data: a graph set or its file.
        out: folder of the run. It must be new, unless the run is resumed.
        model: settings of the model, or the name of a convolution; the rest then suits the graphs.
        settings: settings of the training. Default: settings that suit the graphs.
        loss: one loss for all targets, or a loss for each by name. Default: the usual loss for the
            graphs of a benchmark, "mse" for others.
        weights: weights of the losses by target. Default: 1 each.
        tasks: names of the targets to train on. Default: all.
        splits: names of the splits to train and to validate on.
        device: a device of torch. Default: a GPU if there is one.
        resume: continue the run in `out`, with its own model, settings and tasks.
        epochs: with `resume`, the total number of epochs. Default: as in the settings of the run.
        aggregators: with `resume`, the classes of your own aggregators.
        save_every: seconds between checkpoints.
        log_every: epochs between rows of ``metrics.csv``. The last epoch always has a row.
        report: callback after every epoch.
        repair_metrics: with `resume`, continue with the readable rows of a damaged or missing
            ``metrics.csv``, which is an error otherwise. The damaged file is kept under another
            name. If the file is not damaged, there is a warning and nothing is repaired.
    """
    if repair_metrics and not resume:
        raise ValueError("got repair_metrics for a new run, expected it only with resume")
    if epochs is not None and not resume:
        raise ValueError(
            f"got epochs={epochs} for a new run, expected it in the settings: Settings(epochs=…)"
        )
    if log_every < 1:
        raise ValueError(f"got log_every={log_every}, expected at least 1")
    where = device_of(device)
    with joined(where):
        waiting_for("reading the graphs")
        graphs = data if isinstance(data, GraphSet) else _load(data, out, settings, resume)
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
            given = settings_for(graphs, {}) if settings is None else settings
            kind = model
            if isinstance(kind, str):
                kind = model_for(graphs, kind, {}, loss, given.sample)
            config = configured(graphs, path, kind, given, loss, weights, tasks, splits)
            config = with_mode(config, graphs, where)
        if mode := mode_of(config, graphs, where):
            note(mode)
        if graphs.sample_weight is not None:
            note("training and validation losses are weighted by the weights of the graphs")
        wait_for_all()  # no process writes before all have checked
        with run.alone() if is_first() else nullcontext():
            if not resume and is_first():
                _check_new(run)  # another process may have started in the meantime
            checkpoint = _checkpoint(run, config, repair_metrics) if resume else None
            return _train(run, config, graphs, checkpoint, where, save_every, log_every, report)


def _load(data: str | Path, out: str | Path, settings: Settings | None, resume: bool) -> GraphSet:
    """The graphs of a file, with the splits that a new run asks for, or a resumed one has."""
    chosen = Run(out).config.settings if resume else settings or Settings()
    return graphs_of(data, chosen.mask_column)


def _warn_of_other_settings(given: Settings | None, config: Config) -> None:
    """Warn of given settings that differ from those of the run, which are used."""
    if given is None:
        return
    stored = config.settings
    differ = [f.name for f in fields(given) if getattr(given, f.name) != getattr(stored, f.name)]
    if differ:
        warnings.warn(
            f"got settings that differ from those of the run ({', '.join(differ)}); they are "
            "ignored: a run continues with its own settings. For more epochs: "
            "train(…, resume=True, epochs=…)",
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
    """The configuration of a new run, from the arguments of `train`."""
    if settings.message_edges != "all" and graphs.split_of_message is None:
        raise ValueError(
            f"got message_edges={settings.message_edges!r} for graphs whose edges have no split, "
            "or several, expected targets and one split of edges (--edge-target, --edge-split); "
            "leave it out (--message-edges)"
        )
    parts = {name: graphs.split(name) for name in splits}
    for name, part in parts.items():
        if len(part) == 0:
            raise ValueError(f"got no graphs in the split {name!r}, expected some to train with")
    training = message_edges(parts[splits[0]], settings.message_edges, splits[0])
    tasks = tasks_of(graphs, loss, weights, chosen)
    tasks = with_class_weights(tasks, training, settings.class_weights, settings.balance_classes)
    settings = with_a_split_each(settings, graphs, tasks)
    if settings.threshold != "half" and not any(is_binary(task) for task in tasks):
        raise ValueError(
            f"got threshold={settings.threshold!r} for targets that are not trained with bce, "
            "expected one with two classes; leave it out"
        )
    for name, part in parts.items():
        check_targets(tasks, part, f"the split {name!r}")
        _check_features(part, f"the split {name!r}")
    features = {"node": graphs.node_features, "edge": graphs.edge_features}
    if graphs.graph_features:
        features["graph"] = graphs.graph_features
    data: dict[str, Any] = {
        "path": None if path is None else str(path),
        "fingerprint": fingerprint(graphs),
        "splits": list(splits),
        "features": {level: list(names) for level, names in features.items()},
    }
    if graphs.sample_weight is not None:
        data["weighted"] = True  # losses are, of training and of validation
    if "classes" in graphs.metadata:  # their names, which predictions have
        data["classes"] = graphs.metadata["classes"]
    if RECORD in graphs.metadata:  # molecules of a table get the same features
        data[RECORD] = graphs.metadata[RECORD]
    if ENCODING in graphs.metadata:  # other graphs are read alike
        data[ENCODING] = graphs.metadata[ENCODING]
    return Config(data, fitted(model, training, tasks, graphs), tasks, settings)


def _check_features(graphs: GraphSet, where: str) -> None:
    """Raise if a feature is not finite: no loss would be."""
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
            f"graph {graph} of {where}, expected finite numbers; repair the graph set"
        )


@dataclass(frozen=True)
class _Checkpoint:
    """The checkpoint of a run. It is read and checked before anything is written."""

    tensors: dict[str, Tensor]
    config: Config
    epoch: int
    seconds: float
    rows: list[list[str]]  # of `METRICS`, up to the epoch
    is_consistent: bool  # whether the other files agree with it


def _checkpoint(run: Run, config: Config, repair_metrics: bool) -> _Checkpoint | None:
    """The checkpoint of a run that is resumed; None if there is none yet."""
    if not (run.folder / LAST).is_file():
        _check_untrained(run)
        return None
    tensors, facts = run.read(LAST)
    epoch, rows = facts["epoch"], list[list[str]]()
    is_consistent = True
    if is_first():
        is_consistent = run.has_best_of(epoch)
        kept = (run.folder / METRICS, _columns(config), epoch)
        try:
            rows = kept_rows(*kept, facts.get("rows"))
        except ValueError:
            if not repair_metrics:
                raise
            rows, is_consistent = readable_rows(*kept), False
        else:
            if repair_metrics:
                warnings.warn(f"{kept[0]} is not damaged: there is nothing to repair", stacklevel=2)
    stored_config = Config.from_dict(facts["config"])
    return _Checkpoint(tensors, stored_config, epoch, facts["seconds"], rows, is_consistent)


def _check_untrained(run: Run) -> None:
    """Raise if a run without `LAST` was trained: resuming would start again and overwrite it."""
    summary = run.summary
    if (run.folder / BEST).exists() or (summary is not None and summary["epochs"] > 0):
        raise FileNotFoundError(
            f"got {run.folder}, which was trained but has no {LAST} to continue from; restore "
            "the file, or start a new run in another folder"
        )


def _columns(config: Config) -> list[str]:
    names = ["epoch", "member", "training", "validation", "lr", "seconds"]
    return names + [f"validation {task.name}" for task in config.tasks]


def _train(
    run: Run,
    config: Config,
    graphs: GraphSet,
    checkpoint: _Checkpoint | None,
    device: torch.device,
    save_every: float,
    log_every: int,
    report: Callback | None,
) -> Run:
    settings = config.settings
    if device.type == "cuda" and torch.cuda.is_initialized():
        gc.collect()  # earlier trainers and their captured graphs refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    waiting_for(f"moving models and graphs to {device}")
    tried = f"{settings.members} members, {graphs.num_nodes:,} nodes and {graphs.num_edges:,} edges"
    try:
        trainer = make_trainer(config, graphs, device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise explained(error, tried, device) from error
    done, seconds, kept = 0, 0.0, list[list[str]]()
    writes = is_first()
    if checkpoint is not None:
        _restore(run, trainer, config, checkpoint)
        done, seconds, kept = checkpoint.epoch, checkpoint.seconds, checkpoint.rows
        if writes:
            run.resume(config, done, {**machine(), "command": command()})
    elif writes:
        run.start(config, {**machine(), "command": command()})
    if writes and not (run.folder / training_molecules.FILE).exists():
        molecules = training_molecules.TrainingMolecules.seen_by(config, graphs)
        if molecules is not None:
            molecules.save(run)
    metrics = Metrics(run.folder / METRICS, _columns(config), kept) if writes else None
    if metrics is not None and checkpoint is not None and not checkpoint.is_consistent:
        _save(run, trainer, done, seconds, metrics.rows)
    saved = time.monotonic()
    finished = done >= settings.epochs or not bool(trainer.member_state.alive.any())
    if not finished:
        waiting_for("running the first steps")
    try:
        with stop_when_asked() as stop:
            while not finished:
                results, rows = _epoch(trainer, done)
                done += 1
                seconds += results.seconds
                finished = done >= settings.epochs or not any(results.alive)
                if metrics is not None and (finished or done % log_every == 0):
                    metrics.add(rows)
                if report is not None and writes:
                    report(results)
                late = time.monotonic() - saved >= save_every
                stopping = any_process(stop.is_set(), trainer.population.device)
                if metrics is not None and (late or finished or stopping):
                    metrics.flush()
                    _save(run, trainer, done, seconds, metrics.rows)
                    saved = time.monotonic()
                if stopping and not finished:
                    raise Interrupted(f"stopped after epoch {done}; {run.folder} can be resumed")
    except Exception as error:
        if is_lost(error):
            raise ConnectionError(
                "another process of this training has ended or cannot be reached (epoch "
                f"{done + 1}); see its output, then start the processes again, which continue from "
                f"the last checkpoint: pna train --resume {run.folder}"
            ) from error
        if not is_out_of_memory(error):
            raise
        where = ""
        if metrics is not None:
            metrics.flush()
            _save(run, trainer, done, seconds, metrics.rows, trainer.begun)
            where = f"the state after epoch {done} is saved: free memory, and pna train --resume "
            where += str(run.folder)
        raise explained(error, f"epoch {done + 1} of {tried}", device, where) from error
    finally:
        if metrics is not None:
            metrics.close()
    if writes:
        summary = _summary(trainer, config, done, seconds)
        if any(best is not None for best in summary["best"]):
            from pna.train import evaluation  # imports this module

            if settings.threshold != "half":
                chosen = evaluation.choose_thresholds(run, config, graphs, device)
                summary["thresholds"] = {name: found._asdict() for name, found in chosen.items()}
            calibration = evaluation.calibration_rows(run, config, graphs, device)
            if calibration is not None:
                calibration.save(run)
        run.finish(summary)
    return run


def make_trainer(
    config: Config, graphs: GraphSet, device: str | torch.device | None = None, **options: Any
) -> Trainer:
    """The trainer of a configuration and its graphs, on a device."""
    settings = config.settings
    where = device_of(device)
    population = Population([build(config.model, seed) for seed in settings.seeds])
    population.to(where, PRECISIONS[settings.precision].weights)
    splits, messages = config.data["splits"], settings.message_edges
    if graphs.splits_inside and messages == "all":
        graphs = graphs.to(where)  # before it is split: all parts have the same edges
    parts = [message_edges(graphs.split(name), messages, name) for name in splits]
    far = None
    if config.model.arguments.get("depth") == "diameter":
        far = (diameters(parts[0]), diameters(parts[1]))
    on_device = [part.to(where) for part in parts]
    return Trainer(population, config.tasks, settings, *on_device, diameters=far, **options)


def _restore(run: Run, trainer: Trainer, config: Config, checkpoint: _Checkpoint) -> None:
    try:
        stored = checkpoint.config
        if not SCHEDULES[stored.settings.schedule].needs_epochs:
            stored = stored.with_epochs(config.settings.epochs)
        if stored != config:
            raise ValueError("it belongs to another configuration")
        trainer.load_state_dict(checkpoint.tensors)
    except (ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"got {run.folder / LAST}, which does not belong to {run.folder}: {error}; restore "
            "the file, or start a new run in another folder"
        ) from error


def _until(run: Run, epochs: int | None) -> Config:
    """The configuration of a run that is resumed, with another number of epochs if given."""
    config = run.config
    settings = config.settings
    if epochs is None or epochs == settings.epochs:
        return config
    if SCHEDULES[settings.schedule].needs_epochs:
        raise ValueError(
            f"got epochs={epochs} for {run.folder}, whose schedule {settings.schedule!r} was "
            f"planned over {settings.epochs} epochs, expected {settings.epochs}: another number "
            "changes the learning rates from the start; start a new run in another folder"
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
                "broken, expected one in training; start a new run, with more patience"
            )
    return config.with_epochs(epochs)


def _save(
    run: Run,
    trainer: Trainer,
    epoch: int,
    seconds: float,
    rows: int,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Write `LAST` before `BEST`: it has the best weights too, so that a run can be resumed if it
    is killed in between. The `state` is that after the epoch. Default: the present state."""
    state = {name: t.cpu() for name, t in (state or trainer.state_dict()).items()}
    facts = {"epoch": epoch, "seconds": seconds, "best": finite(state["standing.best"]),
             "best_epoch": state["standing.best_epoch"].tolist()}  # fmt: skip
    run.write(LAST, state, facts | {"rows": rows})
    weights = trainer.population.named(state["best"])
    buffers = {name.removeprefix("best.buffer."): tensor for name, tensor in state.items()
               if name.startswith("best.buffer.")}  # fmt: skip
    run.write(BEST, weights | buffers, facts)


def _epoch(trainer: Trainer, done: int) -> tuple[Report, list[list[Any]]]:
    """Train an epoch after those that are `done`: its report, and a row of `_columns` for every
    member that was trained. All numbers are transferred from the device at once."""
    begin = time.monotonic()
    trainer.compact()
    trainer.remember()
    state = trainer.member_state
    before = (state.alive.clone(), state.lr.clone())
    losses = trainer.run_epoch(done)
    totals = [trainer.weights.total(of_tasks) for of_tasks in losses]
    columns = [*before, *totals, state.best, state.alive, state.broken, *losses[1].T]
    table = torch.stack([column.double() for column in columns]).cpu().tolist()
    seconds = time.monotonic() - begin
    trained, lr, training, validation, best, alive, broken, *tasks = table
    alive, broken = ([*map(bool, column)] for column in (alive, broken))
    report = Report(
        done + 1, trainer.settings.epochs, seconds, training, validation, best, alive, broken, lr,
        trainer.settings.select,
    )  # fmt: skip
    rows = [
        [done + 1, k, training[k], validation[k], lr[k], round(seconds, 6), *(t[k] for t in tasks)]
        for k, was_trained in enumerate(trained)
        if was_trained
    ]
    return report, rows


def finite(numbers: Tensor) -> list[float | None]:
    """Numbers for JSON; None for those that are not finite."""
    return [n if math.isfinite(n) else None for n in numbers.tolist()]


def _summary(trainer: Trainer, config: Config, epoch: int, seconds: float) -> dict[str, Any]:
    state, device = trainer.member_state, trainer.population.device
    return {
        "epochs": epoch,
        "seconds": seconds,
        "parameters": count_parameters(trainer.population.model),
        "best": finite(state.best),
        "best_epoch": state.best_epoch.tolist(),
        "broken": state.broken.tolist(),
        "seeds": config.settings.seeds,
        "processes": world_size(),
        "device": str(device),
        "peak_memory": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
    }


def fingerprint(graphs: GraphSet) -> str:
    """A hash of all tensors of a graph set."""
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
            f"got {run.folder}, which is not empty, expected a new folder; continue the run in "
            "it with resume, or choose another folder"
        )


def _check_fit(config: Config, graphs: GraphSet, run: Run) -> None:
    """Raise unless a configuration, which a user may have edited, fits these graphs."""
    try:
        for name in config.data["splits"]:
            graphs.split(name)
        for task in config.tasks:
            if task.column >= len(names_of(graphs, task.level)):
                raise ValueError(f"the graphs have no target for the task {task.name!r}")
        check_features(config, graphs)
    except ValueError as error:
        raise ValueError(
            f"got {run.folder / CONFIG}, which does not fit these graphs ({error}); restore the "
            "file, or start a new run in another folder"
        ) from error


def check_data(config: Config, graphs: GraphSet, run: Run) -> None:
    """Raise unless a run was started with these graphs."""
    if config.data["fingerprint"] != fingerprint(graphs):
        raise ValueError(
            f"got other graphs than those that {run.folder} was started with "
            f"({config.data['path'] or 'a set in memory'}), expected the same; restore them, or "
            "move the folder away and start a new run"
        )
