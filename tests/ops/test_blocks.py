"""The definition in blocks of receivers gives what it gives at once."""

import pytest
import torch

import pna
from pna.ops import blocks, edges, reference
from pna.ops.aggregators import KthSmallest, Moment, NormalisedMean, Softmax, Std


@pytest.fixture
def graph() -> pna.Adjacency:
    """Thirty receivers, one of which has a third of the edges, and twenty that nothing reaches."""
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(30, (2, 1200), generator=random)
    edge_index[1, :400] = 7
    return pna.Adjacency.from_edge_index(edge_index, 50)


SEVERAL = [Moment(3), Moment(4), Moment(12), KthSmallest(2), NormalisedMean(), Std()]


def outputs_and_gradients(aggregate, adjacency):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(50, 4, generator=random, dtype=torch.float64, requires_grad=True)
    table = torch.randn(3, 4, generator=random, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    index = torch.arange(1200) % 3
    out = aggregate(x, adjacency, [*SEVERAL, Softmax(temperature)], table, index)
    return out, *torch.autograd.grad((out**2).sum(), [x, table, temperature])


@pytest.mark.parametrize("block", [4, 400, 2000, 10**6])  # one row each, some, two, all at once
def test_blocks_change_nothing(graph, monkeypatch, block):
    monkeypatch.setattr(blocks, "BLOCK", block)
    got = outputs_and_gradients(blocks.aggregate, graph)
    expected = outputs_and_gradients(reference.aggregate, graph)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_blocks_hold_few_messages_at_a_time(graph, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 400)
    most = []

    def messages(x, adjacency, *rest):
        most.append(adjacency.num_edges)
        return definition(x, adjacency, *rest)

    definition = reference.messages
    monkeypatch.setattr(reference, "messages", messages)
    outputs_and_gradients(blocks.aggregate, graph)
    hub = int(graph.degree.max())
    assert hub > 300  # it has more than a block, and is one of its own
    assert {count for count in most if count > 200} == {hub}
    assert sum(most) == 2 * graph.num_edges  # made again in the backward pass


def test_blocks_are_made_again_as_they_were_made(graph, monkeypatch):
    """Whichever backend is chosen by then."""
    monkeypatch.setattr(blocks, "BLOCK", 400)
    x = torch.randn(50, 4, dtype=torch.float64, requires_grad=True)
    out = pna.aggregate(x, graph, ["moment_3"])
    with pna.backend("reference"):
        out.sum().backward()
        expected = torch.autograd.grad(pna.aggregate(x, graph, ["moment_3"]).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("block", [4, 400, 10**6])
def test_what_receivers_add_to_messages(graph, monkeypatch, block):
    """In every block its own rows."""
    monkeypatch.setattr(blocks, "BLOCK", block)
    random = torch.Generator().manual_seed(2)
    x, own = (
        torch.randn(50, 4, generator=random, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    several = [Moment(3), KthSmallest(2), Std()]
    got = blocks.aggregate(x, graph, several, own=own)
    each = own[graph.edge_index[1].long()]
    expected = reference.aggregate(x, graph, several, each)
    torch.testing.assert_close(got, expected)
    gradients = (torch.autograd.grad((out**2).sum(), [x, own]) for out in (got, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_a_high_moment_alone_keeps_no_power_below_it(graph):
    hood = blocks._Slots(torch.randn(1200, 4), graph, edges.Slots.of(graph))
    torch.testing.assert_close(hood.power(9), hood.centred() ** 9)
    torch.testing.assert_close(hood.power(10), hood.centred() ** 10)
    assert set(hood.powers) == {1, 9, 10}


def test_inside_vmap_there_is_one_block(graph, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 400)
    x = torch.randn(3, 50, 4, dtype=torch.float64, requires_grad=True)
    out = torch.func.vmap(lambda x: pna.aggregate(x, graph, ["moment_3"]))(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(out[1], pna.aggregate(x[1], graph, ["moment_3"]))


@pytest.mark.parametrize("block", [10**6, 1000])  # all at once, and one receiver each
def test_gradients_of_half_types_are_summed_in_float32(monkeypatch, block):
    """Three receivers of 3000 equal messages each: the gradient of one has few digits in
    float16."""
    monkeypatch.setattr(blocks, "BLOCK", block)
    edge_index = torch.stack([torch.zeros(9000, dtype=torch.int64), torch.arange(9000) % 3])
    adjacency = pna.Adjacency.from_edge_index(edge_index, (1, 3))
    x = torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    out = blocks.aggregate(x, adjacency, [Softmax(1.0)])
    assert out.dtype == torch.float16
    out.backward(torch.full_like(out, 9.8e-4))
    assert x.grad.tolist() == [pytest.approx([2.94e-3] * 2, rel=2e-3)]
