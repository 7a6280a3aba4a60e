"""Edge states of `GatedGCNConv`, its sums by the formula, and what it refuses; the rest of its
results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.utils.prune

import pna
from pna.baselines.edge_features import to_slots
from pna.nn.conv.gated_gcn import GatedGCNConv
from tests.nn.conv import baselines, oracles
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "plain": lambda: GatedGCNConv(3, 7),
    "edge features": lambda: GatedGCNConv(6, 4, edge_dim=2),
}
SUMS = {
    "plain": lambda: GatedGCNConv(3, 7, normalise=False),
    "edge features": lambda: GatedGCNConv(6, 4, normalise=False, edge_dim=2),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", SUMS)
def test_sums_as_the_formula(device, layer, graph):
    """Which are PyG's, so that the formula is too, but for the division."""
    baselines.assert_as_oracle(SUMS[layer], oracles.gated_gcn, graph, device)


@pytest.mark.parametrize("layer", LAYERS)
def test_edge_states(device, layer):
    """By slot, as `update` takes them, and as it gives them."""
    layer = baselines.made(LAYERS[layer], device)
    x, edge_index, edge_attr = baselines.inputs_of(layer, "random", device)
    adjacency = pna.Adjacency.from_edge_index(edge_index, x.shape[0])
    e = None if edge_attr is None else to_slots(edge_attr, adjacency)
    new_x, new_e = layer.update(x, adjacency, e)
    expected_x, expected_e = oracles.gated_gcn_states(layer, x, edge_index, edge_attr)
    torch.testing.assert_close(new_x, expected_x)
    torch.testing.assert_close(new_e, to_slots(expected_e, adjacency))


def test_parts_may_be_pruned_hooked_and_replaced():
    """On a CPU, where its four products are one layer's."""
    x, edge_index = torch.randn(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    layer, seen = GatedGCNConv(3, 7), []
    torch.nn.utils.prune.l1_unstructured(layer.nodes, "weight", amount=0.5)
    layer.nodes.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(2):  # a pruned weight is made anew each time
        layer(x, edge_index).sum().backward()
    assert len(seen) == 2
    layer.nodes = torch.nn.Linear(3, 28, bias=False)
    assert layer(x, edge_index).shape == (4, 7)


def test_parameters():
    layer = GatedGCNConv(3, 7, edge_dim=2)
    assert baselines.count(layer) == 4 * (3 * 7 + 7) + (2 * 7 + 7)
    assert repr(layer) == "GatedGCNConv(3, 7, edge_dim=2)"


def test_refuses():
    with pytest.raises(ValueError, match="got edge_dim=-2, expected at least 1"):
        GatedGCNConv(3, 7, edge_dim=-2)
    adjacency = GRAPHS["isolated"].adjacency()
    with pytest.raises(ValueError, match=r"got no edge_attr, expected \(edges, 2\)"):
        GatedGCNConv(3, 7, edge_dim=2).update(torch.ones(5, 3), adjacency, None)
    with pytest.raises(ValueError, match="got edge_attr, expected none"):
        GatedGCNConv(3, 7).update(torch.ones(5, 3), adjacency, torch.ones(3, 2))
