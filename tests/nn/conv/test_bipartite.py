"""`PNAConv` between two types of nodes, and along both directions of edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pna import Adjacency, DegreeStats
from pna.nn import PNAConv
from pna.ops.aggregators import Softmax
from tests.nn.cases import DEG, DEGREES, PAPER, SCALERS, assert_equal_in_norm, numbers, outcome
from tests.nn.conv import oracle
from tests.ops.cases import random_edges

SENDERS, RECEIVERS = 9, 12
#: Out-degrees of the training set are others than its in-degrees.
OUT = [1, 1, 2, 5]

# Arguments of the layer, where they are not those of `made`.
LAYERS = {
    "plain": {},
    "towers and edge features": dict(towers=2, divide_input=True, edge_dim=3),
    "wide edge features, not encoded": dict(edge_dim=20, encode_edges=False, mixing=False),
    "deep": dict(pre_layers=2, post_layers=2, edge_dim=2, aggregators=["sum", "std"]),
    "other aggregators": dict(aggregators=["moment_3", "max", "normalised_mean", Softmax(0.5)]),
    "learned": dict(aggregators=[Softmax(nn.Parameter(torch.tensor(0.5))), "min"]),
}


def made(device, dtype, **given):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, out_channels=6) | given
    return PNAConv(**given).to(device, dtype)


def edges_between(senders, receivers, device):
    return torch.tensor(random_edges(40, senders, receivers), device=device).t()


def assert_is_the_definition(layer, leaves, edge_index, degrees, tolerance):
    def run(by):
        x = leaves["x"] if "x" in leaves else (leaves["sent"], leaves["own"])
        return by(x, edge_index, leaves.get("edge_attr"))

    def defined(x, edge_index, edge_attr):
        chosen = [side.neighbourhood.aggregators for side in layer._sides]
        chosen = chosen[0] if layer.outgoing is None else chosen
        return oracle.pna_conv(layer, chosen, SCALERS, degrees, x, edge_index, edge_attr)

    everything = leaves | dict(layer.named_parameters())
    got, expected = (outcome(lambda by=by: run(by), everything) for by in (layer, defined))
    assert_equal_in_norm(got, expected, tolerance)


def with_edges(leaves, layer, edge_index, dtype):
    if layer.edge_dim is not None:
        shape = (edge_index.shape[1], layer.edge_dim)
        leaves["edge_attr"] = numbers(*shape, dtype=dtype, device=edge_index.device, seed=2)
    return leaves


def pair_case(layer, device, dtype):
    edge_index = edges_between(SENDERS, RECEIVERS, device)
    of_sender, of_receiver = layer._widths
    leaves = {
        "sent": numbers(SENDERS, of_sender, dtype=dtype, device=device, seed=1),
        "own": numbers(RECEIVERS, of_receiver, dtype=dtype, device=device, seed=3),
    }
    return with_edges(leaves, layer, edge_index, dtype), edge_index


@pytest.mark.parametrize("widths", [(4, 6), (6, 2), 4], ids=str)
@pytest.mark.parametrize("arguments", LAYERS)
def test_two_types_of_nodes(device, arguments, widths):
    layer = made(device, torch.float64, in_channels=widths, deg=DEG, **LAYERS[arguments])
    leaves, edge_index = pair_case(layer, device, torch.float64)
    assert_is_the_definition(layer, leaves, edge_index, DEGREES, 1e-6)


@pytest.mark.parametrize("arguments", ["plain", "towers and edge features"])
def test_two_types_of_nodes_on_every_backend(backend, arguments):
    device = backend.device
    layer = made(device, torch.float32, in_channels=(4, 6), deg=DEG, **LAYERS[arguments])
    leaves, edge_index = pair_case(layer, device, torch.float32)
    assert_is_the_definition(layer, leaves, edge_index, DEGREES, 1e-5)


def test_two_types_of_nodes_whose_parts_are_called(device):
    layer = made(device, torch.float64, in_channels=(4, 6), deg=DEG, towers=2, edge_dim=2)
    leaves, edge_index = pair_case(layer, device, torch.float64)
    expected = layer(tuple(leaves.values())[:2], edge_index, leaves["edge_attr"])
    layer.pre[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="has hooks"):
        got = layer(tuple(leaves.values())[:2], edge_index, leaves["edge_attr"])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (5, 2)], ids=str)
def test_few_nodes_of_one_type(device, sizes):
    layer = made(device, torch.float32, in_channels=(4, 6), deg=DEG)
    x = tuple(torch.ones(n, w, device=device) for n, w in zip(sizes, (4, 6), strict=True))
    nothing = torch.zeros(2, 0, dtype=torch.long, device=device)
    out = layer(x, nothing)
    assert out.shape == (sizes[1], 6)


def directed_case(layer, device, dtype):
    edge_index = edges_between(RECEIVERS, RECEIVERS - 3, device)  # three nodes only send
    leaves = {"x": numbers(RECEIVERS, layer.in_channels, dtype=dtype, device=device, seed=1)}
    return with_edges(leaves, layer, edge_index, dtype), edge_index


BOTH = dict(direction="both", in_channels=4, deg=(DEG, DegreeStats.from_degrees(OUT)))


@pytest.mark.parametrize("arguments", LAYERS)
def test_both_directions(device, arguments):
    layer = made(device, torch.float64, **BOTH, **LAYERS[arguments])
    leaves, edge_index = directed_case(layer, device, torch.float64)
    assert_is_the_definition(layer, leaves, edge_index, (DEGREES, OUT), 1e-6)


@pytest.mark.parametrize("arguments", ["plain", "towers and edge features"])
def test_both_directions_on_every_backend(backend, arguments):
    layer = made(backend.device, torch.float32, **BOTH, **LAYERS[arguments])
    leaves, edge_index = directed_case(layer, backend.device, torch.float32)
    assert_is_the_definition(layer, leaves, edge_index, (DEGREES, OUT), 1e-5)


def test_both_directions_whose_parts_are_called(device):
    layer = made(device, torch.float64, **BOTH, edge_dim=2)
    leaves, edge_index = directed_case(layer, device, torch.float64)
    expected = layer(leaves["x"], edge_index, leaves["edge_attr"])
    layer.outgoing.pre[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"outgoing\.pre\[0\] of .* has hooks"):
        got = layer(leaves["x"], edge_index, leaves["edge_attr"])
    torch.testing.assert_close(got, expected)


def test_names_of_the_parts_for_outgoing_edges():
    layer = made("cpu", torch.float32, **BOTH, edge_dim=2)
    own = {name for name in layer.state_dict() if not name.startswith("outgoing.")}
    incoming = made("cpu", torch.float32, in_channels=4, deg=DEG, edge_dim=2).state_dict()
    assert own == set(incoming)
    of_message = {n for n in own if n.split(".")[0] in ("pre", "edge_encoder", "neighbourhood")}
    assert set(layer.state_dict()) - own == {f"outgoing.{name}" for name in of_message}
    assert layer.post[0].weight.shape == (1, 6, 4 + 2 * 12 * 4)
    assert layer.outgoing.neighbourhood.mean_degree.item() == pytest.approx(9 / 4)
    assert repr(layer) == "PNAConv(4, 6, towers=1, edge_dim=2, direction='both')"


def test_directions_do_not_share_what_they_learn():
    learned = [Softmax(nn.Parameter(torch.tensor(0.5)))]
    layer = made("cpu", torch.float32, **BOTH, aggregators=learned, train_norm=True)
    addresses = [parameter.data_ptr() for parameter in layer.parameters()]
    assert len(set(addresses)) == len(addresses)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7)
    layer.reset_parameters()
    assert layer.outgoing.neighbourhood.mean_degree.item() == pytest.approx(9 / 4)
    assert layer.outgoing.pre[0].weight.abs().max() < 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pair", "both"])
def test_compiled(kind):
    """Tracing takes seconds."""
    if kind == "pair":
        layer = made("cpu", torch.float32, in_channels=(4, 6), deg=DEG)
    else:
        layer = made("cpu", torch.float32, **BOTH)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    for nodes in (12, 15):
        edge_index = edges_between(nodes, nodes, "cpu")
        x = torch.randn(nodes, 4)
        x = (x, torch.randn(nodes + 1, 6)) if kind == "pair" else x
        torch.testing.assert_close(compiled(x, edge_index), layer(x, edge_index))


def test_vmap_over_layers():
    """As populations are trained, with a row of weights for each member."""
    layer = made("cpu", torch.float32, **BOTH)
    leaves, edge_index = directed_case(layer, "cpu", torch.float32)
    adjacency = Adjacency.from_edge_index(edge_index, RECEIVERS)
    weights = {n: torch.stack([p, p * 0.5]) for n, p in layer.named_parameters()}

    def run(weights):
        return torch.func.functional_call(layer, weights, (leaves["x"], adjacency))

    got = torch.vmap(run)(weights)
    for k in range(2):
        expected = run({name: weight[k] for name, weight in weights.items()})
        torch.testing.assert_close(got[k], expected)


def test_memory_counts_both_directions():
    one = made("cpu", torch.float32, in_channels=4, deg=DEG)
    both = made("cpu", torch.float32, **BOTH)
    assert both.memory(1000, 5000) == 2 * one.memory(1000, 5000)
    pair = made("cpu", torch.float32, in_channels=(4, 6), deg=DEG)
    assert pair.memory((2000, 1000), 5000) > pair.memory((1000, 1000), 5000)


def test_a_graph_turned_round(device):
    edge_index = edges_between(SENDERS, RECEIVERS, device)
    adjacency = Adjacency.from_edge_index(edge_index, (SENDERS, RECEIVERS))
    turned = adjacency.reversed()
    expected = Adjacency.from_edge_index(edge_index.flip(0), (RECEIVERS, SENDERS))
    assert turned.edge_index.tolist() == edge_index.flip(0).tolist()
    assert turned.edge_ids.tolist() == expected.edge_ids.tolist()
    assert adjacency.reversed() is turned


def test_out_degrees_of_graphs():
    adjacency = Adjacency.from_edge_index(torch.tensor([[0, 0, 1], [1, 2, 2]]), 3)
    assert DegreeStats.from_graphs(adjacency, outgoing=True).histogram.tolist() == [1, 1, 1]
    assert DegreeStats.from_graphs(adjacency.reversed()).histogram.tolist() == [1, 1, 1]
    assert DegreeStats.from_graphs([adjacency]).histogram.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "make, error, message",
    [
        (dict(in_channels=(4, 6), direction="both", deg=(DEG, DEG)), ValueError, "one layer for"),
        (dict(in_channels=(4, 6), swap_extrema=True), ValueError, "bring them to one width"),
        (dict(in_channels=(4, 6), towers=3, divide_input=True), ValueError, "in_channels=4 to div"),
        (dict(in_channels=4, direction="both"), TypeError, "expected a pair: stat.*outgoing=True"),
        (dict(in_channels=4, direction="out"), ValueError, "unknown direction 'out'.*in, both"),
        (dict(in_channels=(4, 0)), ValueError, "in_channels=0, expected at least 1"),
    ],
)
def test_refuses_to_be_made(make, error, message):
    with pytest.raises(error, match=message):
        made("cpu", torch.float32, **{"deg": DEG} | make)


X = torch.ones(3, 4), torch.ones(2, 6)
EDGES = torch.tensor([[0, 2], [1, 0]])


@pytest.mark.parametrize(
    "x, edges, error, message",
    [
        (X[0], EDGES, ValueError, r"got one x, expected a pair: .*in_channels=\(4, 6\)"),
        ((X[0], None), EDGES, TypeError, r"x of \(Tensor, NoneType\), expected a tensor, or a"),
        ((X[1], X[0]), EDGES, ValueError, r"x of the senders of shape \(2, 6\), expected \(sende"),
        ((X[0], X[0]), EDGES, ValueError, r"receivers of shape \(3, 4\).*in_channels\[1\]=6"),
        ((X[0], X[1].double()), EDGES, TypeError, "x of the receivers of dtype torch.float64"),
        (X, EDGES.flip(0), ValueError, "got receiver 2 in edge 1, expected a node"),
        (
            X,
            Adjacency.from_edge_index(EDGES, 3),
            ValueError,
            "3 senders and 2 receivers and an adjacency of 3 senders and 3 receivers",
        ),
    ],
)
def test_refuses(x, edges, error, message):
    layer = made("cpu", torch.float32, in_channels=(4, 6), deg=DEG)
    with pytest.raises(error, match=message):
        layer(x, edges)


def test_refuses_a_pair_along_both_directions():
    layer = made("cpu", torch.float32, **BOTH)
    with pytest.raises(ValueError, match="got a pair x for a layer with direction='both'"):
        layer((X[0], X[0]), EDGES)
