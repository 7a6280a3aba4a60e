"""Rules of depth against their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pna.degree import DegreeStats
from pna.front import Front
from pna.nn.architectures import Recurrent
from pna.nn.depth import RULES, check_rule, depth_of, levels
from tests.nn.graph_cases import SIZES, batch_of, graphs

FORMULAS = {
    "N": lambda n: n,
    "N/2": lambda n: n // 2,
    "4log2N": lambda n: math.floor(4 * math.log2(n)),
    "2log2N": lambda n: math.floor(2 * math.log2(n)),
    "3sqrtN": lambda n: math.floor(3 * math.sqrt(n)),
}


@pytest.mark.parametrize("rule", FORMULAS)
def test_rules_are_their_formulas(rule):
    """At least one step each, and as many as the deepest in all."""
    depth = depth_of(graphs().batch(), rule)
    expected = [max(FORMULAS[rule](n), 1) for n in SIZES]
    assert depth.steps.tolist() == expected
    assert depth.most == max(expected)


def test_batches_have_fronts_where_layers_walk_the_edges_of_nodes():
    """Edges left over there are of no node, which messages made of every edge would not know."""
    made = {"deg": DegreeStats.from_degrees(torch.tensor([1, 2, 3]))}
    assert Recurrent("pna", 2, 4, 1, 1, **made).levels(2, 9) == [7, 5, 3]
    for other in ({"pre_layers": 2}, {"edge_dim": 3}, {"dropout": 0.5}):
        assert list(Recurrent("pna", 2, 4, 1, 1, **made, **other).levels(2, 9)) == []


def test_levels_are_sizes_above_which_there_are_more_steps():
    assert levels("N/2", 15, 24) == [23, 21, 19, 17, 15]
    assert levels("N", 3, 6) == [5, 4, 3]
    assert levels("N/2", 7, 7) == levels(3, 5, 9) == levels("adaptive", 5, 9) == []
    assert levels("N", 1, 101) == [100 - 13 * k for k in range(8)]


def test_every_step_has_the_shortest_front_that_holds_its_graphs():
    batch = graphs().batch()
    short, long = Front(3, 8, 9), Front(5, 14, 15)
    depth = depth_of(replace(batch, fronts=(Front(6, 4, 4), short, long)), "N/2")
    # graphs of 6 nodes take 3 steps, of 5 two, of 3 one
    whole = Front(0, batch.num_nodes, batch.num_edges)
    assert depth.fronts[:3] == (short, short, Front(6, 4, 4)) and depth.most == 4
    assert depth_of(replace(batch, fronts=(long,)), "N/2").fronts == (whole, long, long)
    assert depth_of(replace(batch, fronts=(long,)), "adaptive").fronts == ()
    assert depth_of(batch, "N/2").fronts == ()


def test_padding_takes_one_step():
    batch = replace(batch_of(graphs()), real=torch.tensor([True, True, True, True, False]))
    assert depth_of(batch, "N/2").steps.tolist()[-1] == 1
    assert depth_of(batch, "diameter").steps.tolist() == [3, 1, 1, 2, 1]


def test_graphs_of_one_size_need_no_numbers_of_their_own():
    depth = depth_of(graphs().batch([4, 4]), "N/2")
    assert depth.steps is None and depth.most == 4


@pytest.mark.parametrize("indices", [None, [4, 4]], ids=["all", "one size"])
def test_adaptive_is_bounded_by_the_nodes_of_each(indices):
    depth = depth_of(graphs().batch(indices), "adaptive")
    assert depth.steps.tolist() == (SIZES if indices is None else [8, 8]) and depth.most == 8


def test_diameters():
    """Of the path to the triangle 3, of single nodes none, of the star 2, of the ring 4."""
    depth = depth_of(batch_of(graphs()), "diameter")
    assert depth.steps.tolist() == [3, 1, 1, 2, 4]
    assert depth.most == 4
    assert depth_of(batch_of(graphs(), [0, 3]), "diameter").most == 3
    assert depth_of(batch_of(graphs(), [1]), "diameter").most == 1
    with pytest.raises(ValueError, match=r"set its field diameter=pna\.data\.diameter\.diameters"):
        depth_of(graphs().batch(), "diameter")


def test_bounds_may_be_wider_than_the_batch():
    batch = replace(graphs().batch([0, 1]), size_range=(1, 8))
    depth = depth_of(batch, "N")
    assert depth.steps.tolist() == [5, 1] and depth.most == 8


@pytest.mark.parametrize(("most", "steps"), [(None, 4), (6, 6)])
def test_the_bound_of_diameters_is_that_of_the_batch(most, steps):
    batch = replace(batch_of(graphs(), [0, 4]), max_diameter=most)
    depth = depth_of(batch, "diameter")
    assert depth.steps.tolist() == [3, 4] and depth.most == steps


def test_padding_is_no_graph():
    """Whose one graph may have more nodes than any of the set."""
    batch = replace(batch_of(graphs(), [0, 4]), real=torch.tensor([True, False]), size_range=None)
    assert depth_of(batch, "N").most == 5
    assert depth_of(batch, "diameter").most == 3


@pytest.mark.parametrize("rule", [*RULES[:-2], "adaptive"])
def test_no_nodes_are_one_step(rule):
    from pna.data.graphset import GraphSet

    empty = GraphSet.from_arrays([0, 0], torch.zeros(2, 0, dtype=torch.int64), [0, 0])
    assert depth_of(empty.batch(), rule).most == 1


@pytest.mark.parametrize(("given", "rule"), [(3, 3), ("7", 7), ("N/2", "N/2")])
def test_numbers_are_depths_too(given, rule):
    assert check_rule(given) == rule
    if isinstance(rule, int):
        depth = depth_of(graphs().batch(), rule)
        assert depth.steps is None and depth.most == rule


@pytest.mark.parametrize(
    ("given", "message"),
    [(0, "got depth=0"), ("0", "got depth=0"), (-2, "got depth=-2"),
     ("N/3", "unknown rule of depth 'N/3'. Known: N, N")],
)  # fmt: skip
def test_what_is_no_rule_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_rule(given)
