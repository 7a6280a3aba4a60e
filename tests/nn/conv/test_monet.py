"""What `MoNetConv` holds, and what it refuses; its results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

from pna.nn.conv.monet import MoNetConv
from tests.nn.conv import baselines


def test_parameters():
    layer = MoNetConv(3, 7)
    assert baselines.count(layer) == 3 * 3 * 7 + 2 * 3 * 2 + 7 + (2 * 2 + 2)
    assert repr(layer) == "MoNetConv(3, 7, kernels=3, edge_dim=None)"


def test_refuses():
    with pytest.raises(ValueError, match="got kernels=0, expected at least 1"):
        MoNetConv(3, 7, kernels=0)
    with pytest.raises(ValueError, match=r"got edge features of shape \(1, 3\).*edge_dim=2"):
        layer = MoNetConv(3, 7, edge_dim=2)
        layer(torch.ones(3, 3), torch.tensor([[0], [1]]), torch.ones(1, 3))
