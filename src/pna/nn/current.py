"""The batch that a model is working on, for layers that must know which rows are real.

A normalisation or a dropout somewhere inside a convolution sees a table of numbers; which of its
rows are padding, and of which graph each is, it asks here. And what several layers would make of
the same tensor is made once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pna.data.batch import Batch

_Numbers = tuple[Tensor | None, Tensor | None]


def _none() -> _Numbers:
    return None, None


@dataclass(frozen=True)
class Rows:
    """What there is to know of the rows of a table, one for each node, graph or edge."""

    real: Tensor | None  # (rows,) bool; None where all are
    numbers: Callable[[], _Numbers] = _none  # those below, which few ask for

    @property
    def graph(self) -> Tensor | None:
        """(rows,) place in the set of the graph of each."""
        return self.numbers()[0]

    @property
    def place(self) -> Tensor | None:
        """(rows,) number of each within its graph."""
        return self.numbers()[1]


_EVERY = Rows(None)


class _OfNodes:
    """Of which graph every node is, and its number there: found once, when asked for."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._found: _Numbers | None = None

    def __call__(self) -> _Numbers:
        if self._found is None:
            batch, nodes = self._batch, self._batch.graph_of_node
            place = torch.arange(batch.num_nodes, device=batch.device) - batch.indptr[nodes]
            graphs = batch.graph_ids
            self._found = (None if graphs is None else graphs[nodes], place)
        return self._found


class _Pass(NamedTuple):
    """A pass over a batch."""

    batch: Batch
    rows: dict[str, Rows]  # of nodes and graphs
    made: dict[Hashable, tuple[Tensor, Tensor]]  # what `once` was asked for, and of which tensor


class _Stack(threading.local):
    """What is being worked on, innermost last; every thread has its own."""

    def __init__(self) -> None:
        self.held: list[_Pass] = []


_working_on = _Stack()


@contextmanager
def working_on(batch: Batch) -> Iterator[None]:
    """Have `rows` tell of this batch, if they do not already."""
    held = _working_on.held
    if held and held[-1].batch is batch:
        yield
        return
    of_nodes = Rows(batch.real_nodes, _OfNodes(batch))
    of_graphs = Rows(batch.real, lambda: (batch.graph_ids, None))
    known = {"node": of_nodes, "graph": of_graphs}
    held.append(_Pass(batch, known, {}))
    try:
        yield
    finally:
        held.pop()


@contextmanager
def still(going: Tensor | None) -> Iterator[None]:
    """Have `rows` tell that only these nodes (nodes,) are real, of which none is padding; all that
    were, if None."""
    if going is None or not _working_on.held:
        yield
        return
    last = _working_on.held[-1]
    known = last.rows | {"node": replace(last.rows["node"], real=going)}
    _working_on.held.append(last._replace(rows=known))
    try:
        yield
    finally:
        _working_on.held.pop()


Level = Literal["node", "graph", "edge"]


def rows(level: Level) -> Rows:
    """Those of the nodes, graphs or edges of the batch at hand; where there is none, no facts.

    Edges stand by slot, and are real where their receivers are.
    """
    if not _working_on.held:
        return _EVERY
    batch, known, _ = _working_on.held[-1]
    if level != "edge":
        return known[level]
    real = known["node"].real
    return _EVERY if real is None else Rows(real[batch.adjacency.receivers.long()])


def once(key: Hashable, of: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes of a tensor, once for all that ask by the same key in a pass over the batch
    at hand, so that nothing outlives a captured step; where there is no batch, anew."""
    if not _working_on.held:
        return make()
    made = _working_on.held[-1].made
    place = (key, id(of))
    if place not in made:
        made[place] = (of, make())  # held, so that no other tensor is given its id
    return made[place][1]
