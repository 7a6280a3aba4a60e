"""δ and the scalers, by arithmetic that can be checked by eye.

Degrees 0, 1, 1, 3 have logs 0, log 2, log 2 and 2 log 2, so δ = log 2, and the mean is 1.25.
"""

# mypy: disable-error-code="arg-type, list-item, operator"
# because the tests of errors pass what the types forbid.

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn.aggr import DegreeScalerAggregation

from pna.adjacency import Adjacency
from pna.degree import (
    SCALERS,
    DegreeStats,
    Linear,
    Power,
    counted_degree,
    factor,
    resolve_scalers,
    scale,
    scaler_factors,
    typical_degree,
)

DEGREES = [0, 1, 1, 3]
HISTOGRAM = [1, 2, 0, 1]
LOG2 = math.log(2)


@pytest.fixture
def stats():
    return DegreeStats.from_degrees(DEGREES)


def test_statistics(stats):
    assert stats.num_nodes == 4
    assert stats.mean == 1.25
    assert stats.mean_log == pytest.approx(LOG2, rel=1e-15)
    assert stats.max_degree == 3
    assert stats.histogram.tolist() == HISTOGRAM
    assert repr(stats) == "DegreeStats(num_nodes=4, mean=1.25, mean_log=0.6931, max_degree=3)"


@pytest.mark.parametrize(
    "degrees",
    [
        torch.tensor(DEGREES, dtype=torch.int32),
        torch.tensor(DEGREES, dtype=torch.uint8),
        np.array(DEGREES),
        np.array(DEGREES, dtype=np.uint16),
        tuple(DEGREES),
    ],
    ids=lambda d: f"{type(d).__name__}-{getattr(d, 'dtype', '')}",
)
def test_degrees_of_any_kind(degrees, stats):
    assert DegreeStats.from_degrees(degrees) == stats


@pytest.mark.parametrize(
    "histogram",
    [
        HISTOGRAM,
        [*HISTOGRAM, 0, 0],  # trailing zeros mean nothing
        torch.tensor(HISTOGRAM, dtype=torch.float32),
        np.array(HISTOGRAM),
    ],
    ids=["list", "trailing zeros", "whole floats", "array"],
)
def test_histogram_of_any_kind(histogram, stats):
    assert DegreeStats.from_histogram(histogram) == stats


def test_counts_beyond_float32_are_exact():
    stats = DegreeStats.from_histogram(torch.tensor([0, 2**40, 1]))
    assert stats.num_nodes == 2**40 + 1
    assert stats.mean == (2**40 + 2) / (2**40 + 1)


def test_histogram_is_a_copy(stats):
    stats.histogram[0] = 100
    assert stats.num_nodes == stats.histogram.sum() == 4


BATCHES = st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=8)


@given(BATCHES, st.randoms(use_true_random=False))
def test_streaming_and_merging_in_any_order_equal_all_at_once(batches, order):
    whole = DegreeStats.from_degrees([d for batch in batches for d in batch])

    shuffled = order.sample(batches, len(batches))
    streamed, merged, added = DegreeStats(), DegreeStats(), DegreeStats()
    for batch in shuffled:
        streamed.update(batch)
        merged.merge(DegreeStats.from_degrees(batch))
        added = DegreeStats.from_degrees(batch) + added

    assert streamed == merged == added == whole
    if whole.num_nodes:
        assert streamed.mean_log == merged.mean_log == added.mean_log == whole.mean_log
        degrees = [d for batch in batches for d in batch]
        logs = math.fsum(math.log1p(d) for d in degrees)
        assert whole.mean_log == pytest.approx(logs / len(degrees), rel=1e-14)
        assert whole.mean == pytest.approx(sum(degrees) / len(degrees), rel=1e-15)


def test_adding_leaves_both_sides_alone(stats):
    other = DegreeStats.from_degrees([9])
    assert (stats + other).num_nodes == 5
    assert stats.num_nodes == 4
    assert other.num_nodes == 1


def test_equality_is_of_counts(stats):
    assert stats != DegreeStats.from_degrees([0, 1, 2, 3])
    assert stats != DegreeStats()
    assert stats != HISTOGRAM


def test_state_survives_safetensors(stats):
    loaded, empty = DegreeStats(), DegreeStats.from_degrees([1])
    loaded.load_state_dict(load(save(stats.state_dict())))
    empty.load_state_dict(load(save(DegreeStats().state_dict())))
    assert loaded == stats
    assert empty == DegreeStats()


