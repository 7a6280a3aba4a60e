"""Linear layers and stacks of them against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pna.nn.architectures import Stacked
from pna.nn.linear import MLP, Linear, Offset
from pna.nn.norm import BatchNorm
from tests.nn.cases import assert_equal_in_norm, numbers, outcome


def leaves_of(layer, x):
    return {"x": x, **dict(layer.named_parameters())}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_linear_layer_is_that_of_torch(rows, bias):
    layer = Linear(3, 4, bias=bias).double()
    x = numbers(rows, 3, dtype=torch.float64, device="cpu")
    got = outcome(lambda: layer(x), leaves_of(layer, x))
    expected = outcome(lambda: F.linear(x, layer.weight, layer.bias), leaves_of(layer, x))
    assert_equal_in_norm(got, expected, 1e-12)


def test_a_stack_by_definition():
    """Activation, then normalisation, after each but the last; the last has its own."""
    layer = MLP([3, 5, 4, 2], "leaky_relu", "tanh", norm=BatchNorm).double()
    x = numbers(6, 3, dtype=torch.float64, device="cpu")

    def plain():
        h = x
        for linear in list(layer.layers)[:2]:
            h = F.leaky_relu(F.linear(h, linear.weight, linear.bias))
            h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        last = layer.layers[2]
        return torch.tanh(F.linear(h, last.weight, last.bias))

    got = outcome(lambda: layer(x), {"x": x})
    assert_equal_in_norm(got, outcome(plain, {"x": x}), 1e-10)


def test_a_stack_without_normalisation_or_last_activation():
    layer = MLP([2, 3, 1]).double()
    x = numbers(4, 2, dtype=torch.float64, device="cpu")
    first, last = layer.layers
    expected = last(torch.relu(first(x)))
    torch.testing.assert_close(layer(x), expected)
    assert layer.norms is None


def test_a_stack_of_one_layer_is_that_layer():
    layer = MLP([2, 3], "relu", norm=BatchNorm)
    x = torch.randn(4, 2)
    torch.testing.assert_close(layer(x), layer.layers[0](x))
    assert len(layer.norms) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_offset_is_added(dtype):
    offset = Offset([1.0, -2.5]).to(dtype)
    found = offset(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=dtype))
    assert found.dtype == dtype and found.tolist() == [[1.0, -2.5], [2.0, -1.5]]
    assert not offset.state_dict() and not list(offset.parameters())


def test_an_offset_is_there_where_memory_comes_late():
    with torch.device("meta"):
        offset = Offset([3.0])
    assert offset.to_empty(device="cpu")(torch.zeros(1, 1)).item() == 3.0


def test_an_offset_for_each_target():
    with pytest.raises(ValueError, match=r"got 1 graph_means, expected one for each of 2 graph_ta"):
        Stacked("gcn", 3, 8, 0, 2, graph_means=[1.0])
