"""A piece of work recorded on a GPU once and replayed, without Python or launches in between."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch

_WARM_UP = 2  # runs before recording, in which kernels are compiled and tables made


class Memory:
    """What the recordings of one owner work in: they run one by one, and leave nothing in it.

    torch lets go of such memory with the last recording in it, and takes its handle no more from
    then on. So there is a new handle whenever no recording is left.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record work, without running it."""
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        graph, problems = torch.cuda.CUDAGraph(), list[BaseException]()
        try:
            with no_collection(), torch.cuda.graph(graph, pool=self._handle, stream=_line()):
                try:
                    work()
                except BaseException as problem:
                    problems.append(problem)
                    raise
        except BaseException:
            if problems:  # in place of what torch says of works that were never joined
                raise problems[0] from None
            raise
        self._graphs.add(graph)
        return graph


def _line() -> torch.cuda.Stream:
    """Where work is recorded that follows one another: of works that run beside it, it is first."""
    return _stream(torch.cuda.current_device())


@cache
def _stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector: what it finds may be recordings of a training before,
    and to let go of one breaks off the one being made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Captured:
    """Work on tensors that stay where they are: called the first times, recorded, then replayed.

    Warming up is work too, done in place of the first replays: nothing is run twice.
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
            stream = _line()  # always the same: torch keeps the memory of every stream for itself
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            return
        self._graph = self._memory.record(self._work)
        self._graph.replay()
