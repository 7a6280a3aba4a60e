import pytest

from pna.theory import smallest_pair


def test_the_smallest_pair_by_hand() -> None:
    assert smallest_pair(["std", "max", "min"], "mean") == ((0, 0, 1), (0, 1, 1))
    assert smallest_pair(["mean", "max", "min"], "std") == ((0, 0, 2, 2), (0, 1, 1, 2))
    assert smallest_pair(["mean", "max"], "sum", same_size=False) == ((1,), (1, 1))


def test_where_there_is_none_it_says_so() -> None:
    with pytest.raises(ValueError, match="raise max_size"):
        smallest_pair(["mean", "max", "min"], "std", max_size=3)
