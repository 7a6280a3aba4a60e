"""`pna.aggregate` on every fast backend against the definition: outputs and gradients."""

import itertools

import pytest
import torch

import pna
from pna.ops import blocks
from pna.ops.aggregators import Std
from tests.ops.cases import (
    EVERY,
    FORMS,
    FUSED,
    GRAPHS,
    TOLERANCES,
    assert_near,
    definition,
    edge_term,
    features,
    outcome,
)

WIDTH = 3

SMALL = [graph for graph in GRAPHS if "hub" not in graph and graph != "every small degree"]


def compare(backend, graph, form, dtype, aggregators=FUSED, width=WIDTH):
    adjacency = GRAPHS[graph].adjacency(backend.device)
    x = features(adjacency.num_senders, width, dtype, backend.device)
    edge = edge_term(form, adjacency.num_edges, width, dtype, backend.device)
    got = outcome(x, adjacency, aggregators, edge)
    assert got[0].shape == (adjacency.num_receivers, len(aggregators), width)
    assert all(result.dtype == dtype for result in got)
    assert_near(got, definition(x, adjacency, aggregators, edge), TOLERANCES[dtype])


@pytest.mark.covering(2, always=True)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_cpu(cpu, graph, form, dtype):
    compare(cpu, graph, form, dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "graph, form, dtype",
    [
        *itertools.product(SMALL, ["none", "dense"], [torch.float32]),
        *itertools.product(["every small degree"], FORMS, TOLERANCES),
        ("hub that sends", "coefficients", torch.float32),
    ],
    ids=str,
)
def test_triton(triton, graph, form, dtype):
    """Fewer of them, because the interpreter is slow: seconds for a hub."""
    compare(triton, graph, form, dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "width",
    [
        0,  # nothing to do, and gradients of coefficients to fill with 0
        1,  # no vector at all
        33,  # one more than a block of features, or two cache lines
        130,  # over the widest block
    ],
)
@pytest.mark.parametrize("form", ["none", "coefficients"])
def test_odd_widths(fast, width, form):
    compare(fast, "self-loops", form, torch.float32, width=width)


@pytest.mark.parametrize(
    "aggregators",
    [
        *([name] for name in FUSED),  # each alone: nothing that the others happen to prepare
        ["var", "std"],
        ["min", "max"],
        ["sum", "max"],
        ["std", "min"],
        ["max", "mean", "max"],  # the second is the first again
        ["mean", "mean"],
        list(reversed(FUSED)),
        [Std(clamp=True), "var"],
        [Std(epsilon=0.5), "mean"],  # ε large enough to see
        [Std(), "max", Std(clamp=True), Std(epsilon=0.5), Std()],  # three conventions at once
    ],
    ids=str,
)
def test_any_subset_in_any_order(fast, aggregators):
    compare(fast, "repeated edges", "dense", torch.float32, aggregators)


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", FORMS)
def test_every_aggregator_mixed(fast, form):
    compare(fast, "random", form, torch.float64, EVERY)


@pytest.mark.parametrize(
    "depth",
    [
        1,
        17,  # more than any kernel would unroll into registers
    ],
)
def test_bases_of_any_depth(fast, depth):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    rest = (torch.float64, fast.device)
    x = features(adjacency.num_senders, WIDTH, *rest)
    edge = (features(adjacency.num_edges, depth, *rest, 1), features(depth, WIDTH, *rest, 2))
    got = outcome(x, adjacency, FUSED, edge)
    assert_near(got, definition(x, adjacency, FUSED, edge), TOLERANCES[x.dtype])


