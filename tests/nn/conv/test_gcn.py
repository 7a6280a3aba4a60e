"""What `GCNConv` holds, and what it refuses; its results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

from pna.nn.conv.gcn import GCNConv
from tests.nn.conv import baselines


def test_parameters():
    layer = GCNConv(3, 7)
    assert baselines.count(layer) == 3 * 7 + 7
    assert repr(layer) == "GCNConv(3, 7)"


def test_refuses():
    with pytest.raises(ValueError, match=r"got edge_dim=2, expected None: GCNConv.*leave it out"):
        GCNConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match="got out_channels=0, expected at least 1"):
        GCNConv(3, 0)
    edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match=r"got x of shape \(3, 4\).*in_channels=3"):
        GCNConv(3, 7)(torch.ones(3, 4), edge_index)
    with pytest.raises(ValueError, match="got edge_attr, expected none"):
        GCNConv(3, 7)(torch.ones(3, 3), edge_index, torch.ones(1, 2))
