"""What layers are told of the rows they work on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pna.nn.batch_context import active_nodes, batch_context, cached, row_info
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
        assert (row_info(level).real, row_info(level).graph, row_info(level).position) == (
            None,
            None,
            None,
        )


def test_rows_of_nodes_and_graphs():
    """In any order of the graphs, each keeps its own number and its nodes theirs."""
    order = [4, 1, 3]
    with batch_context(graphs().batch(order)):
        of_nodes, of_graphs = row_info("node"), row_info("graph")
    assert of_graphs.graph.tolist() == order and of_graphs.position is None
    assert of_nodes.graph.tolist() == [g for g in order for _ in range(SIZES[g])]
    assert of_nodes.position.tolist() == [i for g in order for i in range(SIZES[g])]
    assert of_nodes.real is None and of_graphs.real is None


def test_numbers_are_found_once_and_only_if_asked_for():
    """A kernel each, of which a small step would feel every one."""
    batch = graphs().batch([4, 1])
    with Operations() as operations, batch_context(batch):
        assert row_info("node").real is None
        assert operations.names == []
        place, graph = row_info("node").position, row_info("node").graph
        with active_nodes(torch.ones(batch.num_nodes, dtype=torch.bool)):
            assert row_info("node").position is place and row_info("node").graph is graph


def test_what_is_made_once():
    """For each key and tensor of a pass; without one, or in another, it is made again."""
    batch, made = graphs().batch([4, 1]), []

    def ask(key, of):
        def make():
            made.append((key, of))
            return of + 1

        return cached(key, of, make)

    x, y = torch.zeros(2), torch.zeros(2)
    with batch_context(batch):
        first = ask("a", x)
        with active_nodes(torch.ones(batch.num_nodes, dtype=torch.bool)):
            assert ask("a", x) is first
        assert ask("a", y) is not first and ask("b", x) is not first
        assert len(made) == 3
    with batch_context(batch):
        assert ask("a", x) is not first
    assert ask("a", x) is not ask("a", x)
    assert len(made) == 6


def test_padding_is_known_for_nodes_and_graphs():
    real = torch.tensor([True, False, True])
    with batch_context(replace(graphs().batch([0, 2, 1]), real=real)):
        assert row_info("graph").real.tolist() == [True, False, True]
        assert row_info("node").real.tolist() == [True] * 5 + [False] * 2 + [True]


def test_batches_within_batches_and_errors():
    made = graphs()
    with batch_context(made.batch([0])):
        with pytest.raises(RuntimeError), batch_context(made.batch([3])):
            assert len(row_info("node").graph) == 6
            raise RuntimeError
        assert len(row_info("node").graph) == 5
    assert row_info("node").graph is None


def test_graphs_that_have_no_numbers():
    with batch_context(replace(graphs().batch([1, 2]), graph_ids=None)):
        assert row_info("graph").graph is None and row_info("node").graph is None
        assert row_info("node").position.tolist() == [0, 0, 1]


def test_nodes_that_have_come_to_rest_are_as_padding():
    """Graphs are not; and where nothing is known, nothing is told."""
    going = torch.tensor([True, True, False, False, True, False, False, True])
    batch = replace(graphs().batch([0, 2, 1]), real=torch.tensor([True, False, True]))
    with batch_context(batch):
        with active_nodes(going):
            assert row_info("node").real.tolist() == going.tolist()
            assert row_info("graph").real.tolist() == [True, False, True]
            assert row_info("node").position.tolist() == [0, 1, 2, 3, 4, 0, 1, 0]
        assert row_info("node").real.tolist() == [True] * 5 + [False] * 2 + [True]
        with active_nodes(None):
            assert row_info("node").real.tolist() == [True] * 5 + [False] * 2 + [True]
    with active_nodes(going):
        assert row_info("node").real is None
