"""What is taken over from PyG's layers, and what is refused; numbers are in `test_pna_pyg`."""

import warnings

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.nn.aggr import (
    MedianAggregation,
    PowerMeanAggregation,
    SoftmaxAggregation,
    StdAggregation,
    VarAggregation,
)

from pna.nn import PNAConv
from tests.nn.cases import DEG, PAPER, SCALERS


def theirs(**arguments):
    torch.manual_seed(0)
    given = dict(in_channels=4, out_channels=4, aggregators=PAPER, scalers=SCALERS, deg=DEG)
    return pyg.PNAConv(**(given | arguments))


def test_arguments_type_and_mode_are_taken_over():
    conv = theirs(
        edge_dim=3, towers=2, pre_layers=2, post_layers=3, divide_input=True, train_norm=True,
        act="leaky_relu", act_kwargs={"negative_slope": 0.3},
    )  # fmt: skip
    ours = PNAConv.from_pyg(conv.double().eval())
    assert (ours.edge_dim, ours.towers, ours.divide_input) == (3, 2, True)
    assert (len(ours.pre), len(ours.post)) == (2, 3)
    assert ours.act.negative_slope == 0.3
    assert isinstance(ours.neighbourhood.mean_log_degree, torch.nn.Parameter)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    assert not ours.training
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in conv.parameters())


def test_weights_are_copies():
    conv = theirs(aggregators=["mean", SoftmaxAggregation(learn=True)])
    ours = PNAConv.from_pyg(conv)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_weights_of_pyg_in_a_layer_with_the_papers_std_warn():
    conv = theirs()
    layer = PNAConv(4, 4, PAPER, SCALERS, DEG)
    with pytest.warns(UserWarning, match=r'the paper\'s std.*make it with std="pyg"'):
        layer.load_state_dict(conv.state_dict())


def test_no_warning_where_the_results_are_the_same():
    conv, without = theirs(), theirs(aggregators=["mean", "max"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PNAConv.from_pyg(conv)
        PNAConv(4, 4, PAPER, SCALERS, DEG, std="pyg").load_state_dict(conv.state_dict())
        PNAConv(4, 4, ["mean", "max"], SCALERS, DEG).load_state_dict(without.state_dict())
        ours = PNAConv(4, 4, PAPER, SCALERS, DEG)
        ours.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("lost", ["pre_nns.1.0.weight", "lin.bias", "aggr_module.avg_deg_log"])
def test_incomplete_states_are_refused(lost):
    state = theirs(towers=2).state_dict()
    del state[lost]
    layer = PNAConv(4, 4, PAPER, SCALERS, DEG, towers=2, std="pyg")
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict(state)


def test_states_of_other_shapes_are_refused():
    layer = PNAConv(4, 4, PAPER, SCALERS, DEG, std="pyg")
    with pytest.raises(RuntimeError, match=r"size mismatch for pre\.0\.weight"):
        layer.load_state_dict(theirs(edge_dim=2).state_dict(), strict=False)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: torch.nn.Linear(2, 2), TypeError, "Linear, expected a torch_geometric.nn.PNAConv"),
        (lambda: pyg.GCNConv(2, 2), TypeError, "GCNConv, expected a torch_geometric.nn.PNAConv"),
        (lambda: PNAConv(4, 4, PAPER, SCALERS, DEG), TypeError, "got a pna.*PNAConv, expected"),
        (
            lambda: theirs(aggregators=["mean", MedianAggregation()]),
            ValueError,
            "aggregates by MedianAggregation.*expected one of SumAggregation",
        ),
        (lambda: theirs(aggregators=[PowerMeanAggregation()]), ValueError, "PowerMeanAggregation"),
        *(
            (
                lambda kind=kind: theirs(aggregators=[kind(semi_grad=True)]),
                ValueError,
                kind.__name__,
            )
            for kind in (SoftmaxAggregation, StdAggregation, VarAggregation)
        ),
        (
            lambda: theirs(flow="target_to_source"),
            ValueError,
            r"flow='target_to_source'.*edge_index\.flip\(0\)",
        ),
        (lambda: theirs(pre_layers=2, act="prelu"), ValueError, "PReLU.*without parameters"),
    ],
)
def test_refuses(make, error, message):
    with pytest.raises(error, match=message):
        PNAConv.from_pyg(make())


@pytest.mark.parametrize("towers", [1, 2])
def test_what_is_frozen_in_part_stays_so(towers):
    layer = theirs(towers=towers)
    layer.pre_nns.requires_grad_(False)
    trained = {name for name, p in PNAConv.from_pyg(layer).named_parameters() if p.requires_grad}
    assert trained == {"post.0.weight", "post.0.bias", "lin.weight", "lin.bias"}


def test_a_converted_layer_keeps_its_degrees_and_what_is_frozen():
    deg = torch.tensor([0, 3, 5, 2])
    theirs = pyg.PNAConv(4, 4, ["mean"], ["amplification"], deg, train_norm=True)
    theirs.requires_grad_(False)
    ours = PNAConv.from_pyg(theirs)
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    before = ours.neighbourhood.mean_log_degree.clone()
    ours.reset_parameters()
    assert torch.equal(ours.neighbourhood.mean_log_degree, before)
