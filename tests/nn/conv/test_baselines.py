"""Every baseline convolution against its oracle, and against itself under what may happen to it.

What is special to one layer is in the file of its name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from torch import nn

from pna.nn.conv.gat import GATConv
from pna.nn.conv.gated_gcn import GatedGCNConv
from pna.nn.conv.gcn import GCNConv
from pna.nn.conv.gin import GINConv
from pna.nn.conv.mlp import MLPConv
from pna.nn.conv.monet import MoNetConv
from pna.nn.conv.sage import SAGEConv
from tests.nn.conv import baselines, oracles
from tests.nn.conv.baselines import GRAPHS, Make, Oracle


@dataclass(frozen=True)
class Layer:
    """How one is made, and what it is to equal with the same weights."""

    make: Make
    oracle: Oracle
    graphs: Collection[str] = tuple(GRAPHS)  # on which it is to
    backend_graph: str | None = "isolated"  # on which backends are compared, if they are
    autocasts: bool = True  # whether its results in half precision are near


def normalised(make: Make) -> Layer:
    """With a batch normalisation, for which other graphs are too small and numbers too near."""
    return Layer(make, oracles.gin, ["random"], backend_graph=None, autocasts=False)


def choosing(make: Make) -> Layer:
    """Which in half precision chooses another of two messages that are near."""
    return Layer(make, oracles.sage, autocasts=False)


LAYERS = {
    "gat": Layer(lambda: GATConv(3, 8), oracles.gat),
    "gat, mean of heads": Layer(
        lambda: GATConv(3, 5, heads=3, concat=False, negative_slope=0.1, bias=True), oracles.gat
    ),
    "gat, edge features": Layer(lambda: GATConv(3, 8, heads=2, edge_dim=2), oracles.gat),
    "gat, self-loops": Layer(lambda: GATConv(3, 8, add_self_loops=True), oracles.gat),
    "gat, self-loops and edge features": Layer(
        lambda: GATConv(3, 8, edge_dim=2, add_self_loops=True), oracles.gat
    ),
    # the sum before the product, and after it
    "gcn, wider": Layer(lambda: GCNConv(3, 7), oracles.gcn, backend_graph="self-loops"),
    "gcn, narrower": Layer(lambda: GCNConv(6, 4), oracles.gcn, backend_graph="self-loops"),
    "gin": normalised(lambda: GINConv(3, 7)),
    "gin, edge features": normalised(lambda: GINConv(6, 4, edge_dim=2)),
    "gin, not normalised": Layer(lambda: GINConv(3, 7, norm=nn.Identity), oracles.gin),
    "gin, edge features, not normalised": Layer(
        lambda: GINConv(6, 4, norm=nn.Identity, edge_dim=2), oracles.gin
    ),
    "gin, fixed ε": Layer(lambda: GINConv(3, 7, train_eps=False, norm=nn.Identity), oracles.gin),
    "sage": Layer(lambda: SAGEConv(3, 7), oracles.sage),
    "sage, narrower": Layer(lambda: SAGEConv(6, 4), oracles.sage),
    "sage, sum": Layer(lambda: SAGEConv(6, 4, "sum"), oracles.sage),
    "sage, normalised": Layer(lambda: SAGEConv(6, 4, normalise=True), oracles.sage),
    "sage, max": choosing(lambda: SAGEConv(6, 4, "max")),
    "sage, min": choosing(lambda: SAGEConv(3, 7, aggregator="min")),
    "monet": Layer(lambda: MoNetConv(3, 7), oracles.monet),
    "monet, one kernel": Layer(lambda: MoNetConv(6, 4, kernels=1, dim=3), oracles.monet),
    "monet, given": Layer(lambda: MoNetConv(3, 7, kernels=2, edge_dim=2), oracles.monet),
    "gated-gcn": Layer(lambda: GatedGCNConv(3, 7), oracles.gated_gcn),
    "gated-gcn, edge features": Layer(lambda: GatedGCNConv(6, 4, edge_dim=2), oracles.gated_gcn),
    "gated-gcn, sums": Layer(lambda: GatedGCNConv(3, 7, normalise=False), oracles.gated_sums),
    "gated-gcn, sums, edge features": Layer(
        lambda: GatedGCNConv(6, 4, normalise=False, edge_dim=2), oracles.gated_sums
    ),
    "mlp": Layer(lambda: MLPConv(3, 7), oracles.mlp),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]


@pytest.mark.parametrize(
    ("name", "graph"), [(name, graph) for name, layer in LAYERS.items() for graph in layer.graphs]
)
def test_as_its_oracle(device, name, graph):
    baselines.assert_as_oracle(LAYERS[name].make, LAYERS[name].oracle, graph, device)


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].backend_graph])
def test_every_backend(backend, name):
    baselines.assert_alike_on(backend, LAYERS[name].make, LAYERS[name].backend_graph)


#: The first of each kind of layer, and those whose options run other operations.
COMPILED = [
    *{name.partition(",")[0]: name for name in reversed(LAYERS)}.values(),
    *("gat, self-loops and edge features", "gin, edge features", "sage, max", "monet, given"),
    "gated-gcn, sums, edge features",
]


@pytest.mark.parametrize(
    "name",
    [name if name == "gin" else pytest.param(name, marks=pytest.mark.slow) for name in COMPILED],
)
def test_compiled_whole(device, name):
    baselines.assert_compiles(LAYERS[name].make, device)


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(triton, layer):
    baselines.assert_layer_captures(layer.make, triton.device)


@pytest.mark.parametrize("own_x", [True, False], ids=["own x", "shared x"])
def test_members_of_a_population_are_layers_alone(device, layer, own_x):
    baselines.assert_members_are_layers_alone(layer.make, device, own_x)


def test_any_order_and_form(device, layer):
    baselines.assert_equivariant(layer.make, device)
    baselines.assert_reads_any_form(layer.make, device)


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].autocasts])
def test_autocast(device, name):
    baselines.assert_autocasts(LAYERS[name].make, device)


def test_parameters_are_drawn_anew(layer):
    baselines.assert_resets(layer.make)
