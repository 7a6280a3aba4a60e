"""Layers made with in_channels=-1: when they learn how wide they are, and from what."""

import copy

import pytest
import torch
from torch_geometric import nn as pyg

from pna.nn import PNAConv
from tests.nn.cases import DEG, PAPER, SCALERS

LAYERS = {
    "plain": {},
    "divided towers": dict(towers=2, divide_input=True),
    "deep, with edges": dict(towers=2, pre_layers=2, post_layers=2, edge_dim=3),
    "unencoded edges": dict(edge_dim=3, encode_edges=False),
    "both directions": dict(edge_dim=3, direction="both", deg=(DEG, DEG)),
}


def layer(in_channels, **arguments):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, std="pyg")
    return PNAConv(in_channels, 4, **(given | arguments))


def inputs(conv, dtype=torch.float32):
    torch.manual_seed(1)
    edge_attr = None if conv.edge_dim is None else torch.randn(30, conv.edge_dim, dtype=dtype)
    return torch.randn(9, 6, dtype=dtype), torch.randint(7, (2, 30)), edge_attr


@pytest.mark.parametrize("arguments", LAYERS)
def test_the_first_call_completes_the_layer(arguments):
    lazy, known = layer(-1, **LAYERS[arguments]), layer(6, **LAYERS[arguments])
    seen = []
    lazy.register_forward_hook(lambda *_: seen.append(1))
    optimiser = torch.optim.SGD(lazy.double().eval().parameters(), lr=0.1)
    given = inputs(lazy, torch.float64)
    out = lazy(x=given[0], edge_index=given[1], edge_attr=given[2])
    assert repr(lazy) == repr(known) and seen == [1] and not lazy.training
    assert {n: p.shape for n, p in lazy.named_parameters()} == {
        n: p.shape for n, p in known.named_parameters()
    }
    known.double().load_state_dict(lazy.state_dict())
    assert torch.equal(out, known(*given))
    before = {n: p.clone() for n, p in lazy.named_parameters()}
    out.square().sum().backward()
    optimiser.step()  # it holds the parameters themselves
    assert all(not torch.equal(p, before[n]) for n, p in lazy.named_parameters() if "lin" not in n)


@pytest.mark.parametrize("arguments", ["plain", "divided towers", "deep, with edges"])
def test_a_state_completes_the_layer(arguments):
    theirs = pyg.PNAConv(6, 4, PAPER, SCALERS, DEG, **LAYERS[arguments])
    for state in (theirs.state_dict(), PNAConv.from_pyg(theirs).state_dict()):
        lazy = torch.nn.Sequential(layer(-1, **LAYERS[arguments]))
        lazy.load_state_dict({f"0.{name}": value for name, value in state.items()})
        given = inputs(theirs)
        torch.testing.assert_close(lazy[0](*given), theirs(*given))


@pytest.mark.parametrize("in_channels", [-1, (-1, -1), (6, -1)], ids=str)
def test_two_types_of_nodes(in_channels):
    by_call, by_state = layer(in_channels), layer((-1, -1))
    x, edge_index = (torch.randn(9, 6), torch.randn(7, 5)), torch.randint(7, (2, 30))
    out = by_call(x, edge_index)
    by_state.load_state_dict(by_call.state_dict())
    assert by_call.in_channels == by_state.in_channels == (6, 5)
    assert torch.equal(by_state(x, edge_index), out)


def test_copies_and_resets_before_the_first_call():
    lazy = layer(-1)
    lazy.reset_parameters()
    other = copy.deepcopy(lazy)
    given = inputs(lazy)
    lazy(*given)
    assert other.in_channels == -1
    other.load_state_dict(lazy.state_dict())
    assert torch.equal(other(*given), lazy(*given))
    lazy.reset_parameters()
    assert not torch.equal(other(*given), lazy(*given))


def test_a_first_call_in_inference_mode_leaves_weights_that_can_be_trained():
    lazy = layer(-1)
    given = inputs(lazy)
    with torch.inference_mode():
        lazy(*given)
    lazy(*given).sum().backward()
    assert all(parameter.grad is not None for parameter in lazy.parameters())


def test_refuses():
    with pytest.raises(ValueError, match=r"x of shape \(9,\), expected \(nodes, features\): .*-1"):
        layer(-1)(torch.randn(9), torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="in_channels=7 to divide among 2 towers"):
        layer(-1, towers=2, divide_input=True)(torch.randn(9, 7), torch.zeros(2, 0).long())
    with pytest.raises(ValueError, match="uninitialized parameter"):
        layer(-1).state_dict()
    with pytest.raises(ValueError, match="in_channels=-2, expected at least 1"):
        layer(-2)
