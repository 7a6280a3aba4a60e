"""Superpixels: neighbours against the definition, one graph at a time, and the benchmarks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from pna.data import superpixels
from pna.data.images import Images
from pna.data.sources import SOURCES, unpack
from pna.data.superpixels import _graphs, from_arrays, neighbours
from tests.data.benchmarks import folder_of


def similarities(position):
    """All of them in one graph, as the benchmark's code has it."""
    distance = cdist(position, position)
    nearest = np.sort(distance, 1)[:, 1:9]
    spread = nearest.sum(1, keepdims=True) / max(nearest.shape[1], 1) + 1e-8
    one_way = np.exp(-((distance / spread) ** 2))
    both = 0.5 * (one_way + one_way.T)
    np.fill_diagonal(both, 0)
    return both


def by_graph(found, sizes):
    """Receivers and similarities of each graph, (nodes, 8)."""
    ends = np.cumsum(found.edge_counts)[:-1]
    index, similarity = np.split(found.edge_index, ends, 1), np.split(found.similarity, ends)
    for size, edges, how_much in zip(sizes, index, similarity, strict=True):
        k = min(size - 1, 8)
        assert edges[0].tolist() == np.repeat(np.arange(size), k).tolist()  # each node sends
        yield edges[1].reshape(size, k), how_much.reshape(size, k)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_the_most_similar_nodes(sizes, seed):
    position = np.random.default_rng(seed).random((sum(sizes), 2))
    found = neighbours(position, np.array(sizes))
    graphs = np.split(position, np.cumsum(sizes)[:-1])
    for one, (receivers, how_much) in zip(graphs, by_graph(found, sizes), strict=True):
        expected = similarities(one)
        k = receivers.shape[1]
        best = -np.sort(-expected, 1)[:, :k]
        np.testing.assert_allclose(how_much, best, rtol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(expected, receivers, 1), best, rtol=1e-5)
        assert all(len(set(row)) == k for row in receivers.tolist())
        assert (receivers != np.arange(len(one))[:, None]).all()


def test_ties_go_to_the_first_node():
    angle = np.arange(12) * np.pi / 6  # all alike, seen from the centre
    circle = np.stack([np.cos(angle), np.sin(angle)], 1).round(12)
    found = neighbours(np.concatenate([[[0, 0]], circle]), np.array([13]))
    assert found.edge_index[1, :8].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_few_nodes():
    found = neighbours(np.array([[0.1, 0.1], [0.5, 0.5], [0.6, 0.6]]), np.array([1, 2]))
    assert found.edge_index.tolist() == [[0, 1], [1, 0]]
    assert found.edge_counts.tolist() == [0, 2]
    assert found.similarity.tolist() == pytest.approx([np.exp(-1)] * 2, rel=1e-6)


def test_how_many_graphs_at_a_time_does_not_matter(monkeypatch):
    random = np.random.default_rng(0)
    sizes = random.integers(2, 40, 30)
    position = random.random((sizes.sum(), 2))
    one = neighbours(position, sizes)
    monkeypatch.setattr(superpixels, "_PAIRS", 1)
    other = neighbours(position, sizes)
    assert np.array_equal(one.edge_index, other.edge_index)
    assert np.array_equal(one.similarity, other.similarity)


def few(channels, count=5):
    """Superpixels of made-up images, in the arrays that files hold."""
    random = np.random.default_rng(1)
    sizes = random.integers(10, 20, count).astype(np.uint8)
    nodes = int(sizes.sum())
    pixels = random.integers(1, 12, nodes).astype(np.uint8)

    def shares(*shape):
        return (random.integers(0, 1000, (*shape, nodes)) % pixels).astype(np.uint8)

    return {
        "num_nodes": sizes,
        "label": np.arange(count, dtype=np.uint8),
        "split": np.array([1, 0, 0, 0, 2], np.uint8)[:count],
        "npix": pixels,
        "row_q": random.integers(0, 27, nodes).astype(np.uint8),
        "row_r": shares(),
        "col_q": random.integers(0, 27, nodes).astype(np.uint8),
        "col_r": shares(),
        "val_q": random.integers(0, 255, (channels, nodes)).astype(np.uint8),
        "val_r": shares(channels),
    }


@pytest.mark.parametrize("experiment, channels, side", [("mnist", 1, 28), ("cifar10", 3, 32)])
def test_features(experiment, channels, side, monkeypatch):
    arrays = few(channels)
    monkeypatch.setattr(superpixels, "_PART", 2)
    parts = list(from_arrays(arrays, experiment))
    assert [len(part) for part in parts] == [2, 2, 1]
    x = torch.cat([part.x for part in parts]).double().numpy()
    pixels = arrays["npix"].astype(float)
    for channel in range(channels):
        value = (arrays["val_q"][channel] + arrays["val_r"][channel] / pixels) / 255
        np.testing.assert_allclose(x[:, channel], value, rtol=1e-6)
    row = (arrays["row_q"] + arrays["row_r"] / pixels) / side
    column = (arrays["col_q"] + arrays["col_r"] / pixels) / side
    np.testing.assert_allclose(x[:, channels:], np.stack([row, column], 1), rtol=1e-6)
    first = parts[0][0]
    assert first.y_graph.tolist() == [[0]] and first.splits[first.split_of_graph] == "validation"
    senders, receivers = first.edges.numpy()
    expected = similarities(first.x[:, channels:].double().numpy())[senders, receivers]
    np.testing.assert_allclose(first.edge_attr[:, 0], expected, rtol=1e-4)
    assert (first.out_degree == 8).all()