def star(leaves, isolated):
    """Every leaf sends to the centre, node 0; in-degrees (leaves, 0, 0, …)."""
    edge_index = torch.stack([torch.arange(1, leaves + 1), torch.zeros(leaves, dtype=torch.int64)])
    return Data(x=torch.zeros(1 + leaves + isolated, 1), edge_index=edge_index)


class InMemory(InMemoryDataset):
    def __init__(self, graphs):
        super().__init__()
        self.data, self.slices = self.collate(graphs)


GRAPHS = [star(2, isolated=1), star(3, isolated=0)]  # in-degrees 2 0 0 0 and 3 0 0 0
ADJACENCIES = [Adjacency.from_edge_index(g.edge_index, g.num_nodes) for g in GRAPHS]


@pytest.mark.parametrize(
    "graphs",
    [
        GRAPHS,
        iter(GRAPHS),
        DataLoader(GRAPHS, batch_size=2),
        Batch.from_data_list(GRAPHS),
        InMemory(GRAPHS),
        ADJACENCIES,
        [SimpleNamespace(adjacency=a) for a in ADJACENCIES],
        Adjacency.disjoint_union(ADJACENCIES),
        [Data(edge_index=g.edge_index, num_nodes=4, degree=torch.ones(4)) for g in GRAPHS],
        [Data(edge_index=EdgeIndex(g.edge_index), num_nodes=4) for g in GRAPHS],
        [Data(edge_index=g.edge_index.int(), num_nodes=4) for g in GRAPHS],
    ],
    ids=[
        "list",
        "iterator",
        "loader",
        "one batch",
        "data set",
        "adjacencies",
        "holders of an adjacency",
        "one adjacency",
        "an attribute named degree",
        "EdgeIndex",
        "int32",
    ],
)
def test_graphs_of_any_kind_count_isolated_nodes(graphs):
    assert DegreeStats.from_graphs(graphs).histogram.tolist() == [6, 0, 1, 1]


def test_an_edge_type_of_heterogeneous_data():
    """Two accounts send three edges to the first of four merchants, which counts all four."""
    data = HeteroData()
    data["account"].num_nodes, data["merchant"].num_nodes = 2, 4
    data["account", "pays", "merchant"].edge_index = torch.tensor([[0, 0, 1], [0, 0, 0]])
    edges = data["account", "pays", "merchant"]
    assert DegreeStats.from_graphs(edges).histogram.tolist() == [3, 0, 0, 1]
    assert DegreeStats.from_graphs(edges, outgoing=True).histogram.tolist() == [0, 1, 1]


def test_a_graph_without_edges_counts_its_nodes():
    graph = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=3)
    assert DegreeStats.from_graphs([graph]).histogram.tolist() == [3]


def test_no_graphs_are_no_nodes():
    assert DegreeStats.from_graphs([]) == DegreeStats()


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (dict(num_sampled_nodes=[1, 2], n_id=torch.arange(3)), "num_sampled_nodes"),
        (dict(num_sampled_nodes=None, n_id=torch.arange(3), input_id=[0]), "n_id and input_id"),
        (dict(root_n_id=torch.tensor([0])), "root_n_id"),
    ],
    ids=["NeighborLoader", "without counts", "ShaDowKHopSampler"],
)
def test_sampled_batches_are_doubted_once(attributes, said):
    batch = Data(edge_index=torch.tensor([[1, 2], [0, 0]]), num_nodes=3, **attributes)
    for graphs in (batch, [batch, batch], iter([batch])):
        with pytest.warns(UserWarning, match=rf"sampled neighbours \(it has {said}\)") as caught:
            stats = DegreeStats.from_graphs(graphs)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert stats.max_degree == 2


