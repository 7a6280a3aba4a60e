"""The rows that validate: a fraction of every group, and some of every target."""

import numpy as np
import pytest

from pna.estimators.inputs import validation_rows


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_every_group_in_proportion(fraction, seed):
    groups = np.repeat([0, 1, 2], [40, 20, 1])
    chosen = validation_rows(groups, np.ones((61, 1), bool), fraction, np.random.RandomState(seed))
    assert not chosen[60]  # the only one of its class is for training
    assert abs(chosen[:40].sum() - 40 * fraction) <= 2
    assert abs(chosen[40:60].sum() - 20 * fraction) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_rare_targets_are_in_both_parts(seed):
    known = np.zeros((30, 3), bool)
    known[:, 0] = known[:2, 1] = known[[1, 2], 2] = True
    _, groups = np.unique(known, axis=0, return_inverse=True)
    chosen = validation_rows(groups.reshape(-1), known, 0.1, np.random.RandomState(seed))
    assert known[chosen].any(0).all() and known[~chosen].any(0).all()


@pytest.mark.parametrize("rows", [2, 3])
def test_few_rows(rows):
    groups, known = np.arange(rows), np.ones((rows, 1), bool)
    assert 1 <= validation_rows(groups, known, 0.9, np.random.RandomState(0)).sum() < rows
