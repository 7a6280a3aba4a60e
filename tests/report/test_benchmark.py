"""The tables of a real-world benchmark: ours beside the paper's, in the units of the field."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from pna.paper.results import FACTS
from pna.report import experiments
from pna.report.benchmark import LAST, Cells
from pna.report.drawings import drawings
from pna.report.experiments import markdown, page
from pna.report.read import ExperimentResult
from pna.report.results import tables
from tests.report.made import make


def constant(value: float):
    """All members of all models as good; those of PNA a tenth better or worse."""

    def errors(variant, split, members):
        ours = 1.1 if variant.row == "pna" else 1.0
        spread = 1 + 0.01 * np.arange(members)[:, None]
        return np.log10(np.full((members, 1), value * ours) * spread)

    return errors


def test_errors_have_three_digits_and_the_least_is_the_best(tmp_path):
    result = ExperimentResult.read(make(tmp_path, "zinc", members=2, errors=constant(0.2)))
    table, costs = tables(result)
    assert table.heads == (
        "model", "", "no edge features", "edge features", "edge features, 16 layers",
    )  # fmt: skip
    lines = {(row[0], row[1]): row[2:] for row in table.rows}
    last = lines["PNA", "last epoch"]
    assert last[0].startswith("0.221 ± 0.0") and all(cell.startswith("0.221") for cell in last)
    places = [i for i, row in enumerate(table.rows) if row[0] == "PNA"]
    assert table.rows[places[0] + 2][1:] == ("paper", "0.320", "0.188", "0.142")
    assert set(range(places[0], places[0] + 3)) == table.ours
    best = {table.rows[r][0] for r, _ in table.strong}
    assert "PNA" not in best and len(table.strong) == 3
    cost = next(row for row in costs.rows if row[0] == "PNA, no edge features")
    assert cost[2:] == ("94,995", "2", "900", "0.100", "3.00")


def test_shares_are_in_percent_and_the_most_is_the_best(tmp_path):
    result = ExperimentResult.read(make(tmp_path, "molhiv", members=2, errors=constant(0.7)))
    table, _ = tables(result)
    assert "higher is better" in table.title and table.heads[2:] == ("test",)
    row = next(i for i, row in enumerate(table.rows) if row[0] == "PNA")
    assert table.rows[row][2].startswith("77.39 ±") and table.rows[row + 2][2] == "79.05"
    assert table.rows[row + 1][1] == "best epoch"  # whose area was published
    assert table.strong == {(row + 1, 2)}


def test_what_was_not_run_is_shown_as_published(tmp_path):
    folder = make(tmp_path, "mnist", members=2)
    lines = (folder / "scores.csv").read_text().splitlines()
    left_out = ("gcn,", "pna,", "pna improved")
    (folder / "scores.csv").write_text("\n".join(li for li in lines if not li.startswith(left_out)))
    facts = json.loads((folder / FACTS).read_text())
    for name in list(facts["populations"]):
        if f"{name},".startswith(left_out):
            del facts["populations"][name]
    (folder / FACTS).write_text(json.dumps(facts))
    result = ExperimentResult.read(folder)
    assert Cells(result).measured("gcn", LAST) is None
    table, _ = tables(result)
    assert ("GCN", "paper, not run here", "89.99", "–") in table.rows
    place = [row[0] for row in table.rows].index("PNA")  # run with edge features alone
    assert table.rows[place][2] == "–" and table.rows[place][3] != "–"
    assert table.rows[place + 2][1:] == ("paper", "97.19, not run here", "97.69")
    # neither run nor published
    assert not any("augmentation" in row[0] for row in table.rows)


def test_members_that_broke_are_not_counted_in_silence(tmp_path):
    result = ExperimentResult.read(make(tmp_path, "zinc", members=3))
    assert " of " not in Cells(result).shown("pna", LAST, 3)
    held = result.scores.populations["pna"]
    first, *others = held.members
    broken = replace(held, members=(replace(first, validation=math.inf), *others))
    scores = replace(result.scores, populations={**result.scores.populations, "pna": broken})
    assert Cells(replace(result, scores=scores)).shown("pna", LAST, 3).endswith(" (2 of 3)")


@pytest.mark.covering(0, always=True)
@pytest.mark.parametrize("name", ["zinc", "molhiv", "cifar10"])
def test_the_page(name, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "drawings", lambda result: drawings(result)[:1])
    result = ExperimentResult.read(make(tmp_path, name, members=2))
    text = page([result])
    assert "own graphs and splits" in text and "Cost of training" in text
    assert "PNA without scalers" in markdown(result, ".")
