"""What layers are told of the rows they work on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pna.nn.current import once, rows, still, working_on
from tests.nn.graph_cases import SIZES, graphs


class Operations(TorchDispatchMode):
    """Names of what torch is asked to do, meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_without_a_batch_nothing_is_known():
    for level in ("node", "graph"):
        assert (rows(level).real, rows(level).graph, rows(level).place) == (None, None, None)


def test_rows_of_nodes_and_graphs():
    """In any order of the graphs, each keeps its own number and its nodes theirs."""
    order = [4, 1, 3]
    with working_on(graphs().batch(order)):
        of_nodes, of_graphs = rows("node"), rows("graph")
    assert of_graphs.graph.tolist() == order and of_graphs.place is None
    assert of_nodes.graph.tolist() == [g for g in order for _ in range(SIZES[g])]
    assert of_nodes.place.tolist() == [i for g in order for i in range(SIZES[g])]
    assert of_nodes.real is None and of_graphs.real is None


def test_numbers_are_found_once_and_only_if_asked_for():
    """A kernel each, of which a small step would feel every one."""
    batch = graphs().batch([4, 1])
    with Operations() as operations, working_on(batch):
        assert rows("node").real is None
        assert operations.names == []
        place, graph = rows("node").place, rows("node").graph
        with still(torch.ones(batch.num_nodes, dtype=torch.bool)):
            assert rows("node").place is place and rows("node").graph is graph


def test_what_is_made_once():
    """For each key and tensor of a pass; without one, or in another, it is made again."""
    batch, made = graphs().batch([4, 1]), []

    def ask(key, of):
        def make():
            made.append((key, of))
            return of + 1

        return once(key, of, make)

    x, y = torch.zeros(2), torch.zeros(2)
    with working_on(batch):
        first = ask("a", x)
        with still(torch.ones(batch.num_nodes, dtype=torch.bool)):
            assert ask("a", x) is first
        assert ask("a", y) is not first and ask("b", x) is not first
        assert len(made) == 3
    with working_on(batch):
        assert ask("a", x) is not first
    assert ask("a", x) is not ask("a", x)
    assert len(made) == 6


def test_padding_is_known_for_nodes_and_graphs():
    real = torch.tensor([True, False, True])
    with working_on(replace(graphs().batch([0, 2, 1]), real=real)):
        assert rows("graph").real.tolist() == [True, False, True]
        assert rows("node").real.tolist() == [True] * 5 + [False] * 2 + [True]


def test_batches_within_batches_and_errors():
    made = graphs()
    with working_on(made.batch([0])):
        with pytest.raises(RuntimeError), working_on(made.batch([3])):
            assert len(rows("node").graph) == 6
            raise RuntimeError
        assert len(rows("node").graph) == 5
    assert rows("node").graph is None


def test_graphs_that_have_no_numbers():
    with working_on(replace(graphs().batch([1, 2]), graph_ids=None)):
        assert rows("graph").graph is None and rows("node").graph is None
        assert rows("node").place.tolist() == [0, 0, 1]


def test_nodes_that_have_come_to_rest_are_as_padding():
    """Graphs are not; and where nothing is known, nothing is told."""
    going = torch.tensor([True, True, False, False, True, False, False, True])
    batch = replace(graphs().batch([0, 2, 1]), real=torch.tensor([True, False, True]))
    with working_on(batch):
        with still(going):
            assert rows("node").real.tolist() == going.tolist()
            assert rows("graph").real.tolist() == [True, False, True]
            assert rows("node").place.tolist() == [0, 1, 2, 3, 4, 0, 1, 0]
        assert rows("node").real.tolist() == [True] * 5 + [False] * 2 + [True]
        with still(None):
            assert rows("node").real.tolist() == [True] * 5 + [False] * 2 + [True]
    with still(going):
        assert rows("node").real is None
