import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pna.paper.claims import HOLDS, NOT_RUN, difference
from pna.paper.experiment import Variant
from pna.paper.recipes import RECIPES
from pna.paper.registry import EXPERIMENTS
from pna.paper.results import FACTS
from pna.paper.scores import ScoredPopulation
from pna.report.drawings import drawings
from pna.report.read import ExperimentResult
from pna.report.results import about, claims, tables, verdicts
from tests.report.made import Errors, make, steadily


def test_the_table_stands_beside_the_paper(tmp_path: Path) -> None:
    errors, above = tables(ExperimentResult.read(make(tmp_path, "multitask", members=7)))
    assert errors.heads[:4] == ("model", "members", "average of logs", "log of the mean")
    assert errors.heads[-1] == "spectral radius"
    pna = errors.rows[:4]
    assert [row[:2] for row in pna] == [
        ("PNA", "best 5 of 7"), ("", "all 7"), ("", "paper"), ("", "difference")
    ]  # fmt: skip
    # The average of tasks 0.1 apart is 0.25 above the first; of five members 0.01 apart, 0.02;
    # its interval is 2.776 · 0.0158 / √5.
    assert [row[2] for row in pna] == ["−2.23 ± 0.02", "−2.22 ± 0.02", "−3.13", "+0.90"]
    assert errors.rows[-2:][0][:3] == ("predicting the mean", "here", "−1.50")
    assert errors.rows[-1][:3] == ("", "paper", "−1.38")
    assert errors.strong >= {(0, 2), (0, 3)} and errors.ours == {0, 1, 2, 3}
    # Above the baseline: −2.23 + 1.5, and −3.13 + 1.38.
    assert [row[2] for row in above.rows[:4]] == ["−0.73 ± 0.02", "−0.72 ± 0.02", "−1.75", "+1.02"]


def test_few_members_have_one_line(tmp_path: Path) -> None:
    (errors,) = tables(ExperimentResult.read(make(tmp_path, "moments", members=2, quick=True)))
    assert [row[:2] for row in errors.rows[:2]] == [("1 moment", "all 2"), ("2 moments", "all 2")]


def test_tests_of_an_experiment_are_columns(tmp_path: Path) -> None:
    average, overall = tables(ExperimentResult.read(make(tmp_path, "extrapolation")))
    assert average.heads[2:5] == ("20–24", "25–29", "30–34")
    assert average.rows[0][2:4] == ("−0.73 ± 0.02", "−0.63 ± 0.02")
    assert average.rows[2][:3] == ("", "paper", "−1.83")
    assert "paper" not in {row[1] for row in overall.rows}  # the figure has one statistic
    assert average.rows[-1][0] != "predicting the mean"  # which is 0 of a ratio


def test_groups_are_compared(tmp_path: Path) -> None:
    def standard_is_worse(variant: Variant, split: int, members: int) -> Errors:
        return steadily(variant, split, members) + 0.3 * (variant.group == "standard")

    result = ExperimentResult.read(make(tmp_path, "architectures", errors=standard_is_worse))
    groups, without_gru, without_set2set, *_, errors, _ = tables(result)
    assert [row[:3] for row in groups.rows[:3]] == [
        ("PNA", "recurrent", "−2.23 ± 0.02"),
        ("", "standard", "−1.93 ± 0.02"),
        ("", "difference", "−0.30 ± 0.02"),
    ]
    assert without_gru.rows[2][:3] == ("", "difference", "+0.00 ± 0.02")
    assert without_set2set.title.startswith("Recurrent minus with a mean for Set2Set")
    names = [{row[0] for row in table.rows} for table in (groups, without_gru)]
    assert names[0] - names[1] == {"MPNN (mean, max, min)"}  # of which no part was left out
    assert "PNA, recurrent" in {row[0] for row in errors.rows}


def test_groups_that_were_not_run_are_left_out(tmp_path: Path) -> None:
    result = ExperimentResult.read(make(tmp_path, "architectures"))
    names = [name for name in result.scores.populations if result.group(name) in ("", "no-gru")]
    some = {name: result.scores.populations[name] for name in names}
    groups, *_ = tables(replace(result, scores=replace(result.scores, populations=some)))
    assert {row[1] for row in groups.rows} == {"recurrent", "without the GRU", "difference"}


