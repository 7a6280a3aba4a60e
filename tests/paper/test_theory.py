from fractions import Fraction

import numpy as np
import pytest

from pna.paper.theory import NODES, SIZES, code, grow, recover


def test_errors_of_recovery_are_measured() -> None:
    errors = {n: recover(n) for n in SIZES}
    for n, recovery in errors.items():
        assert recovery.error <= recovery.recovered.error
        if n <= 8:
            assert recovery.recovered.error < 1e-6
        assert recovery.recovered.values[0] == pytest.approx(-1, abs=1e-6)
    assert errors[16].recovered.error > 1e3 * errors[8].recovered.error


def test_only_the_identity_confuses() -> None:
    identity, linear = code("identity"), code("linear")
    assert len(identity.values) == len(linear.values) == 35
    assert linear.confused == []
    assert any({(0,), (0, 0)} <= set(group) for group in identity.confused)
    assert linear.values[()] == Fraction(0)


@pytest.mark.slow
def test_linear_scaling_leaves_float32_where_logarithmic_scaling_does_not() -> None:
    grown = grow()
    largest = np.log10(np.finfo(np.float32).max)
    assert [len(by_size) for by_size in grown.values()] == [len(NODES)] * 3
    assert np.median(grown["linear"][-1]) > largest > grown["amplification"][-1].max()
    assert all(np.allclose(values, 0) for values in grown["identity"])
    medians = [np.median(values) for values in grown["linear"]]
    assert medians == sorted(medians)
