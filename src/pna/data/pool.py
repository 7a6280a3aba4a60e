"""Work shared among processes, its results in order."""

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
Result = TypeVar("Result")


def in_order(
    work: Callable[[Job], Result], jobs: Sequence[Job], workers: int = 1
) -> Iterator[Result]:
    """`work(job)` for every job; by one worker here, by more in processes of their own.

    `work` must be found by its name, as a module's function is.
    """
    if workers < 1:
        raise ValueError(f"got workers={workers}, expected at least 1")
    if workers == 1:
        yield from map(work, jobs)
        return
    # where a process can be copied, its memory is shared
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        try:
            yield from pool.map(work, jobs)
        except BrokenProcessPool:
            raise MemoryError(
                "a worker was killed, probably for want of memory; use fewer workers"
            ) from None


def _begin() -> None:
    """Leave Ctrl-C to whoever waits, and have the system end this worker with them; only Linux
    can."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
