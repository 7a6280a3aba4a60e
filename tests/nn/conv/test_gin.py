"""`GINConv` against PyG's `GINConv` and `GINEConv`, with the same network inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch_geometric.nn import GINConv as PyGConv
from torch_geometric.nn import GINEConv as PyGConvWithEdges

from pna.nn.conv.gin import GINConv
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "plain": lambda: GINConv(3, 7),
    "edge features": lambda: GINConv(6, 4, edge_dim=2),
}
# for graphs too small for a batch normalisation
WITHOUT_NORM = {
    "plain": lambda: GINConv(3, 7, norm=nn.Identity),
    "edge features": lambda: GINConv(6, 4, norm=nn.Identity, edge_dim=2),
    "fixed ε": lambda: GINConv(3, 7, train_eps=False, norm=nn.Identity),
}
#: Where the modules of the layer stand in PyG's.
NAMES = {"first": "nn.0", "norm": "nn.2", "last": "nn.3", "edge_encoder": "lin"}


def oracle(layer, x, edge_index, edge_attr):
    hidden = layer.first.out_features
    inside = nn.Sequential(
        nn.Linear(layer.in_channels, hidden),
        nn.ReLU(),
        type(layer.norm)(hidden),
        nn.Linear(hidden, layer.out_channels),
        nn.ReLU(),
    ).to(x)
    weights = {"eps": layer.eps}
    for name, parameter in layer.named_parameters():
        module, _, kind = name.partition(".")
        if module in NAMES:
            weights[f"{NAMES[module]}.{kind}"] = parameter
    if edge_attr is None:
        return functional_call(PyGConv(inside), weights, (x, edge_index))
    theirs = PyGConvWithEdges(inside, edge_dim=layer.edge_dim)
    return functional_call(theirs, weights, (x, edge_index, edge_attr))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("layer", WITHOUT_NORM)
def test_as_pyg(device, layer, graph):
    baselines.assert_as_oracle(WITHOUT_NORM[layer], oracle, graph, device)


@pytest.mark.parametrize("layer", LAYERS)
def test_as_pyg_with_batch_normalisation(device, layer):
    baselines.assert_as_oracle(LAYERS[layer], oracle, "random", device)


@pytest.mark.parametrize("layer", WITHOUT_NORM)
def test_every_backend(backend, layer):
    baselines.assert_alike_on(backend, WITHOUT_NORM[layer])


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


@pytest.mark.parametrize("layer", WITHOUT_NORM)
def test_autocast(device, layer):
    baselines.assert_autocasts(WITHOUT_NORM[layer], device)


@pytest.mark.parametrize("channels, parameters", [((2, 20), 521), ((20, 20), 881)])
def test_as_many_parameters_as_the_authors(channels, parameters):
    assert baselines.count(GINConv(*channels)) == parameters


def test_parameters():
    layer = GINConv(3, 7, eps=0.25, edge_dim=2)
    assert layer.eps.item() == 0.25
    baselines.assert_resets(lambda: GINConv(3, 7, edge_dim=2))
    assert "eps" not in dict(GINConv(3, 7, train_eps=False).named_parameters())
    assert repr(layer) == "GINConv(3, 7, edge_dim=2)"


def test_refuses():
    with pytest.raises(ValueError, match="got edge_dim=0, expected at least 1; leave it out"):
        GINConv(3, 7, edge_dim=0)
    with pytest.raises(ValueError, match=r"got no edge_attr, expected \(edges, 2\)"):
        GINConv(3, 7, edge_dim=2)(torch.ones(3, 3), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="got edge features of 2 edges, expected 1"):
        GINConv(3, 7, edge_dim=2)(torch.ones(3, 3), torch.tensor([[0], [1]]), torch.ones(2, 2))
