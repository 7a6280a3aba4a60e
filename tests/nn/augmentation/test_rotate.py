"""Graphs turned a little: by how much, and the same for a member and for padding."""

from __future__ import annotations

import math

import pytest
import torch

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.augmentation import RandomRotate
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of

CENTRE = ((0, 0.5), (1, 0.25))


def made(degrees: float = 30.0) -> RandomRotate:
    torch.manual_seed(0)
    return RandomRotate(degrees, CENTRE, 2).double()


def angles(layer: RandomRotate, batch) -> list[float]:
    """By how many degrees each graph was turned, of which it is made sure that it was."""
    found = layer(batch.x, batch)
    middle = torch.tensor([m for _, m in CENTRE], dtype=found.dtype)
    which = []
    for before, after in zip(rows_of(batch, batch.x), rows_of(batch, found), strict=True):
        if len(before) == 0:
            which.append(0.0)
            continue
        ours, theirs = (torch.view_as_complex(rows - middle) for rows in (before, after))
        torch.testing.assert_close(theirs / ours, (theirs[0] / ours[0]).expand_as(ours))
        assert (theirs[0] / ours[0]).abs() == pytest.approx(1)
        which.append(math.degrees((theirs[0] / ours[0]).angle()))
    return which


def test_angles_are_drawn_evenly_anew_in_every_pass():
    layer, batch = made(), batch_of(graphs())
    found = torch.tensor([angles(layer, batch) for _ in range(200)])
    found = found[:, torch.tensor(SIZES) > 0]
    assert found.unique().numel() > 950  # of 1000, among 2¹⁶
    assert found.abs().max() <= 30 and found.abs().max() > 29
    assert found.mean(0).abs().max() < 5
    assert (found.std(0) - 30 / math.sqrt(3)).abs().max() < 2.5
    assert layer.eval()(batch.x, batch) is batch.x


def test_the_angle_is_a_matter_of_the_graph_alone():
    """Not of those beside it, nor of padding."""
    held = graphs()
    several, padded = held.batch([4, 0, 3]), PaddedBatches(held)
    room = padded.batch(torch.tensor([3, 4, 0, -1]), Shape(4, 24, 40))
    for layers in [(made(), made(), made()) for _ in range(3)]:
        every = angles(layers[0], held.batch())
        assert angles(layers[1], several) == pytest.approx([every[4], every[0], every[3]])
        assert angles(layers[2], room)[:3] == pytest.approx([every[3], every[4], every[0]])


def test_other_columns_stay():
    torch.manual_seed(0)
    layer, batch = RandomRotate(90.0, ((1, 0.0), (0, 0.0)), 3), batch_of(graphs())
    x = torch.randn(batch.num_nodes, 3)
    found = layer(x, batch)
    assert torch.equal(found[:, 2], x[:, 2])
    torch.testing.assert_close(found[:, :2].norm(dim=1), x[:, :2].norm(dim=1))


@pytest.mark.parametrize(
    "degrees, centre, message",
    [
        (30.0, ((0, 0.5),), "got a rotation about .* expected two columns"),
        (
            30.0,
            ((0, 0.5), (0, 0.5)),
            "got columns .* for centre, expected .* 0 to 1, each once",
        ),
        (30.0, ((0, 0.5), (2, 0.5)), "expected columns of node features, 0 to 1"),
        (30.0, ((0, 0.5), (1, math.inf)), "got centre=.* expected finite numbers"),
        (30.0, (0, 1), "expected pairs of a column and a number"),
        (30.0, ((0.0, 0.5), (1.0, 0.5)), "expected pairs of a column and a number"),
        (math.nan, CENTRE, "got rotate=nan, expected more than 0 degrees"),
        ("ten", CENTRE, "got rotate='ten', expected more than 0 degrees"),
        (0.0, CENTRE, "got rotate=0.0, expected more than 0 degrees"),
        (200.0, CENTRE, "got rotate=200.0, expected .* at most 180"),
    ],
)
def test_refused(degrees, centre, message):
    with pytest.raises(ValueError, match=message):
        RandomRotate(degrees, centre, 2)
