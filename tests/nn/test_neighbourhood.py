"""The aggregators and scalers of a layer, and what of them is learned."""

import copy
import math
import warnings
from unittest import mock

import pytest
import torch
from torch import nn

from pna.adjacency import Adjacency
from pna.degree import SCALERS, DegreeStats, Linear, Power, scaler_factors
from pna.nn import PNAConv
from pna.nn.batch_context import batch_context
from pna.nn.neighbourhood import Neighbourhood
from pna.ops.aggregators import Max, Softmax, Std
from tests.nn.graph_cases import graphs

DEG = torch.tensor([1, 2, 0, 1])  # degrees 0, 1, 1, 3: δ = log 2, mean 1.25
STATS = DegreeStats.from_histogram(DEG)
DEGREES = (0, 1, 3, 9)


def graph_of(*degrees):
    """Receivers of these degrees, all hearing one sender."""
    receivers = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees))
    edge_index = torch.stack([torch.zeros_like(receivers), receivers])
    return Adjacency.from_edge_index(edge_index, (1, len(degrees)))


@pytest.mark.parametrize("deg", [DEG, STATS, DEG.double()], ids=["histogram", "stats", "floats"])
def test_factors_are_those_of_the_scalers(deg):
    scalers = [*SCALERS, Power(0.5), Power(-2.0), Linear(2.0, delta=3.0), Power(1.0, delta=0.7)]
    got = Neighbourhood(["mean"], scalers, deg).double().factors(graph_of(*DEGREES), torch.float64)
    expected = scaler_factors(torch.tensor(DEGREES), scalers, STATS, torch.float64)
    assert (got[0] == 0).all()  # where nothing arrives there is nothing to scale
    torch.testing.assert_close(got[1:], expected[1:], rtol=1e-6, atol=0)  # δ was kept in float32


