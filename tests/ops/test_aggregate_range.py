"""At the end of the range of a type: "Infinite and huge values" in docs/aggregate.md."""

import math

import pytest
import torch

import pna
from pna.ops.aggregators import KthSmallest, Moment, Softmax, Std
from tests.ops.cases import Graph, outcome

INF, NAN = math.inf, math.nan
HUGE = 3e38  # of float32's 3.4e38

#: Messages of one receiver, and their var.
ROWS = {
    "equal": ([HUGE] * 2, 0.0),
    "of both signs": ([HUGE, -HUGE], INF),
    "more of one sign": ([HUGE, HUGE, -HUGE], INF),
    "as many of both": ([HUGE, HUGE, -HUGE, -HUGE], INF),
    "-huge before inf": ([-HUGE] * 3 + [INF], NAN),
    "inf before -huge": ([INF] + [-HUGE] * 3, NAN),
    "squares overflow": ([1e30, -1e30, 0.0], INF),
    "a block of equal": ([HUGE] * 70, 0.0),
    "a block of both, and one": ([HUGE] + [-HUGE] * 64, INF),
    "half of each sign": ([HUGE] * 35 + [-HUGE] * 35, INF),
    "a hub of both signs": ([HUGE, -HUGE] * 150, INF),
    "a hub of -huge and inf": ([-HUGE] * 300 + [INF], NAN),
    "sums that cancel": ([HUGE, 1.0, -HUGE, HUGE, -HUGE, 2.0], INF),
}


def one_receiver(values, device):
    edges = [(sender, 0) for sender in range(len(values))]
    return Graph(edges, (len(values), 1)).adjacency(device)


def every_row(device):
    """A receiver for each of ROWS: x (senders, 1), the graph, and where the senders of each are."""
    values = [row for row, _ in ROWS.values()]
    edges, places = [], []
    for receiver, row in enumerate(values):
        first = len(edges)
        places.append(slice(first, first + len(row)))
        edges += [(sender, receiver) for sender in range(first, first + len(row))]
    x = torch.tensor([value for row in values for value in row], device=device)[:, None]
    return x, Graph(edges, (len(edges), len(values))).adjacency(device), places


def test_sums_and_means_are_those_of_float64(backend):
    """Rounded to the type of x: infinite where that is, and nowhere else."""
    x, adjacency, _ = every_row(backend.device)
    out = pna.aggregate(x, adjacency, ["sum", "mean", "normalised_mean"]).double().cpu()
    for (name, (values, _)), got in zip(ROWS.items(), out[:, :, 0], strict=True):
        exact = [math.fsum(values), math.fsum(values) / len(values)]
        exact.append(exact[0] / math.sqrt(len(values)))
        expected = torch.tensor(exact, dtype=torch.float64).float()
        # where both signs cancel, as much is lost as sums are rounded on the way
        lost = torch.tensor(exact, dtype=torch.float64).isfinite() * len(values) * 2e-7 * HUGE
        right = (got == expected) | ((got - expected).abs() <= lost)
        assert right.all(), (name, got.tolist(), exact)


