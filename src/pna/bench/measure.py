"""Time and peak memory of a call, and what becomes of measurements that fail."""

from __future__ import annotations

import gc
import math
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from pna.ops.precision import multiplied

SAMPLE = 0.02  # seconds of a sample: long enough that synchronising the device does not count

T = TypeVar("T")
Log = Callable[[str], None]  # receives messages for the user


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median and the quartiles around it, over `samples` samples."""

    median: float
    low: float
    high: float
    samples: int

    def in_ms(self, share: float = 1.0) -> dict[str, float]:
        """Milliseconds by the columns of results; of the whole, where a share of it was timed."""
        times = {"ms": self.median, "ms_low": self.low, "ms_high": self.high}
        return {name: 1e3 / share * seconds for name, seconds in times.items()}


@dataclass(frozen=True)
class Submitted:
    """A call whose work torch does not see, such as JAX's. `wait` returns when the work is done."""

    call: Callable[[], Any]
    wait: Callable[[], Any]

    def __call__(self) -> Any:
        return self.call()


def check_device(device: torch.device | str) -> str:
    """The type of a device on which we measure: cpu or cuda."""
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"got device {str(device)!r}, expected cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"got device {str(device)!r}, but torch finds no GPU: `pna doctor`")
    return kind


def try_call(call: Callable[..., T], *arguments: Any) -> tuple[T | None, str | None]:
    """The result of a call, or its error in one line, after which memory is released."""
    try:
        return call(*arguments), None
    except Exception as error:
        words = " ".join(str(error).split())
        problem = textwrap.shorten(f"{type(error).__name__}: {words}", 120, placeholder=" …")
    release_memory()
    return None, problem


def release_memory() -> None:
    """Free unused memory, so that the next measurement has all of it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def collect(rows: Iterable[T], failed: Callable[[str], T]) -> list[T]:
    """Rows of a case, measured without TF32. What fails, for want of memory say, ends them with
    the row that `failed` makes of the error."""
    found: list[T] = []
    with multiplied(exactly=True):
        _, problem = try_call(found.extend, rows)
    if problem is not None:
        found.append(failed(problem))
    torch.compiler.reset()
    release_memory()
    return found


def time_call(call: Callable[[], Any], device: torch.device | str, seconds: float = 1.0) -> Timing:
    """Call again and again for about `seconds`, after warming up, and wait for the device."""
    return time_calls([call], device, seconds)[0]


def time_calls(
    calls: Sequence[Callable[[], Any]], device: torch.device | str, seconds: float = 1.0
) -> list[Timing]:
    """As `time_call`, in turns, so that other load on the machine slows all calls alike."""

    def warmed(call: Callable[[], Any]) -> float:
        taken = [seconds_a_call(call, device)]
        while len(taken) < 3 and sum(taken) < seconds:
            taken.append(seconds_a_call(call, device))
        return min(taken)

    fastest = [warmed(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(samples[0]) < 3:
        for i, (own, call) in enumerate(zip(samples, calls, strict=True)):
            own.append(seconds_a_call(call, device, math.ceil(SAMPLE / fastest[i])))
            fastest[i] = min(fastest[i], own[-1])  # the first may have compiled
    return [_timing(own) for own in samples]


def seconds_a_call(call: Callable[[], Any], device: torch.device | str, repeats: int = 1) -> float:
    """The mean time of `repeats` calls, with the work that they submit to the device."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if isinstance(call, Submitted):
        call.wait()
    synchronize(device)
    return (time.perf_counter() - start) / repeats


def time_by_name(
    calls: Mapping[str, Callable[[], Any]], device: torch.device | str, seconds: float
) -> dict[str, tuple[Timing | None, str | None]]:
    """Timing or error of every call: in turns, or each by itself if that fails."""
    in_turns, _ = try_call(time_calls, list(calls.values()), device, seconds)
    if in_turns is not None:
        return {name: (timing, None) for name, timing in zip(calls, in_turns, strict=True)}
    return {name: try_call(time_call, call, device, seconds) for name, call in calls.items()}


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
    """Wait until the device has finished all work submitted to it."""
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
