"""The ten types of graphs, beside NetworkX where it has them."""

import networkx as nx
import numpy as np
import pytest

from pna.data.multitask.families import FAMILIES, from_pairs, to_pairs
from pna.data.multitask.stream import Stream

MAKE = {family.name: family.make for family in FAMILIES}
SIZES = (4, 5, 12, 17, 24)  # odd, even, prime, with more than one pair of factors


def made(name, n, count=200):
    return MAKE[name](Stream("families", name, n), count, n)


def networks(name, n, count=40):
    return [nx.from_numpy_array(graph) for graph in made(name, n, count)]


def test_shares_make_a_whole():
    assert sum(family.share for family in FAMILIES) == 100
    assert len({family.name for family in FAMILIES}) == 10


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MAKE)
def test_symmetric_without_self_loops(name, n):
    graphs = made(name, n)
    assert graphs.shape == (200, n, n)
    assert (graphs == graphs.transpose(0, 2, 1)).all()
    assert not np.einsum("bii->bi", graphs).any()


def ladder_graph(n):
    graph = nx.ladder_graph(n // 2)
    if n % 2:
        graph.add_edge(0, n - 1)
    return graph


def factor(n):
    return max(m for m in range(1, n) if n % m == 0 and m * m <= n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "name, theirs",
    [
        ("grid", lambda n: nx.grid_2d_graph(factor(n), n // factor(n))),
        ("caveman", lambda n: nx.caveman_graph(factor(n), n // factor(n))),
        ("ladder", ladder_graph),
        ("line", nx.path_graph),
        ("star", lambda n: nx.star_graph(n - 1)),
    ],
)
def test_the_fixed_ones_are_those_of_networkx(name, theirs, n):
    assert nx.is_isomorphic(networks(name, n, 1)[0], theirs(n))
    assert (made(name, n) == made(name, n)[0]).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["power_law_tree", "line", "star", "caterpillar", "lobster"])
def test_trees(name, n):
    assert all(nx.is_tree(graph) for graph in networks(name, n))


def without_leaves(graph):
    return graph.subgraph([node for node, degree in graph.degree if degree > 1])


def is_path(graph):
    return len(graph) == 0 or (nx.is_connected(graph) and max(d for _, d in graph.degree) <= 2)


@pytest.mark.parametrize("n", SIZES)
def test_a_caterpillar_without_leaves_is_a_path(n):
    assert all(is_path(without_leaves(graph)) for graph in networks("caterpillar", n))


@pytest.mark.parametrize("n", SIZES)
def test_a_lobster_without_leaves_is_a_caterpillar(n):
    for graph in networks("lobster", n):
        assert is_path(without_leaves(without_leaves(graph)))


def test_lobsters_are_more_than_caterpillars():
    assert any(not is_path(without_leaves(graph)) for graph in networks("lobster", 24))


def test_backbones_are_of_every_length():
    """The path that is left of a caterpillar is as long as its line, or one or two nodes less."""
    lengths = {len(without_leaves(graph)) for graph in networks("caterpillar", 12, 2000)}
    assert lengths == set(range(1, 11))


def test_erdos_renyi_has_every_density():
    n = 20
    density = to_pairs(made("erdos_renyi", n, 4000)).mean(1)
    share, _ = np.histogram(density, bins=5, range=(0, 1))
    assert np.abs(share / 4000 - 0.2).max() < 5 * np.sqrt(0.2 / 4000)


def test_barabasi_albert_joins_k_for_each_new_node():
    n = 12
    edges = made("barabasi_albert", n).sum((1, 2)) // 2
    assert set(edges.tolist()) == {k + (n - k - 1) * k for k in range(1, n)}


def test_barabasi_albert_prefers_the_rich_as_networkx_does():
    """Mean degrees in order, where k is half of n, which the number of edges tells."""
    n, k = 12, 6
    graphs = made("barabasi_albert", n, 12_000)
    graphs = graphs[graphs.sum((1, 2)) == 2 * k * (n - k)]
    theirs = [nx.barabasi_albert_graph(n, k, seed=seed) for seed in range(600)]
    ours = np.sort(graphs.sum(2), axis=1)
    theirs = np.sort([[degree for _, degree in graph.degree] for graph in theirs], axis=1)
    error = ours.std(0) / np.sqrt(len(ours)) + theirs.std(0) / np.sqrt(len(theirs))
    assert len(ours) > 800
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error + 1e-9).all()


@pytest.mark.slow
def test_power_law_trees_have_the_degrees_of_networkx():
    n = 9
    ours = np.sort(made("power_law_tree", n, 4000).sum(2), axis=1)
    theirs = np.array(
        [
            sorted(d for _, d in nx.random_powerlaw_tree(n, 3, seed=seed, tries=5000).degree)
            for seed in range(300)
        ]
    )
    error = ours.std(0) / np.sqrt(len(ours)) + theirs.std(0) / np.sqrt(len(theirs))
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error + 1e-9).all()


def test_pairs_and_back():
    pairs = Stream("pairs").bits(5, 21) < 2**31
    graphs = from_pairs(pairs, 7)
    assert (to_pairs(graphs) == pairs).all()
    assert (graphs == np.triu(graphs, 1)).all()
