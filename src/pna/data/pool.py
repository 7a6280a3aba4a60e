"""A map over several processes, with its results in order."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

Job = TypeVar("Job")
Output = TypeVar("Output")

_AHEAD = 2  # jobs of each worker that are begun or wait


def ordered_map(
    work: Callable[[Job], Output], jobs: Iterable[Job], workers: int = 1
) -> Iterator[Output]:
    """Yield `work(job)` for every job. One worker runs in this process, and so does a single job;
    more have their own.

    `work` must be a function at the top level of a module. Jobs are drawn as they are needed, a few
    for each worker ahead of the results.
    """
    if workers < 1:
        raise ValueError(f"got workers={workers}, expected at least 1")
    if workers > 1:
        begin = [*islice(jobs := iter(jobs), 2)]
        jobs = chain(begin, jobs)
        workers = workers if len(begin) == 2 else 1
    if workers == 1:
        yield from map(work, jobs)
        return
    # a forked process shares the memory of this one
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in ways else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin) as pool:
        waiting: deque[Future[Output]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(work, job))
                if len(waiting) > _AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise MemoryError(
                "a worker was killed, probably because memory ran out; use fewer workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _begin() -> None:
    """Ignore Ctrl-C, which the parent handles. On Linux, end this worker when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