def test_files_are_joined_in_their_order(monkeypatch, tmp_path):
    monkeypatch.setattr(superpixels, "read", lambda file, where: file.name.encode())
    counts = {"cifar10_sp150_trainval.npz": 3, "cifar10_sp150_test.npz": 5}
    monkeypatch.setattr(
        superpixels, "unpack", lambda name, content, expected: few(3, counts[name.split("/")[1]])
    )
    told = []
    graphs = _graphs("cifar10", None, 1, lambda *done: told.append(done))
    assert graphs.y_graph[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert told == [(3, 8), (8, 8)]
    assert graphs.metadata["benchmark"] == "cifar10" and graphs.metadata["neighbours"] == 8


def test_from_published_images(monkeypatch):
    pytest.importorskip("skimage", reason="cutting images needs pna[images]")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1)).astype(np.uint8)
    held = Images(pixels, np.array([4, 2, 9], np.uint8), np.array([1, 0, 2], np.uint8))
    monkeypatch.setattr(superpixels, "images", lambda benchmark: held)
    graphs = superpixels.mnist("public")
    assert graphs.y_graph[:, 0].tolist() == [4, 2, 9]
    assert [graphs.splits[place] for place in graphs.split_of_graph] == [
        "validation",
        "train",
        "test",
    ]
    assert (graphs.out_degree == 8).all() and int(graphs.sizes.max()) <= 75
    weight = graphs[0].x[:, 0].mean()
    assert float(weight) == pytest.approx(pixels[0].mean() / 255, abs=0.05)


#: Fewest and most nodes of a split, and nodes and class of its first graph, all published.
PUBLISHED = {
    "mnist": {
        "train": (55_000, (40, 75), (69, 7)),
        "validation": (5_000, (42, 75), (71, 5)),
        "test": (10_000, (42, 75), (74, 7)),
    },
    "cifar10": {
        "train": (45_000, (85, 150), (110, 6)),
        "validation": (5_000, (95, 145), (123, 6)),
        "test": (10_000, (94, 139), (118, 3)),
    },
}
#: Published mean numbers of nodes of training graphs.
MEANS = {"mnist": 70.6, "cifar10": 117.6}


@pytest.mark.parametrize("experiment", PUBLISHED)
def test_published_statistics(experiment):
    folder = folder_of(experiment)
    held = [
        unpack(file.name, superpixels.read(file, folder), superpixels._ARRAYS)
        for file in SOURCES[experiment].files
    ]
    sizes, labels, split = (
        np.concatenate([arrays[name] for arrays in held])
        for name in ("num_nodes", "label", "split")
    )
    for place, (name, (count, span, first)) in enumerate(PUBLISHED[experiment].items()):
        chosen = split == place
        assert superpixels.SPLITS[place] == name
        assert chosen.sum() == count
        assert (sizes[chosen].min(), sizes[chosen].max()) == span
        assert (sizes[chosen][0], labels[chosen][0]) == first
    assert sizes[split == 0].mean() == pytest.approx(MEANS[experiment], abs=0.05)


@pytest.mark.parametrize("experiment", PUBLISHED)
def test_real_graphs(experiment, monkeypatch):
    monkeypatch.setattr(superpixels, "_PART", 200)
    file = SOURCES[experiment].files[-1]
    arrays = unpack(file.name, superpixels.read(file, folder_of(experiment)), superpixels._ARRAYS)
    graphs = next(from_arrays(arrays, experiment))
    assert (graphs.out_degree == 8).all()
    assert 3 <= int(graphs.degree.min()) < 8 < int(graphs.degree.max()) <= 17
    assert float(graphs.x.min()) >= 0 and float(graphs.x.max()) <= 1
    assert 0 < float(graphs.edge_attr.min()) and float(graphs.edge_attr.max()) < 1
    for graph in (graphs[i] for i in range(0, 200, 40)):
        expected = similarities(graph.x[:, -2:].double().numpy())
        senders, receivers = graph.edges.numpy()
        np.testing.assert_allclose(graph.edge_attr[:, 0], expected[senders, receivers], rtol=1e-3)
        least = np.ones(graph.num_nodes)
        np.minimum.at(least, senders, graph.edge_attr[:, 0].double().numpy())
        eighth = -np.sort(-expected, 1)[:, 7]
        np.testing.assert_allclose(least, eighth, rtol=1e-3)
