"""Laplacian encodings, against SciPy's Laplacian, NumPy's eigenvectors and SciPy's exponential."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.csgraph
import torch
from hypothesis import given
from hypothesis import strategies as st

from pna.data import pairs as pairs_module
from pna.data.graphset import GraphSet
from pna.data.laplacian import heat_kernels, laplacian_eigenvectors, laplacian_of, with_laplacian
from tests.data.graph_sets import graph_sets, make

RING, PATH = [(0, 1), (1, 2), (2, 0)], [(0, 1), (1, 0), (1, 2), (2, 1)]


def laplacian(graph: GraphSet) -> np.ndarray:
    """By its definition, and by SciPy, which leaves out loops."""
    size = int(graph.sizes)
    sender, receiver = graph.edges.numpy()
    weights = np.zeros((size, size))
    np.add.at(weights, (sender, receiver), 0.5)
    np.add.at(weights, (receiver, sender), 0.5)
    degree = weights.sum(1)
    scale = np.divide(1, np.sqrt(degree), out=np.zeros(size), where=degree > 0)
    found = np.diag((degree > 0) * 1.0) - scale[:, None] * weights * scale
    if not (sender == receiver).any() and size:
        by_scipy = scipy.sparse.csgraph.laplacian(weights, normed=True)
        np.testing.assert_allclose(found, by_scipy, atol=1e-12)
    return found


@given(graph_sets(), st.integers(1, 5), st.sampled_from([1, 20, 1 << 20]))
def test_eigenvectors_and_heat_kernels(graphs, count, pairs):
    """Of directed graphs with loops and repeated edges too, however many are taken at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "_PAIRS", pairs)
        vectors, heat = laplacian_eigenvectors(graphs, count), heat_kernels(graphs, count)
    assert vectors.dtype == heat.dtype == torch.float32
    assert vectors.shape == (graphs.num_nodes, count) and heat.shape == (graphs.num_edges, count)
    for i in range(len(graphs)):
        nodes = slice(*graphs.node_offsets[i : i + 2].tolist())
        edges = slice(*graphs.edge_offsets[i : i + 2].tolist())
        matrix, found = laplacian(graphs[i]), vectors[nodes].double().numpy()
        values = np.linalg.eigvalsh(matrix)
        real = min(count, max(len(matrix) - 1, 0))
        assert (found[:, real:] == 0).all()
        for k in range(real):
            v = found[:, k]
            np.testing.assert_allclose(matrix @ v, values[k + 1] * v, atol=1e-5)
            assert v[np.abs(v) >= np.abs(v).max() * (1 - 1e-5)][0] > 0
        np.testing.assert_allclose(found.T @ found, np.diag(np.arange(count) < real), atol=1e-5)
        sender, receiver = graphs[i].edges.numpy()
        for k in range(count):
            kernel = scipy.linalg.expm(-(2.0**k) * matrix)
            got = heat[edges, k].numpy()
            np.testing.assert_allclose(got, kernel[sender, receiver], atol=1e-5)


def test_a_path():
    """Its ends have opposite signs in the first vector, its middle 0; then the middle is ahead of
    both ends."""
    found = laplacian_eigenvectors(make([3], [PATH]), 3)
    half = 0.5**0.5
    first = torch.tensor([half, 0, -half])
    torch.testing.assert_close(found[:, 0], first, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[:, 1], torch.tensor([-0.5, half, -0.5]))
    assert (found[:, 2] == 0).all()


def test_a_graph_has_the_same_vectors_beside_others():
    """Also if eigenvalues are equal: four arms of three atoms, beside a longer path."""
    arms = [(0, 1 + 3 * k) for k in range(4)]
    arms += [(1 + 3 * k + i, 2 + 3 * k + i) for k in range(4) for i in range(2)]
    star = arms + [(j, i) for i, j in arms]
    path = [(i, i + 1) for i in range(29)]
    alone = laplacian_eigenvectors(make([13], [star]), 6)
    beside = laplacian_eigenvectors(make([30, 13, 13], [path, star, star]), 6)
    assert torch.equal(beside[30:43], alone) and torch.equal(beside[43:], alone)


def test_columns_are_added_and_known():
    graphs = make([3, 3], [RING, PATH])
    found = with_laplacian(graphs, 2, 1)
    assert torch.equal(found.x, torch.cat([graphs.x, laplacian_eigenvectors(graphs, 2)], 1))
    assert found.node_features == ("0", "1", "laplacian 1", "laplacian 2")
    assert torch.equal(found.edge_attr[:, 1:], heat_kernels(graphs, 1))
    assert found.edge_features == ("0", "heat 1")
    assert laplacian_of(found) == (2, 1) and laplacian_of(graphs) == (0, 0)


def test_refused():
    graphs = make([3, 3], [RING, PATH])
    with pytest.raises(ValueError, match=r"'laplacian 1' already.*use the set from before"):
        with_laplacian(with_laplacian(graphs, 2), 3)
    with pytest.raises(ValueError, match="without eigenvectors and times, expected some"):
        with_laplacian(graphs, 0)
    with pytest.raises(ValueError, match="got a Laplacian with vectors=-1, expected at least 1"):
        laplacian_eigenvectors(graphs, -1)
    with pytest.raises(ValueError, match="got a Laplacian with times=0, expected at least 1"):
        heat_kernels(graphs, 0)
