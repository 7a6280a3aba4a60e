"""What `MLPConv` holds and refuses, and `Gate`; results of the first are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

from pna.nn.conv.mlp import Gate, MLPConv
from tests.nn.conv import baselines


def test_parameters():
    layer = MLPConv(3, 7)
    assert baselines.count(layer) == 3 * 7 + 7
    baselines.assert_resets(lambda: Gate(3))
    assert repr(layer) == "MLPConv(3, 7)"


def test_gate(device):
    gate = Gate(2).to(device)
    with torch.no_grad():
        gate.lin.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        gate.lin.bias.zero_()
    x = torch.tensor([[4.0, 2.0], [-100.0, 3.0]], device=device)
    half, most = 0.5, 1 / (1 + torch.tensor(-4.0).exp().item())
    expected = torch.tensor([[4 * half, 2 * most], [-100 * half, 0.0]], device=device)
    torch.testing.assert_close(gate(x), expected)


def test_refuses():
    edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match="got edge_dim=2, expected None: MLPConv"):
        MLPConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match=r"got edge_attr, expected none.*leave it out"):
        MLPConv(3, 7)(torch.ones(2, 3), edge_index, torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"got x of shape \(2, 4\).*in_channels=3"):
        MLPConv(3, 7)(torch.ones(2, 4), edge_index)
    with pytest.raises(ValueError, match="got channels=0, expected at least 1"):
        Gate(0)