def test_tasks_learned_alone_count_as_many_as_each_task_has(tmp_path: Path) -> None:
    groups, _, errors, _ = tables(ExperimentResult.read(make(tmp_path, "single-task")))
    alone = [row for row in errors.rows if row[0] == "PNA, alone"]
    assert alone[0][1] == "all 4"
    assert groups.rows[1][1] == "alone"


def test_parameters_stand_beside_the_papers(tmp_path: Path) -> None:
    table, _ = tables(ExperimentResult.read(make(tmp_path, "parameters")))
    rows = {row[0]: row[1:3] for row in table.rows}
    assert rows["PNA, 16 features"] == ("8,510", "8,350")
    assert rows["MPNN (max), 20 features"] == ("8,550", "11,186")
    assert rows["GCN, 16 features"] == ("8,510", "–")


def test_members_that_broke_are_left_out(tmp_path: Path) -> None:
    def some_break(variant: Variant, split: int, members: int) -> Errors:
        errors = steadily(variant, split, members)
        if variant.row == "gin":
            errors[:] = np.inf
        elif variant.row == "gcn":
            errors[-1] = np.inf
        return errors

    result = ExperimentResult.read(make(tmp_path, "multitask", members=7, errors=some_break))
    errors = tables(result)[0]
    rows = {row[0]: row for row in errors.rows if row[0]}
    assert rows["GIN"][1:4] == ("all 0", "–", "–")
    assert result.names[-1] == "gin"
    after_gcn = errors.rows[errors.rows.index(rows["GCN"]) + 1]
    assert after_gcn[1] == "all 6"
    assert "8 members broke" in about(result)["members"]


def test_a_quick_run_does_not_boast_of_the_whole_recipe(tmp_path: Path) -> None:
    facts = about(ExperimentResult.read(make(tmp_path, "multitask", quick=True)))
    assert facts["training"] == "tuned, shortened: inputs drawn once, few epochs"


def test_what_was_run(tmp_path: Path) -> None:
    facts = about(ExperimentResult.read(make(tmp_path, "multitask")))
    assert facts["training"] == f"tuned: {RECIPES['tuned'].what}"
    assert facts["members"] == "6 in each of 7 populations"
    assert facts["epochs"] == "67 of at most 75"
    # 7 populations, 90 s each
    trained = "10 min of training in total, 7 populations at a time, 3 min of wall-clock time"
    assert facts["time"] == trained
    assert (facts["hardware"], facts["commit"]) == ("a card", "abc")
    assert facts["command"] == facts["hash of the scores"] == "not recorded"
    assert facts["numbers of the paper"].startswith("4 from a figure in the authors' repository")


def test_a_recorded_command_and_hash_are_shown(tmp_path: Path) -> None:
    path = make(tmp_path, "multitask") / FACTS
    held = json.loads(path.read_text())
    scores = ExperimentResult.read(tmp_path).scores
    held["populations"]["gcn"]["environment"]["command"] = "pna reproduce multitask"
    held["populations"]["gcn"]["scores"] = scores.digest("gcn")
    path.write_text(json.dumps(held))
    facts = about(ExperimentResult.read(tmp_path))
    assert facts["command"] == "not recorded, pna reproduce multitask"
    assert facts["hash of the scores"] == "recorded for 1 of 7 populations, in facts.json"


def test_where_runs_were_resumed(tmp_path: Path) -> None:
    path = make(tmp_path, "multitask") / FACTS
    held = json.loads(path.read_text())
    again = {"after_epoch": 9, "gpu": None, "cpu": "a chip", "torch": "2.12.0", "commit": "abd"}
    held["populations"]["gcn"]["environment"]["resumed"] = [again]
    path.write_text(json.dumps(held))
    facts = about(ExperimentResult.read(tmp_path))
    assert (facts["hardware"], facts["torch"]) == ("a card, a chip", "2.11.0, 2.12.0")
    assert facts["commit"] == "abc, abd"


def test_claims_have_verdicts_and_numbers(tmp_path: Path) -> None:
    (table,) = claims(ExperimentResult.read(make(tmp_path, "multitask")))
    rows = table.rows
    assert rows[0][0] == "PNA has the lowest error on the average of the tasks"
    assert rows[0][1] == "holds" and "−0.50" in rows[0][2]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_are_about_rows_that_there_are(name: str, tmp_path: Path) -> None:
    """Where all rows were run, no verdict waits for one."""
    for table in claims(ExperimentResult.read(make(tmp_path, name, members=2))):
        for _, verdict, because in table.rows:
            assert verdict != NOT_RUN and "were run" not in because