@pytest.mark.filterwarnings("error")
def test_whole_graphs_are_not_doubted():
    """Also if a user keeps numbers of nodes, and with the true degrees of a sampled batch."""
    edge_index = torch.tensor([[1, 2], [0, 0]])
    whole = Data(edge_index=edge_index, num_nodes=3, n_id=torch.arange(3))
    assert DegreeStats.from_graphs(whole).histogram.tolist() == [2, 0, 1]
    sampled = Adjacency.from_edge_index(edge_index, 3, degree=torch.tensor([3, 1, 1]))
    assert DegreeStats.from_graphs(sampled).histogram.tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: DegreeStats().mean, ValueError, "no nodes.*from_graphs"),
        (lambda: DegreeStats().mean_log, ValueError, "no nodes.*from_graphs"),
        (lambda: DegreeStats().max_degree, ValueError, "no nodes.*from_graphs"),
        (lambda: DegreeStats.from_degrees([[1, 2]]), ValueError, r"\(1, 2\).*\(nodes,\)"),
        (lambda: DegreeStats.from_degrees([1.0, 2.0]), TypeError, r"float32.*degrees\.long"),
        (lambda: DegreeStats.from_degrees([True]), TypeError, "bool.*integer"),
        (lambda: DegreeStats.from_degrees([1, -2]), ValueError, "degree of -2.*0 or more"),
        (lambda: DegreeStats.from_histogram([[1, 2]]), ValueError, r"\(1, 2\).*bincount"),
        (lambda: DegreeStats.from_histogram([3, -1]), ValueError, "-1 nodes of degree 1"),
        (lambda: DegreeStats.from_histogram([0.5, 0.5]), ValueError, "0.5 in it.*frequencies"),
        (lambda: DegreeStats.from_histogram([1.0, math.inf]), ValueError, "inf in it"),
        (lambda: DegreeStats.from_histogram([1.0, math.nan]), ValueError, "nan in it"),
        (lambda: DegreeStats.from_histogram([True, False]), TypeError, "bool.*bincount"),
        (lambda: DegreeStats.from_histogram([0, 0]), ValueError, "no nodes.*bincount"),
        (lambda: DegreeStats.from_histogram([]), ValueError, "no nodes.*bincount"),
        (lambda: DegreeStats().load_state_dict({"deg": torch.ones(1)}), ValueError, "'deg'"),
        (
            lambda: DegreeStats().load_state_dict({"histogram": torch.tensor([0.5])}),
            ValueError,
            "0.5 in it",
        ),
        (lambda: DegreeStats.from_graphs([1]), TypeError, "got int, expected a PyG Data"),
        (lambda: DegreeStats.from_graphs([HeteroData()]), TypeError, "got HeteroData"),
        (
            lambda: DegreeStats.from_graphs(HeteroData()),
            TypeError,
            r"HeteroData.*data\[edge_type\] of each edge type",
        ),
        (lambda: DegreeStats.from_graphs([Data(x=torch.ones(2, 1))]), TypeError, "edge_index"),
        (
            lambda: DegreeStats.from_graphs(
                Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=2)
            ),
            ValueError,
            "receiver 2 in edge 1, expected a node.*num_nodes is 2",
        ),
        (
            lambda: DegreeStats.from_graphs(
                Data(edge_index=torch.tensor([[0, 1], [1, -1]]), num_nodes=2)
            ),
            ValueError,
            "receiver -1 in edge 1, expected a node.*num_nodes is 2",
        ),
        (
            lambda: DegreeStats.from_graphs(
                Data(edge_index=torch.tensor([[0, 1], [1, 0], [0, 0]]), num_nodes=2)
            ),
            ValueError,
            r"\(3, 2\).*\(2, edges\)",
        ),
        (lambda: DegreeStats() + 1, TypeError, r"got int, expected DegreeStats.*update"),
        (lambda: DegreeStats().merge(torch.ones(1)), TypeError, r"got Tensor.*update"),
        (lambda: hash(DegreeStats()), TypeError, "unhashable"),
    ],
)
def test_statistics_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make()


AT_DEGREE_1 = {
    "identity": 1.0,
    "amplification": 1.0,
    "attenuation": 1.0,
    "linear": 0.8,
    "inverse_linear": 1.25,
}
AT_DEGREE_3 = {
    "identity": 1.0,
    "amplification": 2.0,  # log 4 / log 2
    "attenuation": 0.5,
    "linear": 2.4,  # 3 / 1.25
    "inverse_linear": 1 / 2.4,
}


@pytest.mark.parametrize("name", SCALERS)
def test_named_scalers(name, stats):
    factors = scaler_factors(torch.tensor([0, 1, 3]), [name], stats, torch.float64)
    expected = [AT_DEGREE_1[name], AT_DEGREE_1[name], AT_DEGREE_3[name]]  # 0 counts as 1
    torch.testing.assert_close(factors, torch.tensor(expected).double()[:, None], rtol=1e-7, atol=0)