def test_the_kernel_gives_the_factors_of_the_definition(triton):
    """Of all usual scalers at once; what is not usual is left to the definition."""
    graph = graph_of(*DEGREES, 300).to(triton.device)
    for scalers in ([*SCALERS], [*SCALERS, Power(0.5)]):
        neighbourhood = Neighbourhood(["mean"], scalers, DEG).to(triton.device)
        assert neighbourhood._has_kernel(graph, torch.float32) == (len(scalers) == len(SCALERS))
        got = neighbourhood.factors(graph, torch.float32)
        expected = scaler_factors(graph.degree, scalers, STATS)
        assert (got[0] == 0).all()
        torch.testing.assert_close(got[1:], expected[1:], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "dtype, kept",
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_factors_are_kept_in_float32_or_better(dtype, kept):
    neighbourhood = Neighbourhood(["mean"], list(SCALERS), DEG)
    assert neighbourhood.factors(graph_of(*DEGREES), dtype).dtype == kept


def test_δ_is_kept_in_the_state_and_learned_if_asked():
    fixed = Neighbourhood(["mean"], ["amplification"], DEG)
    assert fixed.mean_log_degree.item() == pytest.approx(math.log(2))
    assert fixed.mean_degree.item() == 1.25
    assert set(fixed.state_dict()) == {"mean_degree", "mean_log_degree"}
    assert list(fixed.parameters()) == []
    learned = Neighbourhood(["mean"], ["amplification", "linear"], DEG, train_norm=True)
    assert set(dict(learned.named_parameters())) == {"mean_degree", "mean_log_degree"}
    factors = learned.factors(graph_of(3), torch.float32)
    slopes = torch.autograd.grad(factors.sum(), [learned.mean_degree, learned.mean_log_degree])
    # of 3/δ and log 4/δ
    assert [s.item() for s in slopes] == pytest.approx([-3 / 1.25**2, -2 / math.log(2)])


def test_another_δ_can_be_loaded():
    ours, other = Neighbourhood(["mean"], ["linear"], DEG), DegreeStats.from_degrees([5])
    ours.load_state_dict(Neighbourhood(["mean"], ["linear"], other).state_dict())
    assert ours.factors(graph_of(10), torch.float32).item() == 2
    ours.reset_parameters()  # which is about what is learned
    assert ours.factors(graph_of(10), torch.float32).item() == 2


def test_δ_has_all_its_digits_in_float64():
    """As it was given; one that was loaded or written has those of its type."""
    ours = Neighbourhood(["mean"], ["amplification"], DEG)
    assert ours.mean_log_degree.item() != math.log(2)
    assert ours.double().mean_log_degree.item() == math.log(2)
    assert ours.float().double().mean_log_degree.item() == math.log(2)
    other = Neighbourhood(["mean"], ["amplification"], DegreeStats.from_degrees([2, 5]))
    other.load_state_dict(ours.float().state_dict())
    assert other.double().mean_log_degree.item() == ours.float().mean_log_degree.item()
    learned = Neighbourhood(["mean"], ["amplification"], DEG, train_norm=True)
    assert learned.double().mean_log_degree.item() == torch.tensor(math.log(2)).item()
    assert ours.to("meta").double().mean_log_degree.is_meta


@pytest.mark.parametrize("deg", [DEG, STATS], ids=["histogram", "stats"])
def test_δ_is_there_after_memory_is_given_late(deg):
    """As torch's way of initialising large models has it."""
    with torch.device("meta"):
        made = Neighbourhood(["mean"], ["amplification", "linear"], deg)
    late = made.to_empty(device="cpu")
    expected = Neighbourhood(["mean"], ["amplification", "linear"], deg)
    for name, buffer in expected.named_buffers():
        assert torch.equal(late.get_buffer(name), buffer), name


def test_a_learned_δ_is_reset():
    ours = Neighbourhood(["mean"], ["linear"], DEG, train_norm=True)
    before = ours.mean_degree.clone()
    with torch.no_grad():
        ours.mean_degree.fill_(9.0)
    ours.reset_parameters()
    assert torch.equal(ours.mean_degree, before)


def made(trainable):
    kind = nn.Parameter if trainable else torch.Tensor.clone
    return Neighbourhood(
        ["mean", Softmax(kind(torch.tensor([2.0])))],
        ["identity", Power(kind(torch.tensor(0.5)), kind(torch.tensor([1.5])))],
        None,
    )


TENSORS = {"aggregator_1_temperature", "scaler_1_alpha", "scaler_1_delta"}


@pytest.mark.parametrize("trainable", [True, False])
def test_tensors_become_parameters_if_they_are_and_buffers_otherwise(trainable):
    neighbourhood = made(trainable)
    assert TENSORS <= set(neighbourhood.state_dict())
    assert set(dict(neighbourhood.named_parameters())) == (TENSORS if trainable else set())


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("through", ["double", "deepcopy", "load", "functional_call"])
def test_tensors_are_those_that_the_module_holds_now(trainable, through):
    """However they came there: (log 2 / 1.5)^0.5 becomes (log 2 / 3)^2."""
    neighbourhood = made(trainable)
    values = dict(neighbourhood.state_dict())
    values |= {
        "aggregator_1_temperature": torch.tensor([5.0]),
        "scaler_1_alpha": torch.tensor(2.0),
        "scaler_1_delta": torch.tensor([3.0]),
    }
    if through == "double":
        neighbourhood = neighbourhood.double()
        values = {name: value.double() for name, value in values.items()}
        neighbourhood.load_state_dict(values)
        assert neighbourhood.aggregators[1].temperature.dtype == torch.float64
    elif through == "deepcopy":
        original, neighbourhood = neighbourhood, copy.deepcopy(neighbourhood)
        neighbourhood.load_state_dict(values)
        assert original.aggregators[1].temperature.item() == 2
    elif through == "load":
        neighbourhood.load_state_dict(values)
    if through == "functional_call":
        holder = Holder(neighbourhood)
        values = {f"held.{name}": value for name, value in values.items()}
        factor, temperature = torch.func.functional_call(holder, values, ())
    else:
        factor, temperature = Holder(neighbourhood)()
    assert factor.item() == pytest.approx((math.log(2) / 3) ** 2)
    assert temperature.item() == 5


class Holder(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self):
        factors = self.held.factors(graph_of(1), torch.float64)
        return factors[0, 1], self.held.aggregators[1].temperature


@pytest.mark.parametrize(
    "std, given, clamp",
    [
        ("paper", "std", False),
        ("pyg", "std", True),
        ("pyg", Std, True),
        ("pyg", Std(), False),  # an object says itself what it is
        ("paper", Std(clamp=True), True),
    ],
    ids=str,
)
def test_the_convention_of_std_is_of_names(std, given, clamp):
    neighbourhood = Neighbourhood([given, Max], ["identity"], None, std=std)
    assert neighbourhood.aggregators[0].clamp == clamp


def test_factors_of_a_graph_are_remembered():
    neighbourhood, graph = Neighbourhood(["mean"], ["linear"], DEG), graph_of(*DEGREES)
    with mock.patch.object(neighbourhood, "_factors", wraps=neighbourhood._factors) as compute:
        first, second = (neighbourhood.factors(graph, torch.float32) for _ in range(2))
        assert compute.call_count == 1
        assert torch.equal(first, second)
        neighbourhood.factors(graph_of(*DEGREES), torch.float32)
        assert compute.call_count == 2


def write(neighbourhood):
    neighbourhood.mean_degree.fill_(10)


def replace_buffer(neighbourhood):
    neighbourhood.mean_degree = torch.tensor([10.0])


def load(neighbourhood):
    other = Neighbourhood(["mean"], ["linear"], DegreeStats.from_degrees([10]))
    neighbourhood.load_state_dict(other.state_dict())


@pytest.mark.parametrize("change", [write, replace_buffer, load])
def test_another_δ_is_not_mistaken_for_the_one_remembered(change):
    neighbourhood, graph = Neighbourhood(["mean"], ["linear"], DEG), graph_of(5)
    assert neighbourhood.factors(graph, torch.float32).item() == 4
    change(neighbourhood)
    assert neighbourhood.factors(graph, torch.float32).item() == 0.5


def test_another_type_is_not_mistaken_for_the_one_remembered():
    neighbourhood, graph = Neighbourhood(["mean"], ["linear"], DEG), graph_of(5)
    for dtype in (torch.float32, torch.float64, torch.float32):
        assert neighbourhood.factors(graph, dtype).dtype == dtype


def test_what_is_remembered_in_inference_mode_serves_training():
    neighbourhood, graph = Neighbourhood(["mean"], ["linear"], DEG), graph_of(5)
    with torch.inference_mode():
        neighbourhood.factors(graph, torch.float32)
    x = torch.ones(1, requires_grad=True)
    (x * neighbourhood.factors(graph, torch.float32)).sum().backward()
    assert x.grad.item() == 4


def test_what_is_made_in_inference_mode_works_there():
    graph = graph_of(5)
    with torch.inference_mode():
        neighbourhood = Neighbourhood(["mean"], ["linear"], DEG)
        assert neighbourhood.factors(graph, torch.float32).item() == 4


def test_layers_with_the_same_δ_share_factors(triton):
    """Of one graph, in one pass, as the kernel gives them; whatever differs has its own."""
    from pna.ops.triton import factors as kernels

    batch = graphs().batch().to(triton.device)
    other = Adjacency.from_edge_index(torch.tensor([[0], [1]], device=triton.device), 2)

    def layer(deg=DEG, scalers=SCALERS):
        return Neighbourhood(["mean"], [*scalers], deg).to(triton.device)

    layers = [layer(), layer(), layer(STATS), layer(DEG + 1), layer(scalers=["identity"]), layer()]
    layers[-1].mean_log_degree.fill_(2)
    with mock.patch.object(kernels, "factors", wraps=kernels.factors) as compute:
        with batch_context(batch):
            got = [each.factors(batch.adjacency, torch.float32) for each in layers]
            assert compute.call_count == 4
            assert got[0] is got[1] is got[2]
            layers[1].factors(other, torch.float32)
            assert compute.call_count == 5
        with batch_context(batch):  # what was made is gone, but for what each layer remembers
            again = layers[1].factors(batch.adjacency, torch.float32)
            assert compute.call_count == 6
    assert torch.equal(again, got[1])
    for each, factors in zip(layers, got, strict=True):
        torch.testing.assert_close(factors, layers_own(each, batch.adjacency))


def layers_own(neighbourhood, adjacency):
    """Its factors by the definition."""
    with mock.patch.object(neighbourhood, "_has_kernel", return_value=False):
        return neighbourhood._factors(adjacency, torch.float32)


def test_δ_that_cannot_be_read_is_not_compared(triton):
    """As in a capture: two layers that have the same are computed each; once read, it is known."""
    batch = graphs().batch().to(triton.device)
    one, two = (Neighbourhood(["mean"], ["linear"], DEG).to(triton.device) for _ in range(2))
    for known in (False, True):
        no = mock.Mock(return_value=False)
        hidden = mock.patch.multiple("pna.nn.neighbourhood", values_visible=no, values_readable=no)
        with hidden, batch_context(batch):
            got = [each.factors(batch.adjacency, torch.float32) for each in (one, two)]
        assert (got[0] is got[1]) is known
        assert torch.equal(*got)
        for each in (one, two):
            each.factors(batch.adjacency, torch.float32)


def test_learned_factors_are_computed_each_time():
    """Their history is used up by a backward pass."""
    neighbourhood = Neighbourhood(["mean"], ["linear"], DEG, train_norm=True)
    graph = graph_of(5)
    for _ in range(2):
        neighbourhood.factors(graph, torch.float32).sum().backward()
    assert neighbourhood.mean_degree.grad.item() == pytest.approx(-2 * 5 / 1.25**2)


def test_copied_after_use():
    neighbourhood, graph = Neighbourhood(["mean"], ["linear"], DEG), graph_of(5)
    neighbourhood.factors(graph, torch.float32)
    other = copy.deepcopy(neighbourhood)
    other.mean_degree.fill_(10)
    assert other.factors(graph, torch.float32).item() == 0.5
    assert neighbourhood.factors(graph, torch.float32).item() == 4


def test_counts():
    neighbourhood = Neighbourhood(["mean", "max"], list(SCALERS), DEG)
    assert (neighbourhood.num_aggregators, neighbourhood.num_scalers) == (2, 5)
    assert repr(neighbourhood) == "Neighbourhood(['mean', 'max'], 5 scalers)"


def test_identity_and_own_δ_need_no_degrees():
    scalers = ["identity", Power(0.0), Linear(1.0, delta=2.0)]
    factors = Neighbourhood(["mean"], scalers, None).factors(graph_of(6), torch.float32)
    assert factors.tolist() == [[1, 1, 3]]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((["mean"], ["linear"], [1, 2]), TypeError, r"deg of type list.*DegreeStats\.from_graphs"),
        ((["mean"], ["linear"], None), ValueError, "no stats, expected them for Linear"),
        ((["mean"], ["linear"], torch.zeros(3)), ValueError, "no nodes.*bincount"),
        ((["mean"], ["linear"], torch.tensor([4])), ValueError, "δ = 0.*identity"),
        ((["mean"], [Power(torch.tensor(0.5))], None), ValueError, "no stats"),
        ((["mean"], ["linea"], DEG), ValueError, "unknown scaler 'linea'; did you mean 'linear'"),
        ((["mean"], [], DEG), ValueError, "no scalers"),
        ((["men"], ["linear"], DEG), ValueError, "unknown aggregator 'men'; did you mean 'mean'"),
        (("mean", ["linear"], DEG), TypeError, r"write \['mean'\]"),
        (
            (["std"], ["linear"], DEG, False, "pig"),
            ValueError,
            "unknown convention of std 'pig'; did you mean 'pyg'.*paper, pyg",
        ),
    ],
)
def test_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        Neighbourhood(*arguments)


