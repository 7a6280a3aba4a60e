"""Contenders that train side by side: an epoch each, in turns, and what is told of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pna.bench.attempt import attempt, release
from pna.bench.measure import time_call, time_calls
from pna.ops.precision import multiplied

OURS, PYG, AUTHORS = "pna", "PyG", "the authors' code"
LOADED, COMPILED = "PyG, batches on the GPU", "PyG, compiled, batches on the GPU"

#: Seconds of an epoch of one run of the authors' multi-task model on one H200: measured once, with
#: their code, not by this benchmark.
AUTHORS_SECONDS = 1.53
_LONGEST_COMPILATION = 240  # seconds

Say = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """Who trains: an epoch at each call, or a share of one, from which a whole is told."""

    name: str
    epoch: Callable[[], Any]
    parameters: int
    members: int = 1
    share: float = 1.0
    note: str | None = None


@dataclass(frozen=True)
class Case:
    """What is trained, and against whom the others are told to be faster."""

    name: str
    make: Callable[[Case, torch.device], list[Contender]]
    beside: str  # name of a contender
    graphs: int  # of each size, or in all
    sizes: tuple[int, ...] = ()  # of multi-task graphs
    batch_size: int = 512
    published: bool = False  # whether the authors' time is that of the same work

    @property
    def size(self) -> str:
        sizes = f" of each size from {self.sizes[0]} to {self.sizes[-1]}" if self.sizes else ""
        return f"{self.graphs:,} graphs{sizes}, batches of {self.batch_size}"


@dataclass(frozen=True)
class Result:
    """One row; milliseconds of an epoch, None where not measured: `note` says why."""

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
    faster: float | None = None  # times as many of them as the one beside it
    beside: str | None = None
    note: str | None = None


def check_device(device: torch.device | str) -> str:
    """The kind of a device on which training is measured."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"got device {str(device)!r}, expected cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"got device {str(device)!r}, but torch finds no GPU: `pna doctor`")
    return kind


def measure_case(
    case: Case,
    device: torch.device | str = "cpu",
    seconds: float = 5.0,
    compiled: bool = True,
    doing: Say = print,
) -> list[Result]:
    """All rows of a case; whatever fails becomes a row whose note tells of it."""
    device = torch.device(device)
    results: list[Result] = []

    def measure() -> None:
        doing(f"{case.name}: making {case.size}")
        contenders = case.make(case, device)
        if not compiled:
            contenders = [c for c in contenders if c.name != COMPILED]
        results.extend(_race(case, contenders, device, seconds, doing))

    with multiplied(exactly=True):
        _, problem = attempt(measure)
    if problem is not None:
        results.append(_row(case, Contender("all", lambda: None, 0), note=problem))
    torch.compiler.reset()
    release()
    return results


def _race(
    case: Case, contenders: list[Contender], device: torch.device, seconds: float, doing: Say
) -> list[Result]:
    """A first epoch each, in which they compile and record; then in turns."""
    failed: dict[str, str | None] = {}
    for contender in contenders:
        limit = _LONGEST_COMPILATION if contender.name == COMPILED else None
        hint = ", which may compile for minutes" if limit else ""
        doing(f"{case.name}: first epoch of {contender.name}{hint}")
        with _at_most(limit):
            _, problem = attempt(contender.epoch)
        if problem is not None:
            failed[contender.name] = problem
    standing = [c for c in contenders if c.name not in failed]
    doing(f"{case.name}: timing {' / '.join(c.name for c in standing)}")
    times: dict[str, dict[str, float]] = {}
    in_turns, _ = attempt(time_calls, [c.epoch for c in standing], device, seconds)
    for i, contender in enumerate(standing):
        timing = None if in_turns is None else in_turns[i]
        if timing is None:
            timing, failed[contender.name] = attempt(time_call, contender.epoch, device, seconds)
        if timing is not None:
            taken = {"ms": timing.median, "ms_low": timing.low, "ms_high": timing.high}
            whole = 1e3 / contender.share
            times[contender.name] = {name: whole * value for name, value in taken.items()}
    rate = {c.name: 1e3 * c.members / times[c.name]["ms"] for c in standing if c.name in times}
    rows = []
    if case.published:
        rate[AUTHORS] = 1 / AUTHORS_SECONDS
        authors = Contender(AUTHORS, lambda: None, contenders[0].parameters)
        note = "a constant: measured before on one H200, not in this run"
        rows = [_row(case, authors, {"ms": 1e3 * AUTHORS_SECONDS}, rate, note)]
    return [
        *(
            _row(case, c, times.get(c.name, {}), rate, failed.get(c.name, c.note))
            for c in contenders
        ),
        *rows,
    ]


def _row(
    case: Case,
    contender: Contender,
    times: dict[str, float] | None = None,
    rate: dict[str, float] | None = None,
    note: str | None = None,
) -> Result:
    own, other = (None if rate is None else rate.get(n) for n in (contender.name, case.beside))
    graphs = case.graphs * max(len(case.sizes), 1)
    return Result(
        case.name, contender.name, contender.members, contender.parameters or None, graphs,
        case.batch_size, **(times or {}), per_second=own,
        faster=None if own is None or other is None else own / other,
        beside=None if other is None else case.beside, note=note,
    )  # fmt: skip


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Interrupt what takes longer, where that can be done: in the main thread."""
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