def test_any_alpha(stats):
    degree = torch.tensor([1, 3])
    scalers = [Power(0.5), Power(-2.0), Power(1, delta=2 * LOG2), Linear(2, delta=3)]
    factors = scaler_factors(degree, scalers, stats)
    expected = torch.tensor([[1, 1, 0.5, 1 / 9], [2**0.5, 0.25, 1, 1]])
    torch.testing.assert_close(factors, expected)


@pytest.mark.parametrize("family", [Power, Linear])
@pytest.mark.parametrize("alpha", [1.0, -1.0, 0.5])
def test_learned_and_given_numbers_have_the_same_factors(family, alpha):
    """α = ±1 as a number is a quotient, as a tensor a power."""
    degree = counted_degree(torch.tensor([0, 1, 3, 100]), torch.float64)
    given = factor(family(alpha), degree, alpha, 1.7)
    learned = factor(family(alpha), degree, torch.tensor([alpha]).double(), torch.tensor([[1.7]]))
    torch.testing.assert_close(given, learned, rtol=1e-6, atol=0)


def test_a_factor_takes_α_and_δ_in_place_of_the_scalers_own():
    degree = counted_degree(torch.tensor([6]), torch.float32)
    assert factor(Linear(1.0, delta=3.0), degree, 2.0, 2.0).tolist() == [9]


@pytest.mark.parametrize(
    "dtype, kept",
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_a_degree_of_0_counts_as_1(dtype, kept):
    counted = counted_degree(torch.tensor([0, 1, 300]), dtype)
    assert counted.tolist() == [1, 1, 300]
    assert counted.dtype == kept


def test_identity_is_an_α_of_0_that_is_not_learned():
    scalers = resolve_scalers([*SCALERS, Power(0), Linear(0.0), Power(torch.tensor(0.0))])
    assert [s.is_identity for s in scalers] == [True] + [False] * 4 + [True, True, False]


def test_typical_degrees(stats):
    assert typical_degree(Power(1.0), stats) == pytest.approx(LOG2)
    assert typical_degree(Linear(1.0), stats) == 1.25


def test_scale_is_the_outer_product(stats):
    out = torch.tensor([[[1.0, 10.0], [2.0, 20.0]]])  # one receiver, mean and max, two features
    scaled = scale(out, torch.tensor([3]), ["identity", "amplification", "attenuation"], stats)
    expected = [[[1, 10], [2, 20]], [[2, 20], [4, 40]], [[0.5, 5], [1, 10]]]
    torch.testing.assert_close(scaled, torch.tensor([expected]))


def test_identity_and_own_delta_need_no_statistics():
    out = torch.ones(1, 1, 1)
    scaled = scale(out, torch.tensor([6]), ["identity", Power(0.0), Linear(1.0, delta=2.0)])
    assert scaled.flatten().tolist() == [1, 1, 3]


def test_sum_is_mean_times_degree():
    x = torch.tensor([[1.0], [2.0], [6.0], [5.0]])
    senders, receivers = torch.tensor([[0, 1, 2, 3, 3], [0, 0, 0, 1, 1]])
    index, messages = receivers[:, None], x[senders]
    mean, total = (
        torch.zeros(3, 1).scatter_reduce(0, index, messages, reduce, include_self=False)
        for reduce in ("mean", "sum")
    )
    degree = torch.bincount(receivers, minlength=3)
    scaled = scale(mean[:, None], degree, [Linear(1.0, delta=1.0)])
    assert scaled.flatten().tolist() == total.flatten().tolist() == [9, 10, 0]


def test_no_receivers(stats):
    degree = torch.zeros(0, dtype=torch.int64)
    assert scale(torch.ones(0, 4, 5), degree, list(SCALERS), stats).shape == (0, 5, 4, 5)


def test_degree_of_any_integer_type(stats):
    for dtype in (torch.int32, torch.int16, torch.uint8):
        factors = scaler_factors(torch.tensor(DEGREES, dtype=dtype), list(SCALERS), stats)
        expected = scaler_factors(torch.tensor(DEGREES), list(SCALERS), stats)
        torch.testing.assert_close(factors, expected, rtol=0, atol=0)


def test_half_precision_is_rounded_once():
    out = torch.full((1, 1, 1), 5.0, dtype=torch.bfloat16)
    third = Linear(1.0, delta=3.0)
    assert scaler_factors(torch.tensor([1]), [third], dtype=out.dtype).dtype == torch.float32
    scaled = scale(out, torch.tensor([1]), [third])
    assert scaled.dtype == torch.bfloat16
    assert scaled.item() == 1.6640625  # 1.671875, had the factor been rounded to bfloat16 first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_of_another_type_leave_the_factors_alone(dtype):
    alpha = torch.tensor([2.0], dtype=torch.bfloat16)
    delta = torch.tensor([3.0], dtype=torch.float64)
    factors = scaler_factors(torch.tensor([6]), [Linear(alpha, delta)], dtype=dtype)
    assert factors.dtype == dtype
    assert factors.item() == 4


@pytest.mark.parametrize("family", [Power, Linear])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.3, 1.0])
def test_gradients_of_alpha_and_delta(family, alpha):
    out = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    degree = torch.tensor([0, 0, 1, 2, 9])
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    delta = torch.tensor([1.7], dtype=torch.float64, requires_grad=True)

    def scaled(out, alpha, delta):
        return scale(out, degree, [family(alpha, delta), family(alpha, 0.9)])

    assert torch.autograd.gradcheck(scaled, (out, alpha, delta))


