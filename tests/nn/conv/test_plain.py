"""`PNAConv`, fast and plain, against an oracle that makes every message and shares no code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import pna
from pna.nn import PNAConv
from pna.nn.conv.plain import plain_layer
from pna.ops.aggregators import BUILT_IN, Aggregator, Softmax, Softmin, Std
from pna.ops.backend import availability
from tests.nn.cases import assert_equal_in_norm, numbers, outcome
from tests.nn.conv import oracle
from tests.ops.cases import examples

DEGREES = [0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 5]
#: Node 0 alone, node 1 with one neighbour, a repeated edge 2 → 3 and a self-loop at 4.
EDGES = torch.tensor(
    [
        [2, 2, 3, 2, 4, 5, 6, 4, 1, 3, 5, 6, 2, 6, 1, 3],
        [1, 3, 4, 3, 4, 4, 3, 5, 5, 6, 6, 2, 4, 5, 6, 2],
    ]
)
NODES, COUNT = 7, EDGES.shape[1]

WEIGHTS = torch.linspace(0.1, 2, COUNT).double()
WEIGHTED = {Softmax: [Softmax(2.0, WEIGHTS)], Softmin: [Softmin(2.0, WEIGHTS.flip(0))]}


#: Arguments of the layer, 6 features to 6, and the form of its edge features.
OPTIONS = {
    "plain": ({}, None),
    "towers": (dict(towers=2), None),
    "divided towers": (dict(towers=3, divide_input=True), None),
    "edge features": (dict(edge_dim=2, towers=2), "dense"),
    "wide edge features": (dict(edge_dim=17), "dense"),
    "a table of edge features": (dict(edge_dim=2), "table"),
    "a basis of edge features": (dict(edge_dim=3), "basis"),
    "edge features as they are": (dict(edge_dim=2, encode_edges=False), "table"),
    "two layers in M": (dict(pre_layers=2, towers=2, act="tanh"), None),
    "two layers in M, edge features": (dict(pre_layers=2, edge_dim=2, act="tanh"), "dense"),
    "two layers in M, a table": (dict(pre_layers=2, edge_dim=2, act="tanh"), "table"),
    "two layers in U": (dict(post_layers=2, act="tanh", towers=2), None),
    "swapped extrema": (dict(swap_extrema=True, towers=2), None),
    "swapped extrema, everything": (
        dict(swap_extrema=True, towers=2, divide_input=True, edge_dim=2, pre_layers=2, act="tanh"),
        "table",
    ),
    "not mixed": (dict(mixing=False, towers=2), None),
}

BACKENDS = [
    name for name in ("reference", "cpu", *["triton"] * torch.cuda.is_available())
    if availability()[name] is None
]  # fmt: skip


def runs_on(name: str) -> torch.device:
    return torch.device("cuda" if name == "triton" else "cpu")


class Case:
    """A layer of float64, its inputs, and what the oracle makes of them."""

    def __init__(self, aggregators: list[Aggregator], options: str, scalers: list[str]) -> None:
        arguments, self.form = OPTIONS[options]
        torch.manual_seed(0)
        self.aggregators, self.scalers = aggregators, scalers
        stats = pna.DegreeStats.from_degrees(DEGREES)
        self.layer = PNAConv(6, 6, aggregators, scalers, stats, **arguments).double()
        kept = dict(dtype=torch.float64, device="cpu")
        self.leaves = {"x": numbers(NODES, 6, seed=1, **kept)}
        width = self.layer.edge_dim
        if self.form == "dense":
            self.leaves["edge_attr"] = numbers(COUNT, width, seed=2, **kept)
        elif self.form == "table":
            self.leaves["table"] = numbers(3, width, seed=3, **kept)
        elif self.form == "basis":
            self.leaves["basis"] = numbers(2, width, seed=4, **kept)
            self.leaves["coefficients"] = numbers(COUNT, 2, seed=5, **kept)
        self.index = torch.arange(COUNT) % 3

    def expected(self) -> dict[str, torch.Tensor]:
        dense = {
            "dense": lambda: self.leaves["edge_attr"],
            "table": lambda: self.leaves["table"][self.index],
            "basis": lambda: self.leaves["coefficients"] @ self.leaves["basis"],
        }.get(self.form, lambda: None)
        given = (self.layer, self.aggregators, self.scalers, DEGREES)
        return outcome(
            lambda: oracle.pna_conv(*given, self.leaves["x"], EDGES, dense()),
            self.leaves | dict(self.layer.named_parameters()),
        )

    def found(self, run, device: torch.device) -> dict[str, torch.Tensor]:
        """The outcome of run(layer, x, adjacency, edge_attr), on a device."""
        layer = self.layer.to(device)
        leaves = {name: leaf.detach().to(device) for name, leaf in self.leaves.items()}
        adjacency = pna.Adjacency.from_edge_index(EDGES.to(device), NODES)
        given = {
            "dense": lambda: leaves["edge_attr"],
            "table": lambda: (leaves["table"], self.index.to(device)),
            "basis": lambda: (leaves["basis"], leaves["coefficients"]),
        }.get(self.form, lambda: None)
        got = outcome(
            lambda: run(layer, leaves["x"], adjacency, given()),
            leaves | dict(layer.named_parameters()),
        )
        self.layer.cpu()
        return {name: value.cpu() for name, value in got.items()}


def assert_is_the_oracle(case: Case, tolerance: float = 1e-10) -> None:
    """On every backend, the layer as it is and with every part called as a module."""
    expected = case.expected()
    for name in BACKENDS:
        for run in (lambda layer, *inputs: layer(*inputs), plain_layer):
            with pna.backend(name):
                got = case.found(run, runs_on(name))
            assert_equal_in_norm(got, expected, tolerance)


@pytest.mark.covering(1, always=True)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_every_aggregator(kind, options):
    """The next test has every aggregator with all of these options, though not alone."""
    objects = examples(kind) + WEIGHTED.get(kind, [])
    assert_is_the_oracle(Case(objects, options, ["identity", "amplification"]))


@pytest.mark.parametrize("options", OPTIONS)
def test_all_aggregators_and_scalers_together(options):
    every = [one for kind in BUILT_IN for one in examples(kind)[:2]]
    assert_is_the_oracle(Case(every, options, list(oracle.SCALERS)))


@pytest.mark.parametrize("std", ["paper", "pyg"])
def test_conventions_of_std(std):
    stats = pna.DegreeStats.from_degrees(DEGREES)
    case = Case([Std(clamp=std == "pyg"), Std(clamp=std == "pyg")], "towers", ["identity"])
    named = PNAConv(6, 6, ["std", Std], ["identity"], stats, towers=2, std=std).double()
    named.load_state_dict(case.layer.state_dict())
    case.layer = named
    assert_is_the_oracle(case)


def test_the_oracle_by_hand():
    """Nodes 0 and 2 send 1 and 4 to node 1, which sees them as 3 x_j − x_i + 1 and passes on the
    mean, max and std, as they are and times log(3) / log(2)."""
    layer = PNAConv(
        1, 1, ["mean", "max", "std"], ["identity", "amplification"],
        pna.DegreeStats.from_degrees([1]), mixing=False,
    ).double()  # fmt: skip
    with torch.no_grad():
        layer.pre[0].weight.copy_(torch.tensor([[[-1.0, 3.0]]]))
        layer.pre[0].bias.fill_(1)
        layer.post[0].weight.copy_(torch.tensor([[[100.0, 1.0, 10.0, 0.1, 2.0, 0.0, 0.0]]]))
        layer.post[0].bias.fill_(5)
    x, edges = torch.tensor([[1.0], [2.0], [4.0]]).double(), torch.tensor([[0, 2], [1, 1]])
    near, far = 3 * 1 - 2 + 1, 3 * 4 - 2 + 1
    mean, std = (near + far) / 2, math.sqrt(((far - near) / 2) ** 2 + 1e-5)
    seen = 200 + mean + 10 * far + 0.1 * std + 2 * mean * math.log(3) / math.log(2) + 5
    expected = torch.tensor([[100 * 1.0 + 5], [seen], [100 * 4.0 + 5]]).double()
    objects = layer.neighbourhood.aggregators
    got = oracle.pna_conv(layer, objects, ["identity", "amplification"], [1], x, edges)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(layer(x, edges), expected)


def test_the_oracle_sees_a_wrong_shift():
    """The test above would fail for a layer that forgets what the receiver adds to messages."""
    case = Case([pna.aggregators.Max()], "plain", ["identity"])

    def without_receiver(layer, x, adjacency, edge_attr):
        weight = layer.pre[0].weight
        cut = torch.cat([torch.zeros_like(weight[..., :6]), weight[..., 6:]], 2)
        return torch.func.functional_call(layer, {"pre.0.weight": cut}, (x, adjacency))

    got = case.found(without_receiver, torch.device("cpu"))
    with pytest.raises(AssertionError):
        assert_equal_in_norm(got, case.expected(), 1e-3)


@pytest.mark.parametrize("reach", ["no edges", "no nodes"])
def test_empty_graphs(reach):
    case = Case([pna.aggregators.Mean(), pna.aggregators.Max()], "towers", ["identity"])
    nodes = 0 if reach == "no nodes" else NODES
    x = case.leaves["x"][:nodes]
    adjacency = pna.Adjacency.from_edge_index(EDGES[:, :0], nodes)
    torch.testing.assert_close(plain_layer(case.layer, x, adjacency), case.layer(x, adjacency))


def test_learned_parts():
    """Temperature and δ get the gradients that they get without hooks."""
    torch.manual_seed(0)
    aggregators = ["mean", Softmax(nn.Parameter(torch.tensor(0.5)))]
    stats = pna.DegreeStats.from_degrees(DEGREES)
    layer = PNAConv(6, 6, aggregators, ["linear"], stats, train_norm=True).double()
    x = numbers(NODES, 6, dtype=torch.float64, device="cpu")
    adjacency = pna.Adjacency.from_edge_index(EDGES, NODES)
    leaves = {"x": x} | dict(layer.named_parameters())
    fast = outcome(lambda: layer(x, adjacency), leaves)
    assert_equal_in_norm(outcome(lambda: plain_layer(layer, x, adjacency), leaves), fast, 1e-10)
