"""Plots of the predictions of one target: what is drawn, in numbers."""

import numpy as np
import pytest

from pna.report.line_plots import draw_learning_curve
from pna.report.page import figure
from pna.report.run_plots import (
    Curve,
    ReliabilityBins,
    draw_coverage,
    draw_parity,
    draw_precision_recall,
    draw_reliability,
    draw_roc,
)

#: The positives are second and first in the order of the scores 0.8, 0.4, 0.35, 0.1.
FOUR = Curve(
    "active",
    np.array([False, False, True, True]),
    np.array([0.1, 0.4, 0.35, 0.8]),
    np.array([False, True, False, True]),
)


def points(line):
    return [(pytest.approx(x), pytest.approx(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_roc_curve():
    pytest.importorskip("sklearn")
    (axes,) = draw_roc([FOUR]).axes
    diagonal, curve, dot = axes.lines
    assert [(0, 0), (1, 1)] == points(diagonal)
    assert [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)] == points(curve)
    assert [(0.5, 0.5)] == points(dot)  # 0.8 and 0.4 are predicted: one of each class
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("false positive rate", "true positive rate")


def test_precision_recall_curve():
    pytest.importorskip("sklearn")
    (axes,) = draw_precision_recall([FOUR]).axes
    curve, share, dot = axes.lines
    assert [(1, 1 / 2), (1, 2 / 3), (0.5, 1 / 2), (0.5, 1), (0, 1)] == points(curve)
    assert set(share.get_ydata()) == {0.5}
    assert [(0.5, 0.5)] == points(dot)


def test_several_classes_have_a_legend_and_a_style_each():
    pytest.importorskip("sklearn")
    other = Curve("$none$ (2)", ~FOUR.ones, -FOUR.scores)
    drawn = draw_roc([FOUR, other])
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["active", r"\$none\$ (2)"]
    lines = drawn.axes[0].lines
    styles = {(line.get_color(), line.get_linestyle()) for line in (lines[1], lines[3])}
    assert len(styles) == 2


def test_reliability():
    """Twenty rows are two bins of ten. The intervals are Wilson's for 1 and 8 of 10."""
    bins = ReliabilityBins.of(
        np.repeat([0.15, 0.25, 0.6, 0.8], 5), np.array([0] * 9 + [1] * 8 + [0, 0, 1]) > 0
    )
    assert bins.rows.tolist() == [10, 10]
    np.testing.assert_allclose(bins.predicted, [0.2, 0.7])
    np.testing.assert_allclose(bins.observed, [0.1, 0.8])
    np.testing.assert_allclose(bins.low, [0.0179, 0.4902], atol=1e-4)
    np.testing.assert_allclose(bins.high, [0.4042, 0.9433], atol=1e-4)
    (axes,) = draw_reliability(bins, None, ("x", "y")).axes
    assert [(0.2, 0.1), (0.7, 0.8)] == points(axes.lines[-1])


def test_reliability_of_equal_probabilities_and_of_small_ones():
    bins = ReliabilityBins.of(np.full(40, 0.02), np.arange(40) == 0)
    assert bins.rows.tolist() == [40] and bins.observed.tolist() == [1 / 40]
    (axes,) = draw_reliability(bins, bins, ("x", "y")).axes
    assert 0.1 < axes.get_xlim()[1] < 0.2  # the upper end of the interval is 0.13


def test_reliability_is_that_of_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 2, 1007)
    hits = rng.random(1007) < p**1.3
    bins = ReliabilityBins.of(p, hits)
    observed, predicted = calibration.calibration_curve(hits, p, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(bins.observed, observed)
    np.testing.assert_allclose(bins.predicted, predicted)
    assert bins.rows.sum() == 1007 and bins.rows.max() <= 102


def test_parity():
    y, p = np.array([0.0, 5.0, 10.0]), np.array([1.0, 5.0, 8.0])
    (axes,) = draw_parity("log $S$", y, p, (p - 2, p + 2)).axes
    diagonal, dots = axes.lines
    assert [(0, 1), (5, 5), (10, 8)] == points(dots)
    (bars,) = axes.collections
    assert [bar.tolist() for bar in bars.get_segments()] == [
        [[0, -1], [0, 3]], [[5, 3], [5, 7]], [[10, 6], [10, 10]],
    ]  # fmt: skip
    assert axes.get_xlim() == axes.get_ylim() == (pytest.approx(-1.44), pytest.approx(10.44))
    assert [*diagonal.get_xdata()] == [*diagonal.get_ydata()]
    assert axes.get_xlabel() == r"measured log \$S\$"  # not a formula


def test_parity_of_many_rows():
    """201 rows have no bars. More than 1,000 are counted, and the figure stays small."""
    y = np.linspace(0, 1, 201)
    (axes,) = draw_parity("y", y, y, (y - 1, y + 1)).axes
    assert not axes.collections and axes.get_ylim()[1] < 1.1
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    drawn = draw_parity("y", y, y + rng.normal(size=20_000), (y, y))
    (hexagons,) = drawn.axes[0].collections
    assert hexagons.get_array().sum() == 20_000
    assert len(figure(drawn, "many", "many")) < 160_000  # bytes; a page has twelve at most


def test_one_row_of_a_long_name():
    (axes,) = draw_parity("y" * 99, np.array([3.0]), np.array([3.0])).axes
    assert axes.get_xlim() == (2, 4)
    assert axes.get_ylabel() == f"predicted {'y' * 29}…"


def test_coverage():
    (axes,) = draw_coverage([0.5, 0.9], [0.4, 0.95]).axes
    assert [(0.5, 0.4), (0.9, 0.95)] == points(axes.lines[-1])


def test_learning_curve():
    """The second member stops after the first epoch, and is left out of later means."""
    rows = [
        {"epoch": 1, "member": 0, "training": 4.0, "validation": 2.0},
        {"epoch": 1, "member": 1, "training": 2.0, "validation": 6.0},
        {"epoch": 3, "member": 0, "training": 1.0, "validation": 0.5},
        {"epoch": 3, "member": 1, "training": np.nan, "validation": np.nan},
    ]
    (axes,) = draw_learning_curve(rows, [3, 1]).axes
    training, validation, best = axes.lines
    assert [(1, 3), (3, 1)] == points(training)
    assert [(1, 4), (3, 0.5)] == points(validation)
    assert [*best.get_xdata()] == [3, 1]
    assert len(axes.collections) == 2  # the ranges of the members


def test_a_long_learning_curve_is_thinned():
    rows = [{"epoch": k, "member": 0, "training": 1, "validation": 1} for k in range(1, 1202)]
    (axes,) = draw_learning_curve(rows, []).axes
    assert len(axes.lines[0].get_xdata()) == 401
