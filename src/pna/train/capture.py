"""CUDA graphs: work that is captured once and replayed without overhead of the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch

from pna.waiting import waiting_for

_WARM_UP = 2  # calls before the capture, in which kernels are compiled


class Memory:
    """A memory pool shared by captured graphs that run one at a time.

    torch frees a pool with its last graph, and its handle is invalid from then on. A new handle is
    therefore made whenever no graph is left.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture work without running it."""
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        graph, problems = torch.cuda.CUDAGraph(), list[BaseException]()
        stream = _capture_stream(torch.cuda.current_device())
        try:
            # other threads, of NCCL say, may go on with their own work
            with (
                no_collection(),
                torch.cuda.graph(
                    graph, pool=self._handle, stream=stream, capture_error_mode="thread_local"
                ),
            ):
                try:
                    work()
                except BaseException as problem:
                    problems.append(problem)
                    raise
        except BaseException:
            if problems:  # instead of torch's error about streams that were not joined
                raise problems[0] from None
            raise
        self._graphs.add(graph)
        return graph


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """The stream of all captures on a device, with a higher priority than concurrent streams."""
    return torch.cuda.Stream(device, priority=-1)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable Python's garbage collector: freeing an old graph would abort a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Captured:
    """Work on tensors at fixed addresses: called the first times, then captured and replayed.

    The first calls are the warm-up, so that nothing runs twice.
    """

    def __init__(self, work: Callable[[], None], memory: Memory) -> None:
        self._work, self._memory, self._runs = work, memory, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._runs < _WARM_UP:
            self._runs += 1
            # always the same stream: torch caches memory per stream
            stream = _capture_stream(torch.cuda.current_device())
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            return
        waiting_for("recording a step")
        self._graph = self._memory.record(self._work)
        self._graph.replay()
