"""Aggregators of users in layers and models, under every transform of torch."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import pna
from pna.aggregators import Aggregator, Mean, Neighbourhoods
from pna.nn import PNA, PNAConv, PNASimpleConv, SAGEConv
from pna.ops import blocks, reference
from tests.nn.cases import DEG, SCALERS
from tests.ops.cases import Graph, random_edges

GRAPH = Graph(random_edges(40, 12, 11), 12)


class Midrange(Aggregator):
    """(max + min) / 2"""

    shift = "once"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return (hood.max(hood.messages) + hood.min(hood.messages)) / 2


@dataclass(frozen=True)
class PowerMean(Aggregator):
    """Mean of (|m_j| + ε)^p, with p learned if it is a parameter."""

    power: float | Tensor = 2.0
    shift = "unknown"

    def aggregate(self, hood: Neighbourhoods) -> Tensor:
        return hood.mean((hood.messages.abs() + 0.1) ** self.power)


def mixed() -> list:
    return ["mean", Midrange, "std", PowerMean(nn.Parameter(torch.tensor(1.5)))]


def make(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"aggregators": mixed(), "scalers": SCALERS, "deg": DEG}
    if kind is PNA:
        return PNA(6, 8, 2, 4, towers=2, **arguments)
    if kind is SAGEConv:
        return SAGEConv(6, 4, PowerMean(nn.Parameter(torch.tensor(1.5))))
    return kind(6, 4, **arguments)


models = pytest.mark.parametrize("kind", [PNAConv, PNASimpleConv, PNA, SAGEConv])


def inputs() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
    return x, GRAPH.edge_index()


@models
def test_backends_agree_and_parameters_learn(kind, backend):
    model = make(kind).to(backend.device)
    x, edge_index = (t.to(backend.device) for t in inputs())
    out = model(x, edge_index)
    gradients = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    powers = [n for n, _ in model.named_parameters() if n.endswith("_power")]
    assert len(powers) == 1  # shared by the layers of a model, as it was given
    with pna.backend("reference"):
        expected = model(x, edge_index)
        theirs = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for (name, _), got, wanted in zip(model.named_parameters(), gradients, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4, msg=name)
        assert wanted.abs().sum() > 0 or not name.endswith("_power")


@models
def test_weights_are_saved_and_loaded(kind):
    model, other = make(kind), make(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(*inputs()), model(*inputs()))


@models
def test_members_of_a_population_are_as_alone(kind):
    members = [make(kind) for _ in range(3)]
    with torch.no_grad():
        for k, member in enumerate(members):
            for parameter in member.parameters():
                parameter.add_(0.05 * k)
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in members])
        for name in dict(members[0].named_parameters())
    }
    for tensor in stacked.values():
        tensor.requires_grad_()
    x, _ = inputs()
    adjacency = GRAPH.adjacency()
    out = vmap(lambda p: functional_call(members[0], p, (x, adjacency)))(stacked)
    grads = torch.autograd.grad(out.square().sum(), list(stacked.values()))
    for k, member in enumerate(members):
        alone = member(x, adjacency)
        torch.testing.assert_close(out[k], alone, rtol=1e-4, atol=1e-5)
        theirs = torch.autograd.grad(alone.square().sum(), list(member.parameters()))
        for name, got, wanted in zip(stacked, grads, theirs, strict=True):
            torch.testing.assert_close(got[k], wanted, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_compiled_in_one_graph():
    """Takes seconds to trace. tests/test_inductor.py compiles a `PNAConv`."""
    model = make(PNASimpleConv)
    x, _ = inputs()
    adjacency = GRAPH.adjacency()
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(x, adjacency)
    expected = model(x, adjacency)
    torch.testing.assert_close(out, expected)
    got = torch.autograd.grad(out.sum(), list(model.parameters()))
    theirs = torch.autograd.grad(expected.sum(), list(model.parameters()))
    for a, b in zip(got, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_operation_compiled_with_a_class_and_an_object():
    x, _ = inputs()
    adjacency = GRAPH.adjacency()

    def run(x: Tensor) -> Tensor:
        return pna.aggregate(x, adjacency, ["max", Midrange, PowerMean(3.0)])

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("kind", [PNAConv, PNASimpleConv, SAGEConv])
def test_exported(kind):
    model = make(kind).eval()
    x, _ = inputs()
    adjacency = GRAPH.adjacency()
    exported = torch.export.export(model, (x, adjacency)).module()
    torch.testing.assert_close(exported(x, adjacency), model(x, adjacency))


@pytest.mark.parametrize("kind", [PowerMean, Midrange])
def test_messages_are_made_in_blocks(kind, monkeypatch):
    """In a layer too, whichever shift is declared."""
    layer = PNAConv(6, 4, [kind, "mean"], SCALERS, DEG)
    x, edge_index = inputs()
    x.requires_grad_()
    whole = layer(x, edge_index)
    (gradient,) = torch.autograd.grad(whole.square().sum(), x)
    most, definition = [], reference.messages

    def messages(sent, *rest):
        most.append(len(sent))
        return definition(sent, *rest)

    monkeypatch.setattr(reference, "messages", messages)
    monkeypatch.setattr(blocks, "BLOCK", 8 * 6)
    out = layer(x, edge_index)
    (again,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(again, gradient)
    assert len(most) > 4 and max(most) <= 16
    assert sum(most) == 2 * len(GRAPH.edges)  # made again in the backward pass


def test_a_subclass_of_a_linear_aggregator_is_not_taken_after_the_linear_map():
    class Cubes(Mean):
        shift = "unknown"

        def aggregate(self, hood: Neighbourhoods) -> Tensor:
            return hood.mean(hood.messages**3)

    x, edge_index = inputs()
    layer = SAGEConv(6, 2, Cubes)  # narrower than x
    cubes = pna.aggregate(x**3, GRAPH.adjacency(), ["mean"])[:, 0]
    torch.testing.assert_close(layer(x, edge_index), layer.lin_l(cubes) + layer.lin_r(x))


def test_half_precision_and_autocast():
    layer = make(PNAConv)
    x, edge_index = inputs()
    expected = layer(x, edge_index)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, edge_index)
    torch.testing.assert_close(out.float(), expected, rtol=0.1, atol=0.1)
    half = layer.to(torch.bfloat16)(x.bfloat16(), edge_index)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.1, atol=0.1)
