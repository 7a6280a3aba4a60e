"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
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
    name, as a module's function is, and tells of its epochs through `told`.
    """
    if workers == 1:
        return [work(*job, told) for job in jobs]
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(news, threads)
    ) as pool:
        running = [pool.submit(_work, work, job) for job in jobs]
        try:
            _listen(running, news, told)
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _listen(running: Sequence[Future[Any]], news: Any, told: Told) -> None:
    """Pass on what workers tell, until all are done or one has failed."""
    while not all(future.done() for future in running):
        if any(future.done() and future.exception() for future in running):
            return
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


def _begin(news: Any, threads: int | None) -> None:
    global _news
    _news = news
    if threads is not None:
        torch.set_num_threads(threads)


def _work(work: Callable[..., Result], job: tuple[Any, ...]) -> Result:
    return work(*job, lambda *what: _news.put(what))
