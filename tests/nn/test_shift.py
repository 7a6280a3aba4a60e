"""What predictions begin from is added, in their type, and is no weight."""

import pytest
import torch

from pna.nn.architectures import Stacked
from pna.nn.shift import Shift


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constants_are_added(dtype):
    shift = Shift([1.0, -2.5]).to(dtype)
    found = shift(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=dtype))
    assert found.dtype == dtype and found.tolist() == [[1.0, -2.5], [2.0, -1.5]]
    assert not shift.state_dict() and not list(shift.parameters())


def test_it_is_there_where_memory_comes_late():
    with torch.device("meta"):
        shift = Shift([3.0])
    assert shift.to_empty(device="cpu")(torch.zeros(1, 1)).item() == 3.0


def test_as_many_as_there_are_targets():
    with pytest.raises(ValueError, match=r"got 1 graph_means, expected one for each of 2 graph_ta"):
        Stacked("gcn", 3, 8, 0, 2, graph_means=[1.0])
