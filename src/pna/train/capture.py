"""A piece of work recorded on a GPU once and replayed, without Python or launches in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_WARM_UP = 2  # runs before recording, in which kernels are compiled and tables made


@cache
def _pool() -> Any:
    """Memory for all recordings: they run one after another, and leave nothing in it."""
    return torch.cuda.graph_pool_handle()


class Captured:
    """Work on tensors that stay where they are: called the first times, recorded, then replayed.

    Warming up is work too, done in place of the first replays: nothing is run twice.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._runs = work, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._runs < _WARM_UP:
            self._runs += 1
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=_pool()):
            self._work()
        graph.replay()  # recording does not run it
        self._graph = graph
