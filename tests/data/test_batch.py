"""Batches: what they say of themselves, and where they go."""

from __future__ import annotations

from dataclasses import fields, replace
from multiprocessing import Pipe

import pytest
import torch

from pna.data.batch import Batch
from pna.data.graphset import GraphSet
from tests.train.cases import random_graphs

GRAPHS = random_graphs(4, 2, edges=2)


def test_numbers_of_a_batch():
    batch = GRAPHS.batch([3, 0])
    sizes = GRAPHS.sizes[[3, 0]]
    assert (batch.num_graphs, batch.num_nodes) == (2, int(sizes.sum()))
    assert batch.num_edges == int(GRAPHS.edge_counts[[3, 0]].sum())
    assert batch.graph_ids.tolist() == [3, 0]
    assert batch.indptr.tolist() == [0, int(sizes[0]), int(sizes.sum())]
    known = replace(batch, starts=batch.indptr).to("meta")
    assert known.indptr is known.starts and known.starts.device.type == "meta"
    assert batch.size_range == batch.sizes_between() == (int(sizes.min()), int(sizes.max()))
    assert batch.real is batch.real_nodes is None
    assert repr(batch) == (
        f"Batch(2 graphs, {batch.num_nodes} nodes, {batch.num_edges} edges, cpu)"
    )


@pytest.mark.parametrize(
    ("indices", "places"),
    [([-1, 0], [5, 0]), (slice(1, 4), [1, 2, 3]), (None, [0, 1, 2, 3, 4, 5]), ([2, 2], [2, 2])],
    ids=str,
)
def test_graphs_know_their_places_in_the_set(indices, places):
    assert GRAPHS.batch(indices).graph_ids.tolist() == places


def test_sizes_are_looked_up_where_they_are_not_known():
    batch = replace(GRAPHS.batch([1, 2, 3]), size_range=None)
    sizes = GRAPHS.sizes[[1, 2, 3]]
    assert batch.sizes_between() == (int(sizes.min()), int(sizes.max()))
    real = replace(batch, real=torch.tensor([False, True, False]))
    assert real.sizes_between() == (int(sizes[1]), int(sizes[1]))
    nodes = torch.repeat_interleave(real.real, sizes)
    assert torch.equal(real.real_nodes, nodes)


def test_the_largest_diameter():
    """Known, or looked up among real graphs, or bounded by sizes."""
    batch = GRAPHS.batch([1, 2, 3])
    assert batch.largest_diameter() == batch.sizes_between()[1] - 1
    batch = replace(batch, diameter=torch.tensor([1, 3, 2]))
    assert batch.largest_diameter() == 3
    assert replace(batch, real=torch.tensor([True, False, True])).largest_diameter() == 2
    assert replace(batch, real=torch.zeros(3, dtype=torch.bool)).largest_diameter() == 0
    assert replace(batch, max_diameter=9).largest_diameter() == 9


def test_no_graphs():
    batch = GRAPHS.batch([])
    assert batch.num_graphs == batch.num_nodes == batch.largest_diameter() == 0
    assert replace(batch, size_range=None).sizes_between() == batch.sizes_between() == (0, 0)


def test_it_is_itself_where_it_is_already():
    batch = GRAPHS.batch()
    assert batch.to("cpu") is batch


def test_everything_moves():
    batch = replace(
        GRAPHS.batch(), diameter=torch.arange(6), real=torch.ones(6, dtype=torch.bool),
        max_diameter=7,
    )  # fmt: skip
    moved = batch.to("meta")
    assert moved.device.type == "meta" and moved.size_range == batch.size_range
    assert moved.max_diameter == 7
    for field in fields(Batch):
        value = getattr(moved, field.name)
        if isinstance(value, torch.Tensor):
            assert value.device.type == "meta", field.name
    assert moved.graph_ids is not None and moved.diameter is not None and moved.real is not None


def test_it_goes_to_other_processes():
    batch = replace(GRAPHS.batch([1, 4]), real=torch.tensor([True, False]), max_diameter=2)
    here, there = Pipe()
    here.send(batch)
    back = there.recv()
    for field in fields(Batch):
        ours, theirs = getattr(batch, field.name), getattr(back, field.name)
        if isinstance(ours, torch.Tensor):
            assert torch.equal(ours, theirs), field.name
    assert back.size_range == batch.size_range and back.max_diameter == 2


def test_graphs_without_nodes():
    graphs = GraphSet.from_arrays([0, 2, 0], torch.tensor([[0], [1]]), [0, 1, 0])
    batch = graphs.batch()
    assert batch.sizes.tolist() == [0, 2, 0] and batch.graph_of_node.tolist() == [1, 1]
    assert batch.indptr.tolist() == [0, 0, 2, 2] and batch.size_range == (0, 2)
