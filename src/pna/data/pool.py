"""A map over several processes, with its results in order."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Job = TypeVar("Job")
Output = TypeVar("Output")


def ordered_map(
    work: Callable[[Job], Output], jobs: Sequence[Job], workers: int = 1
) -> Iterator[Output]:
    """Yield `work(job)` for every job. One worker runs in this process; more have their own.

    `work` must be a function at the top level of a module.
    """
    if workers < 1:
        raise ValueError(f"got workers={workers}, expected at least 1")
    if workers == 1:
        yield from map(work, jobs)
        return
    # a forked process shares the memory of this one
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        try:
            yield from pool.map(work, jobs)
        except BrokenProcessPool:
            raise MemoryError(
                "a worker was killed, probably because memory ran out; use fewer workers"
            ) from None


def _begin() -> None:
    """Ignore Ctrl-C, which the parent handles. On Linux, end this worker when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
