"""Graphs in a mirror: which, how, and the same for a member and for padding."""

from __future__ import annotations

import math

import pytest
import torch

import pna.nn
from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.augmentation import RandomFlip
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of


def made() -> RandomFlip:
    torch.manual_seed(0)
    return RandomFlip([(1, 0.75)], 2).double()


def mirrored(layer: RandomFlip, batch) -> list[bool]:
    """Of every graph, whether it was, wholly."""
    found = layer(batch.x, batch)
    assert torch.equal(found[:, 0], batch.x[:, 0])
    which = []
    for before, after in zip(rows_of(batch, batch.x), rows_of(batch, found), strict=True):
        same = torch.equal(after[:, 1], before[:, 1])
        assert same or torch.equal(after[:, 1], 0.75 - before[:, 1])
        which.append(not same)
    return which


def test_every_other_graph_is_mirrored_anew_in_every_pass():
    layer, batch = made(), batch_of(graphs())
    passes = torch.tensor([mirrored(layer, batch) for _ in range(200)]).double()
    assert (passes.mean(0) - 0.5).abs().max() < 0.15
    assert len({tuple(row) for row in passes.tolist()}) > 20
    assert mirrored(layer.eval(), batch) == [False] * len(SIZES)


def test_which_is_a_matter_of_the_graph_alone():
    """Not of those beside it, nor of padding."""
    held = graphs()
    several, padded = held.batch([4, 0, 3]), PaddedBatches(held)
    room = padded.batch(torch.tensor([3, 4, 0, -1]), Shape(4, 24, 40))
    for layers in [(made(), made(), made()) for _ in range(3)]:
        every = mirrored(layers[0], held.batch())
        assert mirrored(layers[1], several) == [every[4], every[0], every[3]]
        assert mirrored(layers[2], room)[:3] == [every[3], every[4], every[0]]


@pytest.mark.parametrize(
    "columns, message",
    [
        ([(2, 1.0)], r"got columns \[2\] for flip, expected columns of node features, 0 to 1"),
        ([(-1, 1.0)], "expected columns of node features, 0 to 1"),
        ([(1, 1.0), (1, 0.5)], "expected columns of node features, 0 to 1, each once"),
        ([(1, math.nan)], "expected finite numbers"),
        ((1, 1.0), r"got flip=\(1, 1.0\), expected pairs of a column and a number, such as"),
        (True, "expected pairs of a column and a number"),
        ([("column", 1.0)], "expected pairs of a column and a number"),
        ([(1.0, 1.0)], "expected pairs of a column and a number"),
    ],
)
def test_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        RandomFlip(columns, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [("Mirror", "RandomFlip"), ("Turn", "RandomRotate"), ("Vary", "RandomScaleShift")],
)
def test_former_names(old, new):
    with pytest.warns(DeprecationWarning, match=f"pna.nn.{old} is now called pna.nn.{new}"):
        assert getattr(pna.nn, old) is getattr(pna.nn, new)
