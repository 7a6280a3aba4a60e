"""`SAGEConv` against PyG's."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch_geometric.nn import SAGEConv as PyGConv

from pna.nn.conv.sage import SAGEConv
from pna.ops.aggregators import Max
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "mean, wider": lambda: SAGEConv(3, 7),
    "mean, narrower": lambda: SAGEConv(6, 4),
    "sum, narrower": lambda: SAGEConv(6, 4, "sum"),
    "max, narrower": lambda: SAGEConv(6, 4, "max"),
    "min": lambda: SAGEConv(3, 7, aggregator="min"),
}


def oracle(layer, x, edge_index, edge_attr):
    name = type(layer.aggregator).__name__.lower()
    theirs = PyGConv(layer.in_channels, layer.out_channels, aggr=name)
    return functional_call(theirs, dict(layer.named_parameters()), (x, edge_index))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", LAYERS)
def test_as_pyg(device, layer, graph):
    baselines.assert_as_oracle(LAYERS[layer], oracle, graph, device)


@pytest.mark.parametrize("layer", ["mean, narrower", "max, narrower"])
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


@pytest.mark.parametrize("layer", ["mean, wider", "mean, narrower"])
def test_autocast(device, layer):
    baselines.assert_autocasts(LAYERS[layer], device)


def test_parameters():
    layer = SAGEConv(3, 7, Max)
    assert baselines.count(layer) == 2 * 3 * 7 + 7
    baselines.assert_resets(lambda: SAGEConv(3, 7))
    assert repr(layer) == "SAGEConv(3, 7, aggregator=Max)"


def test_refuses():
    with pytest.raises(ValueError, match="unknown aggregator 'meen'; did you mean 'mean'"):
        SAGEConv(3, 7, "meen")
    with pytest.raises(ValueError, match="got edge_dim=2, expected None: SAGEConv"):
        SAGEConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match="got in_channels=-1, expected at least 1"):
        SAGEConv(-1, 7)
    with pytest.raises(ValueError, match=r"got x of shape \(3, 4\).*in_channels=3"):
        SAGEConv(3, 7)(torch.ones(3, 4), torch.tensor([[0], [1]]))