@pytest.mark.parametrize("kinds", [["normalised_mean"], ["normalised_mean", "std"]])
def test_weighted_sum_that_overflows_on_the_way(backend, kinds):
    """The plain sum of −h, h and −h never leaves the range. With h by a smaller weight, it does."""
    edges = [(0, 0), (1, 0), (2, 0), (1, 1)]
    adjacency = Graph(edges, (3, 2)).adjacency(backend.device)
    x = torch.tensor([-HUGE, HUGE, -HUGE], device=backend.device)[:, None]
    out = pna.aggregate(x, adjacency, kinds)[0, 0].item()
    assert out == pytest.approx((math.sqrt(0.5) - 2) / math.sqrt(3) * HUGE, rel=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype, value", [(torch.float32, HUGE), (torch.float64, 3e289)])
@pytest.mark.parametrize("count", [2, 260])
def test_equal_messages_have_no_spread_however_large(backend, count, dtype, value):
    """In one block of the C kernel, in several, and in several segments of Triton's."""
    adjacency = Graph([(0, 0)] * count, 1).adjacency(backend.device)
    x = torch.full((1, 1), value, dtype=dtype, device=backend.device)
    out, gradient = outcome(x, adjacency, ["var", Std(clamp=True), "mean"])
    assert out.flatten().tolist() == pytest.approx([0, 0, value], rel=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.covering(0)
@pytest.mark.parametrize("kind", ["var", "std", Std(clamp=True)], ids=["var", "std", "clamped"])
def test_var_and_std_are_infinite_where_a_square_overflows(backend, kind):
    """NaN where a message is infinite; 0 where messages are equal, however large."""
    x, adjacency, _ = every_row(backend.device)
    out = pna.aggregate(x, adjacency, [kind]).flatten().tolist()
    equal = math.sqrt(1e-5) if kind == "std" else 0.0
    expected = [equal if var == 0 else var for _, var in ROWS.values()]
    assert out == pytest.approx(expected, nan_ok=True), list(ROWS)


def test_extrema_are_messages(backend):
    x, adjacency, _ = every_row(backend.device)
    out = pna.aggregate(x, adjacency, ["max", "min", KthSmallest(2)])[:, :, 0]
    expected = [[max(row), min(row), sorted(row)[1]] for row, _ in ROWS.values()]
    assert torch.equal(out.cpu(), torch.tensor(expected))


@pytest.mark.covering(0)
@pytest.mark.parametrize("kind", ["sum", "mean", "normalised_mean", "max", "min", KthSmallest(1)])
def test_gradients_that_do_not_depend_on_the_size_of_messages(backend, kind):
    x, adjacency, places = every_row(backend.device)
    upstream = torch.ones(len(ROWS), 1, 1, device=x.device)
    _, gradient = outcome(x, adjacency, [kind], upstream=upstream)
    for (name, (values, _)), place in zip(ROWS.items(), places, strict=True):
        d = len(values)
        each = {"sum": 1.0, "mean": 1 / d, "normalised_mean": 1 / math.sqrt(d)}
        if kind in each:
            expected = torch.full((d,), each[kind])
        else:
            expected = torch.zeros(d)
            expected[values.index(max(values) if kind == "max" else min(values))] = 1.0
        torch.testing.assert_close(gradient[place, 0].cpu(), expected, msg=name)


EVERY = ["mean", "sum", "max", "min", "var", "std", "normalised_mean", "moment_3", Moment(4)]
EVERY += [Softmax(2.0), "softmin", KthSmallest(1), Std(clamp=True)]


@pytest.mark.covering(0)
@pytest.mark.parametrize("value", [1e20, 1e30, HUGE, INF, -INF, NAN])
def test_nothing_else_is_touched(backend, value):
    """Not another feature, and not a receiver that hears other senders: results to the bit, and
    gradients to the rounding of float32."""
    edges = [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (3, 2), (5, 2), (4, 3)]
    adjacency = Graph(edges, (6, 4)).adjacency(backend.device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator).to(backend.device)
    out, gradient = outcome(x, adjacency, EVERY)
    x[1, 1] = value
    other_out, other_gradient = outcome(x, adjacency, EVERY)
    assert torch.equal(out[1:], other_out[1:])
    assert torch.equal(out[:, :, [0, 2]], other_out[:, :, [0, 2]])
    torch.testing.assert_close(gradient[3:], other_gradient[3:], rtol=1e-5, atol=1e-6)
    same = gradient[:, [0, 2]], other_gradient[:, [0, 2]]
    torch.testing.assert_close(*same, rtol=1e-5, atol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("kind", ["var", "std", "moment_3", "moment_4", "softmax", "softmin"])
def test_gradients_of_a_result_that_is_nan_are_not_finite(backend, kind, value):
    x = torch.tensor([[1.0], [value], [2.0]], device=backend.device)
    out, gradient = outcome(x, one_receiver([0, 0, 0], x.device), [kind])
    assert out.isnan().all()
    assert not gradient.isfinite().any()


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kinds_of_edges", [3, 20])
def test_other_rows_of_a_table_are_not_touched(backend, kinds_of_edges, dtype):
    """Edges of kind 1 reach the receiver of an infinite message; those of kind 0 another one."""
    adjacency = Graph([(0, 0), (1, 0), (2, 1), (1, 1)], (3, 2)).adjacency(backend.device)
    x = torch.tensor([[INF, 1], [2, 3], [4, 6]], dtype=dtype, device=backend.device)
    table = torch.ones(kinds_of_edges, 2, dtype=dtype, device=x.device, requires_grad=True)
    kind = torch.tensor([1, 1, 0, 0], device=x.device)
    pna.aggregate(x, adjacency, ["std", "var"], edge=(table, kind)).sum().backward()
    assert not table.grad[1, 0].isfinite()
    table.grad[1, 0] = 0
    assert table.grad.isfinite().all()


@pytest.mark.parametrize("value", [INF, NAN])
def test_what_is_never_sent_has_no_gradient(backend, value):
    adjacency = Graph([(2, 1)], 3).adjacency(backend.device)
    x = torch.tensor([[0.0], [value], [0.0]], device=backend.device)
    kinds = ["mean", "sum", "var", "std", "max", "min", "normalised_mean"]
    assert outcome(x, adjacency, kinds)[1][:2].tolist() == [[0.0], [0.0]]
