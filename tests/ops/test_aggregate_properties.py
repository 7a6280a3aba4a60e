"""What must hold on any graph: symmetries of the aggregators, found out by random small ones."""

from functools import partial

import pytest
import torch

pytest.importorskip("hypothesis", reason="properties are looked for with hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pna
from pna.ops.aggregators import Moment, Std
from pna.ops.backend import availability
from tests.conftest import DEVICE

#: Each backend, its device, and how many graphs it is tried on: few in Triton's interpreter.
#: `make test` runs the first.
BACKENDS = [("cpu", torch.device("cpu"), 25), ("reference", DEVICE, 12), ("triton", DEVICE, 5)]
TINY = 1e-12  # an ε that does not show beside features of about 1


@st.composite
def graphs(draw):
    """Edges among at most 6 nodes, repeated ones and self-loops too, and features on a coarse
    grid, so that ties are common."""
    nodes = draw(st.integers(1, 6))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=15))
    grid = st.integers(-8, 8).map(lambda n: n / 4)
    rows = st.lists(grid, min_size=2, max_size=2)
    x = draw(st.lists(rows, min_size=nodes, max_size=nodes))
    return torch.tensor(x, dtype=torch.float64), torch.tensor(edges).reshape(-1, 2).t().long()


def aggregate(device, x, edge_index, aggregators, weights=None, num_nodes=None):
    """With weights, messages are products."""
    adjacency = pna.Adjacency.from_edge_index(edge_index.to(device), num_nodes or x.shape[0])
    weights = None if weights is None else weights.to(device)
    return pna.aggregate(x.to(device), adjacency, aggregators, weights, "mul").cpu()


def forall(*strategies):
    """Run a property on graphs, for every backend that runs here."""

    def decorate(check):
        @pytest.mark.covering(0, always=True)
        @pytest.mark.parametrize("name, device, examples", BACKENDS, ids=[b[0] for b in BACKENDS])
        def test(name, device, examples):
            if reason := availability()[name]:
                pytest.skip(f"{name}: {reason}")

            @settings(
                max_examples=examples,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(graphs(), st.tuples(*strategies))
            def property_holds(graph, drawn):
                with pna.backend(name):
                    check(partial(aggregate, device), *graph, *drawn)

            property_holds()

        test.__doc__ = check.__doc__
        return test

    return decorate


EVERY = ["mean", "sum", "max", "min", "var", "std", "normalised_mean", "moment_3", "softmax"]


@forall(st.randoms(use_true_random=False))
def test_nodes_in_another_order_give_the_results_in_that_order(run, x, edge_index, random):
    order = list(range(x.shape[0]))
    random.shuffle(order)
    order = torch.tensor(order)
    renamed = torch.empty_like(order)
    renamed[order] = torch.arange(x.shape[0])
    out = run(x, edge_index, EVERY)
    torch.testing.assert_close(run(x[order], renamed[edge_index], EVERY), out[order])


@forall(st.randoms(use_true_random=False))
def test_edges_in_another_order_change_nothing(run, x, edge_index, random):
    order = list(range(edge_index.shape[1]))
    random.shuffle(order)
    shuffled = edge_index[:, torch.tensor(order, dtype=torch.int64)]
    kinds = ["max", "min", *EVERY]
    before, after = run(x, edge_index, kinds), run(x, shuffled, kinds)
    assert torch.equal(before[:, :2], after[:, :2])
    torch.testing.assert_close(before, after)


@forall()
def test_every_edge_twice_leaves_all_but_sums(run, x, edge_index):
    kinds = ["mean", "std", "max", "min", "var", "moment_3", "moment_4", "softmax"]
    twice = torch.cat([edge_index, edge_index], dim=1)
    torch.testing.assert_close(run(x, twice, kinds), run(x, edge_index, kinds))


@forall(st.sampled_from([0.25, 3.0, 1000.0]))
def test_scale(run, x, edge_index, c):
    """Everything follows the scale of the features, var its square; ε would not."""
    kinds = [
        "mean", "sum", "max", "min", "normalised_mean", "var", Std(epsilon=TINY * c**2),
        Moment(3, epsilon=TINY * c**3), Moment(4, epsilon=TINY * c**4),
    ]  # fmt: skip
    plain = [*kinds[:6], Std(epsilon=TINY), Moment(3, epsilon=TINY), Moment(4, epsilon=TINY)]
    factor = torch.tensor([c] * 5 + [c**2] + [c] * 3, dtype=x.dtype)[:, None]
    # the cube of a deviation of rounding is nothing, its root is not: 1e-16 becomes 5e-6
    torch.testing.assert_close(
        run(c * x, edge_index, kinds), factor * run(x, edge_index, plain), rtol=1e-6, atol=1e-6 * c
    )


@forall(st.sampled_from([-3.0, 0.5, 100.0]))
def test_shift(run, x, edge_index, c):
    moved = ["mean", "max", "min"]
    kept = ["var", "std", "moment_3", "moment_4"]
    before, after = run(x, edge_index, moved + kept), run(x + c, edge_index, moved + kept)
    reached = torch.zeros(x.shape[0], dtype=torch.bool)
    reached[edge_index[1]] = True
    torch.testing.assert_close(after[reached, :3], before[reached, :3] + c)
    torch.testing.assert_close(after[:, 3:], before[:, 3:], rtol=1e-6, atol=1e-6)
    assert (after[~reached] == 0).all()


@forall()
def test_sum_is_mean_times_degree(run, x, edge_index):
    out = run(x, edge_index, ["sum", "mean"])
    degree = torch.bincount(edge_index[1], minlength=x.shape[0])[:, None]
    torch.testing.assert_close(out[:, 0], out[:, 1] * degree)


@forall()
def test_extrema_bound_the_mean_and_the_spread(run, x, edge_index):
    mean, low, high, var = run(x, edge_index, ["mean", "min", "max", "var"]).unbind(1)
    slack = 1e-12
    assert (low <= mean + slack).all()
    assert (mean <= high + slack).all()
    assert (var <= (high - mean) * (mean - low) + slack).all()  # Bhatia and Davis


@forall()
def test_weights_of_1_change_nothing(run, x, edge_index):
    kinds = ["mean", "std", "max", "normalised_mean"]
    ones = torch.ones(edge_index.shape[1], 1, dtype=x.dtype)
    assert torch.equal(run(x, edge_index, kinds, ones), run(x, edge_index, kinds))


@forall(st.integers(0, 2**16))
def test_weights_are_messages_made_beforehand(run, x, edge_index, seed):
    """By a graph in which every edge has a sender of its own; so the senders' degrees differ."""
    kinds = ["sum", "max", "min", "std", "softmax"]
    edges = edge_index.shape[1]
    random = torch.Generator().manual_seed(seed)
    weights = torch.randint(-4, 5, (edges, 1), generator=random, dtype=x.dtype) / 2
    own = torch.stack([torch.arange(edges), edge_index[1]])
    messages = weights * x[edge_index[0]]
    expected = run(messages, own, kinds, None, (edges, x.shape[0]))
    assert torch.equal(run(x, edge_index, kinds, weights), expected)
