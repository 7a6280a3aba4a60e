"""Columns without a sign: which are flipped, and the same for a member and for padding."""

from __future__ import annotations

import pytest
import torch

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.augmentation import RandomSigns
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of


def made() -> RandomSigns:
    torch.manual_seed(0)
    return RandomSigns([2, 0], 3).double()


def signs(layer: RandomSigns, batch) -> list[tuple[int, ...]]:
    """The sign by which each column of each graph was multiplied; none of graphs without nodes."""
    found, which = layer(batch.x, batch), []
    for before, after in zip(rows_of(batch, batch.x), rows_of(batch, found), strict=True):
        factors = (after / before).round().long()
        assert torch.equal(after, before * factors) and (factors == factors[:1]).all()
        which.append(tuple(factors[0].tolist()) if len(factors) else ())
    return which


def test_each_column_of_each_graph_has_a_sign_of_its_own_in_every_pass():
    layer, batch = made(), batch_of(graphs(columns=3))
    chosen = [i for i, size in enumerate(SIZES) if size]
    passes = torch.tensor([[signs(layer, batch)[i] for i in chosen] for _ in range(200)]).double()
    assert (passes[..., 1] == 1).all()
    drawn = passes[..., [0, 2]].flatten(1)
    assert drawn.mean(0).abs().max() < 0.3
    apart = torch.corrcoef(drawn.T) - torch.eye(drawn.shape[1])
    assert apart.abs().max() < 0.35  # graphs and columns are independent
    assert layer.eval()(batch.x, batch) is batch.x


def test_they_are_a_matter_of_the_graph_alone():
    """Not of those beside it, nor of padding."""
    held = graphs(columns=3)
    several, padded = held.batch([4, 0, 3]), PaddedBatches(held)
    room = padded.batch(torch.tensor([3, 4, 0, -1]), Shape(4, 24, 40))
    for layers in [(made(), made(), made()) for _ in range(3)]:
        every = signs(layers[0], held.batch())
        assert signs(layers[1], several) == [every[4], every[0], every[3]]
        moved = layers[2](room.x, room)
        rows = rows_of(room, moved / torch.where(room.x == 0, 1, room.x))[:3]
        for got, expected in zip(rows, (every[3], every[4], every[0]), strict=True):
            assert not len(got) or tuple(got[0].round().long().tolist()) == expected


@pytest.mark.parametrize("columns", [[3], [-1], [1, 1]])
def test_refused(columns):
    with pytest.raises(ValueError, match="for signs, expected columns of node features, 0 to 2"):
        RandomSigns(columns, 3)
