"""The definition of every aggregator, on multisets small enough to check by eye."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pna.adjacency import Adjacency
from pna.ops.aggregators import (
    BUILT_IN,
    KthSmallest,
    Max,
    Mean,
    Min,
    Moment,
    NormalisedMean,
    Softmax,
    Softmin,
    Std,
    Sum,
    Var,
)
from pna.ops.reference import aggregate

EPSILON = 1e-5
LOG3 = math.log(3)
NAN, INF = math.nan, math.inf

#: One of every kind and convention.
ALL = [
    Mean(),
    Sum(),
    Max(),
    Min(),
    Var(),
    Std(),
    Std(clamp=True),
    Moment(3),
    Moment(4),
    Moment(5),
    Moment(3, published=True),
    Softmax(),
    Softmin(temperature=2.0),
    NormalisedMean(),
    KthSmallest(1),
    KthSmallest(3),
]
every_aggregator = pytest.mark.parametrize("aggregator", ALL, ids=repr)

#: Node 3 is isolated; receiver 0 hears 0 twice, 1 and 2; receiver 1 itself alone; 2 hears 0, 1.
EDGES = [[0, 1, 1, 0, 2, 0, 1], [0, 0, 1, 2, 0, 0, 2]]


def graph():
    return Adjacency.from_edge_index(torch.tensor(EDGES), 4)


def star(size):
    """Senders 0, 1, … that all reach the one receiver, in this order."""
    edges = torch.stack([torch.arange(size), torch.zeros(size, dtype=torch.int64)])
    return Adjacency.from_edge_index(edges, (size, 1))


def of(multiset, aggregator, dtype=torch.float64):
    """The aggregate of some numbers."""
    x = torch.tensor(multiset, dtype=dtype)[:, None]
    return aggregate(x, star(len(multiset)), [aggregator]).item()


def gradient(multiset, aggregator, dtype=torch.float64):
    x = torch.tensor(multiset, dtype=dtype)[:, None].requires_grad_()
    aggregate(x, star(len(multiset)), [aggregator]).sum().backward()
    assert x.grad is not None
    return x.grad.flatten().tolist()


def root(c, order=3):
    return (c + EPSILON) ** (1 / order) - EPSILON ** (1 / order)


@pytest.mark.parametrize(
    ("aggregator", "multiset", "expected"),
    [
        (Mean(), [1, 2, 6], 3),
        (Sum(), [1, 2, 6], 9),
        (Max(), [2, 6, 1], 6),
        (Max(), [-3, -1], -1),  # not 0
        (Min(), [2, 6, 1], 1),
        (Min(), [3, 5], 3),  # not 0
        (Var(), [1, 2, 6], 14 / 3),  # from the mean: -2, -1, 3
        (Var(), [7], 0),
        (Std(), [1, 2, 6], math.sqrt(14 / 3 + EPSILON)),
        (Std(), [7], math.sqrt(EPSILON)),
        (Std(epsilon=0.25), [0, 0], 0.5),
        (Std(clamp=True), [1, 2, 6], math.sqrt(14 / 3)),
        (Std(clamp=True), [2, 2], 0),
        (Std(clamp=True), [0, 2e-3], 0),  # a variance of 1e-6, below ε
        (Std(epsilon=1e-7, clamp=True), [0, 2e-3], 1e-3),
        (Moment(3), [0, 0, 3], root(2)),  # cubes -1, -1, 8
        (Moment(3), [0, 3, 3], -root(2)),
        (Moment(3), [5, 5, 5], 0),
        (Moment(3), [-1, 0, 1], 0),
        (Moment(4), [0, 0, 3], root(6, 4)),  # 1, 1, 16
        (Moment(5), [0, 0, 3], root(10, 5)),  # -1, -1, 32
        (Moment(3, epsilon=1.0), [-2, -2, 4], 17 ** (1 / 3) - 1),  # 16
        (Moment(3, published=True), [0, 0, 3], (2 + EPSILON) ** (1 / 3)),
        (Moment(3, published=True), [0, 3, 3], -((2 + EPSILON) ** (1 / 3))),
        (Moment(4, published=True), [5, 5], 0),  # sign(0) = 0
        (Softmax(), [0, LOG3], 3 / 4 * LOG3),  # exponentials 1 and 3
        (Softmax(temperature=2.0), [0, LOG3], 9 / 10 * LOG3),
        (Softmax(temperature=0.0), [1, 2, 6], 3),
        (Softmax(temperature=-1.0), [0, LOG3], 1 / 4 * LOG3),
        (Softmin(), [0, LOG3], 1 / 4 * LOG3),
        (Softmin(temperature=2.0), [0, LOG3], 1 / 10 * LOG3),
        (NormalisedMean(), [1, 2, 5], 8 / math.sqrt(3)),  # every sender has one edge
        (KthSmallest(1), [2, 6, 1], 1),
        (KthSmallest(2), [2, 6, 1], 2),
        (KthSmallest(3), [2, 6, 1], 6),
        (KthSmallest(4), [2, 6, 1], 0),  # there is none
    ],
)
def test_definition(aggregator, multiset, expected):
    assert of(multiset, aggregator) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_every_aggregator_is_tested():
    assert {type(aggregator) for aggregator in ALL} == set(BUILT_IN)


def test_each_feature_and_receiver_on_its_own():
    x = torch.tensor([[1.0, -1], [2, 5], [6, 0], [99, 99]])
    out = aggregate(x, graph(), [Max(), Mean()])
    assert out.shape == (4, 2, 2)
    assert out[:, 0].tolist() == [[6, 5], [2, 5], [2, 5], [0, 0]]
    # the edge 0 → 0, given twice, counts twice: (1 + 2 + 6 + 1) / 4
    assert out[:, 1].tolist() == [[2.5, 0.75], [2, 5], [1.5, 2], [0, 0]]


# Nothing to aggregate


@every_aggregator
def test_isolated_node_gets_zero_and_gives_no_bad_gradient(aggregator):
    x = torch.tensor([[1.0], [2], [6], [NAN]], requires_grad=True)  # nobody hears node 3
    out = aggregate(x, graph(), [aggregator])
    assert out[3].item() == 0
    assert out.isfinite().all()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[3].item() == 0


@every_aggregator
@pytest.mark.parametrize(
    ("senders", "receivers", "features"),
    [(3, 3, 2), (0, 0, 2), (0, 2, 1), (2, 0, 1), (2, 2, 0)],
)
def test_no_edges(aggregator, senders, receivers, features):
    adj = Adjacency.from_edge_index(torch.empty(2, 0, dtype=torch.int64), (senders, receivers))
    x = torch.ones(senders, features, requires_grad=True)
    out = aggregate(x, adj, [aggregator])
    assert out.tolist() == torch.zeros(receivers, 1, features).tolist()
    out.sum().backward()
    assert x.grad.tolist() == torch.zeros(senders, features).tolist()


@every_aggregator
@pytest.mark.parametrize("multiset", [[2.0], [2.0, 2.0], [0.0, 0.0, 0.0]], ids=str)
def test_equal_messages_give_finite_gradients(aggregator, multiset):
    assert all(map(math.isfinite, gradient(multiset, aggregator)))


# Gradients


@every_aggregator
def test_gradients_of_every_order(aggregator):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, dtype=torch.float64, generator=random, requires_grad=True)
    edge = torch.randn(8, 1, dtype=torch.float64, generator=random, requires_grad=True)
    everyone_to_both = torch.cartesian_prod(torch.arange(4), torch.arange(2)).T
    adj = Adjacency.from_edge_index(everyone_to_both, (4, 2))

    def function(x, edge):
        return aggregate(x, adj, [aggregator], edge)

    assert gradcheck(function, (x, edge))
    assert gradgradcheck(function, (x, edge))


def test_gradients_of_temperature_and_weight():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4, 2, dtype=torch.float64, generator=random, requires_grad=True)
    weight = torch.rand(7, dtype=torch.float64, generator=random, requires_grad=True)
    temperature = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    adj = graph()

    def function(x, temperature, weight):
        return aggregate(x, adj, [Softmax(temperature, weight), Softmin(temperature, weight)])

    assert gradcheck(function, (x, temperature, weight))
    assert gradgradcheck(function, (x, temperature, weight))


@pytest.mark.parametrize(
    ("aggregator", "multiset", "expected"),
    [
        (Mean(), [1, 2, 6], [1 / 3, 1 / 3, 1 / 3]),
        (Max(), [6, 1, 6], [1, 0, 0]),  # ties go to the first
        (Min(), [3, 1, 1], [0, 1, 0]),
        (Var(), [0, 2], [-1, 1]),  # 2/d times the distance from the mean
        (Std(epsilon=3.0), [0, 2], [-0.25, 0.25]),  # half of that by sqrt(1 + 3)
        (Std(), [2, 2], [0, 0]),
        (Std(clamp=True), [2, 2], [0, 0]),
        (KthSmallest(2), [6, 1, 3], [0, 0, 1]),
        (KthSmallest(1), [1, 1], [1, 0]),
        (KthSmallest(2), [1, 1], [0, 1]),
        (KthSmallest(3), [1, 1], [0, 0]),
    ],
)
def test_gradient(aggregator, multiset, expected):
    assert gradient(multiset, aggregator) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("aggregator", [Max(), Min()], ids=repr)
def test_ties_go_to_the_edge_that_was_given_first(aggregator):
    """Receiver 0 hears 1, 2, 0 in this order, receiver 1 hears 2 and 1."""
    edges = torch.tensor([[2, 1, 2, 1, 0], [1, 0, 0, 1, 0]])
    x = torch.full((3, 1), 5.0, requires_grad=True)
    aggregate(x, Adjacency.from_edge_index(edges, (3, 2)), [aggregator]).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 1]


# NaN, inf, narrow types


@every_aggregator
def test_nan_reaches_its_receivers_in_its_feature_and_no_others(aggregator):
    x = torch.tensor([[1.0, 1], [2, 2], [NAN, 6], [4, 4]])  # 2 is heard by receiver 0 alone
    nan = aggregate(x, graph(), [aggregator]).isnan()
    assert nan[:, 0].tolist() == [[True, False], [False] * 2, [False] * 2, [False] * 2]


@pytest.mark.parametrize(
    ("aggregator", "one", "both"),
    [
        (Mean(), INF, NAN),
        (Sum(), INF, NAN),
        (NormalisedMean(), INF, NAN),
        (Max(), INF, INF),
        (Min(), 1, -INF),
        (Var(), NAN, NAN),
        (Std(), NAN, NAN),
        (Moment(3), NAN, NAN),
        (Softmax(), NAN, NAN),
        (Softmin(), NAN, NAN),
    ],
)
def test_infinite_messages_follow_arithmetic(aggregator, one, both):
    assert of([1, INF], aggregator) == pytest.approx(one, nan_ok=True)
    assert of([INF, -INF], aggregator) == pytest.approx(both, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_types_are_summed_in_float32(dtype):
    """A half-precision sum of ones stops at 2048, a bfloat16 one at 256."""
    out = aggregate(torch.ones(4096, 1, dtype=dtype), star(4096), [Sum(), Mean(), Var()])
    assert out.dtype == dtype
    assert out.flatten().tolist() == [4096, 1, 0]


def test_variance_does_not_cancel():
    """In float32 the squares of 9999 and 10001 round to multiples of 8."""
    assert of([9999.0, 10001.0], Var(), torch.float32) == 1
    assert of([9999.0, 10001.0], Std(), torch.float32) == pytest.approx(1, rel=1e-5)


# Moments


@pytest.mark.parametrize("order", [3, 4, 5, 6, 7])
@pytest.mark.parametrize("published", [False, True])
def test_moment_of_the_mirrored_multiset(order, published):
    moment, multiset = Moment(order, published=published), [0.5, -1.0, 4.0, 4.25]
    mirrored = of([-m for m in multiset], moment)
    assert mirrored == pytest.approx(of(multiset, moment) * (-1) ** order, rel=1e-12)


def test_moment_has_a_slope_where_it_is_zero():
    """c of {-1, 0, 1} is 0, its derivatives (1/3, -2/3, 1/3), that of the root ε^(-2/3)/3."""
    assert of([-1, 0, 1], Moment(3)) == 0
    slope = EPSILON ** (-2 / 3) / 3
    expected = [slope / 3, -2 * slope / 3, slope / 3]
    assert gradient([-1, 0, 1], Moment(3)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [3, 4, 5, 6, 7])
def test_moment_of_equal_messages_is_zero_to_the_bit_in_float32(order):
    out = aggregate(torch.full((2, 37), 5.0), star(2), [Moment(order)])
    assert out.flatten().tolist() == [0] * 37


def test_moment_is_continuous_where_it_is_zero_and_the_published_form_is_not():
    step = 1e-6  # moves c by less than ε
    for multiset in ([-1, 0, 1 + step], [-1 - step, 0, 1]):
        assert abs(of(multiset, Moment(3))) < 1e-3
        assert abs(of(multiset, Moment(3, published=True))) > EPSILON ** (1 / 3)


@pytest.mark.parametrize("order", [3, 5, 7])
@pytest.mark.parametrize("far", [0, 10, 1000])
def test_odd_moment_of_two_messages_is_zero(order, far):
    """For a thousand pairs of features, though their mean is rounded; also in the authors' form."""
    random = torch.Generator().manual_seed(order)
    x = torch.rand(2000, 1, generator=random) + far
    edges = torch.stack([torch.arange(2000), torch.arange(1000).repeat_interleave(2)])
    adj = Adjacency.from_edge_index(edges, (2000, 1000))
    for moment in (Moment(order), Moment(order, published=True)):
        assert aggregate(x, adj, [moment]).abs().max() == 0


