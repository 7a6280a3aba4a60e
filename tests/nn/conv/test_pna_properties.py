"""What must hold of `PNAConv` on any graph, found out by random small ones."""

import pytest
import torch

pytest.importorskip("hypothesis", reason="properties are looked for with hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pna.nn import PNAConv
from tests.nn.cases import DEG, PAPER, SCALERS, numbers

WIDTH = 4
modest = settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def graphs(draw):
    """Edges among at most 6 nodes, with self-loops and repeated ones; x, and e of 2 features."""
    nodes = draw(st.integers(1, 6))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=15))
    x = numbers(nodes, WIDTH, dtype=torch.float64, device="cpu", seed=draw(st.integers(0, 99)))
    edge_attr = numbers(len(edges), 2, dtype=torch.float64, device="cpu", seed=3)
    return x, torch.tensor(edges).reshape(-1, 2).t().long(), edge_attr


def shuffled(random, count):
    order = list(range(count))
    random.shuffle(order)
    return torch.tensor(order, dtype=torch.int64)


def made(**arguments):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, edge_dim=2, towers=2)
    return PNAConv(WIDTH, WIDTH, **(given | arguments)).double()


LAYERS = {"linear M": {}, "deep M": dict(pre_layers=2), "swapped": dict(swap_extrema=True)}


@pytest.mark.parametrize("arguments", LAYERS)
def test_nodes_and_edges_in_another_order_give_the_results_in_that_order(arguments):
    layer = made(**LAYERS[arguments])

    @modest
    @given(graphs(), st.randoms(use_true_random=False))
    def holds(graph, random):
        x, edge_index, edge_attr = graph
        nodes, edges = shuffled(random, len(x)), shuffled(random, len(edge_attr))
        renamed = torch.empty_like(nodes)
        renamed[nodes] = torch.arange(len(x))
        out = layer(x[nodes], renamed[edge_index][:, edges], edge_attr[edges])
        torch.testing.assert_close(out, layer(x, edge_index, edge_attr)[nodes])

    holds()


@pytest.mark.parametrize("arguments", LAYERS)
def test_every_edge_several_times_changes_nothing_without_scalers(arguments):
    layer = made(scalers=["identity"], deg=None, **LAYERS[arguments])

    @modest
    @given(graphs(), st.integers(2, 4))
    def holds(graph, times):
        x, edge_index, edge_attr = graph
        repeated = layer(x, edge_index.repeat(1, times), edge_attr.repeat(times, 1))
        torch.testing.assert_close(repeated, layer(x, edge_index, edge_attr))

    holds()


@modest
@given(graphs(), graphs())
def test_graphs_side_by_side_do_not_see_each_other(one, other):
    layer = made()
    (x, edges, e), (y, more, f) = one, other
    together = layer(torch.cat([x, y]), torch.cat([edges, more + len(x)], 1), torch.cat([e, f]))
    torch.testing.assert_close(together, torch.cat([layer(x, edges, e), layer(y, more, f)]))
