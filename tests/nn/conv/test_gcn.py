"""`GCNConv` against PyG's."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch_geometric.nn import GCNConv as PyGConv

from pna.nn.conv.gcn import GCNConv
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

# the sum before the product, and after it
LAYERS = {"wider": lambda: GCNConv(3, 7), "narrower": lambda: GCNConv(6, 4)}


def oracle(layer, x, edge_index, edge_attr):
    theirs = PyGConv(layer.in_channels, layer.out_channels)
    weights = {"lin.weight": layer.lin.weight, "bias": layer.lin.bias}
    return functional_call(theirs, weights, (x, edge_index))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_as_pyg(device, layer, graph):
    baselines.assert_as_oracle(LAYERS[layer], oracle, graph, device)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_backend(backend, layer):
    baselines.assert_alike_on(backend, LAYERS[layer], "self-loops")


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
    layer = GCNConv(3, 7)
    assert baselines.count(layer) == 3 * 7 + 7
    baselines.assert_resets(lambda: GCNConv(3, 7))
    assert repr(layer) == "GCNConv(3, 7)"


def test_refuses():
    with pytest.raises(ValueError, match=r"got edge_dim=2, expected None: GCNConv.*leave it out"):
        GCNConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match="got out_channels=0, expected at least 1"):
        GCNConv(3, 0)
    edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r"got x of shape \(3, 4\).*in_channels=3"):
        GCNConv(3, 7)(torch.ones(3, 4), edge_index)
    with pytest.raises(ValueError, match="got edge_attr, expected none"):
        GCNConv(3, 7)(torch.ones(3, 3), edge_index, torch.ones(1, 2))
