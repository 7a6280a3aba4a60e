"""What `SAGEConv` holds, and what it refuses; its results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pna.nn.conv.sage import SAGEConv
from pna.ops.aggregators import Max, Softmax
from tests.nn.conv import baselines


def test_parameters():
    layer = SAGEConv(3, 7, Max)
    assert baselines.count(layer) == 2 * 3 * 7 + 7
    assert repr(layer) == "SAGEConv(3, 7, aggregator=Max)"


def test_what_an_aggregator_learns_is_of_the_layer():
    layer, other = (SAGEConv(3, 3, Softmax(nn.Parameter(torch.tensor(t)))) for t in (3.0, 1.0))
    assert "aggregator_temperature" in dict(layer.named_parameters())
    x, edges = torch.randn(4, 3), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 0]])
    layer(x, edges).square().sum().backward()
    assert layer.aggregator.temperature.grad != 0
    assert not torch.allclose(other(x, edges), layer(x, edges))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x, edges), layer(x, edges))
    fixed = SAGEConv(3, 3, Softmax(torch.tensor(2.0))).double()
    assert fixed.aggregator.temperature.dtype == torch.float64
    assert "aggregator_temperature" in dict(fixed.named_buffers())
    assert list(SAGEConv(3, 3).state_dict()) == ["lin_l.weight", "lin_l.bias", "lin_r.weight"]


def test_refuses():
    with pytest.raises(ValueError, match="unknown aggregator 'meen'; did you mean 'mean'"):
        SAGEConv(3, 7, "meen")
    with pytest.raises(ValueError, match="got edge_dim=2, expected None: SAGEConv"):
        SAGEConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match="got in_channels=-1, expected at least 1"):
        SAGEConv(-1, 7)
    with pytest.raises(ValueError, match=r"got x of shape \(3, 4\).*in_channels=3"):
        SAGEConv(3, 7)(torch.ones(3, 4), torch.tensor([[0], [1]]))