@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_moment_grows_as_the_scale_of_the_features(order, dtype):
    c = {3: 2, 4: 6, 5: 10}[order]  # of {0, 0, 3}
    for scale in (1e5, 1e7):
        out = of([0, 0, 3 * scale], Moment(order), dtype)
        assert out == pytest.approx(scale * c ** (1 / order), rel=2e-6)


# Softmax and softmin


def test_softmin_is_softmax_mirrored():
    random = torch.Generator().manual_seed(0)
    x, adj = torch.randn(4, 3, generator=random), graph()
    weight = torch.rand(7, generator=random)
    for temperature in (1.0, 3.0, torch.tensor([0.0, 0.5, -2.0])):
        softmin = aggregate(x, adj, [Softmin(temperature, weight)])
        assert torch.equal(softmin, -aggregate(-x, adj, [Softmax(temperature, weight)]))


@pytest.mark.parametrize("offset", [-1e4, 0.0, 1e4])
def test_softmax_of_large_messages(offset):
    """Exponentials 1 and e, whatever is added to both; 1e4 alone would overflow."""
    share = math.e / (1 + math.e)
    multiset = [offset, offset + 1]
    assert of(multiset, Softmax(), torch.float32) == pytest.approx(offset + share, abs=2e-3)
    assert of(multiset, Softmin(), torch.float32) == pytest.approx(offset + 1 - share, abs=2e-3)


