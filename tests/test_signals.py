"""Signals that ask a program to stop."""

from __future__ import annotations

import pytest

from pna import signals


def test_signals_within_a_second_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those at 0, 0.4, 0.9, 1.1, 2 and 5 seconds, three are handled."""
    handled: list[int] = []
    handle = signals.counted_once(lambda number, frame: handled.append(number))
    for number, now in enumerate((0.0, 0.4, 0.9, 1.1, 2.0, 5.0)):
        monkeypatch.setattr(signals.time, "monotonic", lambda now=now: now)
        handle(number, None)
    assert handled == [0, 3, 5]
