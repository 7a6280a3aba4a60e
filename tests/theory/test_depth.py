import math

import numpy as np
import pytest

from pna import DegreeStats, GraphSet
from pna.theory import growth


def complete(sizes: list[int]) -> GraphSet:
    edges = [(i, j) for n in sizes for i in range(n) for j in range(n) if i != j]
    return GraphSet.from_arrays(sizes, np.array(edges).T, [n * (n - 1) for n in sizes])


@pytest.mark.parametrize(
    ("scaler", "factor"),
    [
        ("identity", lambda d: 1),
        ("linear", lambda d: d / 5),
        ("amplification", lambda d: math.log(d + 1) / math.log(6)),
    ],
)
def test_complete_graphs_multiply_by_the_scaler_in_every_layer(scaler, factor) -> None:  # type: ignore[no-untyped-def]
    sizes = [4, 9, 12]
    expected = [(n // 2) * math.log10(factor(n - 1)) for n in sizes]
    found = growth(complete(sizes), scaler, DegreeStats.from_degrees([5]))
    assert found.tolist() == pytest.approx(expected)


def test_linear_scaling_outgrows_logarithmic_scaling() -> None:
    graphs, stats = complete([20, 80]), DegreeStats.from_degrees([10, 15, 19])
    linear, logarithmic = (growth(graphs, s, stats) for s in ("linear", "amplification"))
    assert linear[1] > 20 > 10 > logarithmic[1]
    assert linear[1] - linear[0] > 3 * (logarithmic[1] - logarithmic[0])
