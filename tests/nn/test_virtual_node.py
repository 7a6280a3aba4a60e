"""A node joined to all others, by definition and against padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.batch_context import batch_context
from pna.nn.virtual_node import VirtualNode
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of


def made() -> VirtualNode:
    torch.manual_seed(0)
    return VirtualNode(2).double()


@pytest.mark.parametrize("begun", [False, True])
def test_it_hears_all_and_is_heard_by_all(begun):
    """Of its graph, with what it knew before."""
    layer, batch = made().eval(), batch_of(graphs())
    state = torch.randn(len(SIZES), 2, dtype=torch.float64) if begun else None
    x, found = layer(batch.x, state, batch)
    before = torch.zeros(len(SIZES), 2, dtype=torch.float64) if state is None else state
    for i, nodes in enumerate(rows_of(batch, batch.x)):
        total = before[i] + nodes.mean(0)
        new = torch.relu(layer.lin.weight @ total + layer.lin.bias)
        torch.testing.assert_close(found[i], new)
        torch.testing.assert_close(rows_of(batch, x)[i], nodes + found[i])


def test_padding_changes_nothing():
    """Of the gradients of what is said."""
    made_graphs = graphs()
    layers, batches = [made(), made()], []
    batches.append(made_graphs.batch([3, 0, 4]))
    ids = torch.tensor([3, 0, 4, -1])
    batches.append(PaddedBatches(made_graphs).batch(ids, Shape(4, 24, 40)))
    for layer, batch in zip(layers, batches, strict=True):
        with batch_context(batch):
            x, state = layer(batch.x, None, batch)
            x, state = layer(x, state, batch)
        (x[:19].square().sum() + state[:3].square().sum()).backward()
    for one, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_graphs_without_nodes():
    batch = batch_of(graphs(), [])
    x, state = made()(batch.x, None, batch)
    assert x.shape == (0, 2) and state.shape == (0, 2)
    one = replace(batch_of(graphs(), [1]), sizes=torch.tensor([1, 0]))
    x, state = made().eval()(one.x, None, one)
    assert x.shape == (1, 2) and state.shape == (2, 2)
