"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

Told = Callable[[str, int], None]  # name of a training, and the epochs it has done
T = TypeVar("T")
Done = Callable[[int, T], None]  # index of a job, and its result


def all_of(
    work: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    workers: int = 1,
    told: Told = lambda *_: None,
    threads: int | None = None,
    done: Done[T] = lambda *_: None,
) -> list[T]:
    """`work(*job, told)` for every job, in order; at most `workers` at a time.

    One worker runs in this process; several are processes with `threads` each. `work` must be a
    function of a module. It reports its epochs through `told`; `done` is called with each job that
    ends. If a job fails, or at Ctrl-C, the others stop at their next report.
    """
    if workers == 1:
        found = []
        for place, job in enumerate(jobs):
            found.append(work(*job, told))
            done(place, found[-1])
        return found
    context = _context()
    news: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(news, stop, threads)
    ) as pool:
        try:
            with _without_ctrl_c():
                running = [pool.submit(_work, work, job) for job in jobs]
            with _sigterm_as_ctrl_c():
                _listen(running, news, told, done)
            return [future.result() for future in running]
        except BrokenProcessPool as error:
            raise MemoryError(
                "a worker was killed, perhaps for want of memory; take fewer workers, and go on "
                "with --resume"
            ) from error
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _context() -> Any:
    """Processes forked from one that has imported torch and has not touched a GPU.

    A fork of this process could not use the GPU. A spawned process imports torch again, 3 seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch imports sympy in the first step
    context.set_forkserver_preload(["pna.paper.reproduce", "sympy"])
    from multiprocessing import forkserver, resource_tracker

    resource_tracker.ensure_running()  # it unblocks Ctrl-C, so it must not start in the next line
    with _without_ctrl_c():
        forkserver.ensure_running()
    return context


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C for processes started here; this process receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that workers do not outlive this process."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _listen(running: Sequence[Future[T]], news: Any, told: Told, done: Done[T]) -> None:
    """Pass on reports of workers until all are done; raise the error of one that fails."""
    waiting = dict(enumerate(running))
    while waiting:
        with suppress(queue.Empty):
            told(*news.get(timeout=0.2))
        for place in [place for place, future in waiting.items() if future.done()]:
            done(place, waiting.pop(place).result())
    while True:
        try:
            told(*news.get(timeout=0.05))
        except queue.Empty:
            return


_news: Any = None  # queue of a worker's reports
_stop: Any = None  # event that asks a worker to stop


def _begin(news: Any, stop: Any, threads: int | None) -> None:
    global _news, _stop
    _news, _stop = news, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Exit with the parent: one that is killed cannot ask its workers to stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(work: Callable[..., T], job: tuple[Any, ...]) -> T:
    if _stop.is_set():
        raise KeyboardInterrupt
    return work(*job, _tell)


def _tell(*what: Any) -> None:
    _news.put(what)
    if _stop.is_set() and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.raise_signal(signal.SIGTERM)  # a training saves a checkpoint, and stops