def binomial(nodes, mean):
    """Degrees of a random graph with edges of one probability."""
    each = torch.full((nodes, nodes - 1), mean / (nodes - 1))
    return torch.bernoulli(each, generator=torch.Generator().manual_seed(0)).sum(1).long()


def power_law(nodes, exponent):
    """Degrees d with a frequency of about d ** -exponent, at most 1000."""
    frequencies = torch.arange(1, 1001.0) ** -exponent
    generator = torch.Generator().manual_seed(0)
    return 1 + torch.multinomial(frequencies, nodes, replacement=True, generator=generator)


def exponential(nodes, mean):
    draws = torch.rand(nodes, generator=torch.Generator().manual_seed(0))
    return (-mean * (1 - draws).log()).long()


#: Degrees of every node of training sets.
DEGREES_OF = {
    "uniform": torch.arange(5000) % 6,
    "regular": torch.full((100,), 4),
    "ring": torch.full((32,), 2),
    "grid, 30 by 30": torch.tensor([4 - (i in (0, 29)) - (j in (0, 29))
                                    for i in range(30) for j in range(30)]),
    "sparse binomial": binomial(1000, 4),
    "dense binomial": binomial(100, 20),
    "power law": power_law(20_000, 2.2),
    "molecules": torch.tensor([1, 2, 3, 2, 3, 1, 4, 2, 2, 3]).repeat(50),
}  # fmt: skip