def test_softmax_of_messages_far_apart():
    assert of([-1e4, 1e4], Softmax(), torch.float32) == 1e4
    assert of([-1e4, 1e4], Softmin(), torch.float32) == -1e4
    assert gradient([-1e4, 1e4], Softmax(), torch.float32) == [0, 1]
    assert gradient([-1e4, 1e4], Softmin(), torch.float32) == [1, 0]


def test_temperature_of_each_feature_is_learned():
    """The derivative is the weighted variance: of {0, log 3} by (1, 3) / 4 and (1, 9) / 10."""
    temperature = torch.tensor([1.0, 2.0], requires_grad=True)
    x = torch.tensor([[0.0, 0], [LOG3, LOG3]])
    out = aggregate(x, star(2), [Softmax(temperature)])
    assert out.flatten().tolist() == pytest.approx([3 / 4 * LOG3, 9 / 10 * LOG3])
    out.sum().backward()
    variances = [3 / 16 * LOG3**2, 9 / 100 * LOG3**2]
    assert temperature.grad.tolist() == pytest.approx(variances)


def test_temperature_may_be_one_tensor_for_all():
    temperature = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    out = aggregate(torch.tensor([[0.0], [LOG3]]), star(2), [Softmax(temperature)])
    assert out.dtype == torch.float32
    out.sum().backward()
    assert temperature.grad.item() == pytest.approx(9 / 100 * LOG3**2)


