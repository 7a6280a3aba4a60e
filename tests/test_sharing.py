"""An Adjacency goes from process to process by value."""

from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pna.adjacency import Adjacency
from pna.sharing import send_by_value


def sent(value):
    return ForkingPickler.loads(ForkingPickler.dumps(value))


def test_adjacency_arrives_equal_and_in_memory_of_its_own():
    """Without PyG, whose loaders it is for: importing Adjacency is enough."""
    adj = Adjacency.from_edge_index(torch.tensor([[2, 0, 1], [0, 0, 1]]), 3)
    arrived = sent(adj)
    assert type(arrived) is Adjacency
    for leaf, arrived_leaf in zip(tree_leaves(adj), tree_leaves(arrived), strict=True):
        assert torch.equal(leaf, arrived_leaf)
        assert leaf.dtype == arrived_leaf.dtype
        assert not leaf.is_shared()
        assert not arrived_leaf.is_shared()


@dataclass
class Pair:
    tensor: Tensor
    name: str


def test_fields_that_are_no_tensors_travel_too():
    assert sent(Pair(torch.zeros(3), "shared")).tensor.is_shared()  # torch's way
    send_by_value(Pair)
    arrived = sent(Pair(torch.arange(3), "by value"))
    assert (arrived.tensor.tolist(), arrived.name) == ([0, 1, 2], "by value")
    assert not arrived.tensor.is_shared()


def test_tensors_that_numpy_cannot_hold_travel_torch_s_way():
    """A worker would fail to send them in a thread of its own, and its loader wait for ever."""
    send_by_value(Pair)
    assert torch.equal(sent(Pair(torch.ones(3).bfloat16(), "b")).tensor, torch.ones(3).bfloat16())
    arrived = sent(Pair(torch.ones(3, requires_grad=True), "g")).tensor
    assert arrived.tolist() == [1, 1, 1] and arrived.requires_grad
