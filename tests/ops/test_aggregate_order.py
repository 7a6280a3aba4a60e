"""Who gets the gradient of an extremum, how often an edge counts, and the same bits every time."""

import pytest
import torch

import pna
from tests.ops.cases import (
    FORMS,
    FUSED,
    GRAPHS,
    Graph,
    edge_term,
    features,
    into,
    out_of,
    outcome,
    random_edges,
)


def extrema_gradients(edges, num_nodes, values, device):
    """Gradients that the maximum and the minimum of node 0 give to each edge, and to each node."""
    adjacency = Graph(edges, num_nodes).adjacency(device)
    x = torch.tensor(values, device=device)[:, None].requires_grad_()
    zeros = torch.zeros(len(edges), 1, device=device, requires_grad=True)
    rows = []
    for edge, leaf in ((zeros, zeros), (None, x)):
        out = pna.aggregate(x, adjacency, ["max", "min"], edge=edge)
        for kind in range(2):
            (gradient,) = torch.autograd.grad(out[0, kind, 0], leaf, retain_graph=True)
            rows.append(gradient[:, 0].tolist())
    return rows


def test_ties_go_to_the_edge_given_first(backend):
    # Nodes 2, 1 and 3 send 5 to node 0, in that order. Edges to others stand between them.
    edges = [(3, 1), (2, 0), (0, 2), (1, 0), (3, 0)]
    by_edge_max, by_edge_min, by_node_max, by_node_min = extrema_gradients(
        edges, 4, [0.0, 5.0, 5.0, 5.0], backend.device
    )
    assert by_edge_max == by_edge_min == [0, 1, 0, 0, 0]
    assert by_node_max == by_node_min == [0, 0, 1, 0]


def test_maximum_and_minimum_among_others(backend):
    # Node 0 receives 2, 7, 1, 7, 1 from nodes 1 to 5.
    edges = [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]
    by_edge_max, by_edge_min, by_node_max, by_node_min = extrema_gradients(
        edges, 6, [0.0, 2, 7, 1, 7, 1], backend.device
    )
    assert by_edge_max == [0, 1, 0, 0, 0]
    assert by_edge_min == [0, 0, 1, 0, 0]
    assert by_node_max == [0, 0, 1, 0, 0, 0]
    assert by_node_min == [0, 0, 0, 1, 0, 0]


def test_a_repeated_edge_gets_the_gradient_of_an_extremum_once(backend):
    # Node 1 sends its 5 to node 0 three times: one of the three edges is the maximum.
    edges = [(2, 0), (1, 0), (1, 0), (1, 0)]
    by_edge_max, by_edge_min, by_node_max, by_node_min = extrema_gradients(
        edges, 3, [0.0, 5.0, 4.0], backend.device
    )
    assert by_edge_max == [0, 1, 0, 0]
    assert by_edge_min == [1, 0, 0, 0]
    assert by_node_max == [0, 1, 0]
    assert by_node_min == [0, 0, 1]


def test_a_repeated_edge_counts_as_often_as_it_occurs(backend):
    # Node 2 receives 1, 4, 1 from nodes 0, 1, 0: sum 6, mean 2, variance (1 + 4 + 1) / 3 = 2.
    adjacency = Graph([(0, 2), (1, 2), (0, 2)], 3).adjacency(backend.device)
    x = torch.tensor([[1.0], [4.0], [0.0]], device=backend.device, requires_grad=True)
    out = pna.aggregate(x, adjacency, ["sum", "mean", "var", "max", "min"])
    assert out[2, :, 0].tolist() == pytest.approx([6, 2, 2, 4, 1], rel=1e-6)
    # Node 0 has two edges of two, so 1/sqrt(3 · 2) for each of its messages; node 1 has one.
    normalised = pna.aggregate(x, adjacency, ["normalised_mean"])[2, 0, 0]
    assert normalised.item() == pytest.approx(2 / 6**0.5 + 4 / 3**0.5, rel=1e-6)
    (gradient,) = torch.autograd.grad(out[2, 1, 0], x)
    assert gradient[:, 0].tolist() == pytest.approx([2 / 3, 1 / 3, 0], rel=1e-6)


