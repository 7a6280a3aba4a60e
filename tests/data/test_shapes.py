"""Which shapes hold how many batches; what is put in them is in `test_padded`."""

from __future__ import annotations

import numpy as np
import torch

from pna.data.shapes import usual_shapes
from pna.nn.depth import levels
from tests.train.cases import random_graphs


def most(graphs, shapes, size):
    """How many of 200 batches at random each of the shapes holds."""
    sizes, edges = graphs.sizes.numpy(), graphs.edge_counts.numpy()
    rng, held = np.random.default_rng(0), [0] * len(shapes)
    for _ in range(200):
        ids = rng.permutation(len(graphs))[:size]
        for i, shape in enumerate(shapes):
            held[i] += shape.arrange(ids, sizes[ids], edges[ids]) is not None
    return held


def test_usual_shapes_hold_most_batches():
    """Half of them at least in the first, nearly all in the last, over many draws."""
    graphs = random_graphs(200, 0, (3, 12))
    shapes = usual_shapes(graphs, 32)
    assert len(shapes) == 2 and all(s.graphs == 32 for s in shapes)
    held = most(graphs, shapes, 32)
    assert held[0] >= 100 and held[1] >= 199


def test_usual_shapes_with_fronts_hold_most_batches():
    """With less room for padding, and for less of it at every step."""
    graphs = random_graphs(600, 0, (6, 16))
    cuts = levels("N/2", 6, 15)
    shapes, plain = usual_shapes(graphs, 128, levels=cuts), usual_shapes(graphs, 128)
    held = most(graphs, shapes, 128)
    assert held[0] >= 80 and held[1] >= 199
    for shape, other in zip(shapes, plain, strict=True):
        assert shape.nodes < other.nodes
        nodes = [front.nodes for front in shape.fronts]
        assert len(nodes) >= 3 and nodes == sorted(set(nodes)) and nodes[-1] < shape.nodes
        assert all(front.edges <= shape.edges for front in shape.fronts)


def test_fronts_that_are_of_no_use_leave_room_for_padding():
    """Nearly all graphs are of one size: without fronts, edges left over need nodes."""
    graphs = random_graphs(800, 0, (15, 17))
    small, large = ((graphs.sizes == size).nonzero()[:, 0] for size in (15, 16))
    graphs = graphs[torch.cat([small[:5], large])]
    shapes = usual_shapes(graphs, 131, levels=levels("N/2", 15, 16))  # little is rounded up
    assert not any(shape.fronts for shape in shapes)
    held = most(graphs, shapes, 131)
    assert held[0] >= 80 and held[1] >= 199
