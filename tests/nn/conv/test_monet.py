"""`MoNetConv` against PyG's `GMMConv`."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch_geometric.nn import GMMConv
from torch_geometric.utils import degree

from pna.nn.conv.monet import MoNetConv
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "degrees": lambda: MoNetConv(3, 7),
    "degrees, one kernel": lambda: MoNetConv(6, 4, kernels=1, dim=3),
    "given": lambda: MoNetConv(3, 7, kernels=2, edge_dim=2),
}


def oracle(layer, x, edge_index, edge_attr):
    kernels, dim = layer.mean.shape
    theirs = GMMConv(
        layer.in_channels, layer.out_channels, dim, kernels, aggr="add", root_weight=False
    )
    theirs.root = None  # which it then forgets to set
    if edge_attr is None:
        senders, receivers = edge_index
        scale = (degree(receivers, x.shape[0], x.dtype) + 1) ** -0.5
        edge_attr = layer.project(torch.stack([scale[receivers], scale[senders]], 1)).tanh()
    weights = {
        "g": layer.lin.weight.t(),
        "mu": layer.mean,
        "sigma": 1 / layer.inverse_sigma,
        "bias": layer.bias,
    }
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_as_pyg(device, layer, graph):
    baselines.assert_as_oracle(LAYERS[layer], oracle, graph, device)


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
    layer = MoNetConv(3, 7)
    assert baselines.count(layer) == 3 * 3 * 7 + 2 * 3 * 2 + 7 + (2 * 2 + 2)
    baselines.assert_resets(lambda: MoNetConv(3, 7))
    assert repr(layer) == "MoNetConv(3, 7, kernels=3, edge_dim=None)"


def test_refuses():
    with pytest.raises(ValueError, match="got kernels=0, expected at least 1"):
        MoNetConv(3, 7, kernels=0)
    with pytest.raises(ValueError, match=r"got edge features of shape \(1, 3\).*edge_dim=2"):
        layer = MoNetConv(3, 7, edge_dim=2)
        layer(torch.ones(3, 3), torch.tensor([[0], [1]]), torch.ones(1, 3))
