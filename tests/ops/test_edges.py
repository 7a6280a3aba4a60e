"""Rows for edges, and sums of them, against indexing in plain torch."""

from __future__ import annotations

import pytest
import torch

import pna
from pna.baselines.edge_features import to_slots
from pna.ops.edges import (
    Slots,
    count_self_loops,
    exponentials_of_receivers,
    from_receivers,
    from_senders,
    sum_to_receivers,
    weighted_sum,
)
from tests.nn.conv.baselines import assert_captures
from tests.ops.cases import GRAPHS, TOLERANCES, features, pack

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own

SMALL = ["isolated", "self-loops", "repeated edges", "bipartite"]


def sums(values, rows, count):
    return values.new_zeros((count, *values.shape[1:])).index_add(0, rows.long(), values)


#: Each function, whether it reads senders, receivers or edges, and what it is by definition.
LINEAR = {
    "from_senders": (
        from_senders,
        lambda adjacency: adjacency.num_senders,
        lambda x, adjacency: x[adjacency.senders.long()],
    ),
    "from_receivers": (
        from_receivers,
        lambda adjacency: adjacency.num_receivers,
        lambda x, adjacency: x[adjacency.receivers.long()],
    ),
    "sum_to_receivers": (
        sum_to_receivers,
        lambda adjacency: adjacency.num_edges,
        lambda x, adjacency: sums(x, adjacency.receivers, adjacency.num_receivers),
    ),
}


def outcome(run, *inputs):
    """The output and the gradients of all inputs."""
    leaves = [i.detach().requires_grad_() for i in inputs]
    out = run(*leaves)
    upstream = features(1, out.numel(), out.dtype, out.device, seed=6).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


def softmax_of_receivers(scores, adjacency):
    """The layers' use of `exponentials_of_receivers`, without a node's own score."""
    exponentials, _ = exponentials_of_receivers(scores, adjacency)
    return exponentials / from_receivers(sum_to_receivers(exponentials, adjacency), adjacency)


def assert_near(got, expected, tolerance):
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(1.0, float(theirs.detach().abs().max())) if theirs.numel() > 0 else 1.0
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", LINEAR)
def test_by_definition(device, name, graph):
    function, rows, definition = LINEAR[name]
    adjacency = GRAPHS[graph].adjacency(device)
    for shape in ((), (5,), (2, 3)):
        x = torch.randn(rows(adjacency), *shape, dtype=torch.float64, device=device)
        got = outcome(lambda x: function(x, adjacency), x)
        assert_near(got, outcome(lambda x: definition(x, adjacency), x), 1e-13)
        assert got[0].shape[1:] == shape


