"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch

from pna.signals import ask_to_stop, counted_once

OnEpoch = Callable[[str, int], None]  # name of a training, and the epochs it has done
T = TypeVar("T")
OnDone = Callable[[int, T], None]  # index of a job, and its result
OnFailed = Callable[[int, Exception], None]


def run_jobs(
    function: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    workers: int = 1,
    on_epoch: OnEpoch = lambda *_: None,
    threads: int | None = None,
    on_done: OnDone[T] = lambda *_: None,
    on_failed: OnFailed | None = None,
) -> list[T]:
    """`function(*job, on_epoch)` for every job, in order; at most `workers` at a time.

    One worker runs in this process; several are processes with `threads` each. `function` must be a
    function of a module. It reports its epochs through `on_epoch`; `on_done` is called with each
    job that ends. If a job fails, `on_failed` gets its error, and the others go on. Without it, or
    at Ctrl-C, the others stop at their next report.
    """
    results: dict[int, T] = {}

    def end(index: int, result: Callable[[], T]) -> None:
        try:
            results[index] = result()
        except Exception as error:
            if on_failed is None or isinstance(error, BrokenProcessPool):
                raise
            on_failed(index, error)
        else:
            on_done(index, results[index])

    if workers == 1:
        for index, job in enumerate(jobs):
            end(index, partial(function, *job, on_epoch))
        return list(results.values())
    context = _context()
    reports: Any = context.Queue()
    stop = context.Event()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(reports, stop, threads)
    ) as pool:
        try:
            with _without_ctrl_c():
                running = [pool.submit(_run_job, function, job) for job in jobs]
            with sigterm_as_ctrl_c():
                _forward_reports(running, reports, on_epoch, end)
            return [results[index] for index in sorted(results)]
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
    """Block Ctrl-C for processes started here. This process receives it, or SIGTERM, afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    with _held(signal.SIGINT), _held(signal.SIGTERM):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    """Hold a signal back until the end. A mask is not enough: other threads receive it."""
    before = signal.getsignal(number)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    received: list[int] = []
    signal.signal(number, lambda *_: received.append(number))
    try:
        yield
    finally:
        signal.signal(number, before)
        if received:
            signal.raise_signal(number)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that workers do not outlive this process. Signals within a
    second count as one: another one would end the wait for workers, which save checkpoints."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    handle = counted_once(signal.default_int_handler)
    before = {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) in usual
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _forward_reports(
    running: Sequence[Future[T]],
    reports: Any,
    on_epoch: OnEpoch,
    end: Callable[[int, Callable[[], T]], None],
) -> None:
    """Pass on reports of workers until all are done, and call `end` with each that is."""
    waiting = dict(enumerate(running))
    while waiting:
        with suppress(queue.Empty):
            on_epoch(*reports.get(timeout=0.2))
        for index in [index for index, future in waiting.items() if future.done()]:
            end(index, waiting.pop(index).result)
    while True:
        try:
            on_epoch(*reports.get(timeout=0.05))
        except queue.Empty:
            return


_reports: Any = None  # queue of a worker's reports
_stop: Any = None  # event that asks a worker to stop
_GRACE = 60.0  # seconds in which a worker whose parent is gone saves a checkpoint


def _start_worker(reports: Any, stop: Any, threads: int | None) -> None:
    global _reports, _stop
    _reports, _stop = reports, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Save a checkpoint and exit with the parent: one that is killed cannot ask its workers to
    stop. If SIGTERM goes to all processes, it ends the forkserver, and the parent does not wait."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    end = time.monotonic() + _GRACE
    while ask_to_stop() and time.monotonic() < end:
        time.sleep(0.1)
    os._exit(1)


def _run_job(function: Callable[..., T], job: tuple[Any, ...]) -> T:
    if _stop.is_set():
        raise KeyboardInterrupt
    return function(*job, _report)


def _report(*what: Any) -> None:
    _reports.put(what)
    if _stop.is_set():
        ask_to_stop()
