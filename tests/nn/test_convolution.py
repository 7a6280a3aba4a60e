"""Every registered convolution: shapes, activations, edge features, refusals."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pna.degree import DegreeStats
from pna.nn.activation import activation
from pna.nn.convolution import Convolution
from pna.nn.norm import BatchNorm
from pna.nn.registry import CONVOLUTIONS
from tests.nn.graph_cases import graphs

DEG = DegreeStats.from_histogram(torch.tensor([2, 6, 5, 1, 1]))
#: What the paper's comparisons put after each layer; GIN has its own inside.
ACTIVATIONS = {
    "pna": F.leaky_relu, "pna-no-scalers": F.leaky_relu, "pna-moments": F.leaky_relu,
    "pna-simple": F.relu, "mpnn-sum": F.leaky_relu, "mpnn-max": F.leaky_relu,
    "mpnn-mean-max-min": F.leaky_relu,
    "gat": F.elu, "gcn": F.leaky_relu, "gin": lambda x: x, "sage": F.relu, "monet": F.relu,
    "gated-gcn": F.relu, "mlp": F.relu, "mlp-gated": F.relu, "diffpool": F.relu,
}  # fmt: skip


def made(name: str, inputs: int = 8, outputs: int = 8, **arguments) -> Convolution:
    torch.manual_seed(0)
    towers = {"towers": 2, "divide_input": inputs == 8}
    return Convolution(name, inputs, outputs, deg=DEG, **(towers | arguments)).double()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_is_its_layer_with_its_activation(name):
    batch = graphs(columns=8).batch()
    layer = made(name)
    got = layer(batch.x, batch.adjacency)
    assert got.shape == (batch.num_nodes, 8) and got.isfinite().all()
    layer = made(name)  # with statistics as they were
    act = activation(CONVOLUTIONS[name].act)
    expected = ACTIVATIONS.get(name, act)(layer.conv(batch.x, batch.adjacency))
    torch.testing.assert_close(got, expected)
    raw = made(name, act="none")(batch.x, batch.adjacency)
    torch.testing.assert_close(raw, made(name).conv(batch.x, batch.adjacency))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_prepared_ones_give_the_same(name):
    batch = graphs(columns=8).batch()
    expected = made(name)(batch.x, batch.adjacency)
    torch.testing.assert_close(made(name).prepared()(batch.x, batch.adjacency), expected)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_edge_features_where_there_is_a_place_for_them(name):
    batch = graphs(edge_columns=2, columns=8).batch()
    if not CONVOLUTIONS[name].edges:
        with pytest.raises(ValueError, match=f"got edge features for '{name}'") as error:
            made(name, edge_dim=2)
        assert "pna, " in str(error.value) and " gcn," not in str(error.value).split("one of")[1]
        return
    layer = made(name, edge_dim=2)
    got = layer(batch.x, batch.adjacency, batch.edge_attr)
    other = made(name, edge_dim=2)(batch.x, batch.adjacency, batch.edge_attr + 1)
    assert not torch.allclose(got, other)
    prepared = made(name, edge_dim=2).prepared()
    torch.testing.assert_close(prepared(batch.x, batch.adjacency, batch.edge_attr), got)


def test_gin_normalises_over_real_rows():
    assert isinstance(made("gin").conv.norm, BatchNorm)


def test_aggregators_of_the_paper():
    assert made("pna").conv.neighbourhood.num_aggregators == 4
    assert made("pna").conv.neighbourhood.num_scalers == 3
    assert made("pna-no-scalers").conv.neighbourhood.num_scalers == 1
    assert made("mpnn-mean-max-min").conv.neighbourhood.num_aggregators == 3


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown convolution 'gni'; did you mean 'gin'"):
        Convolution("gni", 2, 2)