@pytest.mark.covering(1)
@pytest.mark.parametrize("graph", [*SMALL, "no edges", "hub that receives", "hub that sends"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_every_backend(backend, name, dtype, graph):
    if backend.name == "triton" and "hub" in graph and dtype != torch.float32:
        pytest.skip("the interpreter is slow, and the kernels are the same")
    function, rows, definition = LINEAR[name]
    adjacency = GRAPHS[graph].adjacency(backend.device)
    x = features(rows(adjacency), 3, dtype, backend.device)
    got = outcome(lambda x: function(x, adjacency), x)
    assert all(result.dtype == dtype for result in got)
    if backend.name == "reference" and dtype.itemsize == 2:
        return  # which adds up in the type it is given
    upstream = features(1, got[0].numel(), dtype, backend.device, seed=6)
    wide = x.double().requires_grad_()
    out = definition(wide, adjacency)
    gradient = torch.autograd.grad(out, wide, upstream.double().reshape(out.shape))
    assert_near(got, [out, *gradient], TOLERANCES[dtype])


@pytest.mark.parametrize("graph", ["random", "hub that receives", "hub that sends"])
def test_repeats_to_the_bit(fast, graph):
    if fast.name == "triton" and "hub" in graph and fast.device.type == "cpu":
        pytest.skip("the interpreter is slow, and has no threads")
    adjacency = GRAPHS[graph].adjacency(fast.device)
    x = features(adjacency.num_senders, 40, torch.float32, fast.device)

    def run(x):
        return sum_to_receivers(
            from_senders(x, adjacency) * from_receivers(x, adjacency), adjacency
        )

    first = outcome(run, x)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(outcome(run, x), first, strict=True))


@pytest.mark.parametrize("graph", SMALL)
@pytest.mark.parametrize("name", LINEAR)
def test_second_derivatives(device, name, graph):
    function, rows, _ = LINEAR[name]
    adjacency = GRAPHS[graph].adjacency(device)
    x = features(rows(adjacency), 2, torch.float64, device).requires_grad_()

    def run(x):
        return function(x.square(), adjacency).square()

    assert torch.autograd.gradcheck(run, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, x)


@pytest.mark.parametrize("graph", GRAPHS)
def test_softmax(device, graph):
    adjacency = GRAPHS[graph].adjacency(device)
    scores = features(adjacency.num_edges, 3, torch.float64, device)
    receivers, count = adjacency.receivers, adjacency.num_receivers

    def definition(scores):
        exponentials = scores.exp()
        return exponentials / sums(exponentials, receivers, count)[receivers.long()]

    got = outcome(lambda scores: softmax_of_receivers(scores, adjacency), scores)
    assert_near(got, outcome(definition, scores), 1e-12)
    total = sums(got[0], receivers, count)
    torch.testing.assert_close(total, (adjacency.degree > 0)[:, None].expand_as(total).double())


def test_softmax_on_every_backend(backend):
    adjacency = GRAPHS["isolated"].adjacency(backend.device)
    scores = torch.tensor([[1000.0, 0.0], [1000.0, -1e30], [-1000.0, 5.0]], device=backend.device)
    expected = torch.tensor([[0.5, 1.0], [0.5, 0.0], [1.0, 1.0]], device=backend.device)
    out, gradient = outcome(lambda scores: softmax_of_receivers(scores, adjacency), scores)
    torch.testing.assert_close(out, expected)
    assert gradient.isfinite().all()


def test_exponentials_with_scores_of_their_own(device):
    """By hand: 0 → 1 and 2 → 1 with scores 1 and 3, and 5 or −5 for every node."""
    adjacency = pna.Adjacency.from_edge_index(torch.tensor([[0, 2], [1, 1]], device=device), 3)
    scores = torch.tensor([[1.0], [3.0]], device=device)
    for own, highest in ((5.0, [5.0, 5.0, 5.0]), (-5.0, [-5.0, 3.0, -5.0])):
        own = torch.full((3, 1), own, device=device)
        exponentials, by = exponentials_of_receivers(scores, adjacency, own)
        assert by[:, 0].tolist() == highest
        torch.testing.assert_close(exponentials, (scores - highest[1]).exp())


@pytest.mark.parametrize("graph", ["random", "isolated", "bipartite", "no edges"])
def test_weighted_sum(device, graph):
    adjacency = GRAPHS[graph].adjacency(device)
    weights = features(adjacency.num_edges, 2, torch.float64, device, seed=1)
    for heads in (2, 1):  # one for each, and one for all
        x = features(adjacency.num_senders, heads * 3, torch.float64, device).unflatten(1, (-1, 3))

        def definition(x, weights):
            messages = weights[:, :, None] * x[adjacency.senders.long()]
            return sums(messages, adjacency.receivers, adjacency.num_receivers)

        got = outcome(lambda x, weights: weighted_sum(x, weights, adjacency), x, weights)
        assert_near(got, outcome(definition, x, weights), 1e-13)


def test_tables_of_kinds_by_a_product(triton):
    """As rows of the table, in its own type under autocast too; NaN of a kind that it has not."""
    adjacency = GRAPHS["random"].adjacency(triton.device)
    kinds = torch.arange(adjacency.num_edges, device=triton.device) % 3
    table = features(3, 4, torch.float32, triton.device)
    expected = table[kinds[adjacency.edge_ids.long()]]
    torch.testing.assert_close(to_slots((table, kinds), adjacency), expected)
    with torch.autocast(triton.device.type, torch.bfloat16):
        got = to_slots((table, kinds), adjacency)
    assert got.dtype == torch.float32 and torch.equal(got, expected)
    kinds[0], kinds[1] = 3, -1
    unknown = ((kinds < 0) | (kinds > 2))[adjacency.edge_ids.long()]
    got = to_slots((table, kinds), adjacency)
    assert torch.equal(got.isnan().all(1), unknown) and not got[~unknown].isnan().any()


@pytest.mark.parametrize("graph", ["random", "isolated", "no edges"])
def test_edge_features_to_slots(device, graph):
    adjacency = GRAPHS[graph].adjacency(device)
    edge = features(adjacency.num_edges, 3, torch.float64, device)
    order = adjacency.edge_ids.long()
    got = outcome(lambda e: to_slots(e, adjacency, torch.tanh), edge)
    assert_near(got, outcome(lambda e: e[order].tanh(), edge), 1e-15)
    table = features(4, 3, torch.float64, device)
    for dtype in (torch.int64, torch.uint8):
        index = (torch.arange(adjacency.num_edges, device=device) % 3).to(dtype)
        got = outcome(lambda t, i=index: to_slots((t, i), adjacency, torch.tanh), table)
        rows = outcome(lambda t, i=index: t[i.long()][order].tanh(), table)
        assert_near(got, rows, 1e-14)


@pytest.mark.parametrize("graph", [name for name in GRAPHS if isinstance(GRAPHS[name].nodes, int)])
def test_count_self_loops(device, graph):
    graph = GRAPHS[graph]
    expected = [graph.edges.count((node, node)) for node in range(graph.nodes)]
    assert count_self_loops(graph.adjacency(device)).tolist() == expected


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", LINEAR)
def test_vmap(device, name, dim):
    function, rows, definition = LINEAR[name]
    adjacency = GRAPHS["random"].adjacency(device)
    shape = [rows(adjacency), 5]
    shape.insert(dim, 3)
    x = torch.randn(shape, dtype=torch.float64, device=device)
    got = outcome(torch.vmap(lambda x: function(x, adjacency), dim), x)

    def one_by_one(x):
        return torch.stack([definition(member, adjacency) for member in x.unbind(dim)])

    assert_near(got, outcome(one_by_one, x), 1e-13)
    together = torch.vmap(torch.func.grad(lambda x: function(x, adjacency).square().sum()), dim)(x)
    alone = torch.func.grad(lambda x: one_by_one(x).square().sum())(x)
    torch.testing.assert_close(together, alone.movedim(dim, 0))


def test_vmap_of_a_softmax(device):
    adjacency = GRAPHS["random"].adjacency(device)
    scores = torch.randn(3, adjacency.num_edges, 2, dtype=torch.float64, device=device)
    got = outcome(torch.vmap(lambda s: softmax_of_receivers(s, adjacency)), scores)
    alone = outcome(
        lambda s: torch.stack([softmax_of_receivers(member, adjacency) for member in s]), scores
    )
    assert_near(got, alone, 1e-13)


def test_compiled_whole(device):
    torch._dynamo.reset()
    adjacency = GRAPHS["random"].adjacency(device)
    x = features(12, 6, torch.float64, device).unflatten(1, (2, 3))

    def run(x, adjacency):
        scores = from_senders(x[:, :, 0], adjacency) + from_receivers(x[:, :, 1], adjacency)
        return weighted_sum(x, softmax_of_receivers(scores, adjacency), adjacency)

    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    got = outcome(lambda x: whole(x, adjacency), x)
    assert_near(got, outcome(lambda x: run(x, adjacency), x), 1e-13)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(triton):
    adjacency = GRAPHS["hub that receives"].adjacency(triton.device)
    x = features(60, 6, torch.float32, triton.device).unflatten(1, (2, 3)).requires_grad_()

    def run():
        scores = from_senders(x[:, :, 0], adjacency) + from_receivers(x[:, :, 1], adjacency)
        out = weighted_sum(x, softmax_of_receivers(scores, adjacency), adjacency)
        out = out + count_self_loops(adjacency)[:, None, None]
        return out, *torch.autograd.grad(out, x, torch.ones_like(out))

    assert_captures(run, x)


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("dim", ["one feature", "two features"])
def test_opcheck(fast, dim):
    """Schema, fake tensors, autograd registration, and tracing with dynamic shapes."""
    adjacency = GRAPHS["isolated"].adjacency(fast.device)
    slots = Slots.of(adjacency)
    width = 1 if dim == "one feature" else 2
    rest = (slots.receivers, *pack(slots.by_receiver), fast.name)
    x = features(adjacency.num_receivers, width, torch.float32, fast.device).requires_grad_()
    torch.library.opcheck(torch.ops.pna.take_rows.default, (x, *rest))
    messages = features(adjacency.num_edges, width, torch.float32, fast.device).requires_grad_()
    torch.library.opcheck(torch.ops.pna.sum_rows.default, (messages, *rest))


def test_refuses():
    adjacency = GRAPHS["isolated"].adjacency()
    with pytest.raises(ValueError, match=r"got x of shape \(4, 2\), expected \(5, …\).*sender"):
        from_senders(torch.ones(4, 2), adjacency)
    with pytest.raises(ValueError, match=r"got x of shape \(\), expected \(5, …\).*receiver"):
        from_receivers(torch.ones(()), adjacency)
    with pytest.raises(ValueError, match=r"got messages of shape \(5, 2\), expected \(3, …\)"):
        sum_to_receivers(torch.ones(5, 2), adjacency)
    with pytest.raises(ValueError, match=r"got scores of shape \(5, 2\), expected \(3, …\)"):
        softmax_of_receivers(torch.ones(5, 2), adjacency)
    with pytest.raises(TypeError, match=r"got x of dtype torch.int64.*x\.float\(\)"):
        from_senders(torch.ones(5, 2, dtype=torch.int64), adjacency)
