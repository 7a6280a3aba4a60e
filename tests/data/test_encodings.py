"""Encodings by the names of columns: which graphs have, and those that they lack."""

from __future__ import annotations

import pytest
import torch

from pna.data.encodings import ENCODINGS, completed, encodings_in
from pna.data.laplacian import with_laplacian
from pna.data.walks import with_walks
from tests.data.graph_sets import assert_same, make

RING, PATH = [(0, 1), (1, 2), (2, 0)], [(0, 1), (1, 0), (1, 2), (2, 1)]


def names_of(graphs):
    return {"node": graphs.node_features, "edge": graphs.edge_features}


@pytest.mark.parametrize("name", ENCODINGS)
def test_each_is_known_by_its_names_and_added(name):
    graphs = make([3, 3], [RING, PATH])
    encoded = ENCODINGS[name].added(graphs, 2)
    assert encodings_in(names_of(encoded)) == [(name, 2)]
    assert_same(completed(graphs, names_of(encoded)), encoded)
    assert completed(encoded, names_of(encoded)) is encoded
    assert encodings_in(names_of(graphs)) == []


def test_they_are_added_in_their_order():
    graphs = make([3, 3], [RING, PATH])
    encoded = with_walks(with_laplacian(graphs, 2, 1), 3, 2)
    assert_same(completed(graphs, names_of(encoded)), encoded)
    assert_same(completed(with_laplacian(graphs, 2, 1), names_of(encoded)), encoded)
    assert torch.equal(encoded.x[:, :2], graphs.x)
