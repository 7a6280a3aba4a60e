"""`GatedGCNConv` against its formula and, without the division, PyG's `ResGatedGraphConv`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call
from torch_geometric.nn import ResGatedGraphConv

import pna
from pna.nn.conv.gated_gcn import GatedGCNConv
from pna.ops.edges import to_slots
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "plain": lambda: GatedGCNConv(3, 7),
    "edge features": lambda: GatedGCNConv(6, 4, edge_dim=2),
    "plain sums": lambda: GatedGCNConv(3, 7, normalise=False),
    "plain sums, edge features": lambda: GatedGCNConv(6, 4, normalise=False, edge_dim=2),
}


def formula(layer, x, edge_index, edge_attr):
    """x' and e', in the order in which edges are given."""
    senders, receivers = edge_index
    parts = zip(layer.nodes.weight.chunk(4), layer.nodes.bias.chunk(4), strict=True)
    a, b, u, v = (F.linear(x, *part) for part in parts)
    state = a[receivers] + b[senders]
    if edge_attr is not None:
        state = state + layer.edges(edge_attr)
    gate = state.sigmoid()
    nothing = torch.zeros_like(u)
    total = nothing.index_add(0, receivers, gate * v[senders])
    if layer.normalise:
        total = total / (nothing.index_add(0, receivers, gate) + 1e-6)
    return u + total, state


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_as_the_formula(device, layer, graph):
    baselines.assert_as_oracle(LAYERS[layer], lambda *given: formula(*given)[0], graph, device)


def pyg(layer, x, edge_index, edge_attr):
    """Theirs has one bias for A, B and C, and edge features in V too, which are given no weight."""
    width, edge_dim = layer.out_channels, layer.edge_dim
    theirs = ResGatedGraphConv(layer.in_channels, width, edge_dim=edge_dim)
    a, b, u, v = layer.nodes.weight.chunk(4)
    at_a, at_b, at_u, at_v = layer.nodes.bias.chunk(4)
    if edge_dim is not None:
        nothing = x.new_zeros((width, edge_dim))
        a, b, v = (
            torch.cat([a, layer.edges.weight], 1),
            torch.cat([b, nothing], 1),
            torch.cat([v, nothing], 1),
        )
        at_a = at_a + layer.edges.bias
    weights = {
        "lin_key.weight": a,
        "lin_key.bias": at_a,
        "lin_query.weight": b,
        "lin_query.bias": at_b,
        "lin_value.weight": v,
        "lin_value.bias": at_v,
        "lin_skip.weight": u,
        "bias": at_u,
    }
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", ["plain sums", "plain sums, edge features"])
def test_as_pyg(device, layer, graph):
    baselines.assert_as_oracle(LAYERS[layer], pyg, graph, device)


@pytest.mark.parametrize("layer", ["plain", "edge features"])
def test_edge_states(device, layer):
    """By slot, as `update` takes them, and as it gives them."""
    layer = baselines.made(LAYERS[layer], device)
    x, edge_index, edge_attr = baselines.inputs_of(layer, "random", device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    e = None if edge_attr is None else to_slots(edge_attr, adjacency)
    new_x, new_e = layer.update(x, adjacency, e)
    expected_x, expected_e = formula(layer, x, edge_index, edge_attr)
    torch.testing.assert_close(new_x, expected_x)
    torch.testing.assert_close(new_e, to_slots(expected_e, adjacency))


@pytest.mark.parametrize("layer", LAYERS)
def test_every_backend(backend, layer):
    baselines.assert_alike_on(backend, LAYERS[layer])


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_whole(device, layer):
    baselines.assert_compiles(LAYERS[layer], device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("layer", LAYERS)
def test_captured_in_a_cuda_graph(triton, layer):
    baselines.assert_layer_captures(LAYERS[layer], triton.device)


@pytest.mark.parametrize("own_x", [True, False], ids=["own x", "shared x"])
@pytest.mark.parametrize("layer", LAYERS)
def test_members_of_a_population_are_layers_alone(device, layer, own_x):
    baselines.assert_members_are_layers_alone(LAYERS[layer], device, own_x)


@pytest.mark.parametrize("layer", LAYERS)
def test_any_order_and_form(device, layer):
    baselines.assert_equivariant(LAYERS[layer], device)
    baselines.assert_reads_any_form(LAYERS[layer], device)


@pytest.mark.parametrize("layer", LAYERS)
def test_autocast(device, layer):
    baselines.assert_autocasts(LAYERS[layer], device)


def test_parameters():
    layer = GatedGCNConv(3, 7, edge_dim=2)
    assert baselines.count(layer) == 4 * (3 * 7 + 7) + (2 * 7 + 7)
    baselines.assert_resets(lambda: GatedGCNConv(3, 7, edge_dim=2))
    assert repr(layer) == "GatedGCNConv(3, 7, edge_dim=2)"


def test_refuses():
    with pytest.raises(ValueError, match="got edge_dim=-2, expected at least 1"):
        GatedGCNConv(3, 7, edge_dim=-2)
    adjacency = GRAPHS["isolated"].adjacency()
    with pytest.raises(ValueError, match=r"got no edge_attr, expected \(edges, 2\)"):
        GatedGCNConv(3, 7, edge_dim=2).update(torch.ones(5, 3), adjacency, None)
    with pytest.raises(ValueError, match="got edge_attr, expected none"):
        GatedGCNConv(3, 7).update(torch.ones(5, 3), adjacency, torch.ones(3, 2))