def test_weights_follow_the_order_in_which_edges_were_given():
    """All messages but node 2's are 0, so that each result is the share of its edge."""
    edges = torch.tensor([[0, 2, 0, 2], [1, 0, 0, 1]])  # 0→1, 2→0, 0→0, 2→1
    adj = Adjacency.from_edge_index(edges, 3)
    assert adj.edge_ids.tolist() == [1, 2, 0, 3]
    x = torch.tensor([[0.0], [0.0], [LOG3]])  # exponentials 1, 1, 3
    weight = torch.tensor([6.0, 1, 2, 4])
    out = aggregate(x, adj, [Softmax(weight=weight)]).flatten().tolist()
    # receiver 0: 3·1 of 3·1 + 1·2; receiver 1: 3·4 of 1·6 + 3·4
    assert out == pytest.approx([3 / 5 * LOG3, 12 / 18 * LOG3, 0])


@pytest.mark.parametrize(
    ("multiset", "weight", "expected"),
    [
        ([5, 1], [1, 0], 5),
        ([5, 1e4], [1, 0], 5),  # the larger counts for nothing, however large
        ([5, 7], [0, 0], 0),
        ([1e4, 1e4], [0, 0], 0),
    ],
)
def test_message_of_weight_zero_is_not_heard(multiset, weight, expected):
    w = torch.tensor(weight, dtype=torch.float32, requires_grad=True)
    x = torch.tensor(multiset, dtype=torch.float32)[:, None].requires_grad_()
    out = aggregate(x, star(2), [Softmax(weight=w), Softmin(weight=w)])
    assert out.flatten().tolist() == [expected, expected]
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert w.grad.isfinite().all()


