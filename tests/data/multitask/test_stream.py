"""Random numbers that are the same everywhere."""

import numpy as np
import pytest

from pna.data.multitask.stream import Stream


def test_the_first_numbers_of_a_stream():
    """Written down once: they must never change, on any machine, with any numpy."""
    stream = Stream(1, 0, "paper", "train")
    assert stream.bits(3).tolist() == [2276987987, 376839322, 3651267228]
    assert stream.below(1000, 4).tolist() == [623, 648, 163, 745]
    assert stream.unit(2).tolist() == [0.2652691154102015, 0.8419460727510512]
    assert stream.order(1, 6).tolist() == [[2, 1, 5, 0, 4, 3]]


def test_names_decide_and_nothing_else():
    np.random.seed(3)
    first = Stream(1, "a").words(5)
    np.random.seed(4)
    again = Stream(1, "a").words(5)
    assert (first == again).all()
    assert (first != Stream(1, "b").words(5)).all()
    assert (first != Stream(11, "a").words(5)).all()


def test_a_stream_goes_on():
    stream, whole = Stream("x"), Stream("x").words(10)
    assert (np.concatenate([stream.words(4), stream.words(6)]) == whole).all()


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_below_is_uniform(limit):
    drawn = Stream("below", limit).below(limit, 70_000)
    share = np.bincount(drawn, minlength=limit) / len(drawn)
    assert len(share) == limit
    assert np.abs(share - 1 / limit).max() < 5 * np.sqrt(1 / limit / len(drawn))


def test_a_limit_for_each():
    limits = np.array([[1], [5], [50]])
    drawn = Stream("limits").below(limits, 3, 1000)
    assert (drawn.max(1) == limits[:, 0] - 1).all()
    assert drawn.min() == 0


def test_unit_is_uniform():
    drawn = Stream("unit").unit(100_000)
    assert 0 <= drawn.min() < 1e-3 < 0.999 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 5 / np.sqrt(12 * len(drawn))


def test_orders_are_permutations_each_as_likely():
    orders = Stream("order").order(60_000, 3)
    assert (np.sort(orders, axis=1) == np.arange(3)).all()
    codes = orders @ [9, 3, 1]
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 6
    assert np.abs(counts / len(orders) - 1 / 6).max() < 5 * np.sqrt(1 / 6 / len(orders))


def test_nothing_is_drawn_of_nothing():
    stream = Stream("empty")
    assert stream.bits(0, 5).shape == (0, 5)
    assert stream.order(0, 4).shape == (0, 4)
    assert stream.below(3, 0).shape == (0,)
