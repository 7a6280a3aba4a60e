"""Linear layers side by side are as many linear layers."""

import pytest
import torch
from torch import nn

from pna.nn.towers import TowerLinear, tower_layers


@pytest.mark.parametrize("towers", [1, 3])
@pytest.mark.parametrize("nodes", [0, 5])
def test_towers_are_linear_layers_of_their_own(towers, nodes):
    torch.manual_seed(0)
    layer = TowerLinear(towers, 4, 2).double()
    x = torch.randn(nodes, towers, 4, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    upstream = torch.randn(nodes, towers, 2, dtype=torch.float64)
    out = layer(x)
    got = torch.autograd.grad(out, leaves, upstream)
    each = [nn.functional.linear(x[:, t], layer.weight[t], layer.bias[t]) for t in range(towers)]
    torch.testing.assert_close(out, torch.stack(each, 1))
    torch.testing.assert_close(got, torch.autograd.grad(torch.stack(each, 1), leaves, upstream))


def test_initialised_as_torch_does():
    """Uniform within 1/sqrt(inputs), weights and biases, whatever the number of towers."""
    torch.manual_seed(0)
    layer = TowerLinear(50, 16, 30)
    for parameter in layer.parameters():
        assert parameter.abs().max() <= 0.25
        assert parameter.abs().max() > 0.245
        assert abs(parameter.mean()) < 0.01
    before = layer.weight.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)


def test_layers_one_after_the_other():
    layers = tower_layers(3, inputs=8, outputs=2, count=3)
    assert [tuple(layer.weight.shape) for layer in layers] == [(3, 2, 8), (3, 2, 2), (3, 2, 2)]
    assert repr(layers[0]) == "TowerLinear(towers=3, 8, 2)"
