"""A column turns out to have numbers or categories."""

import numpy as np
import pytest

from pna.data.columns import MOST_VALUES, Categories, Numbers, TextColumn


def column_of(blocks, kind=""):
    column = TextColumn("c", lambda row: f"line {row + 2} of t.csv", kind)
    for cells in blocks:
        column.add(cells)
    return column


def read(blocks, kind=""):
    return column_of(blocks, kind).result()


def target(cells, kind=""):
    return column_of([cells], kind).target()


def test_numbers():
    found = read([["1", " 2.5 "], ["", "-1e3", "NaN", "n/a"]])
    assert isinstance(found, Numbers) and found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, [1, 2.5, np.nan, -1000, np.nan, np.nan])


def test_a_text_after_many_numbers_makes_categories():
    """The numbers that were read before are not lost."""
    codes, values = read([["10", "9", "9 "], ["x", ""]])
    assert codes.tolist() == [0, 1, 1, 2, -1] and values == ("10", "9", "x")


def test_categories_of_numbers_are_in_their_order():
    assert read([["10", "9", "", "1e2"]], "categorical").values == ("9", "10", "1e2")


def test_more_values_than_categories_may_have_are_numbers():
    many = [str(i / 7) for i in range(2 * MOST_VALUES)]
    assert isinstance(read([many, many]), Numbers)
    names = [f"n{i}" for i in range(MOST_VALUES + 1)]
    assert len(read([names[1:]]).values) == MOST_VALUES
    assert len(read([names], "categorical").values) == MOST_VALUES + 1
    for blocks in ([many, ["x"]], [["x"], many]):
        with pytest.raises(
            ValueError,
            match=r"more than 1,000 different texts in the column 'c' \('x' in line \d+ of t.csv "
            r"is no number\), .*--ignore c, or allow 100,000 with --categorical c",
        ):
            read(blocks)


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e39", "1e400"])
def test_infinite_numbers(cell):
    with pytest.raises(ValueError, match=r"as c in line 3 of t.csv, expected a finite number"):
        read([["1", cell]])


@pytest.mark.parametrize("cell", ["x", "1_0", "1,5", "0x1"])
def test_what_is_no_number(cell):
    with pytest.raises(ValueError, match=rf"got '{cell}' as c in line 4 of t.csv, .*--numeric c"):
        read([["1", ""], [cell]], "numeric")
    assert isinstance(read([["1", cell]]), Categories)


def test_numbers_that_float32_cannot_tell_apart():
    with pytest.raises(ValueError, match=r"too little for float32 at 1e\+09; subtract"):
        read([["1000000000", "1000000001"]])


def test_whole_numbers_as_classes():
    codes, classes = target(["10", "2.0", "", "2", "nan"])
    assert codes.tolist() == [1, 0, -1, 0, -1] and classes == ("2", "10")
    for other in (["1", "2.5"], [str(i) for i in range(101)], ["nan", ""]):
        assert isinstance(target(other), Numbers)
    assert isinstance(target(["1", "2"], "numeric"), Numbers)


def test_classes_are_named_as_they_are_written():
    """Float32 has no 20240101 and no 16777217; a code such as 007 is no number."""
    large = [str(10**30 + 1), str(10**30)]
    for cells in (["20240101", "20240102", "20250101"], ["16777216", "16777217"], large):
        codes, classes = target(cells)
        assert [classes[code] for code in codes] == cells
    assert target(["10", "007", "-3"]).values == ("-3", "007", "10")
