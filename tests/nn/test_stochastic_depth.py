"""Layers that training leaves out: which, how often, and in which models."""

from __future__ import annotations

import pytest
import torch

from pna.nn.architectures.stacked import Stacked
from pna.nn.batch_context import batch_context
from pna.nn.stochastic_depth import StochasticDepth
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of
from tests.nn.test_architectures import made


def kept(layer: StochasticDepth, batch) -> list[float]:
    """The factor of each graph that has nodes."""
    with batch_context(batch):
        found = layer(torch.ones(batch.num_nodes, 2).double(), batch)
    rows = [r for r in rows_of(batch, found) if len(r)]
    assert all((r == r[0, 0]).all() for r in rows)
    return [r[0, 0].item() for r in rows]


def test_a_graph_is_left_out_with_the_probability_and_others_make_up_for_it():
    torch.manual_seed(0)
    layer, batch = StochasticDepth(0.25), batch_of(graphs())
    passes = torch.tensor([kept(layer, batch) for _ in range(400)])
    assert passes.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (passes.mean(0) - 1).abs().max() < 0.15
    assert (torch.corrcoef(passes.T) - torch.eye(passes.shape[1])).abs().max() < 0.2
    assert set(kept(layer.eval(), batch)) == {1.0}


def test_later_layers_are_left_out_more_often():
    """A layer whose width changes has nothing beside it, and is always there."""
    model = made(Stacked, layers=4, out_channels=6, feed_forward=1.0, stochastic_depth=0.4)
    assert [drop.p for drop in model.layer_drops] == pytest.approx([0.1, 0.2, 0.3, 0.0])
    assert [drop.p for drop in model.block_drops] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    plain = made(Stacked, layers=4, feed_forward=1.0)
    assert len(plain.layer_drops) == len(plain.block_drops) == 0


@pytest.mark.parametrize("dropout_first", [False, True])
def test_a_graph_whose_layers_are_left_out_keeps_its_states(dropout_first):
    """Of all layers but those that change the width; dropout of states stays."""
    torch.manual_seed(0)
    model = made(
        Stacked, "gcn", layers=2, norm="none", feed_forward=1.0, stochastic_depth=0.9,
        dropout=0.5, dropout_first=dropout_first, readout="sum",
    )  # fmt: skip
    batch = batch_of(graphs())
    seen = []
    model.gate.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0]))
    first = model.embed(batch.x)
    same = 0
    for _ in range(40):
        model(batch)
        pairs = zip(rows_of(batch, seen[-1]), rows_of(batch, first), strict=True)
        same += sum(torch.equal(a, b) for a, b in pairs if len(a))
    most = 40 * sum(size > 0 for size in SIZES)
    # all four branches of both layers are out at 0.45² · 0.9² of the draws
    assert same == pytest.approx(0.164 * most, abs=0.1 * most) if dropout_first else same == 0


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_other_probabilities_are_refused(p):
    with pytest.raises(ValueError, match=f"got stochastic_depth={p}, expected a probability"):
        made(Stacked, stochastic_depth=p)


def test_refused_without_residual_connections():
    with pytest.raises(ValueError, match=r"got stochastic_depth=0.5 without residual"):
        made(Stacked, stochastic_depth=0.5, residual=False)
