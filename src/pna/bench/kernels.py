"""What each fast path buys: rows of the other benchmarks with every path switched off in turn.

    for row in rows("cuda", Path("runs")):
        results = measure(row, "cuda")

A row is measured in one process. The variants take turns, so that whatever slows the machine slows
all of them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pna import fast_paths
from pna.bench import layer, layer_cases, results, train
from pna.bench.epochs import trainer_of, with_validation, without_validation
from pna.bench.measure import (
    Log,
    check_device,
    release_memory,
    seconds_a_call,
    synchronize,
    try_call,
)
from pna.bench.molecules import molecules
from pna.bench.real_world import ROWS as REAL_WORLD
from pna.bench.real_world import trial_of
from pna.bench.synthetic import synthetic
from pna.data.graphset import GraphSet
from pna.fast_paths import FAST_PATHS
from pna.machine import machine
from pna.ops.precision import multiplied
from pna.paper.real_world import BASELINES
from pna.paper.registry import EXPERIMENTS

#: One unit of work: both passes of a layer, or an epoch.
Work = Callable[[], Any]

#: Seconds that a sample of each kind of device takes at least.
_SAMPLE = {"cpu": 0.15, "cuda": 0.03}

#: Units of work before timing where a GPU captures a step: when it is run for the third time.
_WARM_UP = 3

#: Seconds after which no more samples of a variant are taken: its gain is large enough to see.
_LONGEST = 2.0

#: Experiments whose baselines are measured, and which of their other rows.
_OF_BASELINES, _MORE_ROWS = ("zinc", "cifar10"), ("mpnn-sum edges", "mpnn-max edges")

#: Sizes of the multi-task graphs, graphs of each, which are a batch, and steps of the other rows.
_SIZES = {"cpu": (20,), "cuda": (15, 19, 24)}
_GRAPHS = {"cpu": 256, "cuda": 512}
_STEPS = {"cpu": 1, "cuda": 6}

#: On a CPU a batch of superpixels has so many graphs: of 128 one step takes seconds.
_SUPERPIXELS_ON_A_CPU = 32

#: Path of the line that says that a row is complete: nothing is off in it.
NONE = ""


@dataclass(frozen=True)
class Row:
    """What is timed. `prepare` makes what all variants share, and returns what makes the work of
    one variant: it is called with the paths of that variant switched off, and so is the work."""

    name: str
    prepare: Callable[[torch.device], Callable[[], Work]]
    captured: bool = True  # on a GPU


@dataclass(frozen=True)
class PathResult:
    """One line of the CSV: milliseconds of a unit of work with and without a path, medians of
    `repeats` samples.

    `gain` is ms_off / ms_on. Where a variant failed there are no numbers, and `note` says why.
    """

    row: str
    device: str
    path: str
    ms_on: float | None
    ms_off: float | None
    gain: float | None
    repeats: int
    machine: str
    torch: str
    commit: str
    note: str = ""


def rows(device: torch.device | str, runs: Path, small: bool = False) -> list[Row]:
    """All rows of a device, the most informative first.

    Graphs of an experiment are read from the folder `runs` where it has them. Otherwise they are
    synthetic, which the name of the row says.
    """
    kind = check_device(device)
    if small:
        path = runs / "zinc.safetensors"
        return [
            Row("small layer", partial(_layer, layer_cases.SMALL[0]), captured=False),
            Row("small multitask", partial(_recurrent, (6,), 8, 2, False)),
            Row("small zinc", partial(_experiment, "zinc", "gat", 2, path, small=True)),
        ]
    every = [*_of_training(kind), *_of_layers(kind)]
    every += _of_experiments(kind, runs, many=True)
    every += _of_baselines(kind, runs)
    every += _of_experiments(kind, runs, many=False)
    return every


def measure(
    row: Row,
    device: torch.device | str,
    *,
    repeats: int = 5,
    paths: Sequence[str] = ("*",),
    known: Collection[str] = (),
    log: Log = print,
) -> list[PathResult] | None:
    """A result for each path that the row takes, but for those that are `known`; after them, where
    `paths` are all of them, one without a path: the row is then complete. None if the row fails.

    `paths` are patterns such as ``degree_*``.
    """
    with multiplied(exactly=True):
        found, problem = try_call(_measure, row, torch.device(device), repeats, paths, known, log)
    release_memory()
    if problem is not None:
        log(f"{row.name}: {problem}")
    return found


def _measure(
    row: Row,
    device: torch.device,
    repeats: int,
    paths: Sequence[str],
    known: Collection[str],
    log: Log,
) -> list[PathResult]:
    began = time.perf_counter()
    make = row.prepare(device)
    variants, failed = dict[str, Work](), dict[str, str]()
    with fast_paths.queried() as queried:
        variants[NONE] = _warmed(make, device, row.captured)
    chosen = [
        path
        for path, entry in FAST_PATHS.items()
        if path in queried and device.type in entry.devices and path not in known
        if any(fnmatch(path, pattern) for pattern in paths)
    ]
    for path in chosen:
        with fast_paths.without(path):
            work, problem = try_call(_warmed, make, device, row.captured)
        if work is None:
            failed[path] = problem or "failed"
        else:
            variants[path] = work
    ready = time.perf_counter()
    timed = _in_turns(variants, device, repeats)
    ended = time.perf_counter()
    log(
        f"{row.name}: {statistics.median(timed[NONE]):.2f} ms, {len(chosen)} paths, "
        f"{ready - began:.0f} s to prepare, {ended - ready:.0f} s to time"
    )
    if list(paths) == ["*"]:
        chosen.append(NONE)
    facts, base = _facts(device), timed.pop(NONE)
    return [
        _result(row, path, base, timed.get(path, []), failed.get(path, ""), facts)
        for path in chosen
    ]


def _warmed(make: Callable[[], Work], device: torch.device, captured: bool) -> Work:
    work = make()
    for _ in range(_WARM_UP if captured and device.type == "cuda" else 1):
        work()
    synchronize(device)
    return work


def _in_turns(
    variants: Mapping[str, Work], device: torch.device, repeats: int
) -> dict[str, list[float]]:
    """So many samples of each, in milliseconds; fewer of what takes long."""
    counts, samples = dict[str, int](), {path: list[float]() for path in variants}
    for turn in range(repeats + 1):
        for path, work in variants.items():
            if samples[path] and sum(samples[path]) * counts[path] > 1e3 * _LONGEST:
                continue
            with fast_paths.without(*([path] if path else [])):
                taken = seconds_a_call(work, device, counts.get(path, 1))
            if turn == 0:  # how often a sample has to call it
                counts[path] = max(1, math.ceil(_SAMPLE[device.type] / taken))
            else:
                samples[path].append(1e3 * taken)
    return samples


def _facts(device: torch.device) -> dict[str, str]:
    here = machine()
    hardware = here["gpu"] if device.type == "cuda" else f"{here['cpu']}, {here['threads']} threads"
    return {
        "device": device.type,
        "machine": str(hardware),
        "torch": str(here["torch"]),
        "commit": str(here["commit"] or ""),
    }


def _result(
    row: Row, path: str, on: list[float], off: list[float], note: str, facts: dict[str, str]
) -> PathResult:
    ms_on, ms_off = statistics.median(on), statistics.median(off) if off else None
    return PathResult(
        row=row.name,
        path=path,
        ms_on=ms_on,
        ms_off=ms_off,
        gain=None if ms_off is None else ms_off / ms_on,
        repeats=len(off or on),
        note=note,
        **facts,
    )


def known_paths(path: Path, row: Row, device: torch.device | str) -> set[str]:
    """Paths of a row that a CSV has of this device, machine and commit; `NONE` where the row is
    complete."""
    facts = _facts(torch.device(device))
    return {
        line["path"]
        for line in results.read(path)
        if line["row"] == row.name and all(line[name] == value for name, value in facts.items())
    }


def write(path: Path, found: Sequence[PathResult]) -> None:
    """Add results to a CSV, in place of those of the same row, device, machine and path."""
    lines = [
        {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(result).items()}
        for result in found
    ]
    results.write(path, lines, key=("row", "device", "machine", "path"))


def _of_layers(kind: str) -> Iterator[Row]:
    for case in layer_cases.CASES[kind]:
        if not case.errors and not case.alone:
            yield Row(f"layer/{case.name}", partial(_layer, case), captured=False)


def _layer(case: layer_cases.Case, device: torch.device) -> Callable[[], Work]:
    step = layer.our_step(case, device)
    return lambda: step


def _of_training(kind: str) -> list[Row]:
    """The cases of `pna bench train`, of fewer steps; and one with shuffled batches, which are
    padded on a GPU, and enough of them for their shapes to be captured."""
    sizes = _SIZES[kind]
    found = [
        Row("train/multitask", partial(_recurrent, sizes, _GRAPHS[kind], 1, False)),
        Row("train/zinc-sized", _stacked),
    ]
    if kind == "cuda":
        found = [
            Row("train/population", partial(_recurrent, sizes, 512, 10, False)),
            Row("train/population, shuffled", partial(_recurrent, sizes, 512, 10, True)),
            *found,
            Row("train/multitask, shuffled", partial(_recurrent, range(15, 25), 512, 1, True)),
        ]
    return found


def _recurrent(
    sizes: Sequence[int], graphs: int, members: int, shuffle: bool, device: torch.device
) -> Callable[[], Work]:
    parts = train.multitask_parts(sizes, graphs)
    settings = replace(train.MULTITASK, members=members, batch_size=graphs, shuffle=shuffle)
    given = (*parts, train.RECURRENT, settings, "mse", device)
    return lambda: with_validation(trainer_of(*given))


def _stacked(device: torch.device) -> Callable[[], Work]:
    graphs = molecules(train.MOLECULES.batch_size * _STEPS[device.type])
    given = (graphs, graphs[:1], train.STACKED, train.MOLECULES, "mae", device)
    return lambda: without_validation(trainer_of(*given))


def _of_experiments(kind: str, runs: Path, many: bool) -> Iterator[Row]:
    """The cases of `pna bench real-world`, one member or as `many` as are reproduced; on a CPU one
    alone."""
    for name, variant in REAL_WORLD.items():
        members = EXPERIMENTS[name].members if many else 1
        if kind == "cuda" or not many:
            title = f"real-world/{name}, {members} member{'s' if many else ''}"
            yield _row_of(title, name, variant, members, runs)


def _of_baselines(kind: str, runs: Path) -> Iterator[Row]:
    """An epoch of each baseline model; on a CPU of one member."""
    for name in _OF_BASELINES:
        members = EXPERIMENTS[name].members if kind == "cuda" else 1
        for variant in (*(baseline.name for baseline in BASELINES), *_MORE_ROWS):
            yield _row_of(f"{name}/{variant}", name, variant, members, runs)


def _row_of(title: str, experiment: str, variant: str, members: int, runs: Path) -> Row:
    path = runs / f"{experiment}.safetensors"
    if not path.is_file():
        title = f"{title}, synthetic graphs"
    return Row(title, partial(_experiment, experiment, variant, members, path))


def _experiment(
    name: str, variant: str, members: int, path: Path, device: torch.device, small: bool = False
) -> Callable[[], Work]:
    trial = trial_of(name, variant, members)
    settings, steps = trial.settings, _STEPS[device.type]
    if small:
        settings, steps = replace(settings, batch_size=8), 1
    elif device.type == "cpu" and name in ("mnist", "cifar10"):
        settings = replace(settings, batch_size=_SUPERPIXELS_ON_A_CPU)
    count = steps * settings.batch_size
    graphs = (
        GraphSet.load(path).split("train")[:count] if path.is_file() else synthetic(name, count)
    )
    given = (graphs, graphs[:1], trial.model, settings, trial.loss, device)
    return lambda: without_validation(trainer_of(*given))
