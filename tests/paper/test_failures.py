import pytest
import torch

from pna.paper.failures import METHODS, Method, Pair, braces, failures, pairs, stars

NAMES = [method.name for method in METHODS]

# By hand, one string a pair; an x where mean, std, max, min, sum tell it apart.
BY_HAND = {
    "{0, 0, 1} {0, 1, 1}": "x...x",  # 1/3 and 2/3; both variances 2/9
    "{0, 0, 2, 2} {0, 1, 1, 2}": ".x...",  # variances 1 and 1/2
    "{0, 0, 3, 3} {0, 1, 1, 4}": "..x..",  # sums 6, squares 18
    "{0, 3, 3, 4} {1, 1, 4, 4}": "...x.",  # sums 10, squares 34
    "{1} {1, 1}": "....x",
}


def marks(pair: int) -> str:
    return "".join("x" if apart else "." for apart in failures().told_apart[pair])


@pytest.mark.parametrize("pair", range(len(BY_HAND)))
def test_marks_are_those_found_by_hand(pair: int) -> None:
    sides = f"{braces(pairs()[pair].left)} {braces(pairs()[pair].right)}"
    assert marks(pair)[:5] == BY_HAND[sides]


def test_no_single_aggregator_tells_all_pairs_apart_but_pna_does() -> None:
    told_apart = dict(zip(NAMES, zip(*failures().told_apart, strict=True), strict=True))
    assert not any(all(told_apart[name]) for name in ("mean", "std", "max", "min", "sum"))
    assert told_apart["mean, std, max, min"] == (True, True, True, True, False)
    assert all(told_apart["PNA: those, scaled"])


def test_statistics_are_literal_arithmetic() -> None:
    result = failures()
    statistics = dict(zip(NAMES, result.statistics, strict=True))
    expected = torch.tensor([[1 / 3, 2 / 3], [1, 1], [1.5, 1.5], [2.5, 2.5], [1, 1]])
    torch.testing.assert_close(statistics["mean"].squeeze(-1), expected.double(), rtol=1e-6, atol=0)
    assert statistics["max"][2].flatten().tolist() == [3, 4]
    assert statistics["min"][3].flatten().tolist() == [0, 1]
    assert statistics["PNA: those, scaled"].shape == (len(pairs()), 2, 12)


def test_equal_neighbourhoods_in_another_order_are_never_told_apart() -> None:
    pair = Pair("the order differs", (0.1, 0.2, 0.7), (0.7, 0.1, 0.2))
    assert failures((pair,)).told_apart == ((False,) * len(METHODS),)


def test_a_pair_and_a_method_of_ones_own() -> None:
    pair = Pair("the skew differs", (0, 0, 3, 3), (0, 1, 1, 4))
    methods = (Method("skew", ("moment_3",)), Method("var", ("var",)))
    assert failures((pair,), methods).told_apart == ((True, False),)


def test_stars_send_every_leaf_to_its_centre() -> None:
    values, adj = stars([(5, 6), (), (7,)])
    assert values.flatten().tolist() == [5, 6, 7]
    assert adj.degree.tolist() == [2, 0, 1]
    assert values[adj.senders].flatten().tolist() == [5, 6, 7]
