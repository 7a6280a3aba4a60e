"""Time and peak memory of a call, measured the same way for everyone."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

SAMPLE = 0.02  # seconds: beside it, waiting for the device takes no time


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median and the quartiles around it, over `samples` samples."""

    median: float
    low: float
    high: float
    samples: int


def time_call(call: Callable[[], Any], device: torch.device | str, seconds: float = 1.0) -> Timing:
    """Call again and again for about `seconds`, after warming up, and wait for the device."""
    return time_calls([call], device, seconds)[0]


def time_calls(
    calls: Sequence[Callable[[], Any]], device: torch.device | str, seconds: float = 1.0
) -> list[Timing]:
    """As `time_call`, in turns, so that whatever else slows the machine slows all alike."""

    def sample(call: Callable[[], Any], repeats: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize(device)
        return (time.perf_counter() - start) / repeats

    def warmed(call: Callable[[], Any]) -> float:
        taken = [sample(call, 1)]
        while len(taken) < 3 and sum(taken) < seconds:
            taken.append(sample(call, 1))
        return min(taken)

    fastest = [warmed(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(samples[0]) < 3:
        for i, (own, call) in enumerate(zip(samples, calls, strict=True)):
            own.append(sample(call, math.ceil(SAMPLE / fastest[i])))
            fastest[i] = min(fastest[i], own[-1])  # the first may have compiled
    return [_timing(own) for own in samples]


def peak_memory(call: Callable[[], Any], device: torch.device | str) -> int:
    """Most bytes of tensors alive at once during one call, beyond those alive before it.

    Everything torch allocates counts, temporaries inside operators too; what the call returns
    counts for as long as the call runs.
    """
    device = torch.device(device)
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type == "cpu":
        return _peak_of_events(call)
    raise ValueError(f"got device {str(device)!r}, expected cpu or cuda: torch keeps no peak there")


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has done all it was asked to do."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def _timing(samples: list[float]) -> Timing:
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    return Timing(median, low, high, len(samples))


def _peak_of_events(call: Callable[[], Any]) -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler announces itself on stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    assert recorded.profiler is not None
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
