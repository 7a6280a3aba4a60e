"""`GATConv` against PyG's."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch_geometric.nn import GATConv as PyGConv

import pna
from pna.nn.conv.gat import GATConv
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS

LAYERS = {
    "plain": lambda: GATConv(3, 8),
    "mean of heads": lambda: GATConv(3, 5, heads=3, concat=False, negative_slope=0.1, bias=True),
    "edge features": lambda: GATConv(3, 8, heads=2, edge_dim=2),
    "self-loops": lambda: GATConv(3, 8, add_self_loops=True),
    "self-loops and edge features": lambda: GATConv(3, 8, edge_dim=2, add_self_loops=True),
}
NAMES = {"att_receiver": "att_dst", "att_sender": "att_src"}


def oracle(layer, x, edge_index, edge_attr):
    theirs = PyGConv(
        layer.in_channels,
        layer.att_sender.shape[1],
        layer.heads,
        layer.concat,
        layer.negative_slope,
        add_self_loops=layer.add_self_loops,
        edge_dim=layer.edge_dim,
        bias=layer.bias is not None,
    )
    weights = {
        NAMES.get(name, name): parameter[None] if name.startswith("att") else parameter
        for name, parameter in layer.named_parameters()
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


@pytest.mark.parametrize("layer", ["plain", "self-loops"])
def test_scores_of_any_size(device, layer):
    """Where the exponentials of scores would overflow, or all vanish."""
    layer = baselines.made(LAYERS[layer], device, torch.float32)
    adjacency = GRAPHS["random"].adjacency(device)
    for scale in (1e4, -1e4):
        x = torch.full((14, 3), scale, device=device, requires_grad=True)
        out = layer(x, adjacency)
        reached = ((adjacency.degree > 0) | layer.add_self_loops)[:, None]
        # all messages are equal, and so is their mean
        torch.testing.assert_close(out, layer.lin(x) * reached)
        out.sum().backward()
        assert x.grad.isfinite().all()


def test_a_nan_stays_where_it_is(device):
    layer = baselines.made(LAYERS["plain"], device)
    x = torch.zeros(5, 3, dtype=torch.float64, device=device)
    x[3] = float("nan")
    out = layer(x, pna.Adjacency.from_edge_index(GRAPHS["isolated"].edge_index(device), 5))
    assert out.isnan().any(1).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("channels, parameters", [((2, 20), 80), ((20, 20), 440)])
def test_as_many_parameters_as_the_authors(channels, parameters):
    assert baselines.count(GATConv(*channels)) == parameters


def test_parameters():
    baselines.assert_resets(lambda: GATConv(3, 8, edge_dim=2, bias=True))
    assert repr(GATConv(3, 8)) == "GATConv(3, 8, heads=4, edge_dim=None)"


def test_refuses():
    with pytest.raises(ValueError, match=r"got out_channels=7 from 4 heads.*concat=False"):
        GATConv(3, 7)
    with pytest.raises(ValueError, match="got heads=0, expected at least 1"):
        GATConv(3, 8, heads=0)
    with pytest.raises(ValueError, match="got edge_attr, expected none"):
        GATConv(3, 8)(torch.ones(3, 3), torch.tensor([[0], [1]]), torch.ones(1, 2))
