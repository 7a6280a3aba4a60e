"""One thread for small batches on a CPU.

Threads that wait for each other keep their processors busy. With two threads, small batches take as
long as with one, and twice the processor time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pna.data.graphset import GraphSet

#: Nodes and edges of a batch, times models, from which several threads are faster than one.
_MANY = 2**16


def takes_one_thread(graphs: GraphSet, batch_size: int, at_once: int, device: torch.device) -> bool:
    """Whether batches of so many of these graphs are small for `at_once` models that run in one
    pass, and on a CPU."""
    if device.type != "cpu":
        return False
    share = min(1.0, batch_size / max(1, len(graphs)))
    return at_once * share * (graphs.num_nodes + graphs.num_edges) < _MANY


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Let torch use one thread if that is `wanted`."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)
