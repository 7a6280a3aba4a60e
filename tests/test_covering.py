from itertools import combinations, product

import pytest

from tests.covering import covering, left_over

CASES = [dict(zip("abc", values, strict=True)) for values in product(range(3), repeat=3)]


def chosen(strength):
    taken = covering(CASES, strength)
    return [case for case, needed in zip(CASES, taken, strict=True) if needed]


def test_every_value_occurs_in_fewer_cases():
    assert len(chosen(1)) == 3
    assert all({case[name] for case in chosen(1)} == {0, 1, 2} for name in "abc")


def test_every_pair_occurs_in_fewer_cases():
    assert 9 <= len(chosen(2)) <= 12
    for one, other in combinations("abc", 2):
        assert {(case[one], case[other]) for case in chosen(2)} == set(product(range(3), repeat=2))


def test_nothing_to_cover_is_one_case():
    assert len(chosen(0)) == 1


def test_what_is_given_is_not_covered_again():
    taken = covering(CASES, 1, [case for case in CASES if case["a"] == 0])
    assert sum(taken) == 2  # 1 and 2 of a; those given have every value of b and c


def test_a_test_without_parameters_is_taken():
    assert covering([{}], 2) == [True]


@pytest.mark.covering(1, always=True)
@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("values", [[1], [2], [3]], ids=str)
def test_the_cases_of_this_test_are_covered(request, letter, values):
    """Six, of which three are enough for both letters and three values."""
    name = request.node.originalname
    own = [item for item in request.session.items if getattr(item, "originalname", "") == name]
    if len(own) == 6:  # else some were not selected
        assert sum(item.get_closest_marker("slow") is not None for item in own) == 3
        assert len(left_over(own)) == 3


@pytest.mark.parametrize("letter, number", [("a", 1), ("b", 1), ("a", 2)])
@pytest.mark.parametrize("values", [[1], [2]], ids=str)
def test_rows_of_other_tests_are_covered(request, letter, number, values):
    """Six cases, of which three are enough: values that are given together stay together."""
    name = request.node.originalname
    own = [item for item in request.session.items if getattr(item, "originalname", "") == name]
    if len(own) == 6:  # else some were not selected
        assert sum(item.get_closest_marker("slow") is not None for item in own) == 3


@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("values", [[1], [2]], ids=str)
def test_pairs_of_rows_are_covered(request, letter, number, values):
    """Eight cases, of which four are enough for every pair; the others are left out."""
    name = request.node.originalname
    own = [item for item in request.session.items if getattr(item, "originalname", "") == name]
    assert len(own) <= (8 if request.config.getoption("every_case") else 4)
    if len(own) == 4:
        pairs = {(item.callspec.params["letter"], item.callspec.params["number"]) for item in own}
        assert pairs == set(product("ab", [1, 2]))


@pytest.mark.covering(1, always=True, rest="gpu")
@pytest.mark.parametrize("letter", "ab")
@pytest.mark.parametrize("values", [[1], [2]], ids=str)
def test_the_rest_runs_where_there_is_a_gpu(request, device, letter, values):
    name = request.node.originalname
    own = [item for item in request.session.items if getattr(item, "originalname", "") == name]
    slow = sum(item.get_closest_marker("slow") is not None for item in own)
    assert slow == 0 or device.type == "cuda"
