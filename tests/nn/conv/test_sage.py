"""What `SAGEConv` holds, and what it refuses; its results are in `test_baselines.py`."""

from __future__ import annotations

import pytest
import torch

from pna.nn.conv.sage import SAGEConv
from pna.ops.aggregators import Max
from tests.nn.conv import baselines


def test_parameters():
    layer = SAGEConv(3, 7, Max)
    assert baselines.count(layer) == 2 * 3 * 7 + 7
    assert repr(layer) == "SAGEConv(3, 7, aggregator=Max)"


def test_refuses():
    with pytest.raises(ValueError, match="unknown aggregator 'meen'; did you mean 'mean'"):
        SAGEConv(3, 7, "meen")
    with pytest.raises(ValueError, match="got edge_dim=2, expected None: SAGEConv"):
        SAGEConv(3, 7, edge_dim=2)
    with pytest.raises(ValueError, match="got in_channels=-1, expected at least 1"):
        SAGEConv(-1, 7)
    with pytest.raises(ValueError, match=r"got x of shape \(3, 4\).*in_channels=3"):
        SAGEConv(3, 7)(torch.ones(3, 4), torch.tensor([[0], [1]]))