#: More training sets, whose degrees are not told from a histogram.
AND_ALSO = {
    "few nodes": torch.tensor([1, 2, 2, 1]),
    "star": torch.tensor([99] + [1] * 99),
    "most nodes without neighbours": torch.tensor([0, 0, 0, 3, 2]).repeat(100),
    "complete, 64 nodes": torch.full((64,), 63),
    "complete, 2 to 100 nodes": torch.cat([torch.full((n,), n - 1) for n in range(2, 101)]),
    "stars, 5 to 60 leaves": torch.cat([torch.tensor([n] + [1] * n) for n in range(5, 61)]),
    "small binomial": binomial(200, 30),  # over 60% of the degrees up to the largest occur
    "dense binomial, 1000 nodes": binomial(1000, 500),
    "flat power law": power_law(2000, 1.5),
    "exponential": exponential(1000, 30),
    "wide exponential": exponential(100_000, 600),
}


def doubted(deg):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Neighbourhood(["mean"], ["linear"], deg)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32], ids=str)
@pytest.mark.parametrize("name", DEGREES_OF)
def test_warns_where_degrees_were_passed_for_a_histogram(name, dtype):
    degrees = DEGREES_OF[name]
    (said,) = doubted(degrees.to(dtype))
    assert f"got deg of {len(degrees)} entries" in said and "expected a histogram" in said
    assert "pass pna.DegreeStats.from_degrees(deg.long())" in said


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", DEGREES_OF | AND_ALSO)
def test_true_histograms_are_taken_in_silence(name, dtype):
    histogram = torch.bincount((DEGREES_OF | AND_ALSO)[name])
    assert doubted(histogram.to(dtype)) == []
    assert doubted(torch.nn.functional.pad(histogram, (0, 50)).to(dtype)) == []


