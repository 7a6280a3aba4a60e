"""Stored results beside new ones, whose numbers are given."""

import pytest

from pna.report.comparison import comparison
from pna.report.read import ExperimentResult
from tests.report.made import make, steadily


def compared(folder, name, shift, members=5):
    """Results, and the same with logarithms of errors that are larger by a shift."""
    stored = make(folder / "stored", name, members)
    new = make(folder / "new", name, members, errors=lambda *given: steadily(*given) + shift)
    return comparison(ExperimentResult.read(stored), ExperimentResult.read(new))


@pytest.mark.parametrize(
    "shift, numbers",
    [
        (0.01, ("−2.23 ± 0.02", "−2.22 ± 0.02", "+0.01 ± 0.02", "yes")),
        (0.1, ("−2.23 ± 0.02", "−2.13 ± 0.02", "+0.10 ± 0.02", "no")),
        (0.0, ("−2.23 ± 0.02", "−2.23 ± 0.02", "+0.00 ± 0.02", "identical")),
    ],
)
def test_differences_are_judged_by_the_spread_of_the_runs(tmp_path, shift, numbers):
    """Logarithms of tasks are 0.1 apart and those of members 0.01, from −2.5 on. So members are
    −2.25, −2.24 … −2.21, with a standard deviation of 0.0158 and an error of 0.0071."""
    table = compared(tmp_path, "multitask", shift)
    assert "tested on the same graphs, mean of log10 errors over tasks" in table.title
    assert table.rows[0] == ("PNA", "5", "5", *numbers)


def test_a_benchmark_is_compared_in_its_units(tmp_path):
    """The mean of 0.01 · 10^0, 10^0.01 … 10^0.04, and the same 10^0.3 times as large."""
    table = compared(tmp_path, "zinc", 0.3)
    assert table.title.endswith("test, last epoch: mean absolute error")
    (row,) = [row for row in table.rows if row[0] == "GCN, no edge features"]
    assert row[3:5] == ("0.010 ± 0.000", "0.021 ± 0.001") and row[-1] == "no"


def test_one_run_decides_nothing(tmp_path):
    table = compared(tmp_path, "multitask", 0.1, members=1)
    assert {row[-1] for row in table.rows} == {"not decidable"}
