"""Activations by name."""

import pytest
import torch
from torch import nn

from pna.nn.activation import activation


@pytest.mark.parametrize(
    "name, kind",
    [
        ("relu", nn.ReLU),
        ("leaky_relu", nn.LeakyReLU),
        ("LeakyReLU", nn.LeakyReLU),
        ("leaky relu", nn.LeakyReLU),
        ("elu", nn.ELU),
        ("tanh", nn.Tanh),
        ("swish", nn.SiLU),
        ("log_softmax", nn.LogSoftmax),
    ],
)
def test_by_name_as_in_pyg(name, kind):
    assert type(activation(name)) is kind


def test_arguments_are_those_of_the_module():
    act = activation("leaky_relu", {"negative_slope": 0.5})
    assert act(torch.tensor([-2.0, 3.0])).tolist() == [-1, 3]


def test_a_callable_is_itself_and_none_does_nothing():
    module = nn.SiLU()
    assert activation(module) is module
    assert activation(torch.sin) is torch.sin
    x = torch.randn(3)
    assert torch.equal(activation(None)(x), x)


@pytest.mark.parametrize(
    "act, error, message",
    [
        ("rellu", ValueError, "unknown activation 'rellu'; did you mean 'relu'"),
        (3, TypeError, "got act of type int, expected the name"),
        (nn.ReLU, TypeError, r"got act=ReLU, a class, .*; write ReLU\(\)"),
    ],
)
def test_refuses(act, error, message):
    with pytest.raises(error, match=message):
        activation(act)
