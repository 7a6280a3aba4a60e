"""How right the numbers are: against PyG, against float64, at large offsets, at NaN and inf."""

import math

import pytest
import torch

import pna
from pna.ops.aggregators import KthSmallest, Moment, Softmax, Softmin, Std
from tests.ops.cases import (
    EVERY,
    FUSED,
    GRAPHS,
    Graph,
    assert_near,
    definition,
    features,
    into,
    outcome,
    random_edges,
)

NAN, INF = math.nan, math.inf


def pyg_outcome(x, graph, name, upstream, **arguments):
    """PyG's aggregation of the gathered messages, and its gradient of x."""
    aggr = pytest.importorskip("torch_geometric.nn.aggr")
    senders, receivers = graph.edge_index(x.device)
    num_receivers = graph.nodes if isinstance(graph.nodes, int) else graph.nodes[1]
    x = x.detach().requires_grad_()
    module = getattr(aggr, f"{name}Aggregation")(**arguments)
    out = module(x[senders], receivers, dim_size=num_receivers)[:, None]
    return [out.detach(), *torch.autograd.grad(out, x, upstream)]


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "aggregator, name, arguments",
    [
        ("mean", "Mean", {}),
        ("sum", "Sum", {}),
        ("max", "Max", {}),
        ("min", "Min", {}),
        ("var", "Var", {}),
        (Std(clamp=True), "Std", {}),
        ("softmax", "Softmax", {"t": 1.0, "learn": False}),
        (Softmax(temperature=2.5), "Softmax", {"t": 2.5, "learn": False}),
    ],
    ids=str,
)
@pytest.mark.parametrize("graph", ["isolated", "degree 1", "random", "bipartite"])
def test_as_pyg(backend, graph, aggregator, name, arguments):
    graph = GRAPHS[graph]
    adjacency = graph.adjacency(backend.device)
    x = features(adjacency.num_senders, 3, torch.float64, backend.device)
    upstream = features(adjacency.num_receivers, 3, x.dtype, x.device, seed=1)[:, None]
    expected = pyg_outcome(x, graph, name, upstream, **arguments)
    got = outcome(x, adjacency, [aggregator], upstream=upstream)
    assert_near(got, expected, 1e-12, at_least=1.0)  # alone, a neighbour has no variance


@pytest.mark.parametrize(
    "kind, name",
    [
        ("mean", "Mean"),
        ("sum", "Sum"),
        ("max", "Max"),
        ("min", "Min"),
        ("var", "Var"),
        (Std(clamp=True), "Std"),
    ],
    ids=str,
)
def test_no_less_exact_than_pyg(fast, kind, name):
    """Root mean square error of the output and of the gradient, in float32 on N(0, 1): at most half
    as much again, which is noise."""
    interpreted = fast.name == "triton" and fast.device.type == "cpu"
    nodes, edges, width = (64, 1500, 4) if interpreted else (2000, 20_000, 32)
    graph = Graph(random_edges(edges, nodes, nodes), nodes)
    adjacency = graph.adjacency(fast.device)
    x = features(nodes, width, torch.float32, fast.device)
    upstream = features(nodes, width, torch.float32, fast.device, seed=1)[:, None]
    ours = outcome(x, adjacency, [kind], upstream=upstream)
    theirs = pyg_outcome(x, graph, name, upstream)
    exact = definition(x, adjacency, [kind], upstream=upstream)
    for us, them, truth in zip(ours, theirs, exact, strict=True):
        our_error, their_error = (
            float((result.double() - truth).square().mean().sqrt()) for result in (us, them)
        )
        assert our_error <= 1.5 * their_error


