"""The page docs/best.md: its numbers are those of results, and its changes those of the rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pna.paper.best import BLOCK, CHANGES, INGREDIENTS
from pna.paper.experiment import Variant
from pna.paper.improved import changed
from pna.paper.published import ORIGINS, published
from pna.paper.registry import EXPERIMENTS
from pna.report.best import GOALS, best_page, goals, ingredients
from pna.report.read import ExperimentResult
from pna.report.summary import read
from pna.train.recipes import BEST
from tests.report.made import Errors, make

ROOT = Path(__file__).parents[2]
FOLDER = f"{INGREDIENTS.name}/benchmark-published"
SPREAD = np.array([-0.003, -0.001, 0.001, 0.003])  # standard error 0.00129


def test_the_page_is_that_of_the_results() -> None:
    page = (ROOT / "docs" / "best.md").read_text(encoding="utf-8")
    remedy = "write it again: pna report results --summary docs/results.md"
    assert page == best_page(read(ROOT / "results")), remedy


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.what)
def test_goals_are_about_populations_that_exist(goal) -> None:
    for folder, name in (*goal.before, goal.best):
        experiment = EXPERIMENTS[folder.split("/")[0]]
        protocol, recipe = folder.split("/")[1].split("-", 1)
        assert protocol in experiment.protocols and recipe in experiment.recipes
        assert name in {variant.name for variant in experiment.variants}
    assert goal.goal[:2] in ("≤ ", "≥ ")


def test_later_models_say_where_their_scores_come_from() -> None:
    table = published("best")
    columns = {column for values in table.rows.values() for column in values}
    assert columns == {goal.column for goal in GOALS} - {""} == set(table.origins)
    assert set(table.origins.values()) <= set(ORIGINS)


def test_a_score_is_shown_beside_the_goal(tmp_path: Path) -> None:
    """ROC-AUC of 0.80 ± 0.02, in per cent; four runs of 0.78 to 0.82."""

    def areas(variant: Variant, split: int, members: int) -> Errors:
        return np.log10(np.linspace(0.78, 0.82, members))[:, None]

    result = ExperimentResult.read(make(tmp_path / "m", "molhiv-best", 4, errors=areas))
    row = next(r for r in goals({"molhiv-best/benchmark-published": result}).rows if "HIV" in r[0])
    assert row[1:3] == ("–", "–") and row[3] == "80.0 ± 2.7" and row[4] == "≥ 80.0"
    assert row[6] == "CIN 80.9, CIN-small 80.6"


def test_changes_have_their_gain_and_what_the_rule_says(tmp_path: Path) -> None:
    """The block has 0.100. One change is better by 0.005 in validation and worse in the test set,
    one is better by 0.001, within the standard error of 0.0018."""
    names = {change.name: changed(BLOCK, change).name for change in CHANGES}
    gains = {names["with dropout"]: 0.005, names["with virtual-node"]: 0.001}
    splits = list(INGREDIENTS.measured)

    def errors(variant: Variant, split: int, members: int) -> Errors:
        gain = gains.get(variant.name, 0.0) * (1 if "validation" in splits[split] else -1)
        return np.log10(0.1 - gain + SPREAD)[:, None]

    result = ExperimentResult.read(make(tmp_path / "z", INGREDIENTS.name, 4, errors=errors))
    made_of = ingredients({FOLDER: result})
    assert made_of is not None
    table, clear = made_of
    assert len(table.rows) == 1 + len(CHANGES)
    assert (clear[-1], clear[1]) == ([], ["with dropout of 0.05"])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["the block"][:2] == ("0.1000 ± 0.0041", "0.1000 ± 0.0041")
    found = rows["with dropout of 0.05"]
    assert found[:2] == ("0.0950 ± 0.0041", "0.1050 ± 0.0041")
    assert found[3:] == ("−0.0050 (0.0018)", "+0.0050 ± 0.0045", "**yes**")
    assert rows["with a virtual node, narrower"][3::2] == ("−0.0010 (0.0018)", "no")
    assert [row[-1] for row in table.rows].count("**yes**") == 1
    result.facts["populations"][names["without walks"]]["broken"] = [False, True, False, False]
    made_of = ingredients({FOLDER: result})
    assert made_of is not None
    table, _ = made_of
    assert [row[-1] for row in table.rows if row[0] == "without random walks"] == [
        "no: a run broke"
    ]
    page = best_page({FOLDER: result})
    assert "- Better: none.\n- Worse: with dropout of 0.05.\n" in page
    assert "If none of the 17 changes had an effect, the rule would still take about 3:" in page
    assert "**yes**" in page and "not made yet" not in page and "Not run yet" not in page


def test_the_page_names_the_whole_recipe() -> None:
    page = best_page({})
    for name in (*BEST.encodings, *BEST.arguments, *BEST.settings):
        assert f"`{name}`" in page
    assert "not made yet" in page and "Not run yet: `pna reproduce zinc-ingredients`" in page
