"""Scores of `GATConv`, what it holds and what it refuses; its results: `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

import pna
from pna.nn.conv.gat import GATConv
from tests.nn.conv import baselines
from tests.nn.conv.baselines import GRAPHS


@pytest.mark.parametrize("self_loops", [False, True], ids=["plain", "self-loops"])
def test_scores_of_any_size(device, self_loops):
    """Where the exponentials of scores would overflow, or all vanish."""
    layer = baselines.made(lambda: GATConv(3, 8, add_self_loops=self_loops), device, torch.float32)
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
    layer = baselines.made(lambda: GATConv(3, 8), device)
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
