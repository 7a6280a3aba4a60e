"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Told = Callable[[str, int], None]  # which training, and how many epochs it has done
Result = TypeVar("Result")


def all_of(
    work: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    workers: int = 1,
    told: Told = lambda *_: None,
    threads: int | None = None,
) -> list[Result]:
    """`work(*job, told)` for every job, in order; at most `workers` at a time.

    One worker works here; more are processes with `threads` each. `work` must be found by its
    name, as a module's function is, and tells of its epochs through `told`. Where one fails, or
    at Ctrl-C, the others are asked to stop when they next tell of one.
    """
    if workers == 1:
        return [work(*job, told) for job in jobs]
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(news, stop, threads)
    ) as pool:
        running = [pool.submit(_work, work, job) for job in jobs]
        try:
            with _sigterm_as_ctrl_c():
                _listen(running, news, told)
            return [future.result() for future in running]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """So that workers are not left behind by it."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _listen(running: Sequence[Future[Any]], news: Any, told: Told) -> None:
    """Pass on what workers tell, until all are done; raises what one of them fails with."""
    while not all(future.done() for future in running):
        for future in running:
            if future.done():
                future.result()
        try:
            told(*news.get(timeout=0.2))
        except queue.Empty:
            continue
    while True:
        try:
            told(*news.get(timeout=0.05))
        except queue.Empty:
            return


_news: Any = None  # of a worker: where it tells what it has done
_stop: Any = None  # and whether it is to go on


def _begin(news: Any, stop: Any, threads: int | None) -> None:
    global _news, _stop
    _news, _stop = news, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever waits for the workers
    if threads is not None:
        torch.set_num_threads(threads)


def _work(work: Callable[..., Result], job: tuple[Any, ...]) -> Result:
    if _stop.is_set():
        raise KeyboardInterrupt
    return work(*job, _tell)


def _tell(*what: Any) -> None:
    _news.put(what)
    if _stop.is_set() and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.raise_signal(signal.SIGTERM)  # which a training takes as a wish to stop, and saves
