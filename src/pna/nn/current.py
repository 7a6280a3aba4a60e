"""The batch that a model is working on, for layers that must know which rows are real.

A normalisation or a dropout somewhere inside a convolution sees a table of numbers; which of its
rows are padding, and of which graph each is, it asks here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pna.adjacency import Adjacency
from pna.data.batch import Batch


@dataclass(frozen=True)
class Rows:
    """What there is to know of the rows of a table, one for each node, graph or edge."""

    real: Tensor | None  # (rows,) bool; None where all are
    graph: Tensor | None  # (rows,) place in the set of the graph of each
    place: Tensor | None  # (rows,) number of each within its graph


_EVERY = Rows(None, None, None)


class _Stack(threading.local):
    """What is being worked on, innermost last; every thread has its own."""

    def __init__(self) -> None:
        self.held: list[tuple[dict[str, Rows], Adjacency]] = []


_working_on = _Stack()


@contextmanager
def working_on(batch: Batch) -> Iterator[None]:
    """Have `rows` tell of this batch."""
    nodes, graphs = batch.graph_of_node, batch.graph_ids
    place = torch.arange(batch.num_nodes, device=batch.device) - batch.indptr[nodes]
    of_nodes = Rows(batch.real_nodes, None if graphs is None else graphs[nodes], place)
    of_graphs = Rows(batch.real, graphs, None)
    _working_on.held.append(({"node": of_nodes, "graph": of_graphs}, batch.adjacency))
    try:
        yield
    finally:
        _working_on.held.pop()


@contextmanager
def still(going: Tensor | None) -> Iterator[None]:
    """Have `rows` tell that only these nodes (nodes, 1) are real; all that were, if None."""
    if going is None or not _working_on.held:
        yield
        return
    known, adjacency = _working_on.held[-1]
    nodes, going = known["node"], going[:, 0]
    real = going if nodes.real is None else going & nodes.real
    _working_on.held.append((known | {"node": replace(nodes, real=real)}, adjacency))
    try:
        yield
    finally:
        _working_on.held.pop()


def rows(level: str) -> Rows:
    """Those of the nodes, graphs or edges of the batch at hand; where there is none, no facts.

    Edges stand by slot, and are real where their receivers are.
    """
    if not _working_on.held:
        return _EVERY
    known, adjacency = _working_on.held[-1]
    if level != "edge":
        return known[level]
    real = known["node"].real
    return _EVERY if real is None else Rows(real[adjacency.receivers.long()], None, None)