@pytest.mark.parametrize("family", [Power, Linear])
def test_degree_zero_has_the_gradient_of_degree_one(family):
    gradients = []
    for degree in (0, 1):
        alpha = torch.tensor(0.0, requires_grad=True)
        delta = torch.tensor(2.0, requires_grad=True)
        factors = scaler_factors(torch.tensor([degree]), [family(alpha, delta)])
        gradients.append(torch.autograd.grad(factors.sum(), [alpha, delta]))
    (alpha_0, delta_0), (alpha_1, delta_1) = gradients
    # d/dα b^α = log b at α = 0, with b = log 2 / 2 or 1 / 2
    expected = math.log(LOG2 / 2) if family is Power else math.log(1 / 2)
    assert alpha_0.item() == alpha_1.item() == pytest.approx(expected)
    assert delta_0.item() == delta_1.item() == 0


def random_messages():
    torch.manual_seed(0)
    receivers = torch.tensor([0, 0, 1, 3, 3, 3, 3])  # node 2 has no in-neighbours
    return torch.randn(7, 5), receivers, torch.bincount(receivers, minlength=4)


def test_agrees_with_pyg():
    messages, receivers, degree = random_messages()
    stats = DegreeStats.from_degrees(degree)
    names = list(SCALERS)
    peer = DegreeScalerAggregation(["mean", "max"], names, deg=stats.histogram)
    assert stats.mean_log == pytest.approx(peer.init_avg_deg_log, rel=1e-6)
    assert stats.mean == pytest.approx(peer.init_avg_deg_lin, rel=1e-6)

    aggregated = peer.aggr(messages, receivers, dim_size=4).reshape(4, 2, 5)
    ours = scale(aggregated, degree, names, stats)
    torch.testing.assert_close(ours.flatten(1), peer(messages, receivers, dim_size=4))


def test_learned_delta_agrees_with_pyg():
    messages, receivers, degree = random_messages()
    deg = torch.bincount(degree)
    peer = DegreeScalerAggregation(
        ["mean"], ["amplification", "attenuation", "linear", "inverse_linear"], deg, train_norm=True
    )
    weight = torch.randn(4, 20)
    (peer(messages, receivers, dim_size=4) * weight).sum().backward()

    log = peer.avg_deg_log.detach().clone().requires_grad_()
    lin = peer.avg_deg_lin.detach().clone().requires_grad_()
    scalers = [Power(1.0, log), Power(-1.0, log), Linear(1.0, lin), Linear(-1.0, lin)]
    mean = peer.aggr(messages, receivers, dim_size=4)[:, None]
    (scale(mean, degree, scalers).flatten(1) * weight).sum().backward()
    torch.testing.assert_close(log.grad, peer.avg_deg_log.grad)
    torch.testing.assert_close(lin.grad, peer.avg_deg_lin.grad)


def test_vmap_over_aggregates_and_learned_parameters(stats):
    degree = torch.tensor(DEGREES)
    out = torch.randn(3, 4, 2, 5)  # three members of a population
    alpha, delta = torch.tensor([-0.5, 0.0, 1.5]), torch.tensor([0.5, 1.0, 2.0])

    def scaled(out, alpha, delta):
        return scale(out, degree, ["amplification", Power(alpha, delta), Linear(alpha)], stats)

    together = torch.vmap(scaled)(out, alpha, delta)
    one_by_one = [scaled(*member) for member in zip(out, alpha, delta, strict=True)]
    torch.testing.assert_close(together, torch.stack(one_by_one))


