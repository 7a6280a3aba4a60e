"""Numbers a little off: by how much, and the same for a member and for padding."""

from __future__ import annotations

import math

import pytest
import torch

from pna.data.padded import PaddedBatches
from pna.data.shapes import Shape
from pna.nn.augmentation import RandomScaleShift
from tests.nn.graph_cases import SIZES, batch_of, graphs, rows_of

#: Of four columns, the first and the third together, the last alone and never stretched.
GROUPS = (((2, 0), 0.5, 0.25, 0.1), ((3,), 2.0, 0.0, 0.5))
SEVERAL = [i for i, size in enumerate(SIZES) if size > 1]


def made() -> RandomScaleShift:
    torch.manual_seed(0)
    return RandomScaleShift(GROUPS, 4).double()


def varied(layer: RandomScaleShift, batch) -> list[list[float]]:
    """How the columns of each graph with several nodes were stretched, then how shifted."""
    found = layer(batch.x, batch)
    assert torch.equal(found[:, 1], batch.x[:, 1])
    both = list(zip(rows_of(batch, batch.x), rows_of(batch, found), strict=True))
    which = []
    for before, after in both:
        if len(before) < 2 or torch.equal(before[0], before[1]):  # as in padding
            continue
        stretch = (after[0] - after[1]) / (before[0] - before[1])
        middle = torch.tensor([0.5, 0.0, 0.5, 2.0], dtype=found.dtype)
        shift = after - middle - (before - middle) * stretch
        torch.testing.assert_close(shift, shift[:1].expand_as(shift), atol=1e-12, rtol=0)
        which.append([*stretch.tolist(), *shift[0].tolist()])
    return which


def test_they_are_drawn_evenly_anew_in_every_pass():
    layer, batch = made(), batch_of(graphs(columns=4))
    found = torch.tensor([varied(layer, batch) for _ in range(200)])
    stretch, shift = found[..., :4] - 1, found[..., 4:]
    torch.testing.assert_close(stretch[..., 0], stretch[..., 2])  # of one group
    assert stretch[..., 3].abs().max() < 1e-12
    for drawn, most in ((stretch[..., 0], 0.25), (shift[..., 0], 0.1), (shift[..., 2], 0.1),
                        (shift[..., 3], 0.5)):  # fmt: skip
        assert 0.97 * most < drawn.abs().max() <= most * (1 + 1e-9)
        assert drawn.mean(0).abs().max() < most / 5
        assert (drawn.std(0) - most / math.sqrt(3)).abs().max() < most / 10
        assert drawn.unique().numel() > 750  # of 800, among 2¹⁶
    of_one = found[:, 0, [0, 4, 6, 7]]
    assert (torch.corrcoef(of_one.T) - torch.eye(4)).abs().max() < 0.3
    assert layer.eval()(batch.x, batch) is batch.x


def test_they_are_a_matter_of_the_graph_alone():
    """Not of those beside it, nor of padding."""
    held = graphs(columns=4)
    several, padded = held.batch([4, 0, 3]), PaddedBatches(held)
    room = padded.batch(torch.tensor([3, 4, 0, -1]), Shape(4, 24, 40))
    for layers in [(made(), made(), made()) for _ in range(3)]:
        every = dict(zip(SEVERAL, varied(layers[0], held.batch()), strict=True))
        for got, at in zip(varied(layers[1], several), (4, 0, 3), strict=True):
            assert got == pytest.approx(every[at])
        for got, at in zip(varied(layers[2], room), (3, 4, 0), strict=True):
            assert got == pytest.approx(every[at])


@pytest.mark.parametrize(
    "groups, message",
    [
        ((((0, 4), 0.5, 0.1, 0.1),), "got columns .* expected columns of node features, 0 to 3"),
        ((((0,), 0.5, 0.1, 0.1), ((0,), 0.5, 0.1, 0.1)), "for scale_shift, .* each once"),
        ((((0,), 0.5, 1.0, 0.1),), "to scale by up to 1 about 0.5 .* expected 0 to less than 1"),
        ((((0,), 0.5, 0.1, -0.1),), "and shift by up to -0.1, expected .* 0 or more"),
        ((((0,), 0.5, 0.1, math.inf),), "and shift by up to inf, expected .* 0 or more"),
        ((((0,), math.nan, 0.1, 0.1),), "about nan .* expected .* a finite number"),
        ((((0.5,), 0.5, 0.1, 0.1),), "expected groups, each of columns, their middle"),
        ((("01", 0.5, 0.1, 0.1),), "expected groups, each of columns, their middle"),
        (((0, 0.5, 0.1, 0.1),), "expected groups, each of columns, their middle"),
        ((((0,), 0.5, 0.1),), "expected groups, each of columns, their middle"),
        (((0, 1), 0.5, 0.1, 0.1), r"such as \(\(\(3, 4\), 0.5, 0.1, 0.05\),\)"),
        (5, "got scale_shift=5, expected groups"),
    ],
)
def test_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        RandomScaleShift(groups, 4)