def test_a_weight_of_zero_has_the_gradient_of_any_other():
    """That of a weight w beside 1 is e³ (3 − result) / (1 + e³ w)."""
    w = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[0.0], [3.0]], dtype=torch.float64)
    aggregate(x, star(2), [Softmax(weight=w)]).sum().backward()
    assert w.grad.tolist() == pytest.approx([0, 3 * math.exp(3)])


@pytest.mark.parametrize("aggregator", [Softmax(), Softmin(2.0), Softmax(-1.0)], ids=repr)
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_gradients_of_softmax_do_not_depend_on_where_messages_are(aggregator, offset):
    multiset = [offset + value for value in (0.25, -1.5, 2.0, 0.75)]  # floats, each of them
    expected = gradient(multiset, aggregator, torch.float64)
    assert gradient(multiset, aggregator, torch.float32) == pytest.approx(expected, abs=1e-6)


# Normalised mean and sorting


def test_normalised_mean_by_hand():
    """Receiver 0 hears 0, of out-degree 1, and 1, of out-degree 2; receiver 1 hears 1 alone."""
    adj = Adjacency.from_edge_index(torch.tensor([[0, 1, 1], [0, 0, 1]]), 2)
    out = aggregate(torch.tensor([[10.0], [6.0]]), adj, [NormalisedMean()])
    expected = [10 / math.sqrt(2 * 1) + 6 / math.sqrt(2 * 2), 6 / math.sqrt(1 * 2)]
    assert out.flatten().tolist() == pytest.approx(expected)


def test_normalised_mean_is_that_of_gcn():
    """D^-1/2 A D^-1/2 x on an undirected graph."""
    random = torch.Generator().manual_seed(0)
    A = torch.triu(torch.rand(9, 9, generator=random) < 0.4, diagonal=1).double()
    A = A + A.T
    assert A.sum(1).min() > 0
    x = torch.randn(9, 3, dtype=torch.float64, generator=random)
    D = torch.diag(A.sum(1).rsqrt())
    out = aggregate(x, Adjacency.from_sparse(A.to_sparse()), [NormalisedMean()])
    torch.testing.assert_close(out[:, 0], D @ A @ D @ x)


@pytest.mark.parametrize("multiset", [[3, 1, 2], [2, 1, 2, 1], [5, 5, 5], [-1, 0, -7, 4]], ids=str)
def test_kth_smallest_for_every_k_sorts(multiset):
    assert [of(multiset, KthSmallest(k + 1)) for k in range(len(multiset))] == sorted(multiset)


