"""Every registered convolution and architecture is complete, and keeps what its entry says.

These tests iterate over the registries, so a new entry needs no change here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import partial
from typing import get_args

import pytest
import torch
from torch import nn

import pna
import pna.nn.conv
from pna.degree import DegreeStats
from pna.front import first_nodes
from pna.nn import GCNConv, GINConv, PNAConv
from pna.nn.architectures import ARCHITECTURES, DEFAULTS
from pna.nn.architectures.base import Architecture, Readout
from pna.nn.architectures.base import register as register_architecture
from pna.nn.conv.base import Conv
from pna.nn.convolution import Convolution
from pna.nn.registry import CONVOLUTIONS, Entry, register
from tests.nn.graph_cases import SIZES, batch_of, graphs

DEG = DegreeStats.from_histogram(torch.tensor([2, 6, 5, 1, 1]))


def layer_of(name: str, edge_dim: int | None = None) -> Convolution:
    torch.manual_seed(0)
    return Convolution(name, 4, 8, deg=DEG, towers=2, edge_dim=edge_dim).double()


def test_every_layer_of_the_package_is_registered():
    defined = set()
    for module in pkgutil.iter_modules(pna.nn.conv.__path__):
        found = vars(importlib.import_module(f"pna.nn.conv.{module.name}")).values()
        kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Conv)]
        defined |= {kind for kind in kinds if kind is not Conv}
    assert defined == {entry.layer for entry in CONVOLUTIONS.values()}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layers_have_what_models_ask_for(name):
    entry = CONVOLUTIONS[name]
    layer = layer_of(name, 2 if entry.edges else None)
    conv: Conv = layer.conv
    assert inspect.getdoc(entry.layer) and type(conv).__doc__
    assert (conv.in_channels, conv.out_channels) == (4, 8)
    assert repr(conv).startswith(f"{entry.layer.__name__}(4, 8")
    before = {key: value.clone() for key, value in conv.state_dict().items()}
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.fill_(100.0)
    conv.reset_parameters()
    assert all(parameter.abs().max() < 10 for parameter in conv.parameters())
    conv.load_state_dict(before)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_layers_are_equivariant_and_differentiable(name):
    """The order of the nodes does not matter, and every parameter has a finite gradient."""
    batch = graphs(columns=4, edge_columns=2).batch()
    entry = CONVOLUTIONS[name]
    layer = layer_of(name, 2 if entry.edges else None).eval()
    edge_attr = batch.edge_attr if entry.edges else None
    edge_index = torch.stack(list(batch.adjacency.edge_index)).long()
    expected = layer(batch.x, batch.adjacency, edge_attr)
    order = torch.randperm(batch.num_nodes, generator=torch.Generator().manual_seed(0))
    other = pna.Adjacency.from_edge_index(torch.argsort(order)[edge_index], batch.num_nodes)
    torch.testing.assert_close(layer(batch.x[order], other, edge_attr), expected[order])
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    "name", [name for name, entry in CONVOLUTIONS.items() if entry.restriction == "first"]
)
def test_layers_give_the_same_for_the_first_nodes(name):
    """What lies behind the first graphs of a batch has no influence on them."""
    batch, layer = graphs(columns=4).batch(), layer_of(name).eval()
    nodes = sum(SIZES[:2])
    edges = int(batch.adjacency.indptr[nodes])
    with pna.backend("reference"):
        expected = layer(batch.x, batch.adjacency)[:nodes]
        first = first_nodes(batch.adjacency, nodes, edges)
        torch.testing.assert_close(layer.prepared()(batch.x[:nodes], first), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_architecture_takes_every_convolution(name, architecture):
    batch = batch_of(graphs())
    model = ARCHITECTURES[architecture](name, 2, 8, 3, 2, deg=DEG, towers=2).double()
    found = model(batch)
    assert found.node.shape == (batch.num_nodes, 3) and found.node.isfinite().all()
    assert found.graph.shape == (batch.num_graphs, 2) and found.graph.isfinite().all()
    assert (found.own_loss is not None) == CONVOLUTIONS[name].pooled


@pytest.mark.parametrize("readout", get_args(Readout))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_takes_every_readout(architecture, readout):
    """A graph alone and in a batch, also one without edges, gets the same prediction."""
    made = graphs()
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture]("pna", 2, 8, 0, 2, deg=DEG, readout=readout).double().eval()
    together = model(batch_of(made)).graph
    alone = torch.cat([model(batch_of(made, [i])).graph for i in range(len(SIZES))])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_have_defaults_that_they_take(architecture):
    kind = ARCHITECTURES[architecture]
    assert issubclass(kind, Architecture) and inspect.getdoc(kind)
    assert DEFAULTS[architecture]["hidden"] >= 1
    takes = {*inspect.signature(kind).parameters, "towers"}
    assert DEFAULTS[architecture].keys() <= takes


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((GCNConv,), TypeError, "missing 2 required positional arguments: 'act' and 'restriction'"),
        ((GCNConv, "relu"), TypeError, "missing 1 required positional argument: 'restriction'"),
        ((GCNConv, "relu", "some"), ValueError, "got restriction='some', expected one of"),
        ((nn.Linear, "relu", "all"), TypeError, "expected a subclass of pna.nn.conv.base.Conv"),
        ((print, "relu", "all"), TypeError, "expected a subclass of pna.nn.conv.base.Conv"),
    ],
)
def test_incomplete_entries_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        Entry(*given)


def test_a_layer_with_edge_features_takes_their_number():
    class Mine(Conv):
        def __init__(self, in_channels, out_channels):
            super().__init__(in_channels, out_channels)

    with pytest.raises(ValueError, match="takes no argument 'edge_dim'; add it, or set takes_edge"):
        Entry(Mine, act=None, restriction="all")


def test_what_the_layer_says_need_not_be_said_again():
    made = Entry(partial(PNAConv, aggregators=["mean"]), act=None, restriction="all")
    assert made.layer is PNAConv and made.degrees and made.towers and made.edges
    made = Entry(GINConv, act=None, restriction="all")
    assert not made.degrees and not made.towers and made.edges and not made.carries
    assert CONVOLUTIONS["gated-gcn"].carries and not CONVOLUTIONS["gcn"].edges


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="got two convolutions called 'gcn', expected one"):
        register("gcn", CONVOLUTIONS["gcn"])
    with pytest.raises(ValueError, match="got two architectures called 'stacked', expected one"):
        register_architecture("stacked", ARCHITECTURES["stacked"], hidden=4)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'hidden'"):
        register_architecture("mine", ARCHITECTURES["stacked"])
