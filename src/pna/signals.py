"""Signals that ask a program to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Handler = Callable[[int, Any], None]

#: Seconds in which several signals count as one.
TOGETHER = 1.0


def counted_once(handle: Handler) -> Handler:
    """A signal handler that ignores what follows another signal within `TOGETHER`.

    `timeout` and batch systems signal a process and its process group, so it gets two signals.
    """
    last = float("-inf")

    def handle_first(number: int, frame: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < TOGETHER:
            return
        last = now
        handle(number, frame)

    return handle_first


_stops: list[threading.Event] = []  # of the trainings of this process


def ask_to_stop() -> bool:
    """Let every training of this process save a checkpoint after its epoch, and stop. Returns
    whether there are any."""
    for stop in _stops:
        stop.set()
    return bool(_stops)


@contextmanager
def stop_when_asked() -> Iterator[threading.Event]:
    """An event that `ask_to_stop` sets, and Ctrl-C or SIGTERM. A second signal, a second later or
    more, raises; ignored ones stay ignored."""
    stop = threading.Event()
    _stops.append(stop)
    try:
        with _set_by_signals(stop):
            yield stop
    finally:
        _stops.remove(stop)


@contextmanager
def _set_by_signals(stop: threading.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    is_second = False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_second
        if is_second:
            raise KeyboardInterrupt
        is_second = True
        stop.set()

    signals, handler = (signal.SIGINT, signal.SIGTERM), counted_once(handle)
    before = {
        number: signal.signal(number, handler)
        for number in signals
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