def test_equal_edges_round_once_each(cpu):
    """Node 0 sends once to a receiver with a large gradient, and 60 times to one with a small one:
    every edge rounds its sum alike, so that two roundings for each would double the error."""
    edges = [(0, 1), (2, 1), *[(0, 3)] * 60, *[(2, 3)] * 600]
    adjacency = pna.Adjacency.from_edge_index(torch.tensor(edges).T, 4)
    x, grad = (features(4, 256, torch.float32, "cpu", seed) for seed in (0, 1))
    got, want = (
        outcome(x.to(dtype), adjacency, ["var"], upstream=grad[:, None].to(dtype))[1]
        for dtype in (torch.float32, torch.float64)
    )
    error = (got.double() - want).abs() / (1 + want.abs())
    assert error[0].max() < 2.2e-6


def test_a_basis_of_nothing_adds_nothing(fast):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, fast.device)
    edge = (x.new_zeros(adjacency.num_edges, 0), x.new_zeros(0, WIDTH))
    got = pna.aggregate(x, adjacency, FUSED, edge=edge)
    torch.testing.assert_close(got, pna.aggregate(x, adjacency, FUSED))


def test_classes_and_objects_are_names_too(fast):
    adjacency = GRAPHS["random"].adjacency(fast.device)
    x = features(12, WIDTH, torch.float32, fast.device)
    got = outcome(x, adjacency, [Std, Std(), "std"])[0]
    assert torch.equal(got[:, 0], got[:, 1])
    assert torch.equal(got[:, 0], got[:, 2])


# Views of more memory than they show, by which a kernel that takes strides for granted is found.
VIEWS = {
    "transposed": lambda rows, width, *rest: features(width, rows, *rest).t(),
    "columns of a wider one": lambda rows, width, *rest: features(rows, 3 * width, *rest)[
        :, 1 : width + 1
    ],
    "every other column": lambda rows, width, *rest: features(rows, 2 * width, *rest)[:, ::2],
    "every other row": lambda rows, width, *rest: features(2 * rows, width, *rest)[::2],
    "one row, expanded": lambda rows, width, *rest: features(1, width, *rest).expand(rows, width),
    "one column, expanded": lambda rows, width, *rest: features(rows, 1, *rest).expand(rows, width),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("view", VIEWS)
def test_inputs_that_are_views(fast, view, form):
    """x, e, the table or index, the coefficients and the basis: all of them such views."""
    make, rest = VIEWS[view], (torch.float32, fast.device)
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = make(adjacency.num_senders, WIDTH, *rest)
    if form == "none":
        edge = None
    elif form == "dense":
        edge = make(adjacency.num_edges, WIDTH, *rest, 1)
    elif form == "table":
        index = torch.arange(2 * adjacency.num_edges, device=fast.device)[::2] % 3
        edge = (make(4, WIDTH, *rest, 1), index)
    else:
        edge = (make(adjacency.num_edges, 2, *rest, 1), make(2, WIDTH, *rest, 2))
    assert_near(
        outcome(x, adjacency, FUSED, edge),
        definition(x, adjacency, FUSED, edge),
        TOLERANCES[x.dtype],
    )


# Gradients of the output as other operations hand them back.
UPSTREAMS = {
    "one number, expanded": lambda r, k, f: torch.full((1, 1, 1), 0.7).expand(r, k, f),
    "one row, expanded": lambda r, k, f: torch.linspace(-1, 1, k * f).reshape(k, f).expand(r, k, f),
    "one feature, expanded": lambda r, k, f: (
        torch.linspace(-1, 1, r * k).reshape(r, k, 1).expand(r, k, f)
    ),
    "transposed": lambda r, k, f: (
        torch.linspace(-1, 1, r * k * f).reshape(f, k, r).permute(2, 1, 0)
    ),
    "kinds first": lambda r, k, f: (
        torch.linspace(-1, 1, r * k * f).reshape(k, r, f).transpose(0, 1)
    ),
    "sliced": lambda r, k, f: torch.linspace(-1, 1, 2 * r * k * f).reshape(r, k, 2 * f)[..., ::2],
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("form", ["none", "table"])
def test_upstream_gradients_that_are_views(fast, upstream, form):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, WIDTH, torch.float32, fast.device)
    edge = edge_term(form, adjacency.num_edges, WIDTH, x.dtype, fast.device)
    with fast.device:  # moved there afterwards, it would be a view no more
        gradient = UPSTREAMS[upstream](adjacency.num_receivers, len(FUSED), WIDTH)
    assert not gradient.is_contiguous()
    assert_near(
        outcome(x, adjacency, FUSED, edge, gradient),
        definition(x, adjacency, FUSED, edge, gradient),
        TOLERANCES[x.dtype],
    )


@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 2)], ids=str)
def test_only_the_gradients_asked_for(fast, wanted):
    """Any of x, coefficients and basis may be constant; the rest gets the same gradients."""
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, fast.device)
    edge = edge_term("coefficients", adjacency.num_edges, WIDTH, x.dtype, x.device)
    inputs = [part.clone().requires_grad_(i in wanted) for i, part in enumerate((x, *edge))]
    out = pna.aggregate(inputs[0], adjacency, FUSED, edge=(inputs[1], inputs[2]))
    assert out.requires_grad == bool(wanted)
    if wanted:
        out.square().sum().backward()
    _, *gradients = definition(x, adjacency, FUSED, edge, upstream=2 * out.detach())
    for i, gradient in enumerate(gradients):
        if i in wanted:
            torch.testing.assert_close(inputs[i].grad, gradient)
        else:
            assert inputs[i].grad is None


