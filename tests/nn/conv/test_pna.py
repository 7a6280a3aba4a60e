"""`PNAConv` against the paper's definition, its symmetries, its memory and its errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import pna
from pna import fast_paths
from pna.degree import Linear, Power
from pna.nn import PNAConv
from pna.nn.conv import fused, inputs
from pna.ops.aggregators import KthSmallest, Moment, Softmax, Softmin, Std
from pna.ops.backend import availability
from tests.nn.cases import (
    DEG,
    DEGREES,
    GRAPHS,
    PAPER,
    SCALERS,
    assert_equal_in_norm,
    numbers,
    outcome,
)
from tests.nn.conv import oracle
from tests.ops.cases import Graph, random_edges

STATS = pna.DegreeStats.from_histogram(DEG)

#: Beyond PyG's.
OTHERS = ["moment_3", "softmin", "normalised_mean", KthSmallest(2), "sum", Moment(4), "softmax"]


def parameter(value):
    return nn.Parameter(torch.tensor(value))


# Arguments of the layer, where they are not the paper's: 6 features to 6.
LAYERS = {
    "plain": {},
    "one identity scaler": dict(scalers=["identity"], deg=None),
    "swapped extrema": dict(swap_extrema=True),
    "swapped extrema alone": dict(swap_extrema=True, aggregators=["min", "max"]),
    "swapped extrema with towers and edge features": dict(
        swap_extrema=True, towers=3, edge_dim=2, aggregators=["max", "sum", "std", "min"]
    ),
    "swapped extrema, divided, deep": dict(
        swap_extrema=True, towers=2, divide_input=True, pre_layers=2, post_layers=2, edge_dim=2
    ),
    "other aggregators": dict(aggregators=OTHERS),
    "other aggregators with towers and edge features": dict(
        aggregators=[*OTHERS, "max"], towers=3, divide_input=True, edge_dim=2, swap_extrema=True
    ),
    "other aggregators, deep": dict(aggregators=OTHERS, pre_layers=2, act="tanh"),
    "wide edge features": dict(edge_dim=20, towers=2),
    "edge features as they are": dict(edge_dim=20, towers=2, divide_input=True, encode_edges=False),
    "narrow edge features as they are": dict(edge_dim=1, towers=3, encode_edges=False),
    "edge features as they are, deep": dict(edge_dim=4, encode_edges=False, pre_layers=2),
    "towers that are not mixed": dict(towers=2, mixing=False),
    "one tower, not mixed": dict(mixing=False, post_layers=2),
    "spread alone": dict(aggregators=["std", "var", "moment_3"]),  # which nothing shifts
    "two conventions of std": dict(aggregators=[Std(), Std(clamp=True), "mean"]),
    "any α": dict(scalers=[Power(0.5), Linear(-0.5), Power(1.0, delta=2.0), Linear(delta=1.0)]),
    "sums by scaling means": dict(aggregators=["mean"], scalers=[Linear(delta=1.0)], deg=None),
    "learned α and δ": dict(
        scalers=["identity", Power(parameter(0.3), parameter([1.5])), Linear(parameter(-0.7))]
    ),
    "learned temperature of every feature": dict(
        aggregators=["mean", Softmax(nn.Parameter(torch.linspace(-1, 1, 6))), "max"]
    ),
    "given tensors": dict(
        scalers=[Power(torch.tensor(0.3))], aggregators=[Softmin(torch.tensor([0.5])), "std"]
    ),
}


def made(device, dtype=torch.float64, **arguments):
    """A layer and a function that does the same by the definition."""
    torch.manual_seed(0)
    given = dict(in_channels=6, out_channels=6, aggregators=PAPER, scalers=SCALERS, deg=STATS)
    given = copy.deepcopy(given | arguments)  # tables are shared, what a layer learns is not
    layer = PNAConv(**given).to(device, dtype)

    def defined(x, edge_index, edge_attr):
        held = layer.neighbourhood
        scalers = [
            type(scaler)(
                getattr(held, f"scaler_{i}_alpha", scaler.alpha),
                getattr(held, f"scaler_{i}_delta", scaler.delta),
            )
            if isinstance(scaler, Power | Linear)
            else scaler
            for i, scaler in enumerate(given["scalers"])
        ]
        return oracle.pna_conv(layer, held.aggregators, scalers, DEGREES, x, edge_index, edge_attr)

    return layer, defined


def inputs_of(layer, graph, dtype, device):
    edge_index = graph.edge_index(device)
    leaves = {"x": numbers(graph.nodes, layer.in_channels, dtype=dtype, device=device, seed=1)}
    if layer.edge_dim is not None:
        shape = (edge_index.shape[1], layer.edge_dim)
        leaves["edge_attr"] = numbers(*shape, dtype=dtype, device=device, seed=2)
    return leaves, edge_index


def assert_is_the_definition(layer, defined, graph, device, tolerance, dtype=torch.float64):
    leaves, edge_index = inputs_of(layer, graph, dtype, device)
    everything = leaves | dict(layer.named_parameters())
    got, expected = (
        outcome(lambda run=run: run(leaves["x"], edge_index, leaves.get("edge_attr")), everything)
        for run in (layer, defined)
    )
    assert_equal_in_norm(got, expected, tolerance)


@pytest.mark.parametrize("arguments", LAYERS)
def test_layers(device, arguments):
    # δ is kept in the type of the layer, but comes as float32
    layer, defined = made(device, **LAYERS[arguments])
    assert_is_the_definition(layer, defined, GRAPHS["random"], device, 1e-6)


@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "random"])
@pytest.mark.parametrize("arguments", ["swapped extrema", "other aggregators"])
def test_graphs(device, arguments, graph):
    layer, defined = made(device, **LAYERS[arguments])
    # the third moment of equal messages is a root of what rounding leaves: 1e-16 becomes 5e-6
    assert_is_the_definition(layer, defined, GRAPHS[graph], device, 1e-5)


@pytest.mark.parametrize(
    "arguments, graph",
    [
        ("plain", "isolated"),
        ("swapped extrema with towers and edge features", "random"),
        ("learned α and δ", "repeated edges"),
    ],
)
def test_every_backend(backend, arguments, graph):
    layer, defined = made(backend.device, torch.float32, **LAYERS[arguments])
    assert_is_the_definition(layer, defined, GRAPHS[graph], backend.device, 1e-5, torch.float32)


def test_a_kth_smallest_that_is_not_there_is_nothing(device):
    """Node 1 hears two others, node 2 one, node 0 none."""
    layer, defined = made(device, aggregators=[KthSmallest(2)], scalers=["identity"], deg=None)
    graph = Graph([(0, 1), (2, 1), (0, 2)], 3)
    assert_is_the_definition(layer, defined, graph, device, 1e-12)


def test_learned_parts_in_a_functional_call(device):
    """With other values than the layer holds, and gradients to them."""
    layer, defined = made(device, **LAYERS["learned α and δ"])
    leaves, edge_index = inputs_of(layer, GRAPHS["random"], torch.float64, device)
    other = {name: (value + 0.1).detach() for name, value in layer.named_parameters()}
    got = outcome(
        lambda: torch.func.functional_call(layer, other, (leaves["x"], edge_index)), other
    )
    layer.load_state_dict(other, strict=False)
    expected = outcome(
        lambda: defined(leaves["x"], edge_index, None), dict(layer.named_parameters())
    )
    assert_equal_in_norm(got, expected, 1e-6)


def test_train_norm_learns_δ_of_every_scaler(device):
    """A step of δ changes the result as its gradient says."""
    layer, _ = made(device, scalers=["amplification", "inverse_linear"], train_norm=True)
    leaves, edge_index = inputs_of(layer, GRAPHS["random"], torch.float64, device)
    held = [layer.neighbourhood.mean_degree, layer.neighbourhood.mean_log_degree]
    slopes = torch.autograd.grad(layer(leaves["x"], edge_index).sum(), held)
    for δ, slope in zip(held, slopes, strict=True):
        sums = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                δ += step
            sums.append(layer(leaves["x"], edge_index).sum().item())
        assert slope.item() != 0
        assert (sums[0] - sums[1]) / 2e-6 == pytest.approx(slope.item(), rel=1e-5)
        with torch.no_grad():
            δ += 1e-6


def test_reset_parameters(device):
    layer, _ = made(device, edge_dim=2, train_norm=True)
    with torch.no_grad():
        for tensor in layer.parameters():
            tensor.fill_(100)
    layer.reset_parameters()
    assert all(tensor.abs().max() < 5 for tensor in layer.parameters())
    assert layer.neighbourhood.mean_degree.item() == pytest.approx(STATS.mean)


# Which gradients are asked for, and how tensors lie in memory


FORMS = ["none", "narrow", "narrow of many edges", "wide", "table", "basis", "basis of many edges"]


def case_of(fast, form, towers=2):
    """A layer with towers, and its inputs, with one of the forms of edge features."""
    edge_dim = {"none": None, "wide": 20}.get(form, 2)
    layer, _ = made(fast.device, torch.float32, towers=towers, edge_dim=edge_dim)
    leaves, edge_index = inputs_of(layer, GRAPHS["isolated"], torch.float32, fast.device)
    if form == "table":
        leaves["edge_attr"] = numbers(2, 2, dtype=torch.float32, device=fast.device, seed=2)
    index = torch.tensor([1, 0, 1], device=fast.device)
    if form.startswith("basis"):
        leaves["basis"] = numbers(2, 2, dtype=torch.float32, device=fast.device, seed=2)

    def run(x, edge_attr=None, basis=None):
        off = ["edge_products"] if form.endswith("of many edges") else []
        edge = (edge_attr, index) if form == "table" else edge_attr
        with fast_paths.without(*off):
            return layer(x, edge_index, edge if basis is None else (basis, edge_attr))

    return layer, leaves, run


@pytest.mark.covering(1, rest="gpu")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wanted", ["x", "edge_attr", "pre", "post", "lin", "edge_encoder"])
@pytest.mark.parametrize("towers", [1, 2])
def test_only_the_gradients_asked_for(fast, form, wanted, towers):
    """All else frozen, as where a trained layer is explained, or one of its parts trained on."""
    if form == "none" and "edge" in wanted:
        pytest.skip("no edge features")
    layer, leaves, run = case_of(fast, form, towers)
    everything = leaves | dict(layer.named_parameters())
    expected = outcome(lambda: run(**leaves), everything)
    for leaf in everything.values():
        leaf.requires_grad_(False)
    chosen = {n: leaf for n, leaf in everything.items() if n.split(".")[0] == wanted}
    got = outcome(lambda: run(**leaves), chosen)
    assert not any(leaf.requires_grad for n, leaf in everything.items() if n not in chosen)
    assert_equal_in_norm(got, {name: expected[name] for name in got}, 1e-6)


def test_nothing_to_differentiate(fast):
    layer, leaves, run = case_of(fast, "narrow")
    expected = run(**leaves)
    layer.requires_grad_(False)
    out = run(**leaves)
    assert not out.requires_grad
    torch.testing.assert_close(out, expected.detach())


@pytest.mark.parametrize("double", ["x", "layer"])
def test_autocast_leaves_float64_as_it_is(double):
    x, made = (X.double(), layer()) if double == "x" else (X, layer().double())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="expected one type"):
        made(x, EDGE_INDEX)


@pytest.mark.covering(0)
@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_are_views(fast, form):
    """Transposed inputs, and a gradient that is one number expanded."""
    layer, leaves, run = case_of(fast, form)
    parameters = list(layer.parameters())
    results = []
    for lie in (torch.Tensor.contiguous, lambda t: t.t().contiguous().t()):
        given = {n: lie(leaf).detach().requires_grad_() for n, leaf in leaves.items()}
        out = run(**given)
        gradients = torch.autograd.grad(out.sum(), [*given.values(), *parameters])
        ones = torch.autograd.grad(
            run(**given), [*given.values(), *parameters], torch.ones_like(out).contiguous()
        )
        torch.testing.assert_close(gradients, ones)
        results.append((out, *gradients))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("form", FORMS)
def test_small_graphs_and_few_nodes_are_as_many(triton, monkeypatch, form):
    """Works one by one, as of a graph of many nodes, or beside one another, as of few; or all at
    once, as of a small graph."""
    layer, leaves, run = case_of(triton, form)
    everything = leaves | dict(layer.named_parameters())
    small = outcome(lambda: run(**leaves), everything)
    with fast_paths.without("small"):
        few = outcome(lambda: run(**leaves), everything)
        monkeypatch.setattr(fused, "FEW_NODES", 0)
        many = outcome(lambda: run(**leaves), everything)
        monkeypatch.setattr(fused, "TO_KEEP", 0)
        again = outcome(lambda: run(**leaves), everything)
    assert_equal_in_norm(few, many, 1e-6)
    assert_equal_in_norm(small, many, 1e-6)
    assert_equal_in_norm(again, many, 1e-7)


ORDERS = ["mean std max min", "mean min max std", "max var sum", "std", "min", "std mean sum"]


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_in_the_memory_of_others(triton, monkeypatch, order):
    """Rows of receivers replace the gradients of statistics, wherever these are."""
    torch.manual_seed(0)
    layer = PNAConv(8, 8, order.split(), SCALERS, DEG).to(triton.device)
    adjacency = GRAPHS["hub"].adjacency(triton.device)
    leaves = {"x": numbers(GRAPHS["hub"].nodes, 8, device=triton.device, dtype=torch.float32)}
    everything = leaves | dict(layer.named_parameters())
    monkeypatch.setattr(fused, "FEW_NODES", 0)
    with fast_paths.without("small"):
        got = outcome(lambda: layer(leaves["x"], adjacency), everything)
    with pna.backend("reference"):
        expected = outcome(lambda: layer(leaves["x"], adjacency), everything)
    assert_equal_in_norm(got, expected, 1e-5)


def test_products_of_a_large_graph_are_not_kept(cpu, monkeypatch):
    _, leaves, run = case_of(cpu, next(iter(FORMS)))

    def saved():
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
            run(**leaves)
        return len(seen)

    with fast_paths.without("small_cpu"):
        kept = saved()
        monkeypatch.setattr(fused, "TO_KEEP", 0)
        assert saved() == kept - 1


def wide_case(device, kinds):
    """A layer too wide for the kernels of narrow ones, on a graph with some kinds of edges."""
    torch.manual_seed(0)
    layer = PNAConv(20, 8, PAPER, SCALERS, DEG, edge_dim=5, towers=2).to(device)
    edge_index = torch.tensor(random_edges(60, 12, 12), device=device).t()
    index = torch.arange(60, device=device) % kinds
    leaves = {
        "x": numbers(12, 20, dtype=torch.float32, device=device, seed=1),
        "table": numbers(kinds, 5, dtype=torch.float32, device=device, seed=2),
    }
    return layer, leaves, lambda x, table: layer(x, edge_index, (table, index))


@pytest.mark.parametrize("kinds", [3, 12], ids=["in one program", "too many for one"])
def test_gradients_beside_one_another(triton, kinds):
    """Those that kernels write into columns of one tensor, or find of a table, are those of the
    definition."""
    layer, leaves, run = wide_case(triton.device, kinds)
    everything = leaves | dict(layer.named_parameters())
    got = outcome(lambda: run(**leaves), everything)
    with pna.backend("reference"):
        expected = outcome(lambda: run(**leaves), everything)
    assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.parametrize("rows", [2, 30], ids=["encoded first", "encoder in the weights"])
def test_tables_of_any_length(fast, rows):
    """Few kinds of edges are encoded before they are multiplied, many are not."""
    layer, leaves, _ = case_of(fast, "table")
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 1]], device=fast.device)
    table = numbers(rows, 2, dtype=torch.float32, device=fast.device, seed=2)
    index = torch.tensor([1, 0, 1], device=fast.device)
    given = {"x": leaves["x"], "table": table.requires_grad_()} | dict(layer.named_parameters())
    got = outcome(lambda: layer(given["x"], edge_index, (table, index)), given)
    expected = outcome(lambda: layer(given["x"], edge_index, table[index]), given)
    assert_equal_in_norm(got, expected, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_repeatable_to_the_bit(fast, form):
    layer, leaves, run = case_of(fast, form)
    everything = leaves | dict(layer.named_parameters())
    first, second = (outcome(lambda: run(**leaves), everything) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


# No tensor of the size of the messages, nor of all scaled aggregates


def largest_allocation(run):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = profiled.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("encode", [True, False], ids=["encoded", "as they are"])
def test_edge_features_of_a_basis(fast, encode):
    """Are the products of the coefficients and the basis, whose gradients are found too."""
    layer, _ = made(fast.device, torch.float32, towers=2, edge_dim=20, encode_edges=encode)
    leaves, edge_index = inputs_of(layer, GRAPHS["isolated"], torch.float32, fast.device)
    shapes = {"basis": (2, 20), "coefficients": (edge_index.shape[1], 2)}
    given = {"x": leaves["x"]} | {
        name: numbers(*shape, dtype=torch.float32, device=fast.device, seed=i)
        for i, (name, shape) in enumerate(shapes.items())
    }
    everything = given | dict(layer.named_parameters())
    pair = given["basis"], given["coefficients"]
    got = outcome(lambda: layer(given["x"], edge_index, pair), everything)
    expected = outcome(lambda: layer(given["x"], edge_index, pair[1] @ pair[0]), everything)
    assert_equal_in_norm(got, expected, 1e-5)


def trained(layer, x, adjacency, edge_attr):
    return lambda: layer(x, adjacency, edge_attr).square().sum().backward()


NODES, EDGES, WIDTH = 30, 2000, 32


@pytest.mark.parametrize("form", ["none", "table", "narrow"])
@pytest.mark.parametrize("towers", [1, 2])
def test_nothing_has_a_row_of_features_for_each_edge(cpu, monkeypatch, form, towers):
    monkeypatch.setattr(inputs, "_FEW_MESSAGES", EDGES * towers * WIDTH - 1)
    edge_dim = None if form == "none" else 4
    layer, _ = made(
        "cpu",
        torch.float32,
        in_channels=WIDTH,
        out_channels=WIDTH,
        edge_dim=edge_dim,
        towers=towers,
    )
    x = numbers(NODES, WIDTH, dtype=torch.float32, device="cpu").requires_grad_()
    adjacency = Graph(random_edges(EDGES, NODES, NODES), NODES).adjacency()
    edge_attr = None
    if form == "table":
        table = numbers(3, 4, dtype=torch.float32, device="cpu").requires_grad_()
        edge_attr = (table, torch.arange(EDGES) % 3)
    elif form == "narrow":
        edge_attr = numbers(EDGES, 4, dtype=torch.float32, device="cpu").requires_grad_()
    largest = largest_allocation(trained(layer, x, adjacency, edge_attr))
    assert largest < EDGES * WIDTH * x.element_size()


def test_the_measure_of_memory_sees_messages_where_they_are_made(cpu):
    layer, _ = made("cpu", torch.float32, in_channels=WIDTH, out_channels=WIDTH, pre_layers=2)
    x = numbers(NODES, WIDTH, dtype=torch.float32, device="cpu")
    adjacency = Graph(random_edges(EDGES, NODES, NODES), NODES).adjacency()
    largest = largest_allocation(trained(layer, x, adjacency, None))
    assert largest >= EDGES * WIDTH * x.element_size()


@pytest.mark.parametrize("towers", [1, 2])
def test_nothing_has_a_column_for_each_scaler_and_aggregator(cpu, towers):
    nodes, width = 1000, 8
    layer, _ = made(
        "cpu",
        torch.float32,
        in_channels=width,
        out_channels=width,
        towers=towers,
        divide_input=True,
    )
    x = numbers(nodes, width, dtype=torch.float32, device="cpu").requires_grad_()
    adjacency = Graph(random_edges(3 * nodes, nodes, nodes), nodes).adjacency()
    largest = largest_allocation(trained(layer, x, adjacency, None))
    assert largest < nodes * 12 * width * x.element_size()


# Errors


def layer(**arguments):
    given = dict(
        in_channels=4, out_channels=4, aggregators=["mean"], scalers=["identity"], deg=None
    )
    return PNAConv(**(given | arguments))


X, EDGE_INDEX = torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: layer()(X[:, :3], EDGE_INDEX),
            ValueError,
            r"\(3, 3\).*\(nodes, 4\).*in_channels=4",
        ),
        (lambda: layer()(X[0], EDGE_INDEX), ValueError, r"\(4,\).*\(nodes, 4\)"),
        (
            lambda: layer(edge_dim=2)(X, EDGE_INDEX),
            ValueError,
            r"got no edge_attr, expected \(edges, 2\).*edge_dim=2",
        ),
        (
            lambda: layer()(X, EDGE_INDEX, torch.ones(2, 2)),
            ValueError,
            r"expected none.*edge_dim=edge_attr\.shape\[1\]",
        ),
        (
            lambda: layer(edge_dim=2)(X, EDGE_INDEX, torch.ones(2, 3)),
            ValueError,
            r"\(2, 3\), expected \(…, 2\).*edge_dim=2",
        ),
        (
            lambda: layer(edge_dim=2)(X, EDGE_INDEX, (torch.ones(5, 3), torch.tensor([0, 1]))),
            ValueError,
            r"\(5, 3\), expected \(…, 2\)",
        ),
        *(
            (
                lambda n=n: layer(edge_dim=2, pre_layers=n)(X, EDGE_INDEX, torch.ones(1, 2)),
                ValueError,
                "features of 1 edges, expected 2",  # and not the one row for all edges
            )
            for n in (1, 2)
        ),
        (
            lambda: layer()(X, pna.Adjacency.from_edge_index(EDGE_INDEX, 5)),
            ValueError,
            r"x with 3 rows.*5 senders and 5 receivers.*num_nodes=x\.shape\[0\]",
        ),
        (
            lambda: layer()(X, pna.Adjacency.from_edge_index(EDGE_INDEX, (3, 4))),
            ValueError,
            "3 senders and 4 receivers",
        ),
        (lambda: layer()(X, EDGE_INDEX + 1), ValueError, "3"),
        (lambda: layer()(X, "edges"), TypeError, "got edges of type str, expected an edge_index"),
        (
            lambda: layer(towers=3, out_channels=6, divide_input=True),
            ValueError,
            "in_channels=4 to divide among 3 towers.*divide_input=False",
        ),
        (lambda: layer()(X.numpy(), EDGE_INDEX), TypeError, "x of type ndarray, expected a tensor"),
        (lambda: layer()(X.long(), EDGE_INDEX), TypeError, r"dtype torch\.int64.*x\.float\(\)"),
        (
            lambda: layer()(X.double(), EDGE_INDEX),
            TypeError,
            r"x of dtype torch\.float64 for a layer of torch\.float32.*\.to\(torch\.float32\)$",
        ),
        (
            lambda: layer()(X.half(), EDGE_INDEX),
            TypeError,
            r"x of dtype torch\.float16 for a layer of torch\.float32.*autocast",
        ),
        (lambda: layer(edge_dim=-1), ValueError, "edge_dim=-1, expected at least 1"),
        *(
            (
                lambda n=n, edge=edge: layer(edge_dim=2, pre_layers=n)(X, EDGE_INDEX, edge),
                error,
                message,
            )
            for n in (1, 2)
            for edge, error, message in (
                (torch.ones(2, 2).long(), TypeError, r"dtype torch\.int64.*\(table, index\)"),
                (torch.ones(2, 2).double(), TypeError, "float64 for a layer of torch.float32"),
                ((torch.ones(5, 2), torch.tensor([0, -1])), ValueError, "got row -1 .* 0 to 4"),
                ((torch.ones(5, 2), torch.tensor([0, 5])), ValueError, "got row 5 .* 0 to 4"),
                (
                    (torch.ones(5, 2), torch.ones(2)),
                    TypeError,
                    r"expected whole numbers \(edges,\)",
                ),
                ((torch.ones(5, 2), torch.ones(2, 1).long()), TypeError, r"shape \(2, 1\)"),
                ((torch.ones(5, 2), torch.ones(2, 3)), ValueError, r"basis of 5 .*\(edges, 5\)"),
                ((torch.ones(17, 2), torch.ones(2, 17)), ValueError, "at most 16 rows; or pass"),
                ((torch.ones(5, 2), torch.ones(2, 5).double()), TypeError, "coefficients of edges"),
                ((torch.ones(5, 2), X, X), TypeError, "Tensor and Tensor and Tensor, expected"),
                ([[1.0, 2.0]], TypeError, "edge_attr of list, expected a tensor"),
            )
        ),
        (lambda: layer(towers=3), ValueError, "out_channels=4 from 3 towers, expected a multiple"),
        *(
            (lambda name=name: layer(**{name: 0}), ValueError, f"{name}=0, expected at least 1")
            for name in ("in_channels", "out_channels", "towers", "pre_layers", "post_layers")
        ),
        (
            lambda: layer(in_channels=(4, 4, 4)),
            TypeError,
            r"in_channels=\(4, 4, 4\), expected one number, or a pair",
        ),
        (lambda: layer(towers=2.0), TypeError, r"towers=2\.0, expected a whole number"),
        (
            lambda: layer(aggregatrs=["max"]),
            TypeError,
            "unknown argument 'aggregatrs' of PNAConv; did you mean 'aggregators'",
        ),
        (lambda: layer(deg=[1, 2]), TypeError, r"deg of type list.*DegreeStats\.from_graphs"),
        (lambda: layer(scalers=["linear"]), ValueError, "no stats, expected them for Linear"),
        (lambda: layer(scalers=["lin"]), ValueError, "unknown scaler 'lin'.*Known: identity"),
        (lambda: layer(aggregators=["maks"]), ValueError, "unknown aggregator 'maks'.*max"),
        (lambda: layer(std="pig"), ValueError, "unknown convention of std 'pig'.*'pyg'"),
        (lambda: layer(act="rellu"), ValueError, "unknown activation 'rellu'.*'relu'"),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("pre_layers", [1, 2])
def test_small_integers_in_the_edge_index_count_rows(dtype, pre_layers):
    conv = layer(edge_dim=2, pre_layers=pre_layers)
    table, index = torch.randn(3, 2), torch.tensor([2, 1])
    expected = conv(X, EDGE_INDEX, (table, index))
    assert torch.equal(conv(X, EDGE_INDEX, (table, index.to(dtype))), expected)


def test_a_replaced_or_hooked_mixing_layer_is_called():
    conv = layer()
    expected = conv(X, EDGE_INDEX)
    calls = []
    conv.lin.register_forward_hook(lambda module, given, out: calls.append(out))
    torch.testing.assert_close(conv(X, EDGE_INDEX), expected)
    assert len(calls) == 1
    conv.lin = torch.nn.Sequential(conv.lin, torch.nn.ReLU())
    torch.testing.assert_close(conv(X, EDGE_INDEX), expected.relu())


def test_sums_of_more_neighbours_than_half_precision_can_count():
    torch.manual_seed(0)
    nodes = 70_000
    conv = layer(aggregators=["sum"]).half()
    torch.nn.init.constant_(conv.pre[0].weight, 1e-4)
    x = torch.full((nodes, 4), 0.25, dtype=torch.float16)
    edges = torch.stack([torch.arange(nodes), torch.zeros(nodes, dtype=torch.int64)])
    with pna.backend("reference"):
        expected = conv(x, edges)
    assert expected.isfinite().all()
    torch.testing.assert_close(conv(x, edges), expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("aggregators", [["mean", "max"], ["sum", "std"]])
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_the_default_type_is_none_of_a_layers_concern(name, aggregators):
    if reason := availability()[name]:
        pytest.skip(f"{name}: {reason}")
    torch.manual_seed(0)
    edge_index = torch.randint(200, (2, 400))
    stats = pna.DegreeStats.from_degrees(torch.bincount(edge_index[1], minlength=200))
    conv = PNAConv(8, 8, aggregators, ["identity", "amplification"], stats)
    x = torch.randn(200, 8, requires_grad=True)

    def found():
        out = conv(x, edge_index)
        return out, *torch.autograd.grad(out.square().sum(), [x, *conv.parameters()])

    with pna.backend(name):
        before = found()
        torch.set_default_dtype(torch.float64)
        try:
            after = found()
        finally:
            torch.set_default_dtype(torch.float32)
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("kind", [Softmax, Softmin])
def test_a_node_whose_edges_weigh_nothing_is_not_shifted(kind):
    torch.manual_seed(0)
    edge_index, x = torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.randn(3, 4)
    softmax = kind(1.0, torch.tensor([0.0, 0.0, 1.0]))  # both edges to node 1 weigh nothing
    conv = PNAConv(4, 4, [softmax], ["identity"], None)
    pre, post = conv.pre[0], conv.post[0]
    ends = torch.cat([x[edge_index[1]], x[edge_index[0]]], 1)
    messages = nn.functional.linear(ends, pre.weight[0], pre.bias[0])
    adjacency = pna.Adjacency.from_edge_index(edge_index, 3)
    z = pna.aggregate(torch.zeros(3, 4), adjacency, [softmax], messages)[:, 0]
    assert z[1].abs().max() == 0
    expected = conv.lin(nn.functional.linear(torch.cat([x, z], 1), post.weight[0], post.bias[0]))
    torch.testing.assert_close(conv(x, edge_index), expected)


def test_batches_of_gradients_are_refused_by_name(cpu):
    conv = PNAConv(4, 4, ["mean", "max"], ["identity"], None)
    x, edge_index = torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 1, 0]])
    jacobian = torch.autograd.functional.jacobian
    with pytest.raises(RuntimeError, match=r"torch\.func\.jacrev"):
        jacobian(lambda z: conv(z, edge_index), x, vectorize=True)
    torch.testing.assert_close(
        torch.func.jacrev(lambda z: conv(z, edge_index))(x),
        jacobian(lambda z: conv(z, edge_index), x),
    )
