"""The progress of training: a bar on a terminal, plain lines, or JSON."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pna.cli.shared import print_error, print_line
from pna.waiting import displayed

if TYPE_CHECKING:
    from pna.train.loop import Callback, Report

_EVERY = 5.0  # seconds between plain lines
_RECENT = 20  # epochs from which the remaining time is estimated


@contextmanager
def show_epochs(console: Console, quiet: bool, as_json: bool) -> Iterator[Callback]:
    """A callback that shows every epoch: not at all, as JSON, as a bar, or as a line now and then.

    It always reports a member that breaks. Before the first epoch ends, a bar or a line says what
    is waited for.
    """
    log = partial(print_line, console)
    if quiet:
        yield broken_once(print_error)
    elif as_json:
        yield together(broken_once(print_error), lambda report: print_json(asdict(report)))
    elif console.is_terminal:
        with (
            _ending(Live(console=console)) as live,
            console.status("") as status,
            _until_first(lambda text: status.update(escape(text)), log) as stop,
        ):
            yield together(stop, lambda _: status.stop(), broken_once(log), _bar(live))
    else:
        with _until_first(_now_and_then(log), log) as stop:
            yield together(stop, broken_once(log), _plain(log))


@contextmanager
def show_waiting(console: Console) -> Iterator[None]:
    """Show what is waited for: as a status on a terminal, otherwise as lines."""
    if not console.is_terminal:
        with displayed(lambda what: print_line(console, f"{what} …")):
            yield
        return
    with (
        console.status("") as status,
        displayed(lambda what: status.update(escape(f"{what} …"))),
    ):
        yield


@contextmanager
def _ending(live: Live) -> Iterator[Live]:
    """A display that the first epoch starts, ended where the context ends."""
    try:
        yield live
    finally:
        live.stop()


@contextmanager
def _until_first(show: Callable[[str], None], log: Callable[[str], None]) -> Iterator[Callback]:
    """Show what is waited for, until the returned callback is called; `log` what stays."""
    is_over = False

    def stop(report: Report) -> None:
        nonlocal is_over
        is_over = True

    with displayed(lambda what: None if is_over else show(f"{what} …"), log):
        yield stop


def _now_and_then(log: Callable[[str], None]) -> Callable[[str], None]:
    """Log a text if nothing was logged for some seconds."""
    logged = time.monotonic()

    def show(text: str) -> None:
        nonlocal logged
        now = time.monotonic()
        if now - logged >= _EVERY:
            logged = now
            log(text)

    return show


def together(*callbacks: Callback) -> Callback:
    """One callback that calls these in order."""

    def call(report: Report) -> None:
        for callback in callbacks:
            callback(report)

    return call


def broken_once(log: Callable[[str], None]) -> Callback:
    """A callback that reports every member whose loss is not finite, once."""
    from pna.train.selection import as_metric  # imports torch

    reported: set[int] = set()

    def show(report: Report) -> None:
        for member, broken in enumerate(report.broken):
            if not broken or member in reported:
                continue
            reported.add(member)
            rest = "; frozen, the others continue" if any(report.alive) else "; frozen"
            best = report.best[member]
            value = as_metric(best, report.select)
            kept = f", its best, {value:.4g}, is kept" if math.isfinite(best) else ""
            log(f"member {member}: loss not finite by epoch {report.epoch}{rest}{kept}")

    return show


def print_json(content: dict[str, Any]) -> None:
    """Print one line of JSON. Numbers that are not finite become null."""
    typer.echo(json.dumps(_finite(content), allow_nan=False, ensure_ascii=False))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _plain(log: Callable[[str], None]) -> Callback:
    """A callback that prints the first epoch, the last, and one every few seconds."""
    words, printed = _Words(), -math.inf

    def show(report: Report) -> None:
        nonlocal printed
        line, now = words(report), time.monotonic()
        last = report.epoch == report.epochs or not any(report.alive)
        if last or now - printed >= _EVERY:
            printed = now
            log(line)

    return show


def _bar(live: Live) -> Callback:
    words = _Words()

    def show(report: Report) -> None:
        shown = Table.grid()
        shown.add_row(ProgressBar(report.epochs, report.epoch, width=40))
        shown.add_row(Text(words(report)))
        live.start()
        live.update(shown)

    return show


class _Words:
    """Describes an epoch in one line, with an estimate of the remaining time."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def __call__(self, report: Report) -> str:
        self._seconds.append(report.seconds)
        left = statistics.mean(self._seconds) * (report.epochs - report.epoch)
        parts = [
            f"epoch {report.epoch} of {report.epochs}: training {_losses(report, 'training')}",
            f"validation {_losses(report, 'validation')}",
            _best(report),
        ]
        if len(report.alive) > 1:
            parts.append(f"{sum(report.alive)} of {len(report.alive)} members")
        rates = [rate for rate, alive in zip(report.lr, report.alive, strict=True) if alive]
        if rates:
            low, high = min(rates), max(rates)
            parts.append(f"lr {low:.3g}" if low == high else f"lr {low:.3g} to {high:.3g}")
            parts.append(f"at most {timedelta(seconds=round(left))} left")
        return ", ".join(parts)


def _best(report: Report) -> str:
    """The best value of what selects the best epoch."""
    if report.select == "loss":
        return f"best so far {min(report.best):.4g}"
    from pna.train.metrics import METRICS  # imports torch
    from pna.train.selection import as_metric

    metric, value = METRICS[report.select], as_metric(min(report.best), report.select)
    return f"best {metric.title} so far {value:{'.4g' if metric.sign > 0 else '.4f'}}"


def _losses(report: Report, name: str) -> str:
    """Median and best loss of the members in training, or of all members when none is left."""
    losses = list(zip(getattr(report, name), report.alive, strict=True))
    finite = [loss for loss, _ in losses if math.isfinite(loss)]
    known = [loss for loss, alive in losses if alive and math.isfinite(loss)] or finite
    if not known:
        return "not finite"
    if len(report.alive) == 1:
        return f"{known[0]:.4g}"
    return f"{statistics.median(known):.4g} (best {min(known):.4g})"
