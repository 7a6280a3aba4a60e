"""Every aggregator in PNAConv against the oracle, which makes every message, in float64."""

import pytest
import torch
from torch import Tensor

import pna
from pna.aggregators import Aggregator, Neighbourhoods
from pna.nn import PNAConv
from pna.ops.aggregators import BUILT_IN
from tests.nn.cases import assert_equal_in_norm, numbers, outcome
from tests.nn.conv import oracle
from tests.ops.cases import Graph, examples, random_edges

GRAPH = Graph(random_edges(24, 9, 8), 9)  # nothing reaches the last node
CHANNELS, EDGE_DIM = 3, 2

every_aggregator = pytest.mark.parametrize(
    "aggregator", [a for kind in BUILT_IN for a in examples(kind)], ids=repr
)


class Midrange(Aggregator):
    """(max + min) / 2, of which layers are told how it is shifted."""

    shift = "once"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


class Middle(Aggregator):
    """The same, of which they are not."""

    shift = "unknown"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


class Total(Aggregator):
    """Σ m_j with the rule of weighted sums."""

    shift = "as ones"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.sum(hood.messages)


class SquareMean(Aggregator):
    """Mean of m², which no rule describes."""

    shift = "unknown"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.mean(hood.messages**2)


OWN = {
    Midrange: lambda _, near: (near.messages.amax(0) + near.messages.amin(0)) / 2,
    Middle: lambda _, near: (near.messages.amax(0) + near.messages.amin(0)) / 2,
    Total: lambda _, near: near.messages.sum(0),
    SquareMean: lambda _, near: (near.messages * near.messages).mean(0),
}


@pytest.fixture(autouse=True)
def own_formulas(monkeypatch):
    for kind, formula in OWN.items():
        monkeypatch.setitem(oracle.FORMULAS, kind, formula)


def compared(aggregators, run=lambda layer: layer, towers=1, pre_layers=1, device="cpu"):
    """Output and gradients of a layer, and those of the oracle."""
    torch.manual_seed(0)
    degrees, scalers = [1, 2, 3, 5], ["identity", "amplification"]
    stats = pna.DegreeStats.from_degrees(degrees)
    layer = PNAConv(
        CHANNELS, 2 * towers, aggregators, scalers, stats, EDGE_DIM, towers, pre_layers
    ).to(device, torch.float64)
    edge_index = GRAPH.edge_index(device)
    x = numbers(9, CHANNELS, dtype=torch.float64, device=device)
    edge_attr = numbers(24, EDGE_DIM, dtype=torch.float64, device=device, seed=1)
    leaves = {"x": x, "edge_attr": edge_attr, **dict(layer.named_parameters())}
    given = (layer, layer.neighbourhood.aggregators, scalers, degrees)
    expected = outcome(lambda: oracle.pna_conv(*given, x, edge_index, edge_attr), leaves)
    adjacency = GRAPH.adjacency(device)
    return outcome(lambda: run(layer)(x, adjacency, edge_attr), leaves), expected


@every_aggregator
@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_every_aggregator_alone(aggregator, towers, name):
    with pna.backend(name):
        assert_equal_in_norm(*compared([aggregator], towers=towers), 1e-10)


@every_aggregator
def test_every_aggregator_with_messages_of_several_layers(aggregator):
    assert_equal_in_norm(*compared([aggregator], pre_layers=2), 1e-10)


def test_every_aggregator_at_once(backend):
    """Takes several seconds where Triton's kernels are interpreted."""
    every = [a for kind in BUILT_IN for a in examples(kind)]
    assert_equal_in_norm(*compared(every, device=backend.device), 1e-10)


@every_aggregator
def test_every_aggregator_in_a_layer_prepared_for_many_calls(aggregator):
    assert_equal_in_norm(*compared([aggregator], PNAConv.prepared), 1e-10)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shift", ["once", "degree", "none"])
def test_a_wrong_rule_is_seen(monkeypatch, kind, shift):
    """The tests above fail for an aggregator that declares another rule than its own."""
    (aggregator, *_) = examples(kind)
    if shift == aggregator.shift:
        pytest.skip("its own")
    monkeypatch.setattr(kind, "shift", shift)
    with pytest.raises(AssertionError):
        assert_equal_in_norm(*compared([aggregator]), 0.01)


@every_aggregator
def test_every_aggregator_may_say_that_it_does_not_know(monkeypatch, aggregator):
    monkeypatch.setattr(type(aggregator), "shift", "unknown")
    assert_equal_in_norm(*compared([aggregator]), 1e-10)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_aggregators_of_users(kind):
    assert_equal_in_norm(*compared([kind], towers=2), 1e-10)
    assert_equal_in_norm(*compared([kind()], PNAConv.prepared), 1e-10)
    assert_equal_in_norm(*compared([kind], pre_layers=2), 1e-10)


def test_those_of_users_beside_those_of_the_kernels(backend):
    """Takes several seconds where Triton's kernels are interpreted."""
    mixed = [SquareMean, "sum", Middle, "std", "moment_3", Total, "normalised_mean", Midrange]
    assert_equal_in_norm(*compared(mixed, device=backend.device), 1e-10)
