"""Every label against NetworkX, on graphs of all kinds."""

import networkx as nx
import numpy as np
import pytest

from pna.data.multitask.draw import draw
from pna.data.multitask.families import FAMILIES, from_pairs
from pna.data.multitask.labels import LABELS, SIX, LabelInputs, label, shortest_paths
from pna.data.multitask.stream import Stream


def random_graphs(count, n):
    """From empty to full: disconnected, bipartite and with isolated nodes among them."""
    stream = Stream("random graphs", n)
    limits = (stream.unit(count, 1) ** 2 * 2**32).astype(np.uint64)
    graphs = from_pairs(stream.bits(count, n * (n - 1) // 2) < limits, n)
    return graphs | graphs.transpose(0, 2, 1)


def labelled(graphs, protocol="paper"):
    count, n, _ = graphs.shape
    stream = Stream("labels", n)
    return LabelInputs(graphs, stream.below(n, count), stream.unit(count, n), protocol)


SAMPLES = {
    "small": lambda: random_graphs(120, 7),
    "random": lambda: random_graphs(120, 15),
    "more than 64 nodes": lambda: random_graphs(12, 70),
    **{
        family.name: lambda f=family: draw(Stream("tasks", f.name), f, 12, 16, "paper")
        for family in FAMILIES
    },
}


def finite(lengths):
    return max(lengths.values())


def of_networkx(graph, source, feature):
    """All labels of one graph."""
    paths = dict(nx.all_pairs_shortest_path_length(graph))
    nodes = range(len(graph))
    far = [finite(paths[node]) for node in nodes]
    matrix = nx.to_numpy_array(graph)
    walk = nx.pagerank(graph, alpha=0.85, tol=1e-12, max_iter=1000) if graph.edges else None
    return {
        "sssp": [paths[source].get(node, 0) for node in nodes],
        "eccentricity": far,
        "laplacian": nx.laplacian_matrix(graph).toarray() @ feature,
        "connected": float(nx.is_connected(graph)),
        "diameter": max(far),
        "spectral_radius": np.abs(np.linalg.eigvalsh(matrix)).max(),
        "degree": [degree for _, degree in graph.degree],
        "pagerank": None if walk is None else [walk[node] for node in nodes],
        "triangles": list(nx.triangles(graph).values()),
        "clustering": list(nx.clustering(graph).values()),
        "bipartite": float(nx.is_bipartite(graph)),
    }


@pytest.mark.parametrize("sample", SAMPLES)
def test_as_networkx(sample):
    given = labelled(SAMPLES[sample]())
    ours = {name: known.compute(given) for name, known in LABELS.items()}
    for i, graph in enumerate(given.graphs):
        network = nx.from_numpy_array(graph)
        theirs = of_networkx(network, int(given.source[i]), given.feature[i])
        assert theirs.keys() == ours.keys(), "every label has its value by NetworkX above"
        for name, value in theirs.items():
            if name == "pagerank" and (value is None or not graph.any(1).all()):
                continue  # NetworkX moves walks out of nodes without edges, which there are none of
            np.testing.assert_allclose(ours[name][i], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_samples_hold_what_they_should():
    given = labelled(SAMPLES["random"]())
    for found in (given.is_connected, given.is_bipartite, ~given.graphs.any(2).all(1)):
        assert 5 < found.sum() < 115


def test_levels():
    given = labelled(random_graphs(5, 9))
    for known in LABELS.values():
        assert known.compute(given).shape == {"node": (5, 9), "graph": (5,)}[known.level]


@pytest.mark.parametrize("name", LABELS)
def test_labels_do_not_depend_on_the_order_of_nodes(name):
    given = labelled(random_graphs(40, 9))
    order = Stream("order").order(40, 9)
    moved = LabelInputs(
        given.graphs[np.arange(40)[:, None, None], order[:, :, None], order[:, None, :]],
        (order == given.source[:, None]).argmax(1),
        np.take_along_axis(given.feature, order, 1),
        given.protocol,
    )
    expected = LABELS[name].compute(given)
    if LABELS[name].level == "node":
        expected = np.take_along_axis(expected, order, 1)
    np.testing.assert_allclose(LABELS[name].compute(moved), expected, rtol=1e-9, atol=1e-9)


def test_bipartite_graphs_are_called_disconnected_as_published():
    """Even those of one piece; the others are called what they are."""
    graphs = np.concatenate([SAMPLES["lobster"](), random_graphs(50, 16)])
    paper, published = (
        LABELS["connected"].compute(labelled(graphs, protocol))
        for protocol in ("paper", "published")
    )
    bipartite = labelled(graphs).is_bipartite
    assert (published == np.where(bipartite, 0, paper)).all()
    assert (published != paper).any()


def test_the_paper_has_six():
    assert [LABELS[name].level for name in SIX] == ["node"] * 3 + ["graph"] * 3


def test_shortest_paths_of_nothing():
    assert shortest_paths(np.zeros((0, 5, 5), bool)).shape == (0, 5, 5)
    assert (shortest_paths(np.zeros((2, 3, 3), bool)) == np.eye(3) - 1).all()


def test_shortest_paths_along_a_line():
    n = 130  # three words of bits
    line = np.eye(n, k=1, dtype=bool)
    lengths = shortest_paths((line | line.T)[None])[0]
    assert (lengths == np.abs(np.subtract.outer(np.arange(n), np.arange(n)))).all()


@pytest.mark.parametrize("name, level", [("new", "edge"), ("degree", "node")])
def test_a_label_without_a_level_or_a_name_of_its_own_is_refused(name, level):
    def compute(inputs):
        return inputs.feature

    compute.__name__ = name
    with pytest.raises(ValueError, match="expected a new name and the level 'node' or 'graph'"):
        label(level)(compute)
    assert "new" not in LABELS