def test_warns_where_there_are_fewer_nodes_than_neighbours():
    deg = torch.tensor([0, 1, 0, 0, 0, 0, 1])
    with pytest.warns(UserWarning, match=r"2 nodes have degrees of up to 6.*from_degrees"):
        Neighbourhood(["mean"], ["linear"], deg)


@pytest.mark.parametrize("deg", [torch.tensor([0, 1, 0, 0, 1]), DEGREES_OF["regular"]])
def test_nothing_is_said_of_a_histogram_that_is_called_one(deg):
    with pytest.warns(UserWarning, match=r"pass pna\.DegreeStats\.from_histogram\(deg\)"):
        given = Neighbourhood(["mean"], ["linear"], deg)
    stats = DegreeStats.from_histogram(deg)
    assert doubted(stats) == []
    assert given.mean_degree == Neighbourhood(["mean"], ["linear"], stats).mean_degree


def test_the_warning_is_where_the_layer_is_made():
    with pytest.warns(UserWarning, match="from_degrees") as caught:
        PNAConv(8, 8, ["mean"], ["amplification"], DEGREES_OF["uniform"])
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "degrees", [[0, 0], [1], [2, 2, 2], [1, 1, 1, 3], [4, 0, 0, 0]], ids=str
)  # a node with itself, complete graphs with self-loops, stars
def test_histograms_of_small_graphs_are_taken_in_silence(degrees):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Neighbourhood(["mean"], ["identity"], torch.bincount(torch.tensor(degrees)))
