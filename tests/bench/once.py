"""Measuring as briefly as can be, for tests of what is done with the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pna.bench import measure
from pna.bench.measure import Timing


def time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call be timed once: `test_measure.py` tests how times are sampled."""

    def time_calls(calls: Sequence[Callable[[], Any]], device: Any, _: float) -> list[Timing]:
        taken = [measure.seconds_a_call(call, device) for call in calls]
        return [Timing(seconds, seconds, seconds, 1) for seconds in taken]

    monkeypatch.setattr(measure, "time_calls", time_calls)