@pytest.mark.slow
def test_compiles_whole_and_follows_the_statistics(stats):
    degree = torch.tensor(DEGREES)

    def scaled(out, alpha, delta, stats):
        return scale(out, degree, [*SCALERS, Power(alpha, delta), Linear(alpha)], stats)

    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        results = []
        for function in (scaled, compiled):
            out = torch.arange(24.0).reshape(4, 2, 3).requires_grad_()
            alpha = torch.tensor(0.3, requires_grad=True)
            delta = torch.tensor([1.2], requires_grad=True)
            result = function(out, alpha, delta, stats)
            results.append((result, *torch.autograd.grad(result.sum(), [out, alpha, delta])))
        torch.testing.assert_close(results[0], results[1])
        stats.update([5, 6])  # a compiled function must not remember the old δ


OUT_ONE, DEGREE_ONE = torch.ones(1, 1, 1), torch.tensor([1])
NO_EDGES = DegreeStats.from_degrees([0, 0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: scale(torch.ones(2, 3), DEGREE_ONE, ["identity"]), ValueError, r"\(2, 3\)"),
        (lambda: scale(OUT_ONE.long(), DEGREE_ONE, ["identity"]), TypeError, r"int64.*float"),
        (
            lambda: scale(OUT_ONE, DEGREE_ONE.to("meta"), ["identity"]),
            ValueError,
            r"cpu and degree on meta.*to\(out\.device\)",
        ),
        (
            lambda: scale(OUT_ONE, torch.tensor([1, 2]), ["identity"]),
            ValueError,
            "2 degrees for 1 receivers",
        ),
        (lambda: scale(OUT_ONE, DEGREE_ONE[None], ["identity"]), ValueError, r"\(1, 1\)"),
        (lambda: scale(OUT_ONE, [1], ["identity"]), TypeError, "degree of type list"),
        (lambda: scale(OUT_ONE, torch.ones(1), ["identity"]), TypeError, r"float32.*\.long"),
        (lambda: scale(OUT_ONE, torch.tensor([True]), ["identity"]), TypeError, "bool"),
        (lambda: scale(OUT_ONE, DEGREE_ONE, []), ValueError, "no scalers"),
        (lambda: scale(OUT_ONE, DEGREE_ONE, "identity"), TypeError, r"write \['identity'\]"),
        (lambda: scale(OUT_ONE, DEGREE_ONE, Power(0.0)), TypeError, "expected a list"),
        (
            lambda: scale(OUT_ONE, DEGREE_ONE, ["amplificaton"]),
            ValueError,
            "unknown scaler 'amplificaton'; did you mean 'amplification'",
        ),
        (lambda: scale(OUT_ONE, DEGREE_ONE, [1.0]), TypeError, "float, expected a name"),
        (
            lambda: scale(OUT_ONE, DEGREE_ONE, ["linear"], torch.tensor(HISTOGRAM)),
            TypeError,
            "Tensor.*from_histogram",
        ),
        (lambda: scale(OUT_ONE, DEGREE_ONE, ["attenuation"]), ValueError, "no stats.*delta"),
        (
            lambda: scale(OUT_ONE, DEGREE_ONE, ["linear"], DegreeStats()),
            ValueError,
            "no nodes.*from_graphs",
        ),
        (
            lambda: scale(OUT_ONE, DEGREE_ONE, ["amplification"], NO_EDGES),
            ValueError,
            "δ = 0.*identity.*--model pna-no-scalers",
        ),
        (lambda: scale(OUT_ONE, DEGREE_ONE, ["linear"], NO_EDGES), ValueError, "δ = 0.*identity"),
        (lambda: Power(1.0, delta=0.0), ValueError, "delta=0.0, expected a positive"),
        (lambda: Linear(1.0, delta=-1.0), ValueError, "delta=-1.0, expected a positive"),
        (lambda: Power(math.nan), ValueError, "alpha=nan, expected a finite"),
        (lambda: Power(torch.ones(2)), ValueError, r"alpha of shape \(2,\)"),
        (lambda: Linear(1.0, torch.ones(2)), ValueError, r"delta of shape \(2,\)"),
        (lambda: Power("amplification"), TypeError, "alpha of type str"),
        (lambda: Power(None), TypeError, "alpha of type NoneType"),
    ],
)
def test_scalers_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_identity_alone_works_on_graphs_without_edges():
    assert scale(OUT_ONE, torch.tensor([0]), ["identity"], NO_EDGES).item() == 1