def test_variance_far_from_zero(fast):
    """1e4 + N(0, 1) in float32, whose squares hold no variance at all: an ordinary row and one of
    thousands of slots."""
    graph = Graph(random_edges(200, 64, 60) + into(60, 3000, 64), (64, 61))
    adjacency = graph.adjacency(fast.device)
    x = 1e4 + features(64, 3, torch.float32, fast.device)
    kinds = ["mean", "std", "var"]
    ours, exact = outcome(x, adjacency, kinds), definition(x, adjacency, kinds)
    reached = adjacency.degree > 1
    for kind, tolerance in ((0, 1e-6), (1, 1e-5), (2, 1e-5)):
        got, expected = ours[0][reached, kind].double(), exact[0][reached, kind]
        assert ((got - expected).abs() <= tolerance * expected.abs()).all()
    assert (ours[1].double() - exact[1]).norm() <= 1e-5 * exact[1].norm()


@pytest.mark.covering(1)
@pytest.mark.parametrize("scale", [1e4, 1e8, 1e30])
@pytest.mark.parametrize("form", [None, "dense", "table", "coefficients"])
def test_another_graph_changes_nothing(fast, form, scale):
    """Gradients of one graph's own x and edge terms, beside a graph at another scale. The kernels
    once centred all receivers at one mean, which cost the others their digits."""
    kinds = ["mean", "sum", "var", "std", "max", "min", "normalised_mean"]
    nodes, edges, width = 20, 70, 5
    pairs = random_edges(edges, nodes, nodes)
    both = pairs + [(sender + nodes, receiver + nodes) for sender, receiver in pairs]
    adjacency = Graph(both, 2 * nodes).adjacency(fast.device)
    dtype, device = torch.float32, fast.device

    def gradients(factor):
        x = features(2 * nodes, width, dtype, device, seed=2)
        x[nodes:] *= factor
        x.requires_grad_()
        term = features(2 * edges, width if form == "dense" else 2, dtype, device, seed=3)
        table = features(2, width, dtype, device, seed=4)
        term[edges:] *= factor
        term.requires_grad_()
        index = torch.arange(2 * edges, device=device) % 2
        given = {"dense": term, "table": (table, index), "coefficients": (term, table)}
        own = (x,) if form in (None, "table") else (x, term)
        out = pna.aggregate(x, adjacency, kinds, edge=given.get(form))
        upstream = features(nodes, len(kinds) * width, dtype, device, seed=5)
        (out * upstream.view(nodes, len(kinds), width).repeat(2, 1, 1)).sum().backward()
        return [tensor.grad[: tensor.shape[0] // 2] for tensor in own]

    for alone, beside in zip(gradients(1.0), gradients(scale), strict=True):
        assert (alone - beside).norm() <= 1e-6 * alone.norm()


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("kind", ["std", "var"])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
@pytest.mark.parametrize("nodes", [40, 2], ids=["short rows", "long rows"])
def test_gradient_far_from_zero_with_a_constant_edge_term(fast, kind, offset, nodes):
    """All messages move alike. At 1e4 they are rounded in steps of 1e-3, all in the same way."""
    edges = 7 * nodes if nodes > 2 else 540
    adjacency = Graph(random_edges(edges, nodes, nodes), nodes).adjacency(fast.device)
    x = offset + features(nodes, 3, torch.float32, fast.device)
    edge = torch.full((edges, 3), 0.3, device=fast.device)
    ours = outcome(x, adjacency, [kind], edge=edge)
    exact = definition(x, adjacency, [kind], edge=edge)
    assert (ours[1].double() - exact[1]).norm() <= 5e-6 * exact[1].norm()


@pytest.mark.parametrize("outlier", [1e6, -1e6])
def test_an_outlier_first(fast, outlier):
    """The first message is a bad guess of the mean: a kernel that starts from it may lose as many
    units in the last place as there are messages, and no more."""
    adjacency = Graph([(sender, 0) for sender in range(40)], 40).adjacency(fast.device)
    x = features(40, 3, torch.float32, fast.device)
    x[0, 1] = outlier
    kinds = ["mean", "var", "std", "sum"]
    ours, exact = outcome(x, adjacency, kinds), definition(x, adjacency, kinds)
    tolerance = 2 * 40 * 2**-23
    torch.testing.assert_close(ours[0][0].double(), exact[0][0], rtol=tolerance, atol=tolerance)
    for feature in range(3):
        ours_here, exact_here = (results[1][:, feature] for results in (ours, exact))
        assert_near([ours_here], [exact_here], 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equal_messages_have_no_spread(fast, dtype):
    """Rows of 1, 2, 3, 7 and 300 times 0.1, whose sums are not exact: std is sqrt(ε) and has no
    gradient, though a deviation of 1e-8 would be multiplied by 300."""
    lengths = (1, 2, 3, 7, 300)
    edges = [(slot % 50, row) for row, length in enumerate(lengths) for slot in range(length)]
    adjacency = Graph(edges, (50, 5)).adjacency(fast.device)
    x = torch.full((50, 3), 0.1, dtype=dtype, device=fast.device)
    out, gradient = outcome(x, adjacency, ["std"])
    last_place = torch.finfo(dtype).eps
    assert out.flatten().tolist() == pytest.approx([math.sqrt(1e-5)] * 15, rel=last_place)
    assert (gradient == 0).all()
    assert (pna.aggregate(x, adjacency, [Std(clamp=True), "var"]) == 0).all()


@pytest.mark.parametrize("order", [3, 4])
def test_published_moment_of_many_equal_messages(order):
    """The form jumps at 0, and the mean of so many is not exact."""
    adjacency = Graph([(0, 0)] * 70_000, 1).adjacency("cpu")
    x = torch.full((1, 3), 0.5591)
    with pna.backend("reference"):
        out, gradient = outcome(x, adjacency, [Moment(order, published=True)])
    assert (out == 0).all() and (gradient == 0).all()


# 0 → 1, 2 → 1, 3 → 1 and so on. Sender 2 is first, in the middle and last, and has 1, 2, 3 and 6
# for receivers; 3 also hears itself.
NAN_GRAPH = Graph(
    [
        (2, 1), (0, 1), (3, 1),
        (0, 2), (2, 2), (4, 2), (5, 2), (6, 2),
        (0, 3), (3, 3), (5, 3), (1, 3), (2, 3),
        (0, 4), (5, 4),
        (4, 5),
        (2, 6),
    ],
    7,
)  # fmt: skip


def every_kind():
    return [*EVERY, KthSmallest(1), Softmin(3.0), Moment(3, published=True)]


def test_nan_reaches_its_receivers_and_nothing_else(backend):
    adjacency = NAN_GRAPH.adjacency(backend.device)
    x = features(7, 3, torch.float32, backend.device)
    whole, whole_gradient = outcome(x, adjacency, every_kind())
    x[2, 1] = NAN
    out, gradient = outcome(x, adjacency, every_kind())
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[[1, 2, 3, 6], :, 1] = True
    assert out[touched].isnan().all()
    assert torch.equal(out[~touched], whole[~touched])
    # In that feature, only what shares no receiver with node 2 is sure to have a gradient; every
    # node but one shares some, and that one sends nothing there.
    others = torch.tensor([0, 2], device=backend.device)
    torch.testing.assert_close(gradient[:, others], whole_gradient[:, others])


def test_gradients_beside_nan(backend):
    """Two components: NaN in one leaves the gradients of the other as they were."""
    edges = [(0, 1), (2, 1), (1, 0), (3, 4), (5, 4), (4, 3), (4, 5), (3, 5)]
    adjacency = Graph(edges, 6).adjacency(backend.device)
    x = features(6, 3, torch.float32, backend.device)
    _, whole = outcome(x, adjacency, every_kind())
    x[0, 1] = NAN
    _, gradient = outcome(x, adjacency, every_kind())
    assert gradient[3:].isfinite().all()
    torch.testing.assert_close(gradient[3:], whole[3:])
    torch.testing.assert_close(gradient[:, [0, 2]], whole[:, [0, 2]])


def test_nan_in_a_hub(backend):
    """A feature each: NaN first, in the second of three segments, last, and nowhere."""
    edges = [(slot % 60, 0) for slot in range(600)] + [(1, 1), (2, 1), (3, 1)]
    adjacency = Graph(edges, 60).adjacency(backend.device)
    x = features(60, 4, torch.float32, backend.device)
    edge = features(603, 4, torch.float32, backend.device, seed=1)
    whole = definition(x, adjacency, FUSED, edge)
    edge[0, 0], edge[300, 1], edge[599, 2] = NAN, NAN, NAN
    out, gradient_x, gradient_edge = outcome(x, adjacency, FUSED, edge)
    assert out[0, :, :3].isnan().all()
    assert_near([out[0, :, 3]], [whole[0][0, :, 3]], 1e-5)
    assert_near([out[1:]], [whole[0][1:]], 1e-5)
    assert_near([gradient_x[:, 3]], [whole[1][:, 3]], 1e-5)
    assert_near([gradient_edge[:, 3]], [whole[2][:, 3]], 1e-5)
    assert_near([gradient_edge[600:]], [whole[2][600:]], 1e-5)


# Messages of a row, then mean, sum, max, min, first and second smallest. The rest is NaN.
INFINITE = [
    ([1, INF], [INF, INF, INF, 1, 1, INF]),
    ([INF, 1], [INF, INF, INF, 1, 1, INF]),
    ([1, -INF], [-INF, -INF, 1, -INF, -INF, 1]),
    ([1, 2, 3, 4, INF, 6], [INF, INF, INF, 1, 1, 2]),
    ([INF], [INF, INF, INF, INF, INF, 0]),
    ([-INF], [-INF, -INF, -INF, -INF, -INF, 0]),
    ([INF, INF], [INF, INF, INF, INF, INF, INF]),
    ([INF, -INF], [NAN, NAN, INF, -INF, -INF, INF]),
    ([-INF, 1, 2, 3, 4, 5, 6, INF], [NAN, NAN, INF, -INF, -INF, 1]),
    ([INF, NAN], [NAN, NAN, NAN, NAN, NAN, NAN]),
]
WITHOUT_SPREAD = ["var", "std", Std(clamp=True), "moment_3", "moment_4", "softmax", "softmin"]


def test_infinity_follows_arithmetic(backend):
    values = [value for row, _ in INFINITE for value in row]
    edges = [
        (sum(len(row) for row, _ in INFINITE[:i]) + slot, i)
        for i, (row, _) in enumerate(INFINITE)
        for slot in range(len(row))
    ]
    adjacency = Graph(edges, (len(values), len(INFINITE))).adjacency(backend.device)
    x = torch.tensor(values, device=backend.device)[:, None]
    kinds = ["mean", "sum", "max", "min", KthSmallest(1), KthSmallest(2)]
    out = pna.aggregate(x, adjacency, [*kinds, "normalised_mean", *WITHOUT_SPREAD])[..., 0]
    expected = torch.tensor([row for _, row in INFINITE], device=x.device)
    torch.testing.assert_close(out[:, :6], expected, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(out[:, 6], expected[:, 0], equal_nan=True, rtol=0, atol=0)
    assert out[:, 7:].isnan().all()


def test_infinity_in_a_hub(backend):
    """A feature each: inf first, in the second segment, in both of them, and meeting -inf."""
    adjacency = Graph([(slot % 60, 0) for slot in range(600)], 60).adjacency(backend.device)
    x = torch.zeros(60, 4, device=backend.device)
    edge = torch.zeros(600, 4, device=backend.device)
    edge[0, 0] = edge[300, 1] = edge[0, 2] = edge[300, 2] = edge[0, 3] = INF
    edge[300, 3] = -INF
    kinds = ["mean", "sum", "normalised_mean", "max", "min", "var", "std"]
    out = pna.aggregate(x, adjacency, kinds, edge)
    expected = [[INF, INF, INF, NAN]] * 3 + [[INF] * 4, [0, 0, 0, -INF]] + [[NAN] * 4] * 2
    expected = torch.tensor(expected, device=x.device)
    torch.testing.assert_close(out[0], expected, equal_nan=True, rtol=0, atol=0)
