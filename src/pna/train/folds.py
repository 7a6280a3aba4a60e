"""Cross-validation: a run for each fold of a graph set, one after the other.

The folds have different training graphs, and thus other degrees, scales and batches, so that they
are not one population. The members of a fold are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pna.data.division import PARTS
from pna.data.folds import fold_of, labels
from pna.data.graphset import GraphSet
from pna.files import is_new
from pna.machine import machine
from pna.train.defaults import loss_for, model_for, settings_for
from pna.train.fold_runs import FoldParts, FoldRuns, is_folds
from pna.train.fold_scores import FoldScores, evaluate_folds
from pna.train.loop import Callback, configured, train
from pna.train.run import ENVIRONMENT, Config, Run
from pna.train.settings import ModelSettings, Settings
from pna.train.tasks import check_targets

#: A context for the training of a run, with a callback for its epochs.
Around = Callable[[int, Run], AbstractContextManager[Callback | None]]


@dataclass(frozen=True)
class FoldPlan:
    """What a cross-validation trains: the configuration of every fold."""

    folds: list[FoldParts]
    configs: list[Config]

    def differences(self, folder: Path) -> list[str]:
        """What differs in the cross-validation in a folder, such as "settings.lr"."""
        found = FoldRuns.load(folder)
        if found.folds != self.folds:
            return ["folds"]
        for run, config in zip(found.runs, self.configs, strict=True):
            if run.exists and (differing := [*_differing(run.config, config)]):
                return differing
        return []

    def start(self, folder: Path) -> FoldRuns:
        """Write the configurations to a folder, unless it has the same ones."""
        found = FoldRuns(folder, self.folds)
        if is_folds(folder):
            if differing := self.differences(folder):
                raise ValueError(
                    f"got {folder}, which was started with other {', '.join(differing)}, expected "
                    "the same, to continue it; choose another folder (--out), or continue it with "
                    f"its own settings: pna train --resume {folder}"
                )
        elif not is_new(folder):
            raise FileExistsError(
                f"got {folder}, which is not empty, expected a new folder, or that of the same "
                "cross-validation; choose another (--out)"
            )
        else:
            found.save()
        for run, config in zip(found.runs, self.configs, strict=True):
            if not (run.folder / ENVIRONMENT).is_file():  # written last
                run.start(config, machine())
        return found


def _differing(stored: Config, own: Config) -> Iterator[str]:
    one, other = (json.loads(json.dumps(config.as_dict())) for config in (stored, own))
    if one["data"]["fingerprint"] != other["data"]["fingerprint"]:
        yield "graphs or folds"
        return
    for name in ("model", "settings"):
        for key in dict.fromkeys([*one[name], *other[name]]):
            if one[name].get(key) != other[name].get(key):
                yield f"{name}.{key}"
    if one["tasks"] != other["tasks"]:
        yield "tasks"


def planned(
    graphs: GraphSet,
    path: Path | None,
    model: ModelSettings | str = "pna",
    settings: Settings | None = None,
    loss: str | dict[str, str] | None = None,
    weights: dict[str, float] | None = None,
    tasks: Sequence[str] | None = None,
    splits: tuple[str, str] = (PARTS[0], PARTS[1]),
) -> FoldPlan:
    """The configuration of every fold, from the arguments of `cross_validate`.

    Errors that a later fold would have are raised here. The models of fold k start from other seeds
    than those of fold 0: k times the number of members is added.
    """
    folds, configs = [], []
    for number, (repeat, fold) in enumerate(labels(graphs)):
        part = fold_of(graphs, number)
        usual = settings_for(part, {}) if settings is None else settings
        losses = loss_for(part, loss)
        kind = model_for(part, model, {}, losses) if isinstance(model, str) else model
        seed = usual.seed + number * usual.members
        own = replace(usual, mask_column=str(number), seed=seed)
        try:
            config = configured(part, path, kind, own, losses, weights, tasks, splits)
            check_targets(config.tasks, part.split("test"), "the split 'test'")
        except ValueError as error:
            raise ValueError(
                f"fold {number}: {error}; or change the folds (--folds, --split-seed)"
            ) from error
        folds.append(FoldParts(repeat, fold, *(len(part.split(name)) for name in PARTS)))
        configs.append(config)
    if not folds:
        raise ValueError(
            "got graphs without folds, expected some: from_table(…, folds=FoldOptions(5)) or "
            "pna.data.folds.with_folds"
        )
    return FoldPlan(folds, configs)


def cross_validate(
    data: GraphSet | str | Path,
    out: str | Path,
    model: ModelSettings | str = "pna",
    settings: Settings | None = None,
    *,
    loss: str | dict[str, str] | None = None,
    weights: dict[str, float] | None = None,
    tasks: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    save_every: float = 60.0,
    log_every: int = 1,
    report: Callback | None = None,
) -> FoldScores:
    """Train a population on every fold of a graph set, and test it.

    If `out` has folds of the same cross-validation, those that are finished are not trained again,
    and the one that was interrupted is continued.

    Args:
        data: a graph set with folds, or its file: from `pna.data.molecule_table.from_table` with
            `folds`, or from `pna.data.folds.with_folds`.
        out: folder with a run for each fold: ``fold-0``, ``fold-1``, … The scores are in
            ``folds.csv``.
        model, settings, loss, weights, tasks: as for `train`. Fold k adds k times the number of
            members to the seed.
        device, save_every, log_every, report: as for `train`, for each fold.
    """
    graphs = data if isinstance(data, GraphSet) else GraphSet.load(data)
    path = None if isinstance(data, GraphSet) else Path(data).resolve()
    plan = planned(graphs, path, model, settings, loss, weights, tasks)
    with Run(out).alone():
        found = plan.start(Path(out))
        train_folds(
            found, graphs, lambda number, run: nullcontext(report),
            device=device, save_every=save_every, log_every=log_every,
            aggregators=() if isinstance(model, str) else model.own_aggregators,
        )  # fmt: skip
        scores = evaluate_folds(found.folder, graphs, device=device)
        scores.save()
    return scores


def train_folds(
    found: FoldRuns, graphs: GraphSet, around: Around, epochs: int | None = None, **options: Any
) -> None:
    """Train the folds that are not finished, or all of them for more `epochs`.

    `options` are arguments of `train`.
    """
    for number, run in enumerate(found.runs):
        if not run.exists or run.summary is None or epochs is not None:
            part = fold_of(graphs, number)
            with around(number, run) as report:
                train(part, run.folder, resume=True, epochs=epochs, report=report, **options)
        summary = run.summary
        assert summary is not None
        if summary["epochs"] and all(best is None for best in summary["best"]):
            raise ValueError(
                f"{run.folder}: the loss of every member is not finite; lower --lr, or set --clip, "
                "and choose another folder (--out)"
            )
