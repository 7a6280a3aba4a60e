"""The inputs of U by small.c, and their gradients, against the definition."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

pytest.importorskip("hypothesis", reason="graphs are drawn with hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pna
from pna.nn.conv.shifts import times_shifted
from pna.ops import small_cpu
from pna.ops.aggregate import one_pass
from pna.ops.aggregators import Aggregator, Std, resolve
from tests.ops.cases import GRAPHS, TOLERANCES, Graph, assert_near, into, out_of

KINDS = ["mean", "sum", "var", "std", "max", "min"]
SUBSETS = [list(kinds) for n in range(1, 7) for kinds in combinations(KINDS, n)]
SCALERS, TYPES = 3, 4

#: One node set, since a layer has one; and hubs whose rows take many blocks of messages.
SQUARE = {name: graph for name, graph in GRAPHS.items() if isinstance(graph.nodes, int)}
SQUARE["degree 1000"] = Graph(into(0, 1000, 40) + out_of(1, 1000, 40), 40)

pytestmark = pytest.mark.skipif(not small_cpu.built, reason="small.c was not built")


class Case:
    """A layer on a graph: random products, bias, x and factors, and an edge term."""

    def __init__(
        self,
        graph: Graph,
        kinds: list[str] | list[str | Aggregator],
        width: int = 5,
        towers: int = 1,
        form: str = "none",
        seed: int = 0,
    ) -> None:
        self.adjacency, self.towers, self.width = graph.adjacency(), towers, width
        self.aggregators = resolve(kinds)
        nodes, columns, edges = self.adjacency.num_receivers, towers * width, len(graph.edges)
        make = torch.Generator().manual_seed(seed)
        self.products = torch.randn(nodes, 2 * columns, generator=make)
        self.bias = torch.randn(columns, generator=make)
        self.x = torch.randn(nodes, width, generator=make)
        self.factors = torch.rand(nodes, SCALERS, generator=make)
        self.factors *= (self.adjacency.degree > 0)[:, None]
        self.edge, self.at = None, None
        if form == "dense":
            self.edge = torch.randn(edges, columns, generator=make)
        if form == "table":
            self.edge = torch.randn(TYPES, columns, generator=make)
            self.at = torch.randint(TYPES - 1, (edges,), generator=make)
        self.blocks = 1 + SCALERS * len(self.aggregators)
        self.grad = torch.randn(nodes, columns * self.blocks, generator=make)

    def by_kernels(self) -> list[Tensor]:
        """The inputs of U, and the gradients of the products, the bias and the edge term."""
        request, _ = one_pass(self.aggregators)
        assert request is not None
        shape = small_cpu.SmallShape(
            request, tuple(times_shifted(self.aggregators)), SCALERS, self.width,
            self.towers * self.width,
        )  # fmt: skip
        kernels = small_cpu.small_kernels(shape)
        rest = (self.factors, self.adjacency, self.edge, self.at)
        inputs, kept = kernels.forward(self.products, self.bias, self.x, *rest)
        of_products, of_edge, of_bias = kernels.backward(self.grad, kept, self.products, *rest)
        results = [inputs, of_products, of_bias]
        return results if of_edge is None else [*results, of_edge]

    def by_definition(self) -> list[Tensor]:
        """The same in float64."""
        products, bias = self.products.double().requires_grad_(), self.bias.double()
        bias.requires_grad_()
        leaves, edge = [products, bias], None
        if self.edge is not None:
            edge = self.edge.double().requires_grad_()
            leaves.append(edge)
            edge = edge if self.at is None else (edge, self.at)
        own, sent = products.unflatten(1, (-1, 2)).unbind(2)
        degree = self.adjacency.degree.double()[:, None]
        with pna.backend("reference"):
            aggregates = pna.aggregate(sent, self.adjacency, self.aggregators, edge)
        often = {0: 0 * degree, 1: (degree > 0).double(), 2: degree}
        shifts = [often[t] * (own + bias) for t in times_shifted(self.aggregators)]
        aggregates = aggregates + torch.stack(shifts, 1)
        scaled = self.factors.double()[:, :, None, None] * aggregates[:, None]
        scaled = scaled.unflatten(3, (self.towers, self.width)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        x = self.x.double()[:, None, None].expand(-1, self.towers, 1, -1)
        inputs = torch.cat([x, scaled], 2).flatten(1)
        return [inputs.detach(), *torch.autograd.grad(inputs, leaves, self.grad.double())]

    def check(self) -> None:
        got, expected = self.by_kernels(), self.by_definition()
        # gradients of messages cancel in their sums
        scale = max([float(e.abs().max()) for e in expected[1:] if e.numel() > 0], default=0.0)
        assert_near(got[:1], expected[:1], TOLERANCES[torch.float32])
        assert_near(got[1:], expected[1:], TOLERANCES[torch.float32], at_least=scale)


@pytest.mark.parametrize("form", ["none", "dense", "table"])
@pytest.mark.parametrize("graph", SQUARE)
def test_every_graph(graph, form):
    Case(SQUARE[graph], KINDS, width=7, form=form).check()


@pytest.mark.parametrize("clamp", [False, True], ids=["paper", "pyg"])
def test_every_subset_of_statistics(clamp):
    for kinds in SUBSETS:
        named = [Std(clamp=True) if clamp and kind == "std" else kind for kind in kinds]
        Case(GRAPHS["random"], named, width=3).check()


# one tile, chunks of 64 columns, and widths that are no whole vectors
@pytest.mark.parametrize("width", [1, 8, 16, 63, 64, 65, 130])
@pytest.mark.parametrize("towers", [1, 3])
def test_widths_and_towers(width, towers):
    Case(GRAPHS["random"], ["mean", "max", "min", "std"], width, towers, form="dense").check()


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_graph(data):
    nodes = data.draw(st.integers(1, 6))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=15))
    kinds = data.draw(st.permutations(KINDS))[: data.draw(st.integers(1, 6))]
    form = data.draw(st.sampled_from(["none", "dense", "table"]))
    towers, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    Case(Graph(edges, nodes), kinds, width, towers, form, data.draw(st.integers(0, 99))).check()


def test_ties_go_to_the_edge_that_was_given_first():
    case = Case(Graph([(0, 2), (1, 2), (0, 2)], 3), ["max", "min"], width=1)
    case.products[1, 1] = case.products[0, 1]
    case.grad.fill_(1)
    _, of_products, _ = case.by_kernels()
    sent = of_products[:, 1]
    assert float(sent[0]) == pytest.approx(2 * float(case.factors[2].sum()))
    assert float(sent[1]) == 0


def test_messages_far_from_zero():
    """Their mean has rounding errors that are large beside their deviations."""
    case = Case(GRAPHS["random"], ["std", "var"], width=4)
    case.products[:, 1::2] += 1e4
    case.check()


def test_equal_messages_have_no_std_and_no_gradient():
    case = Case(Graph([(0, 1), (0, 1), (2, 1)], 3), [Std(clamp=True), "var"], width=4)
    case.products[2] = case.products[0]
    inputs, of_products, *_ = case.by_kernels()
    assert not inputs[:, 4:].any()
    assert not of_products[:, 1::2].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_message_that_is_not_finite_stays_in_its_receiver_and_feature(value):
    kinds = ["mean", "max", "min", "std"]
    case = Case(Graph([(0, 1), (2, 1), (3, 1), (2, 3), (3, 0)], 4), kinds, width=3)
    clean = case.by_kernels()[0].unflatten(1, (-1, 3))
    case.products[0, 1] = value  # column 0 of sender 0, which only node 1 hears
    case.products[0, 0] = 0
    got = case.by_kernels()[0].unflatten(1, (-1, 3))
    expected = case.by_definition()[0].unflatten(1, (-1, 3))
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert torch.equal(got[1:, :, 1:], clean[1:, :, 1:])
    assert torch.equal(got[2:], clean[2:])


def test_index_outside_the_table():
    case = Case(GRAPHS["random"], ["mean"], form="table")
    assert case.at is not None
    case.at[7] = TYPES
    with pytest.raises(ValueError, match=f"row {TYPES} .*edge 7"):
        case.by_kernels()


@pytest.mark.parametrize("index", [torch.int32, torch.uint8])
def test_types_of_the_index(index):
    case = Case(GRAPHS["random"], KINDS, form="table")
    expected = case.by_kernels()
    assert case.at is not None
    case.at = case.at.to(index)
    for got, same in zip(case.by_kernels(), expected, strict=True):
        assert torch.equal(got, same)


def test_result_does_not_depend_on_the_number_of_threads():
    edges = torch.randint(0, 500, (8000, 2), generator=torch.Generator().manual_seed(0))
    case = Case(Graph([(a, b) for a, b in edges.tolist()], 500), KINDS, 35, 2, "dense")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = case.by_kernels()
        for count in (2, 3, 8):
            torch.set_num_threads(count)
            for got, same in zip(case.by_kernels(), expected, strict=True):
                assert torch.equal(got, same)
    finally:
        torch.set_num_threads(before)