def test_kth_smallest_of_receivers_with_different_degrees():
    x = torch.tensor([[1.0, 9], [2, 8], [6, 7], [0, 0]])
    out = aggregate(x, graph(), [KthSmallest(1), KthSmallest(2), KthSmallest(4)])
    assert out[0].tolist() == [[1, 7], [1, 8], [6, 9]]  # of {1, 1, 2, 6} and {9, 9, 8, 7}
    assert out[1].tolist() == [[2, 8], [0, 0], [0, 0]]
    assert out[2].tolist() == [[1, 8], [2, 9], [0, 0]]


# Edge terms


def edge_terms():
    """The same term of every edge in three forms: whole, a row of a table, a mix of a basis."""
    random = torch.Generator().manual_seed(0)
    table = torch.randn(3, 2, dtype=torch.float64, generator=random)
    index = torch.tensor([2, 0, 1, 1, 2, 0, 1])
    chosen = torch.nn.functional.one_hot(index, 3).double()
    return table[index], (table, index), (table, chosen)


def test_edge_terms_in_three_forms_agree():
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole, *others = edge_terms()
    expected = aggregate(x, graph(), ALL, whole)
    for edge, at in others:
        torch.testing.assert_close(aggregate(x, graph(), ALL, edge, at), expected)


def test_gradients_of_edge_terms_in_three_forms_agree():
    """That of the table is that of the whole, summed over the edges that use a row."""
    x = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    smooth = [Mean(), Std(), Max(), Moment(3), Softmax()]
    whole, (table, index), (basis, coefficients) = edge_terms()
    leaves = [t.clone().requires_grad_() for t in (whole, table, basis, coefficients)]
    whole, table, basis, coefficients = leaves
    for edge, at in ((whole, None), (table, index), (basis, coefficients)):
        aggregate(x, graph(), smooth, edge, at).square().sum().backward()
    by_row = torch.zeros(3, 2, dtype=torch.float64).index_add(0, index, whole.grad)
    torch.testing.assert_close(table.grad, by_row)
    torch.testing.assert_close(basis.grad, by_row)
    torch.testing.assert_close(coefficients.grad, whole.grad @ basis.detach().T)


def test_edge_terms_follow_the_order_in_which_edges_were_given():
    edges = torch.tensor([[0, 0, 0], [1, 0, 1]])
    adj = Adjacency.from_edge_index(edges, (1, 2))
    x, edge = torch.tensor([[10.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    assert aggregate(x, adj, [Sum(), Max()], edge).tolist() == [[[12], [12]], [[24], [13]]]


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_row_of_the_table_in_any_integer_type(dtype):
    table, at = torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0, 1], dtype=dtype)
    assert aggregate(torch.zeros(3, 1), star(3), [Sum()], table, at).item() == 5


def test_autocast_does_not_narrow_the_product_of_coefficients_and_basis():
    """1 + 2^-10 needs more than bfloat16's eight bits."""
    x, basis, coefficients = torch.zeros(1, 1), torch.tensor([[1 + 2**-10]]), torch.ones(1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = aggregate(x, star(1), [Sum()], basis, coefficients)
    assert out.dtype == torch.float32
    assert out.item() == 1 + 2**-10


def test_shapes_alone_on_the_meta_device():
    x, adj = torch.empty(4, 2, device="meta"), graph().to("meta")
    basis, coefficients = torch.empty(3, 2, device="meta"), torch.empty(7, 3, device="meta")
    assert aggregate(x, adj, ALL, basis, coefficients).shape == (4, len(ALL), 2)


@pytest.mark.parametrize("form", ["none", "table"])
def test_gradients_of_half_types_are_summed_in_float32(form):
    """A node with 1000 receivers of one message each: bfloat16 would stop counting at 256."""
    edge_index = torch.stack([torch.zeros(1000, dtype=torch.int64), torch.arange(1000)])
    adjacency = Adjacency.from_edge_index(edge_index, (1, 1000))
    x = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    table = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    kinds = torch.zeros(1000, dtype=torch.int64)
    edge = (None, None) if form == "none" else (table, kinds)
    aggregate(x, adjacency, [Sum()], *edge).sum().backward()
    assert x.grad.tolist() == [[1000.0, 1000.0]]
    assert form == "none" or table.grad.tolist() == [[1000.0, 1000.0]]
