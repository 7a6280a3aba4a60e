"""Signals that ask a program to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
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
