"""Graphs in groups are divided into folds: groups stay together, and every fold has three parts."""

from collections import Counter

import numpy as np
import pytest

from pna.data.division import FoldOptions, divided

ALONE = [[k] for k in range(23)]


def test_every_graph_is_tested_once_in_each_repeat():
    found = divided(ALONE, FoldOptions(5, 2), 0, "graph")
    assert found["repeats"] == 2 and len(found["parts"]) == 10
    for repeat in (found["parts"][:5], found["parts"][5:]):
        assert [column.count("2") for column in zip(*repeat, strict=True)] == [1] * 23
        assert sorted(fold.count("2") for fold in repeat) == [4, 4, 5, 5, 5]
        assert [fold.count("1") for fold in repeat] == [2] * 5  # a tenth
    assert found["parts"][:5] != found["parts"][5:]


def test_repeats_have_the_seeds_that_follow():
    found = divided(ALONE, FoldOptions(4, 3), 7, "graph")
    assert found == divided(ALONE, FoldOptions(4, 3), 7, "graph")
    assert found["parts"][8:] == divided(ALONE, FoldOptions(4), 9, "graph")["parts"]


def test_without_folds_each_repeat_is_one_split():
    found = divided([[k] for k in range(50)], FoldOptions(repeats=3), 0, "graph")["parts"]
    assert [Counter(fold) for fold in found] == [{"0": 40, "1": 5, "2": 5}] * 3
    assert len({*found}) == 3


@pytest.mark.parametrize("options", [FoldOptions(3), FoldOptions(5, 2), FoldOptions(None, 4)])
@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_together_in_parts_that_are_never_empty(options, seed):
    """One group is larger than any fold, as the molecules without rings are; most are single."""
    rng = np.random.default_rng(seed)
    sizes = [60, 20, *rng.integers(2, 9, 6), *[1] * 20]
    order = rng.permutation(sum(sizes))
    groups = [part.tolist() for part in np.split(order, np.cumsum(sizes)[:-1])]
    for fold in divided(groups, options, seed, "scaffold")["parts"]:
        assert all(len({fold[k] for k in group}) == 1 for group in groups)
        counts = Counter(fold)
        assert {*counts} == {*"012"} and 0 < counts["1"] <= round(len(fold) / 10)


def test_a_group_too_large_for_validation():
    """Three groups of ten: one each, though a tenth of them is three."""
    groups = [[*range(10 * k, 10 * k + 10)] for k in range(3)]
    for fold in divided(groups, FoldOptions(3), 0, "scaffold")["parts"]:
        assert Counter(fold) == {"0": 10, "1": 10, "2": 10}


@pytest.mark.parametrize(
    ("groups", "folds", "message"),
    [
        (ALONE, 24, "got 23 scaffolds for 24 folds, expected at least 24; use --folds 23 or fewer"),
        (ALONE[:2], 2, "got 2 scaffolds for 2 folds, expected at least 3; use --split random"),
        (ALONE[:9], None, "got 9 scaffolds for splits that test a tenth, expected at least 10"),
        (
            ALONE[:3],
            2,
            "one leaves a single scaffold to train and to validate with, .*; use --folds 3",
        ),
    ],
)
def test_too_few_groups(groups, folds, message):
    with pytest.raises(ValueError, match=message):
        divided(groups, FoldOptions(folds), 0, "scaffold")


def test_options_out_of_range():
    with pytest.raises(ValueError, match="got 1 folds, expected at least 2; change --folds"):
        FoldOptions(1)
    with pytest.raises(ValueError, match="got 0 repeats, expected at least 1; change --repeats"):
        FoldOptions(3, 0)
