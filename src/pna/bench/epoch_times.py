"""Times of an epoch of several implementations, trained in turns in one process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from pna.bench.measure import Log, collect, time_by_name, try_call

OURS, PYG, AUTHORS = "pna", "PyG", "the authors' code"
LOADED, COMPILED = "PyG, batches on the GPU", "PyG, compiled, batches on the GPU"

#: Seconds of an epoch of one run of the authors' multi-task model on one H200: measured once, with
#: their code, not by this benchmark.
AUTHORS_SECONDS = 1.53
_LONGEST_COMPILATION = 240  # seconds


@dataclass(frozen=True)
class Contender:
    """An implementation: each call trains an epoch, or a share of one, scaled up to a whole."""

    name: str
    epoch: Callable[[], Any]
    parameters: int
    members: int = 1
    share: float = 1.0
    note: str | None = None


@dataclass(frozen=True)
class EpochCase:
    """A model and graphs to train on, and the contender that the others are compared with."""

    name: str
    make: Callable[[EpochCase, torch.device], list[Contender]]
    baseline: str  # name of a contender
    graphs: int  # of each size, or in all
    sizes: tuple[int, ...] = ()  # of multi-task graphs
    batch_size: int = 512
    published: bool = False  # whether the authors' time is that of the same work

    @property
    def size(self) -> str:
        sizes = f" of each size from {self.sizes[0]} to {self.sizes[-1]}" if self.sizes else ""
        return f"{self.graphs:,} graphs{sizes}, batches of {self.batch_size}"


@dataclass(frozen=True)
class EpochResult:
    """One row: milliseconds of an epoch, None where not measured; `note` says why."""

    case: str
    contender: str
    members: int
    parameters: int | None
    graphs: int
    batch_size: int
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    per_second: float | None = None  # epochs a second of one member
    faster: float | None = None  # ratio of these to those of the contender named in `beside`
    beside: str | None = None  # name of the baseline, if it was measured; a column of stored files
    note: str | None = None


def measure_case(
    case: EpochCase,
    device: torch.device | str = "cpu",
    seconds: float = 5.0,
    compiled: bool = True,
    status: Log = print,
) -> list[EpochResult]:
    """All rows of a case. A contender that fails becomes a row whose note is the error."""
    return collect(
        _compare(case, torch.device(device), seconds, compiled, status),
        lambda problem: _row(case, Contender("all", lambda: None, 0), note=problem),
    )


def _compare(
    case: EpochCase, device: torch.device, seconds: float, compiled: bool, status: Log
) -> Iterator[EpochResult]:
    """A first epoch each, to compile and to capture graphs; then in turns."""
    status(f"{case.name}: making {case.size}")
    contenders = [c for c in case.make(case, device) if compiled or c.name != COMPILED]
    notes = {contender.name: contender.note for contender in contenders}
    standing = {}
    for contender in contenders:
        limit = _LONGEST_COMPILATION if contender.name == COMPILED else None
        hint = ", which may compile for minutes" if limit else ""
        status(f"{case.name}: first epoch of {contender.name}{hint}")
        with _at_most(limit):
            _, problem = try_call(contender.epoch)
        if problem is None:
            standing[contender.name] = contender
        else:
            notes[contender.name] = problem
    status(f"{case.name}: timing {' / '.join(standing)}")
    times: dict[str, dict[str, float]] = {}
    calls = {name: contender.epoch for name, contender in standing.items()}
    for name, (timing, problem) in time_by_name(calls, device, seconds).items():
        if timing is None:
            notes[name] = problem
        else:
            times[name] = timing.in_ms(standing[name].share)
    rate = {name: 1e3 * standing[name].members / times[name]["ms"] for name in times}
    if case.published:
        contenders.append(Contender(AUTHORS, lambda: None, contenders[0].parameters))
        times[AUTHORS], rate[AUTHORS] = {"ms": 1e3 * AUTHORS_SECONDS}, 1 / AUTHORS_SECONDS
        notes[AUTHORS] = "a constant: measured before on one H200, not in this run"
    for contender in contenders:
        name = contender.name
        yield _row(case, contender, times.get(name), rate, notes.get(name))


def _row(
    case: EpochCase,
    contender: Contender,
    times: dict[str, float] | None = None,
    rate: Mapping[str, float] = MappingProxyType({}),
    note: str | None = None,
) -> EpochResult:
    own, other = rate.get(contender.name), rate.get(case.baseline)
    graphs = case.graphs * max(len(case.sizes), 1)
    return EpochResult(
        case.name, contender.name, contender.members, contender.parameters or None, graphs,
        case.batch_size, **(times or {}), per_second=own,
        faster=None if own is None or other is None else own / other,
        beside=None if other is None else case.baseline, note=note,
    )  # fmt: skip


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError after so many seconds; only in the main thread, where signals arrive."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
