"""Subclasses of layers: what they may override, and what they may not."""

from __future__ import annotations

import inspect

import pytest
import torch

import pna.nn
from pna.nn import GatedGCNConv, GCNConv, MLPConv, PNAConv, PNASimpleConv
from pna.nn.conv.base import Conv

LAYERS = [
    kind for kind in vars(pna.nn).values() if isinstance(kind, type) and issubclass(kind, Conv)
]


def arguments(layer) -> dict:
    """What a layer cannot be made without, but for sizes."""
    known = {"aggregators": ["mean"], "scalers": ["identity"], "deg": None}
    return {n: known[n] for n in inspect.signature(layer).parameters if n in known}


def test_all_layers_are_found():
    assert {PNAConv, PNASimpleConv, GCNConv, GatedGCNConv} < set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_misspelt_arguments_get_the_nearest_name(layer):
    message = f"'out_chanels' of {layer.__name__}; did you mean 'out_channels'"
    with pytest.raises(TypeError, match=message):
        layer(4, out_chanels=4, **arguments(layer))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("layer", LAYERS)
def test_torchscript_is_refused(layer):
    model = torch.nn.Sequential(layer(4, 4, **arguments(layer)))
    with pytest.raises(TypeError, match=rf"{layer.__name__} in torch\.jit\.script.*torch\.export"):
        torch.jit.script(model)
    inputs = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    if layer is not MLPConv:  # which has no edges
        with pytest.raises(TypeError, match=r"got edges in torch\.jit\.trace.*torch\.compile"):
            torch.jit.trace(model[0], inputs)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "sizes, error, message",
    [
        ((4, (4, 4)), TypeError, r"out_channels=\(4, 4\), expected one number"),
        ((4, "4"), TypeError, "out_channels='4', expected a whole number"),
        ((True, 4), TypeError, r"in_channels=True, expected a whole number of .*; pass it as an"),
        ((0, 4), ValueError, "in_channels=0, expected at least 1"),
    ],
)
def test_sizes(layer, sizes, error, message):
    with pytest.raises(error, match=message):
        layer(*sizes, **arguments(layer))


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer is not PNAConv])
def test_two_types_of_nodes_are_refused(layer):
    with pytest.raises(TypeError, match=r"in_channels=\(4, 4\), .*only PNAConv.*bipartite"):
        layer((4, 4), 4, **arguments(layer))


@pytest.mark.parametrize("base", [PNAConv, PNASimpleConv, GCNConv])
@pytest.mark.parametrize("name", ["message", "update", "aggregate"])
def test_methods_of_message_passing_are_refused_where_they_are_defined(base, name):
    with pytest.raises(TypeError, match=rf"got Mine\.{name}, .*never be called.*override forward"):
        type("Mine", (base,), {name: lambda self, x_j: x_j})


def test_so_are_those_of_a_mixin():
    class Mixin:
        def message(self, x_j):
            return x_j

    with pytest.raises(TypeError, match=r"got Mine\.message"):

        class Mine(Mixin, PNAConv):
            pass


def test_forward_may_be_overridden():
    class Twice(PNAConv):
        def forward(self, x, edge_index, edge_attr=None):
            return 2 * super().forward(x, edge_index, edge_attr)

    layer = Twice(4, 4, ["mean"], ["identity"], None)
    plain = PNAConv(4, 4, ["mean"], ["identity"], None)
    plain.load_state_dict(layer.state_dict())
    x, edges = torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]])
    torch.testing.assert_close(layer(x, edges), 2 * plain(x, edges))


def test_a_method_of_the_layers_own_may_be_overridden():
    """`GatedGCNConv.update` is one, whatever PyG calls by that name."""

    class Mine(GatedGCNConv):
        def update(self, x, adjacency, e):
            return super().update(x, adjacency, e)

    with pytest.raises(TypeError, match=r"got Other\.message"):
        type("Other", (Mine,), {"message": None})
