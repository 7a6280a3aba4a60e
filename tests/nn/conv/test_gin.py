"""What `GINConv` holds, and what it refuses; its results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

from pna.nn.conv.gin import GINConv
from tests.nn.conv import baselines


@pytest.mark.parametrize("channels, parameters", [((2, 20), 521), ((20, 20), 881)])
def test_as_many_parameters_as_the_authors(channels, parameters):
    assert baselines.count(GINConv(*channels)) == parameters


def test_parameters():
    layer = GINConv(3, 7, eps=0.25, edge_dim=2)
    assert layer.eps.item() == 0.25
    assert "eps" not in dict(GINConv(3, 7, train_eps=False).named_parameters())
    assert repr(layer) == "GINConv(3, 7, edge_dim=2)"


def test_refuses():
    with pytest.raises(ValueError, match="got edge_dim=0, expected at least 1; leave it out"):
        GINConv(3, 7, edge_dim=0)
    with pytest.raises(ValueError, match=r"got no edge_attr, expected \(edges, 2\)"):
        GINConv(3, 7, edge_dim=2)(torch.ones(3, 3), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="got edge features of 2 edges, expected 1"):
        GINConv(3, 7, edge_dim=2)(torch.ones(3, 3), torch.tensor([[0], [1]]), torch.ones(2, 2))
