"""Toggling, rejection, shuffling: the statistics of the benchmark, tested and not assumed."""

import networkx as nx
import numpy as np
import pytest

from pna.data.multitask import draw as module
from pna.data.multitask.draw import draw, shuffle, toggle, types_of
from pna.data.multitask.families import FAMILIES, to_pairs
from pna.data.multitask.stream import Stream

BY_NAME = {family.name: family for family in FAMILIES}


def five_sigma(p, count):
    return 5 * np.sqrt(p * (1 - p) / count)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize(
    "protocol, rate", [("paper", lambda p: p), ("published", lambda p: 2 * p**2)]
)
def test_toggle_rates(protocol, rate, dense):
    """Before the rejection of isolated nodes: 0.1 of the fewer of edges and missing edges, and as
    many of the others."""
    n, count = 20, 4000
    joined = to_pairs(BY_NAME["line"].make(Stream(0), count, n))
    joined = ~joined if dense else joined
    flipped = joined ^ toggle(Stream("toggle", protocol, dense), joined, protocol)
    e, m = joined[0].sum(), (~joined[0]).sum()
    of_edges, of_missing = (0.1 * m / e, 0.1) if dense else (0.1, 0.1 * e / m)
    for which, p in ((joined, rate(of_edges)), (~joined, rate(of_missing))):
        assert abs(flipped[which].mean() - p) < five_sigma(p, which.sum())


def test_a_graph_with_nothing_to_add_or_nothing_to_take():
    whole = np.ones((50, 10), bool)
    assert (toggle(Stream(0), whole, "paper") == whole).all()  # 0.1·m/e = 0
    assert (toggle(Stream(0), ~whole, "paper") == ~whole).all()


@pytest.mark.parametrize("protocol", ["paper", "published"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_isolated_nodes_no_self_loops_symmetric(family, protocol):
    graphs = draw(Stream("draw", family.name), family, 60, 15, protocol)
    assert graphs.shape == (60, 15, 15)
    assert graphs.any(2).all()
    assert (graphs == graphs.transpose(0, 2, 1)).all()
    assert not np.einsum("bii->bi", graphs).any()


def test_accepted_stars_have_lost_few_edges():
    """2% of them, where toggling alone takes 10%: the others were left with an isolated node."""
    graphs = draw(Stream("stars"), BY_NAME["star"], 400, 24, "paper")
    hub = graphs.sum(2).max(1)
    assert 0.01 < 1 - hub.mean() / 23 < 0.03


def test_shuffling_keeps_the_graph():
    graphs = BY_NAME["lobster"].make(Stream(1), 20, 12)
    shuffled = shuffle(Stream(2), graphs)
    assert not (graphs == shuffled).all((1, 2)).any()
    for one, other in zip(graphs, shuffled, strict=True):
        assert nx.is_isomorphic(nx.from_numpy_array(one), nx.from_numpy_array(other))


def test_every_node_may_be_the_hub():
    graphs = draw(Stream("hubs"), BY_NAME["star"], 3000, 6, "published")
    share = np.bincount(graphs.sum(2).argmax(1), minlength=6) / 3000
    assert np.abs(share - 1 / 6).max() < five_sigma(1 / 6, 3000)


def test_mixture():
    count = 50_000
    shares = [family.share for family in FAMILIES]
    share = np.bincount(types_of(Stream("mixture"), shares, count), minlength=10) / count
    expected = np.array(shares) / 100
    assert (np.abs(share - expected) < five_sigma(expected, count)).all()


def test_gives_up_where_no_draw_can_succeed(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 500)
    with pytest.raises(ValueError, match=r"type star with 300 nodes.*leave out sizes of 300"):
        draw(Stream("hopeless"), BY_NAME["star"], 1, 300, "paper")


def test_none_are_drawn_of_none():
    assert draw(Stream(0), BY_NAME["star"], 0, 7, "paper").shape == (0, 7, 7)
