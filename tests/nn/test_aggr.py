"""`DegreeScalerAggregation` beside PyG's, alone and as the `aggr` of a layer of PyG."""

import copy
from unittest import mock

import pytest
import torch
from torch_geometric import nn as pyg

import pna
from pna.nn import DegreeScalerAggregation
from tests.nn.cases import DEG

SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
RECEIVERS = 5

AGGREGATIONS = {
    "every fused one": ["mean", "sum", "add", "max", "min", "var", "std"],
    "one": "max",
    "a learned softmax": ["mean", pyg.aggr.SoftmaxAggregation(0.7, learn=True)],
    "one module": pyg.aggr.SoftmaxAggregation(2.0),
    "left to PyG": ["mean", "median"],
    "summed, which is left to PyG": pyg.aggr.MultiAggregation(["mean", "max"], mode="sum"),
}


def pair(name, train_norm=False):
    made = []
    for kind in (pyg.DegreeScalerAggregation, DegreeScalerAggregation):
        aggr = copy.deepcopy(AGGREGATIONS[name])
        module = kind(aggr, SCALERS, DEG, train_norm).double()
        module.scaler = SCALERS  # PyG makes a list of this list if there is one aggregation
        made.append(module)
    return made


def results(module, x, **graph):
    out = module(x, **graph)
    leaves = [x, *module.parameters()]
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return out, *torch.autograd.grad(out, leaves, upstream, materialize_grads=True)


@pytest.mark.parametrize("shape, dim", [((20, 3), -2), ((2, 20, 3), -2), ((4, 20, 2, 3), 1)])
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_as_pyg(name, shape, dim):
    theirs, ours = pair(name, train_norm=True)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    index = torch.randint(RECEIVERS - 1, (20,))  # one receiver has no message
    graph = dict(index=index, dim_size=RECEIVERS, dim=dim)
    torch.testing.assert_close(results(ours, x, **graph), results(theirs, x, **graph))


@pytest.mark.parametrize("name", ["every fused one", "left to PyG"])
def test_sorted_messages_by_the_first_of_every_receiver(name):
    theirs, ours = pair(name)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    index, ptr = torch.tensor([0, 0, 1, 1, 1, 3]), torch.tensor([0, 2, 5, 5, 6])
    expected = results(theirs, x, index=index)
    for graph in (dict(ptr=ptr), dict(ptr=ptr, index=index), dict(index=index)):
        torch.testing.assert_close(results(ours, x, **graph), expected)


class Sender(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


def test_in_any_layer_of_pyg():
    theirs, ours = pair("every fused one")
    x, edge_index = torch.randn(9, 3, dtype=torch.float64), torch.randint(7, (2, 30))
    layer = Sender(aggr=ours)
    expected = Sender(aggr=theirs)(x, edge_index)
    forward = pyg.DegreeScalerAggregation.forward
    with mock.patch.object(pyg.DegreeScalerAggregation, "forward", wraps=forward) as of_pyg:
        torch.testing.assert_close(layer(x, edge_index), expected)
    assert not of_pyg.called
    assert isinstance(ours, pyg.DegreeScalerAggregation) and str(ours) == str(theirs)


@pytest.mark.slow
def test_compiled():
    layer = Sender(aggr=pair("every fused one")[1])
    x, edge_index = torch.randn(9, 3, dtype=torch.float64), torch.randint(7, (2, 30))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, edge_index), layer(x, edge_index))


def test_degrees_and_scalers_as_elsewhere():
    stats = pna.DegreeStats.from_histogram(DEG)
    one = DegreeScalerAggregation(["mean"], "amplification", stats)
    assert one(torch.ones(3, 2), torch.tensor([0, 0, 1])).shape == (2, 2)
    torch.testing.assert_close(one.avg_deg_log.item(), stats.mean_log)
    with pytest.raises(ValueError, match="unknown scaler 'amplify'; did you mean 'amplification'"):
        DegreeScalerAggregation(["mean"], ["amplify"], DEG)


@pytest.mark.parametrize(
    "index, error, message",
    [
        (torch.tensor([0, 1]), ValueError, r"shape \(2,\) for 3 messages, expected \(3,\)"),
        (torch.tensor([0.0, 0.9, 1.0]), TypeError, "dtype torch.float32, expected int64"),
        (torch.tensor([0, 1, -1]), ValueError, "got receiver -1 in edge 2"),
    ],
)
def test_wrong_receivers(index, error, message):
    with pytest.raises(error, match=message):
        DegreeScalerAggregation(["mean"], ["identity"], DEG)(torch.ones(3, 2), index, dim_size=2)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_refused():
    layer = Sender(aggr=pair("one")[1])
    with pytest.raises(TypeError, match=r"in torch\.jit\.script, expected torch\.compile"):
        torch.jit.script(layer)
    inputs = torch.randn(3, 2), torch.tensor([[0], [1]])
    with pytest.raises(TypeError, match=r"got edges in torch\.jit\.trace, expected torch\.compile"):
        torch.jit.trace(layer, inputs)
