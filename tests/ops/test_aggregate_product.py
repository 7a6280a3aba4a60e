"""`pna.aggregate` with `combine="mul"`: messages x_j · e_ij, for weights and relations of edges."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import pna
from pna.ops import edge_types
from tests.ops.cases import (
    EDGE_FORMS,
    EVERY,
    FUSED,
    GRAPHS,
    TOLERANCES,
    Graph,
    assert_near,
    definition,
    edge_term,
    features,
    into,
    outcome,
    random_edges,
    widened,
)

WIDTH = 3


def compare(backend, graph, form, dtype=torch.float32, kinds=FUSED, width=WIDTH):
    adjacency = GRAPHS[graph].adjacency(backend.device)
    x = features(adjacency.num_senders, width, dtype, backend.device)
    edge = edge_term(form, adjacency.num_edges, width, dtype, backend.device)
    got = outcome(x, adjacency, kinds, edge, combine="mul")
    assert all(result.dtype == dtype for result in got)
    assert_near(got, definition(x, adjacency, kinds, edge, combine="mul"), TOLERANCES[dtype])


# Nodes 0, 1, 2 have the features (1, 2), (3, −1), (−2, 4). Edges 0→2, 1→2, 2→0 have the types 1, 0,
# 1. Type 0 is (2, 1), type 1 is (−1, 3).
X = [[1.0, 2.0], [3.0, -1.0], [-2.0, 4.0]]
EDGES = [(0, 2), (1, 2), (2, 0)]
TABLE, TYPES = [[2.0, 1.0], [-1.0, 3.0]], [1, 0, 1]
# the same term in each form, but for the weights
TERMS = {
    "dense": ([[-1.0, 3.0], [2.0, 1.0], [-1.0, 3.0]],),
    "table": (TABLE, TYPES),
    "coefficients": ([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], TABLE),
    "weights": ([[-1.0], [2.0], [0.5]],),
}


def term(form, dtype, device):
    parts = [
        torch.tensor(part, device=device) if part is TYPES
        else torch.tensor(part, device=device, dtype=dtype, requires_grad=True)
        for part in TERMS[form]
    ]  # fmt: skip
    return parts[0] if len(parts) == 1 else tuple(parts)


@pytest.mark.parametrize("form", ["dense", "table", "coefficients"])
def test_by_hand(backend, form):
    """Messages: 0→2 (−1, 6), 1→2 (6, −1), 2→0 (2, 12)."""
    x = torch.tensor(X, device=backend.device, dtype=torch.float64, requires_grad=True)
    adjacency = Graph(EDGES, 3).adjacency(backend.device)
    edge = term(form, x.dtype, x.device)
    out = pna.aggregate(x, adjacency, ["sum", "max", "var", "softmax"], edge, combine="mul")
    share = 1 / (1 + math.exp(-7))
    expected = [
        [[2, 12], [2, 12], [0, 0], [2, 12]],
        [[0, 0]] * 4,
        [[5, 5], [6, 6], [12.25, 12.25], [6 * share - (1 - share)] * 2],
    ]
    torch.testing.assert_close(out, torch.tensor(expected, dtype=x.dtype, device=x.device))
    # d sum/dx_j = e, and d max/dx_j = e where the message is the largest
    (of_sum,) = torch.autograd.grad(out[:, 0].sum(), x, retain_graph=True)
    assert of_sum.tolist() == [[-1, 3], [2, 1], [-1, 3]]
    (of_max,) = torch.autograd.grad(out[2, 1].sum(), x, retain_graph=True)
    assert of_max.tolist() == [[0, 3], [2, 0], [0, 0]]
    if form == "table":  # d sum/d table[k] = the sum of x_j over its edges
        (of_table,) = torch.autograd.grad(out[:, 0].sum(), edge[0])
        assert of_table.tolist() == [[3, -1], [1 - 2, 2 + 4]]


def test_weights_by_hand(backend):
    """Messages: 0→2 (−1, −2), 1→2 (6, −2), 2→0 (−1, 2)."""
    x = torch.tensor(X, device=backend.device, dtype=torch.float64, requires_grad=True)
    adjacency = Graph(EDGES, 3).adjacency(backend.device)
    weights = term("weights", x.dtype, x.device)
    out = pna.aggregate(x, adjacency, ["sum", "min"], weights, combine="mul")
    assert out.tolist() == [[[-1, 2], [-1, 2]], [[0, 0], [0, 0]], [[5, -4], [-1, -2]]]
    of_x, of_weights = torch.autograd.grad(out[:, 0].sum(), (x, weights), retain_graph=True)
    assert of_x.tolist() == [[-1, -1], [2, 2], [0.5, 0.5]]
    assert of_weights.tolist() == [[1 + 2], [3 - 1], [-2 + 4]]
    # the second feature is a tie, which goes to the edge that was given first
    assert torch.autograd.grad(out[2, 1].sum(), weights)[0].tolist() == [[3], [0], [0]]


@pytest.mark.parametrize("form", EDGE_FORMS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_cpu(cpu, graph, form):
    compare(cpu, graph, form)


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", EDGE_FORMS)
@pytest.mark.parametrize(
    "graph", ["no edges", "isolated", "self-loops", "repeated edges", "every small degree"]
)
def test_triton(triton, graph, form):
    compare(triton, graph, form)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_types(fast, form, dtype):
    compare(fast, "repeated edges", form, dtype)


@pytest.mark.slow
@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("graph", ["hub that receives", "hub that sends"])
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_rows_that_are_cut(triton, graph, form):
    compare(triton, graph, form)


@pytest.mark.covering(1)
@pytest.mark.parametrize("width", [0, 1, 33, 130])
@pytest.mark.parametrize("form", ["weights", "table"])
def test_odd_widths(fast, width, form):
    compare(fast, "self-loops", form, width=width)


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", ["table", "weights"])
@pytest.mark.parametrize("kind", [*FUSED, "max,min", "sum,max"])
def test_each_aggregator_alone(fast, kind, form):
    compare(fast, "repeated edges", form, torch.float64, kind.split(","))


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", ["coefficients", "weights"])
def test_every_aggregator_mixed(fast, form):
    compare(fast, "random", form, torch.float64, EVERY)


@pytest.mark.parametrize("form", ["table", "weights"])
def test_blocks_of_receivers(cpu, form, monkeypatch):
    monkeypatch.setattr("pna.ops.blocks.BLOCK", 10 * WIDTH)
    compare(cpu, "random", form, torch.float64, ["softmax", "moment_3"])


def strided(values):
    """A view of every other column of wider memory."""
    return values.repeat_interleave(2, 1)[:, ::2]


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_inputs_that_are_views(fast, form):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = strided(features(adjacency.num_senders, WIDTH, torch.float32, fast.device))
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, fast.device)
    parts = [strided(p) if p.dim() == 2 else p for p in (edge if type(edge) is tuple else (edge,))]
    edge = tuple(parts) if len(parts) > 1 else parts[0]
    got = outcome(x, adjacency, FUSED, edge, combine="mul")
    assert_near(got, definition(x, adjacency, FUSED, edge, combine="mul"), 1e-5)


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_gradcheck(fast, form):
    adjacency = Graph([(0, 1), (2, 1), (1, 2), (2, 2), (0, 2)], 3).adjacency(fast.device)
    x = features(3, 2, torch.float64, fast.device).requires_grad_()
    edge = edge_term(form, 5, 2, x.dtype, x.device)
    parts = list(edge) if isinstance(edge, tuple) else [edge]
    leaves = [part.requires_grad_() for part in parts if part.is_floating_point()]

    def function(*_):
        return pna.aggregate(x, adjacency, FUSED, edge, "mul")

    assert gradcheck(function, (x, *leaves), fast_mode=fast.name == "triton")


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (1, 2)], ids=str)
def test_only_the_gradients_asked_for(fast, wanted):
    """Of x, coefficients and basis."""
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, fast.device)
    edge = edge_term("coefficients", adjacency.num_edges, WIDTH, x.dtype, x.device)
    inputs = [part.clone().requires_grad_(i in wanted) for i, part in enumerate((x, *edge))]
    out = pna.aggregate(inputs[0], adjacency, FUSED, (inputs[1], inputs[2]), "mul")
    out.square().sum().backward()
    _, *gradients = definition(x, adjacency, FUSED, edge, 2 * out.detach(), "mul")
    for i, gradient in enumerate(gradients):
        if i in wanted:
            torch.testing.assert_close(inputs[i].grad, gradient)
        else:
            assert inputs[i].grad is None


def test_the_wider_type_of_x_and_edge(fast):
    adjacency = GRAPHS["random"].adjacency(fast.device)
    for x_type, edge_type in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        x = features(adjacency.num_senders, WIDTH, x_type, fast.device)
        edge = features(adjacency.num_edges, 1, edge_type, fast.device, seed=1)
        got = outcome(x, adjacency, FUSED, edge, combine="mul")
        assert [result.dtype for result in got] == [torch.float32, x_type, edge_type]
        expected = definition(x, adjacency, FUSED, edge, combine="mul")
        assert_near(got, expected, TOLERANCES[torch.bfloat16])


def test_weights_are_added_to_every_feature(backend):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, backend.device)
    weights = features(adjacency.num_edges, 1, x.dtype, x.device, seed=1)
    kinds = [*FUSED, "softmax"]
    dense = outcome(x, adjacency, kinds, weights.expand(-1, WIDTH))
    dense[2] = dense[2].sum(1, keepdim=True)
    assert_near(outcome(x, adjacency, kinds, weights), dense, 1e-12)


def test_without_an_edge_term_there_is_nothing_to_combine(backend):
    adjacency = GRAPHS["random"].adjacency(backend.device)
    x = features(adjacency.num_senders, WIDTH, torch.float32, backend.device)
    kinds = ["mean", "std", "max", "softmax"]
    got = pna.aggregate(x, adjacency, kinds, combine="mul")
    assert torch.equal(got, pna.aggregate(x, adjacency, kinds))


def test_a_basis_of_nothing_is_0(backend):
    adjacency = GRAPHS["repeated edges"].adjacency(backend.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, backend.device).requires_grad_()
    edge = (x.new_zeros(adjacency.num_edges, 0), x.new_zeros(0, WIDTH))
    out = pna.aggregate(x, adjacency, ["sum", "max"], edge, "mul")
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), x)[0].any()


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_equal_messages_have_no_spread(fast, form):
    """1e4 / 3 · 0.1 is rounded. A message that is rounded in one place, and in another not before
    it is subtracted, would have a deviation, and the gradient of std divides it by 0.003."""
    adjacency = GRAPHS["every small degree"].adjacency(fast.device)
    x = torch.full((9, WIDTH), 1e4 / 3, device=fast.device)
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, fast.device)
    edge = tuple(edge) if isinstance(edge, tuple) else (edge,)
    edge = [part * 0 + 0.1 if part.is_floating_point() else part for part in edge]
    edge = tuple(edge) if len(edge) > 1 else edge[0]
    out, *gradients = outcome(x, adjacency, ["var", "std"], edge, combine="mul")
    assert not out[:, 0].any()
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", EDGE_FORMS)
def test_nan_and_infinity(fast, form):
    """NaN stays at its receiver and feature; ∞ follows arithmetic, and 0 · ∞ is NaN."""
    adjacency = Graph([(0, 2), (1, 2), (2, 0), (1, 0), (0, 1)], 3).adjacency(fast.device)
    x = features(3, WIDTH, torch.float32, fast.device)
    x[0, 0], x[1, 1] = math.nan, math.inf
    edge = edge_term(form, 5, WIDTH, x.dtype, fast.device)
    if form == "weights":
        edge[1] = 0
    kinds = ["sum", "mean", "max", "min", "std", "normalised_mean"]
    got = outcome(x, adjacency, kinds, edge, combine="mul")
    expected = definition(x, adjacency, kinds, edge, combine="mul")
    torch.testing.assert_close(got[0].double(), expected[0], equal_nan=True, rtol=1e-5, atol=1e-5)
    assert got[0][0, :, 0].isfinite().all()  # node 0 hears from 1 and 2
    assert got[0][2, :, 0].isnan().all()
    assert got[0][:, :, 2].isfinite().all()


def many_types(adjacency, types, dtype, width=WIDTH):
    """A table of so many types that each sums its own edges; most have none."""
    random = torch.Generator().manual_seed(7)
    index = torch.randint(0, types, (adjacency.num_edges,), generator=random)
    return features(types, width, dtype, adjacency.device, seed=3), index.to(adjacency.device)


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("combine", ["add", "mul"])
@pytest.mark.parametrize(
    "kinds, width", [(FUSED, 3), (["sum"], 40), (["max"], 3), (["std", "min"], 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_types(fast, combine, kinds, width, dtype):
    adjacency = GRAPHS["random"].adjacency(fast.device)
    x = features(adjacency.num_senders, width, dtype, fast.device)
    edge = many_types(adjacency, 30, dtype, width)
    got = outcome(x, adjacency, kinds, edge, combine=combine)
    expected = definition(x, adjacency, kinds, edge, combine=combine)
    assert_near(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize(
    "adjacency",
    [
        pytest.param(lambda d: widened(GRAPHS["random"].adjacency(d)), id="indices of 64 bits"),
        # a type with more than 255 edges is cut
        pytest.param(
            lambda d: Graph(random_edges(290, 9, 9), 9).adjacency(d), id="types that are cut"
        ),
        pytest.param(
            lambda d: Graph(into(3, 300, 20), 20).adjacency(d),
            id="a receiver that is cut",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_edges_of_a_type_are_walked(triton, adjacency, monkeypatch):
    """Also of few types, with the kernel for those off, and with offsets of 64 bits."""
    adjacency = adjacency(triton.device)
    if adjacency.indptr.dtype == torch.int64:
        monkeypatch.setattr("pna.ops.triton.sender_gradients.wide_index", lambda *tensors: True)
    x = features(adjacency.num_senders, WIDTH, torch.float32, triton.device)
    table, index = many_types(adjacency, 3, torch.float32)
    edge = (table, torch.where(index > 1, 0, 1))
    with pna.fast_paths.without("kind_gradient", "sums_by_kind"):
        got = outcome(x, adjacency, ["std", "max"], edge, combine="mul")
    assert_near(got, definition(x, adjacency, ["std", "max"], edge, combine="mul"), 1e-5)


def test_edges_are_sorted_by_type_once(triton, monkeypatch):
    """Until the index is written to, or the graph is another."""
    made = []
    sort = edge_types._by_type
    monkeypatch.setattr(edge_types, "_by_type", lambda *a, **k: made.append(1) or sort(*a, **k))
    graphs = [GRAPHS["random"].adjacency(triton.device) for _ in range(2)]
    x = features(12, WIDTH, torch.float32, triton.device)
    table, index = many_types(graphs[0], 30, torch.float32)
    table.requires_grad_()

    def run(graph):
        out = pna.aggregate(x, graph, ["sum"], (table, index), "mul")
        return torch.autograd.grad((out[:, 0] * x).sum(), table)[0]

    first = run(graphs[0])
    assert torch.equal(run(graphs[0]), first)
    assert len(made) == 1
    assert torch.equal(run(graphs[1]), first)
    assert len(made) == 2
    index += 1
    index %= 30
    torch.testing.assert_close(run(graphs[1]), first.roll(1, 0))
    assert len(made) == 3


def test_a_type_that_the_table_does_not_have(triton):
    """Where values cannot be read: its messages are NaN, and no type gets their gradient."""
    adjacency = Graph([(0, 1), (1, 2), (2, 0)], 3).adjacency(triton.device)
    x = features(3, WIDTH, torch.float32, triton.device)
    table = features(30, WIDTH, x.dtype, x.device, seed=3).requires_grad_()
    for wrong in (30, -1, 2**32 + 1):
        index = torch.tensor([wrong, 1, 2], device=triton.device)
        out = pna.aggregate(x, adjacency, ["sum"], (table, index), "mul")
        assert out.isnan().any(2).any(1).tolist() == [False, True, False]
        (gradient,) = torch.autograd.grad(out[[0, 2]].sum(), table)
        expected = torch.zeros(30, WIDTH, device=triton.device)
        expected[1], expected[2] = x[1], x[2]
        torch.testing.assert_close(gradient, expected)


def test_no_memory_for_every_edge(cpu):
    """Of weights and relations: the operator alone, whose results are rows of nodes and types."""
    adjacency = Graph([(0, 1)] * 4000 + [(1, 0)] * 4000, 2).adjacency()
    x = torch.randn(2, 64, requires_grad=True)
    table = torch.randn(5, 64, requires_grad=True)
    weights = torch.randn(8000, 1, requires_grad=True)
    largest = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            result = function(*arguments, **(keywords or {}))
            parts = result if isinstance(result, tuple | list) else [result]
            largest.extend(part.numel() for part in parts if isinstance(part, torch.Tensor))
            return result

    index = torch.arange(8000) % 5
    for edge, leaf in (((table, index), table), (weights, weights)):
        with Sizes():
            out = pna.aggregate(x, adjacency, ["mean", "std", "max"], edge, "mul")
            torch.autograd.grad(out.sum(), (x, leaf))
    assert max(largest) == 8000
