"""Readouts against PyG's, and against each graph alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state

from pna.nn.readout import Set2Set, max_nodes, mean_nodes, sum_nodes
from tests.nn.cases import assert_equal_in_norm, numbers, outcome

aggr = pytest.importorskip("torch_geometric.nn.aggr")

SIZES = [3, 1, 6, 2]
WIDTH = 5


def batch_of(sizes, device):
    sizes = torch.tensor(sizes, device=device)
    return sizes, torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)


READOUTS = {
    "sum": (sum_nodes, aggr.SumAggregation),
    "mean": (mean_nodes, aggr.MeanAggregation),
    "max": (max_nodes, aggr.MaxAggregation),
}


@pytest.mark.parametrize("sizes", [SIZES, [2, 0, 3], [0]], ids=str)
@pytest.mark.parametrize("name", READOUTS)
def test_readouts_are_those_of_pyg(device, name, sizes):
    ours, theirs = READOUTS[name]
    sizes, of_node = batch_of(sizes, device)
    x = numbers(len(of_node), WIDTH, dtype=torch.float64, device=device)
    got = outcome(lambda: ours(x, sizes), {"x": x})
    expected = outcome(lambda: theirs()(x, of_node, dim_size=len(sizes)), {"x": x})
    torch.testing.assert_close(got, expected)
    starts = F.pad(sizes.cumsum(0), (1, 0))
    torch.testing.assert_close(outcome(lambda: ours(x, sizes, starts), {"x": x}), expected)


def test_readouts_by_eye(device):
    """Graphs of two nodes, of none, of one."""
    x = torch.tensor([[1.0, -4.0], [3.0, -2.0], [5.0, 6.0]], device=device)
    sizes = torch.tensor([2, 0, 1], device=device)
    assert sum_nodes(x, sizes).tolist() == [[4, -6], [0, 0], [5, 6]]
    assert mean_nodes(x, sizes).tolist() == [[2, -3], [0, 0], [5, 6]]
    assert max_nodes(x, sizes).tolist() == [[3, -2], [0, 0], [5, 6]]


def as_in_pyg(layer: Set2Set, steps: int) -> nn.Module:
    theirs = aggr.Set2Set(layer.width, processing_steps=steps).to(layer.weight_ih)
    state = {f"lstm.{name}_l0": value for name, value in layer.state_dict().items()}
    theirs.load_state_dict(state)
    return theirs


def with_parameters(run, x, module):
    named = {
        name.removeprefix("lstm.").removesuffix("_l0"): p for name, p in module.named_parameters()
    }
    return outcome(run, {"x": x, **named})


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [SIZES, [2, 0, 3], [1], [40, 2]], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_set2set_is_that_of_pyg(backend, sizes, steps):
    torch.manual_seed(0)
    layer = Set2Set(WIDTH, steps).to(backend.device)
    theirs = as_in_pyg(layer, steps).double()
    sizes, of_node = batch_of(sizes, backend.device)
    x = numbers(len(of_node), WIDTH, dtype=torch.float32, device=backend.device)
    starts = F.pad(sizes.cumsum(0), (1, 0)) if steps == 3 else None  # or found by itself
    got = with_parameters(lambda: layer(x, sizes, 40, starts=starts), x, layer)
    wide = x.detach().double()
    expected = with_parameters(lambda: theirs(wide, of_node, dim_size=len(sizes)), wide, theirs)
    assert_equal_in_norm(got, expected, 2e-6)


def test_as_many_steps_as_nodes(backend):
    """Each graph as if it were alone, in a PyG module that takes as many."""
    torch.manual_seed(0)
    layer = Set2Set(WIDTH).to(backend.device)
    x = numbers(sum(SIZES), WIDTH, dtype=torch.float32, device=backend.device)
    out = layer(x, torch.tensor(SIZES, device=backend.device), max(SIZES))
    for row, nodes in zip(out, x.split(SIZES), strict=True):
        alone = as_in_pyg(layer, len(nodes))(nodes, torch.zeros_like(nodes[:, 0]).long())[0]
        torch.testing.assert_close(row, alone, rtol=1e-5, atol=1e-6)


def test_nothing_is_read_of_no_nodes(backend):
    layer = Set2Set(WIDTH).to(backend.device)
    x = numbers(2, WIDTH, dtype=torch.float32, device=backend.device)
    out = layer(x, torch.tensor([0, 2, 0], device=backend.device), 2)
    assert (out[[0, 2]] == 0).all()
    assert (out[1] != 0).all()


def test_a_population(backend):
    """Members by vmap over stacked parameters are each member alone, gradients too."""
    torch.manual_seed(0)
    members = [Set2Set(WIDTH).to(backend.device) for _ in range(3)]
    sizes = torch.tensor([2, 0, 3], device=backend.device)
    x = numbers(3, 5, WIDTH, dtype=torch.float32, device=backend.device)
    parameters, _ = stack_module_state(members)
    sums = (mean_nodes, sum_nodes, max_nodes)

    def run(own, each):
        asked = functional_call(members[0], own, (each, sizes, 3))
        return torch.cat([asked, *[read(each, sizes) for read in sums]], 1)

    out = torch.vmap(run)(parameters, x)
    out.square().sum().backward()
    for i, member in enumerate(members):
        alone = run(dict(member.named_parameters()), x[i])
        alone.square().sum().backward()
        torch.testing.assert_close(out[i], alone)
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


def test_initialised_as_torch_does():
    torch.manual_seed(0)
    layer = Set2Set(16)
    shapes = {name: p.shape for name, p in layer.named_parameters()}
    lstm = nn.LSTM(32, 16)
    assert shapes == {name.removesuffix("_l0"): p.shape for name, p in lstm.named_parameters()}
    for parameter in layer.parameters():
        assert 0.22 < parameter.abs().max() <= 0.25
    before = layer.weight_ih.clone()
    layer.reset_parameters()
    assert not torch.equal(layer.weight_ih, before)


def test_what_it_says():
    assert repr(Set2Set(16)) == "Set2Set(16)"
    assert repr(Set2Set(16, steps=3)) == "Set2Set(16, steps=3)"
    with pytest.raises(ValueError, match=r"got steps=-1, expected at least 0, or None"):
        Set2Set(16, steps=-1)


def test_means_of_half_precision_are_of_wide_sums():
    """Neither 100,020 nor 70,000 is a float16."""
    for count, value in ((5001, 20.0), (70_000, 0.5)):
        mean = mean_nodes(torch.full((count, 1), value).half(), torch.tensor([count]))
        assert mean.dtype == torch.float16 and mean.item() == value


def test_means_of_whole_numbers_are_none():
    mean = mean_nodes(torch.tensor([[1], [2], [4]]), torch.tensor([2, 1]))
    assert mean.tolist() == [[1.5], [4.0]]
