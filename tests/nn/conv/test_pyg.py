"""What is taken over from PyG's layers and given back; numbers are in `test_pna_pyg`."""

import warnings
from functools import partial

import pytest
import torch
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.aggr import (
    MedianAggregation,
    PowerMeanAggregation,
    SoftmaxAggregation,
    StdAggregation,
    VarAggregation,
)

import pna
from pna.degree import Linear, Power
from pna.nn import PNAConv
from pna.nn.conv.pyg import _AGGREGATORS, to_pyg
from pna.ops.aggregators import BUILT_IN, KthSmallest, Moment, Softmax
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


def with_two_activations():
    layer = theirs(pre_layers=2, post_layers=2)
    layer.post_nns[0][1] = torch.nn.Tanh()
    return layer


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
        (lambda: theirs(pre_layers=2, act="prelu"), ValueError, "PReLU.*without parameters"),
        (
            with_two_activations,
            ValueError,
            r"the activations ReLU\(\), Tanh\(\), expected the same",
        ),
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


def test_degree_histogram_as_pyg():
    graphs = [Data(num_nodes=5, edge_index=torch.randint(4, (2, 9))) for _ in range(6)]
    loader = DataLoader(graphs, batch_size=2)
    expected = pyg.PNAConv.get_degree_histogram(loader)
    assert torch.equal(PNAConv.get_degree_histogram(loader), expected)


#: The arguments of a layer that PyG has too, besides those that `ours` gives.
BOTH_HAVE = {
    "plain": {},
    "every aggregator": dict(
        aggregators=["sum", "add", "mean", "max", "min", "var", "std", "softmax"]
    ),
    "every scaler": dict(scalers=[*SCALERS, "linear", "inverse_linear", Linear(0.0)]),
    "learned": dict(
        aggregators=["mean", Softmax(torch.nn.Parameter(torch.tensor(0.7)))], train_norm=True
    ),
    "deep": dict(towers=2, pre_layers=2, post_layers=3, edge_dim=3, act="tanh"),
    "divided": dict(towers=2, divide_input=True, edge_dim=3),
    "turned round": dict(flow="target_to_source"),
    "no δ": dict(scalers=["identity"], deg=None),
}


def ours(**arguments):
    torch.manual_seed(0)
    given = dict(aggregators=PAPER, scalers=SCALERS, deg=DEG, std="pyg")
    return PNAConv(4, 4, **(given | arguments))


def test_aggregators_of_pyg_are_all_in_the_table():
    """Those that have no other form in PyG: see `test_what_pyg_does_not_have_is_named`."""
    assert set(_AGGREGATORS.values()) <= set(BUILT_IN)
    assert all(hasattr(pyg.aggr, name) for name in _AGGREGATORS)


@pytest.mark.parametrize("arguments", BOTH_HAVE)
def test_back_to_pyg(arguments):
    layer = ours(**BOTH_HAVE[arguments]).double().eval()
    layer.post.requires_grad_(False)
    back = layer.to_pyg()
    assert type(back) is pyg.PNAConv and not back.training
    frozen = {name for name, p in back.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in back.named_parameters() if name.startswith("post_nns")}
    x, edge_index = torch.randn(9, 4).double(), torch.randint(7, (2, 30))
    edge_attr = None if layer.edge_dim is None else torch.randn(30, layer.edge_dim).double()
    torch.testing.assert_close(back(x, edge_index, edge_attr), layer(x, edge_index, edge_attr))
    state = layer.pyg_state_dict()
    assert list(state) == list(back.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in back.state_dict().items())
    before = back.aggr_module.avg_deg_log.clone()
    back.reset_parameters()
    torch.testing.assert_close(back.aggr_module.avg_deg_log, before)


class Alternate(pna.aggregators.Aggregator):
    shift = "none"

    def aggregate(self, hood):
        return hood.mean(hood.power(2))


def with_a_replaced_part():
    layer = ours()
    layer.pre[0] = torch.nn.Linear(8, 4)
    return layer


@pytest.mark.parametrize(
    "make, named",
    [
        (partial(ours, std="paper"), r'the std of the paper \(std="paper"\)'),
        (lambda: PNAConv((4, 3), 4, PAPER, SCALERS, DEG), r"in_channels=\(4, 3\)"),
        (partial(ours, direction="both", deg=(DEG, DEG)), 'direction="both"'),
        (partial(ours, swap_extrema=True), "swap_extrema=True"),
        (partial(ours, mixing=False), "mixing=False"),
        (partial(ours, edge_dim=3, encode_edges=False), "encode_edges=False"),
        (partial(ours, pre_layers=2, act=torch.sin), "act=<built-in.*, not a module"),
        (partial(ours, aggregators=[Moment(3)]), "the aggregator Moment"),
        (partial(ours, aggregators=[KthSmallest(2)]), "the aggregator KthSmallest"),
        (partial(ours, aggregators=["softmin"]), "the aggregator Softmin"),
        (partial(ours, aggregators=["normalised_mean"]), "the aggregator NormalisedMean"),
        (partial(ours, aggregators=[Softmax(torch.ones(4))]), "the aggregator Softmax"),
        (partial(ours, aggregators=[Alternate]), "the aggregator Alternate"),
        (partial(ours, scalers=[Power(0.5)]), r"the scaler Power\(alpha=0.5"),
        (partial(ours, scalers=[Power(1.0, 2.0)]), "the scaler Power.*delta=2.0"),
        (partial(ours, scalers=[Linear(torch.nn.Parameter(torch.ones(())))]), "the scaler Linear"),
        (with_a_replaced_part, r"pre\[0\] = Linear"),
    ],
)
def test_what_pyg_does_not_have_is_named(make, named):
    for convert in (to_pyg, PNAConv.pyg_state_dict):
        message = f"(?s)got a layer with {named}.*, which PyG's PNAConv does not have.*std=.pyg."
        with pytest.raises(ValueError, match=message):
            convert(make())