# A place in a row of at most 255 slots is kept in a byte, 255 for none; in a longer one its lower
# byte is kept there, and the whole place beside it. Each feature is a case of its own: the places
# where e is 1, the first of which is the maximum; the minimum is the first of the others.
HUBS = {
    255: [
        ([254], 254, 0),  # the last place that fits
        ([0, 254], 0, 1),
        ([4, 8], 4, 0),
    ],
    256: [  # the first segment full, the second of one slot
        ([255], 255, 0),  # the lower byte is 255
        ([0, 255], 0, 1),  # a tie across segments
        (list(range(255)), 0, 255),
    ],
    600: [
        ([259], 259, 0),  # the lower byte is that of place 3
        ([3, 259, 515], 3, 0),  # a tie of three segments, all of one lower byte
        ([509, 510], 509, 0),  # the last place of a segment and the first of the next
    ],
}


def test_extrema_of_hubs(backend):
    edges = [(slot % 64, row) for row, length in enumerate(HUBS) for slot in range(length)]
    starts = dict(zip(HUBS, (0, 255, 511), strict=True))
    edge = torch.zeros(len(edges), 3, device=backend.device)
    expected = torch.zeros_like(edge)
    for length, cases in HUBS.items():
        for feature, (ones, highest, lowest) in enumerate(cases):
            edge[[starts[length] + place for place in ones], feature] = 1
            expected[starts[length] + highest, feature] = 1
            expected[starts[length] + lowest, feature] = -10
    adjacency = Graph(edges, 64).adjacency(backend.device)
    upstream = torch.tensor([1.0, -10.0], device=backend.device)[:, None].expand(64, 2, 3)
    x = torch.zeros(64, 3, device=backend.device)
    _, gradient_x, gradient_edge = outcome(x, adjacency, ["max", "min"], edge, upstream)
    assert torch.equal(gradient_edge, expected)
    senders = torch.tensor([sender for sender, _ in edges], device=backend.device)
    assert torch.equal(gradient_x, torch.zeros_like(x).index_add(0, senders, expected))


def test_equal_messages_of_hubs(backend):
    """Without e, where kernels may look for the maximum by another road."""
    lengths = (255, 256, 600)
    edges = [(3 + slot % 60, row) for row, length in enumerate(lengths) for slot in range(length)]
    adjacency = Graph(edges, 63).adjacency(backend.device)
    x = torch.full((63, 3), 0.1, device=backend.device)
    x[3, 1], x[4, 2] = -7.0, 7.0  # sender 3 comes first, sender 4 second, in each of the rows
    upstream = torch.tensor([1.0, -10.0], device=backend.device)[:, None].expand(63, 2, 3)
    _, gradient = outcome(x, adjacency, ["max", "min"], None, upstream)
    expected = torch.zeros_like(x)
    expected[3, 0], expected[3, 1], expected[3, 2] = 3 - 30, -30, -30
    expected[4, 1] = expected[4, 2] = 3
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("form", ["none", "table"])
def test_the_same_bits_every_time(fast, form):
    adjacency = GRAPHS["random"].adjacency(fast.device)
    x = features(adjacency.num_senders, 3, torch.float32, fast.device)
    edge = edge_term(form, adjacency.num_edges, 3, x.dtype, fast.device)
    first, second = (outcome(x, adjacency, FUSED, edge) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_every_time_on_a_gpu(triton, form):
    """Hubs and repeated edges, where atomics would show."""
    edges = random_edges(20_000, 500, 500) + into(7, 5_000, 500) + out_of(8, 5_000, 500)
    adjacency = Graph(edges, 500).adjacency(triton.device)
    x = features(500, 64, torch.float32, triton.device)
    edge = edge_term(form, adjacency.num_edges, 64, x.dtype, triton.device)
    first, *others = (outcome(x, adjacency, FUSED, edge) for _ in range(5))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_for_any_number_of_threads(cpu, form, dtype):
    """Work enough to be shared, with hubs both ways, which are shared by features."""
    edges = random_edges(6_000, 300, 300) + into(7, 3_000, 300) + out_of(8, 3_000, 300)
    adjacency = Graph(edges, 300).adjacency()
    x = features(300, 65, dtype, "cpu")
    edge = edge_term(form, adjacency.num_edges, 65, dtype, "cpu")
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(outcome(x, adjacency, FUSED, edge))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], result, strict=True))