def test_losses_stand_under_their_own_rates(tmp_path: Path) -> None:
    """Also where all members of a rate broke, of which nothing is left."""
    folder = make(tmp_path, "tuning", members=4)
    result = ExperimentResult.read(folder)
    first, second, *_ = result.names
    populations = dict(result.scores.populations)
    for name, place in ((first, 2), (second, 0)):
        held = populations[name]
        left = [k for k in range(len(held.members)) if k != place]
        errors = {split: table[left] for split, table in held.errors.items()}
        populations[name] = ScoredPopulation(tuple(held.members[k] for k in left), errors)
    (whole,) = (t for t in tables(result) if "learning rate" in t.title)
    short = replace(result, scores=replace(result.scores, populations=populations))
    (table,) = (t for t in tables(short) if "learning rate" in t.title)
    assert table.heads == whole.heads
    rows = {row[0]: list(row[1:]) for row in whole.rows}
    for name, gone in ((first, 2), (second, 0)):
        expected = rows[result.label(name)]
        expected[gone] = "–"
        (row,) = (row for row in table.rows if row[0] == result.label(name))
        assert row[1:] == tuple(expected)
    assert drawings(short)


def test_a_verdict_says_if_the_selection_decides_it(tmp_path: Path) -> None:
    """Five of six runs are alike, and the worst in validation is far away: a resample may take it
    twice or not at all, so the bootstrap is wider."""

    def far(variant: Variant, split: int, members: int) -> Errors:
        errors = steadily(variant, split, members)
        errors[-1] += 5.0
        return errors

    usual, other = (
        dict(verdicts(ExperimentResult.read(make(tmp_path / name, "parameters", errors=errors))))
        for name, errors in (("usual", steadily), ("far", far))
    )
    claim = "PNA with 16 features is ahead of every other model with 20"
    assert usual[claim].outcome == other[claim].outcome == HOLDS
    assert "bootstrap" not in usual[claim].because
    assert other[claim].because.endswith(
        "; with a bootstrap of the selection of runs: not decidable"
    )


def test_overfitting_is_the_gap_after_the_last_epoch(tmp_path: Path) -> None:
    """As made, validation losses are twice the training losses: log10 of 2 is 0.30."""
    folder = make(tmp_path, "single-task")
    result = ExperimentResult.read(folder)
    table = tables(result)[-1]
    assert table.title.startswith("Overfitting")
    assert table.heads == ("model", "together", "alone")
    assert ("PNA", "+0.30", "+0.30") in table.rows and len(table.rows) == 7
    lines = (folder / "curves.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("pna alone,")]
    (folder / "curves.csv").write_text("\n".join([*kept, "pna alone,75,24,0.5,0.05"]))
    table = tables(ExperimentResult.read(folder))[-1]
    assert ("PNA", "+0.30", "−1.00") in table.rows
    (folder / "curves.csv").unlink()
    assert not tables(ExperimentResult.read(folder))[-1].title.startswith("Overfitting")


def test_gains_of_every_task_are_of_all_members(tmp_path: Path) -> None:
    """Learned alone, errors are 10 times as large; four members of a task, six together."""

    def alone_is_worse(variant: Variant, split: int, members: int) -> Errors:
        return steadily(variant, split, members) + (variant.group == "alone")

    result = ExperimentResult.read(make(tmp_path, "single-task", errors=alone_is_worse))
    _, gains, *_ = tables(result)
    assert gains.title.startswith("Gain of together over alone, all members")
    assert gains.heads[:3] == ("model", "average of logs", "SSSP") and len(gains.heads) == 8
    (row,) = [row for row in gains.rows if row[0] == "PNA"]
    sssp = result.scores.of_task("pna", "sssp", "test", None)
    alone = result.scores.of_task("pna alone", "sssp", "test", None)
    assert (len(sssp.values), len(alone.values)) == (6, 4)
    assert row[2] == str(difference(alone, sssp)) and row[2].startswith("+1.")