@pytest.mark.parametrize(
    "narrow, broad", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64)]
)
def test_the_wider_type_of_x_and_edge(fast, narrow, broad):
    adjacency = GRAPHS["random"].adjacency(fast.device)
    for x_type, edge_type in ((narrow, broad), (broad, narrow)):
        x = features(adjacency.num_senders, WIDTH, x_type, fast.device)
        edge = features(adjacency.num_edges, WIDTH, edge_type, fast.device, seed=1)
        got = outcome(x, adjacency, FUSED, edge)
        assert [result.dtype for result in got] == [broad, x_type, edge_type]
        assert_near(got, definition(x, adjacency, FUSED, edge), TOLERANCES[narrow])


@pytest.mark.parametrize(
    "index_type", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
)
def test_index_of_any_whole_type(fast, index_type):
    adjacency = GRAPHS["repeated edges"].adjacency(fast.device)
    x = features(adjacency.num_senders, WIDTH, torch.float64, fast.device)
    table, index = edge_term("table", adjacency.num_edges, WIDTH, x.dtype, fast.device)
    got = outcome(x, adjacency, FUSED, (table, index.to(index_type)))
    assert_near(got, definition(x, adjacency, FUSED, (table, index)), TOLERANCES[x.dtype])


def test_degrees_of_a_larger_graph_change_nothing(backend):
    """Aggregators take the edges that are there."""
    adjacency = GRAPHS["random"].adjacency(backend.device)
    x = features(adjacency.num_senders, 1, torch.float32, backend.device)
    more = torch.arange(adjacency.num_receivers, device=backend.device) % 3
    sampled = adjacency.with_degree(adjacency.degree + more)
    got, expected = (outcome(x, each, EVERY, None) for each in (sampled, adjacency))
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


def test_an_aggregator_of_your_own_sees_both_degrees(backend, monkeypatch):
    class Share(pna.aggregators.Aggregator):
        shift = "none"

        def aggregate(self, hood):
            share = hood.count / hood.adjacency.degree.clamp(min=1)
            return share[:, None].expand(-1, hood.messages.shape[1])

    monkeypatch.setattr(blocks, "BLOCK", 1)
    edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    adjacency = pna.Adjacency.from_edge_index(edge_index, 3, torch.tensor([2, 8, 5]))
    adjacency, x = adjacency.to(backend.device), torch.ones(3, 1, device=backend.device)
    assert pna.aggregate(x, adjacency, [Share]).flatten().tolist() == [0.5, 0.25, 0.0]
