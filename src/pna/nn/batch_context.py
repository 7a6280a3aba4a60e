"""Batch context: what a layer deep inside a model can ask about the batch being processed.

A normalisation or dropout layer only sees a tensor. Here it finds out which rows are padding, and
which graph and node each row belongs to. Values that several layers would compute from the same
tensor are computed once per forward pass (`cached`).
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

Level = Literal["node", "graph", "edge"]

_Numbers = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class RowInfo:
    """What is known about the rows of a tensor that has one row per node, graph or edge."""

    real: Tensor | None  # (rows,) bool, False for padding; None if no row is padding
    numbers: Callable[[], _Numbers] = lambda: (None, None)  # `graph` and `position`, on demand

    @property
    def graph(self) -> Tensor | None:
        """(rows,) index in the graph set of each row's graph; None if unknown."""
        return self.numbers()[0]

    @property
    def position(self) -> Tensor | None:
        """(rows,) index of each node within its graph; None if unknown."""
        return self.numbers()[1]

    def of_first(self, rows: int) -> _Numbers:
        """`graph` and `position` of the first rows: a layer of a sampled batch has only these."""
        graph, position = (
            n if n is None or n.shape[0] == rows else n[:rows] for n in self.numbers()
        )
        return graph, position


_UNKNOWN = RowInfo(None)


class _NodeNumbers:
    """Graph and position of every node, computed on the first call."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._found: _Numbers | None = None

    def __call__(self) -> _Numbers:
        if self._found is None:
            batch, nodes = self._batch, self._batch.graph_of_node
            position = batch.nodes  # in the whole graph: neighbours were sampled from it
            if position is None:
                position = torch.arange(batch.num_nodes, device=batch.device) - batch.indptr[nodes]
            graphs = batch.graph_ids
            self._found = (None if graphs is None else graphs[nodes], position)
        return self._found


class _Context(NamedTuple):
    batch: Batch
    rows: dict[str, RowInfo]  # by level: "node" and "graph"
    cache: dict[Hashable, tuple[Tensor, Tensor]]  # of `cached`: the input and the value


class _Stack(threading.local):
    """The contexts of this thread, innermost last."""

    def __init__(self) -> None:
        self.contexts: list[_Context] = []


_stack = _Stack()


@contextmanager
def batch_context(batch: Batch) -> Iterator[None]:
    """Make `batch` the one that `row_info` describes; does nothing if it already is."""
    contexts = _stack.contexts
    if contexts and contexts[-1].batch is batch:
        yield
        return
    rows = {
        "node": RowInfo(batch.real_nodes, _NodeNumbers(batch)),
        "graph": RowInfo(batch.real, lambda: (batch.graph_ids, None)),
    }
    contexts.append(_Context(batch, rows, {}))
    try:
        yield
    finally:
        contexts.pop()


@contextmanager
def active_nodes(active: Tensor | None) -> Iterator[None]:
    """Make `row_info` describe all other nodes as padding.

    Args:
        active: (nodes,) bool, False for padding at least; None changes nothing.
    """
    if active is None or not _stack.contexts:
        yield
        return
    last = _stack.contexts[-1]
    rows = last.rows | {"node": replace(last.rows["node"], real=active)}
    _stack.contexts.append(last._replace(rows=rows))
    try:
        yield
    finally:
        _stack.contexts.pop()


def row_info(level: Level) -> RowInfo:
    """The rows of a tensor at this level of the current batch; all unknown if there is no batch.

    Edges are in slot order, and real if their receivers are.
    """
    if not _stack.contexts:
        return _UNKNOWN
    batch, rows, _ = _stack.contexts[-1]
    if level != "edge":
        return rows[level]
    real = rows["node"].real
    return _UNKNOWN if real is None else RowInfo(real[batch.adjacency.receivers.long()])


def cached(key: Hashable, of: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """``make()``, called once per forward pass for each key and input tensor `of`.

    The cache ends with the batch context, so nothing outlives a captured step. Without a batch
    context, nothing is cached.
    """
    if not _stack.contexts:
        return make()
    cache = _stack.contexts[-1].cache
    slot = (key, id(of))
    if slot not in cache:
        cache[slot] = (of, make())  # `of` is kept alive so that its id is not reused
    return cache[slot][1]
